"""The pages of four stores in a real browser, served by a process, and a loop for tests that are coroutines.

Each test has a context of its own, without anything that another one left. At its end it fails if the
console has an error, if the policy of the page was broken, or if stored text ran as a script.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import httpx
import pytest

import keepstate
from keepstate.engine.space.keepstate import Keepstate
from tests.browser import desk, hostile
from tests.browser.conversations import generate
from tests.browser.pictures import Pictures
from tests.browser_fixtures import Chromium
from tests.processes import Program

if TYPE_CHECKING:
    from playwright.async_api import BrowserContext, ConsoleMessage, Page, Request, Response

STORES = ("desk", "errands", "conversations", "hostile", "workshop", "demo")
"""`errands` is a desk that a test changes; in `workshop` each test has a tenant of its own."""
CONVERSATIONS = 40
WAIT_MS = 60_000
FRAME = "() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))"
NARROW = {"width": 360, "height": 740}
TOO_WIDE = """() => [...document.querySelectorAll("*")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && each.checkVisibility())
  .filter((each) => {
    for (let up = each.parentElement; up; up = up.parentElement)
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(up).overflowX)) return false;
    return true;
  })
  .map((each) => each.outerHTML.slice(0, 120))
  .concat(document.scrollingElement.scrollWidth > innerWidth ? ["the page scrolls sideways"] : [])"""
QUIET_S = 0.06
STATUS = re.compile(r"status of (\d+)")


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function in the loop of the browser."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    wanted = {name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters}
    chromium: Chromium = pyfuncitem.funcargs["chromium"]
    chromium.run(test(**wanted))
    return True


@dataclass
class Stores:
    """The process that serves the stores.

    Attributes:
        addresses: The address of the server of each store.
        urls: The URL of each store.
    """

    process: Program
    addresses: dict[str, str] = field(default_factory=dict)
    urls: dict[str, str] = field(default_factory=dict)

    def ask(self, store: str, **asked: Any) -> Any:
        """Send a line to the process, and return what it answers."""
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(json.dumps({"store": store, **asked}) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def link(self, store: str, **key: Any) -> str:
        """Return a link that lets one browser in, once."""
        return self.addresses[store] + str(self.ask(store, **key))

    @asynccontextmanager
    async def client(self, store: str, name: str = "ann", **key: Any) -> AsyncGenerator[httpx.AsyncClient]:
        """Yield a client that acts for a browser: with a cookie, as the page has it."""
        base = self.addresses[store]
        async with httpx.AsyncClient(base_url=base, timeout=30) as client:
            path, _, secret = str(self.ask(store, name=name, **key)).partition("#")
            (await client.post(path, json={"secret": secret})).raise_for_status()
            yield client


@pytest.fixture(scope="session", autouse=True)
def patience() -> None:
    """Let expectations wait as long as everything else on a crowded machine."""
    from playwright.async_api import expect

    expect.set_options(timeout=WAIT_MS)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stores]:
    """The stores, served by one process."""
    with serve_stores(tmp_path_factory.mktemp("stores"), STORES) as found:
        yield found


@contextmanager
def serve_stores(folder: Path, names: Sequence[str], runs: Sequence[Any] = ()) -> Iterator[Stores]:
    """Yield stores in a folder, served by one process; `conversations` holds runs, or generated ones."""
    folder.mkdir(exist_ok=True)
    told = json.dumps(list(runs) or generate(CONVERSATIONS))
    (folder / "conversations.db.json").write_text(told, encoding="utf-8")
    words = ("-m", "tests.processes.serve_inspector", folder, *names)
    modules = ("langgraph.graph", "uvicorn", "keepstate.server")
    found = Stores(Program(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, modules=modules))
    assert found.process.stdin is not None and found.process.stdout is not None
    served = json.loads(found.process.stdout.readline())
    found.addresses = {name: each["url"] for name, each in served.items()}
    found.urls = {name: each["store"] for name, each in served.items()}
    yield found
    found.process.stdin.close()
    found.process.wait(60)
    found.process.stdout.close()


@dataclass
class Waited:
    """The requests of a page that have no answer yet, without its streams, and when the last one changed."""

    open: set[Request] = field(default_factory=set)
    since_s: float = field(default_factory=time.monotonic)
    last: str = ""

    def begin(self, request: Request) -> None:
        """Note a request."""
        if not is_stream(request.url):
            self.open.add(request)
            self.last, self.since_s = request.url, time.monotonic()

    def end(self, request: Request) -> None:
        """Note that a request has ended."""
        if not is_stream(request.url):
            self.open.discard(request)
            self.last, self.since_s = request.url, time.monotonic()


@dataclass
class Tabs:
    """Opens pages, and listens to what goes wrong in them.

    Attributes:
        allowed: Statuses of answers, and texts, that a test provokes: the console has them as errors.
    """

    chromium: Chromium
    stores: Stores
    allowed: set[int | str] = field(default_factory=set)
    wrong: list[str] = field(default_factory=list)
    contexts: list[BrowserContext] = field(default_factory=list)
    sessions: dict[str, list[Any]] = field(default_factory=dict)

    async def open(
        self,
        store: str = "desk",
        place: str = "",
        *,
        width: int = 1280,
        height: int = 800,
        scheme: Any = "light",
        key: dict[str, Any] | None = None,
        bypass_csp: bool = False,
        waits: bool = True,
    ) -> Page:
        """Return a page of a store, at a place: what follows `#` in its address."""
        context = await self.chromium.browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            bypass_csp=bypass_csp,
            base_url=self.stores.addresses[store],
            permissions=["clipboard-read", "clipboard-write"],
            timezone_id="UTC",
            locale="en-GB",
        )
        self.contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        await self._let_in(context, store, key or {})
        page = await context.new_page()
        if store in ("desk", "errands"):
            await page.clock.set_fixed_time(desk.NOW)
        self.listen(page)
        await page.goto(f"/#{place}")
        if waits:
            await loaded(page)
        return page

    async def again(self, page: Page, place: str) -> Page:
        """Return a second tab of the same browser."""
        second = await page.context.new_page()
        self.listen(second)
        await second.goto(f"/#{place}")
        await loaded(second)
        return second

    async def _let_in(self, context: BrowserContext, store: str, key: dict[str, Any]) -> None:
        """Give a browser the cookie that a link gives, or the secret of a stored key."""
        told = str(self.stores.ask(store, **key))
        path, secret = ("/open", told) if "stored" in key else told.split("#")
        answer = await context.request.post(path, data={"secret": secret})
        assert answer.status == 204, await answer.text()

    def listen(self, page: Page) -> None:
        """Note everything that no page may do."""
        waited = page.keepstate_waited = Waited()  # type: ignore[attr-defined]
        page.on("request", waited.begin)
        page.on("requestfinished", waited.end)
        page.on("requestfailed", waited.end)
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.wrong.append(f"uncaught: {error}"))
        page.on("response", self._on_response)
        page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))

    def _on_console(self, message: ConsoleMessage) -> None:
        if message.type not in ("error", "warning"):
            return
        status = STATUS.search(message.text)
        is_allowed = any(str(each) in message.text for each in self.allowed if isinstance(each, str))
        if not (is_allowed or (status and int(status[1]) in self.allowed)):
            self.wrong.append(f"{message.type}: {message.text} at {message.location}")

    def _on_response(self, response: Response) -> None:
        if response.status >= 500 and response.status not in self.allowed:
            self.wrong.append(f"{response.status}: {response.url}")

    async def close(self) -> None:
        """Close the pages; fails if something went wrong in one of them."""
        for context in self.contexts:
            for page in context.pages:
                if await page.evaluate(f"() => window.{hostile.MARK} ?? ({{}}).polluted"):
                    self.wrong.append("stored text ran as a script")
            await context.close()
        assert self.wrong == [], "\n".join(self.wrong)


@pytest.fixture
def tabs(chromium: Chromium, stores: Stores) -> Iterator[Tabs]:
    """Pages of a test; closed at its end, which fails it if something went wrong in them."""
    found = Tabs(chromium, stores)
    yield found
    chromium.run(found.close())


def is_stream(url: str) -> bool:
    """Return whether an address is that of a stream, which does not end."""
    return urlsplit(url).path.endswith(("/follow", "/watch"))


async def loaded(page: Page) -> None:
    """Wait until the page is shown, and waits for no answer."""
    main = page.get_by_role("main")
    await main.wait_for()
    waited: Waited = page.keepstate_waited  # type: ignore[attr-defined]
    is_busy = True
    try:
        async with asyncio.timeout(60):
            while True:
                await page.evaluate(FRAME)
                is_busy = await main.get_attribute("aria-busy") == "true"
                if not is_busy and not waited.open and time.monotonic() - waited.since_s > QUIET_S:
                    return
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(
            f"{page.url}, {'busy' if is_busy else 'quiet'}, waits for {[each.url for each in waited.open]}; "
            f"{waited.last} was the last that it asked for"
        ) from None


async def go(page: Page, place: str) -> None:
    """Go to a place as a link does, and wait until it is shown."""
    await page.evaluate("(place) => { location.hash = place; }", place)
    await loaded(page)


async def walk(page: Page, places: Mapping[str, str]) -> AsyncGenerator[tuple[Page, str, str]]:
    """Yield a page at each of the places, with the text that it must show there."""
    for place, text in places.items():
        await go(page, place)
        yield page, place, text


async def faults_of(page: Page, text: str) -> list[str]:
    """Return what is wrong with a view: its text, an error, its heading, and its width on a narrow screen."""
    shown = await page.get_by_role("main").inner_text()
    found = [f"{text!r} is missing in {shown[:300]!r}"] if text not in shown else []
    found += [f"an error: {each}" for each in await page.get_by_role("alert").all_inner_texts() if each]
    if not await page.get_by_role("heading", level=1).count():
        found.append("it has no heading")
    size = page.viewport_size
    assert size is not None
    await page.set_viewport_size(NARROW)  # type: ignore[arg-type]
    await page.evaluate(FRAME)
    found += [f"too wide: {each}" for each in await page.evaluate(TOO_WIDE)]
    await page.set_viewport_size(size)
    return found


@dataclass
class Workshop:
    """A tenant of a test, without data at first.

    Attributes:
        ks: A handle on it, of an agent.
        tabs: The pages of the test.
        tenant: The id of the tenant.
    """

    ks: Keepstate
    tabs: Tabs
    tenant: str

    async def open(self, place: str = "", *, name: str = "ann", **options: Any) -> Page:
        """Return a page of the tenant, in which a person acts."""
        key = {"tenant": self.tenant, "name": name}
        return await self.tabs.open("workshop", place, key=key, **options)


@pytest.fixture
def workshop(chromium: Chromium, tabs: Tabs, request: pytest.FixtureRequest) -> Iterator[Workshop]:
    """A tenant of the test."""

    async def opened() -> Keepstate:
        return await keepstate.open(tabs.stores.urls["workshop"], tenant=request.node.name, author="agent")

    ks = chromium.run(opened())
    yield Workshop(ks, tabs, request.node.name)
    chromium.run(ks.close())


@pytest.fixture
def pictures(
    chromium: Chromium, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Pictures]:
    """The pictures of the documents."""
    renews: bool = request.config.getoption("--new-pictures")
    found = Pictures(chromium.browser, tmp_path_factory.mktemp("pictures"), renews)
    yield found
    chromium.run(found.close())


@dataclass
class Demo:
    """The demo on its store, a process that starts others.

    Attributes:
        modules: The number of modules that it indexes.
    """

    url: str
    modules: int = 40
    program: Program | None = None

    def start(self) -> Program:
        """Start it, once, and return its process."""
        if self.program is None:
            words = ("--most", self.modules, "--workers", 2, "--keep", "--url", self.url)
            silent = subprocess.DEVNULL
            self.program = Program("-m", "examples.demo", *words, stdout=silent, stderr=silent)
        return self.program


@pytest.fixture(scope="session")
def demo(stores: Stores) -> Iterator[Demo]:
    """The demo, which has not begun yet."""
    found = Demo(stores.urls["demo"])
    yield found
    if found.program is not None:
        found.program.wait(60)
