"""A real browser for tests: the Chromium of the machine, one a session (with xdist a worker).

Playwright's driver and its event loop have a thread of their own, because the loops of other tests could not
run in the thread of a driver. A test that takes `chromium` is left out on a machine without one, which a
line at the end of the run says loudly; in CI it fails instead.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from tools.bootstrap import NO_BROWSER, find_browser

if TYPE_CHECKING:
    from playwright.async_api import Browser, Playwright

T = TypeVar("T")

BROWSER = find_browser()
TESTS = Path(__file__).parent
IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}
FONTS = TESTS / "browser" / "fonts.conf"
HAS_FONTS = any(Path("/usr/share/fonts").rglob("Inter-Regular.*"))
NO_FONTS = "the font Inter is not in /usr/share/fonts. On Debian: apt install fonts-inter fonts-dejavu-core"
OPTIONS = (
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),
    *("--force-color-profile=srgb", "--font-render-hinting=none", "--disable-lcd-text", "--hide-scrollbars"),
    "--disable-dev-shm-usage",
)


class Chromium:
    """A browser and the loop that drives it.

    Attributes:
        browser: Playwright's browser. Use it in coroutines that `run` runs.
    """

    browser: Browser

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chromium", daemon=True)
        self._thread.start()
        self._driver: Playwright = self.run(self._start())

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine, which runs in the loop of the browser."""
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:
            running.cancel()
            raise

    async def _start(self) -> Playwright:
        from playwright.async_api import async_playwright

        driver = await async_playwright().start()
        is_root = hasattr(os, "geteuid") and os.geteuid() == 0
        options = [*OPTIONS, *(["--no-sandbox"] if is_root else [])]
        settings: dict[str, str | float | bool] = {**os.environ, "FONTCONFIG_FILE": str(FONTS)}
        self.browser = await driver.chromium.launch(executable_path=BROWSER, args=options, env=settings)
        return driver

    def close(self) -> None:
        """End the browser and the loop."""
        self.run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _stop(self) -> None:
        await self.browser.close()
        await self._driver.stop()


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser of the session."""
    assert BROWSER is not None, NO_BROWSER
    found = Chromium()
    yield found
    found.close()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--new-pictures", action="store_true", help="renew the pictures of the documents")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the tests that need a browser where there is none; in CI they fail."""
    if IN_CI:
        return
    lacks = [
        name for name, there in {"chromium": BROWSER is not None, "pictures": HAS_FONTS}.items() if not there
    ]
    unselected = [item for item in items if not set(lacks).isdisjoint(getattr(item, "fixturenames", ()))]
    if unselected:
        items[:] = [item for item in items if item not in set(unselected)]
        config.hook.pytest_deselected(items=unselected)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Say once that tests were left out; with xdist other processes collect them, and this one reports."""
    asked = [Path(word.partition("::")[0]).resolve() for word in config.args]
    folders = [TESTS / "browser", TESTS / "clients"]
    is_asked = any(
        path.is_relative_to(folder) or folder.is_relative_to(path) for path in asked for folder in folders
    )
    is_left_out = BROWSER is None or not HAS_FONTS
    if is_left_out and is_asked and not (config.getoption("--quick") or config.getoption("--serverless")):
        told = (
            f"the tests in a browser: {NO_BROWSER}"
            if BROWSER is None
            else f"the tests of pictures: {NO_FONTS}"
        )
        terminalreporter.write_line(f"NOT RUN, {told}", red=True, bold=True)
