"""The page of the server in a real browser: 100,000 moments, 10,000 spaces, and a state of 90,000 messages.

Times are those that the browser measures: from the navigation, or from the step that a person takes, until
the page shows what was asked for. Without a Chromium there are no rows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from math import ceil
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode

from bench.harness import Figure, Table
from bench.lines import PLANS, build
from keepstate import sync
from tools.bootstrap import NO_BROWSER, find_browser

if TYPE_CHECKING:
    from playwright.sync_api import Page

MOMENTS, SPACES, MESSAGES = 100_000, 10_000, 90_000
LONG, BIG = "long", "big"
ROWS: Final = 12
"""How many rows the group adds."""
_PAINT_MS, _JUMP_MS, _FRAME_MS, _HEAP_MB = 1_000, 300, 33, 60
_SERVE: Final = "from keepstate.cli.app import main; main()"

_UNTIL: Final = """(text) => new Promise((resolve) => {
  const look = () => {
    const main = document.querySelector("main");
    if (main && main.innerText.includes(text)) requestAnimationFrame(() => resolve(performance.now()));
    else setTimeout(look, 4);
  };
  look();
})"""
_JUMP: Final = """([place, text]) => { const begun = performance.now(); location.hash = place;
  return (UNTIL)(text).then((ended) => ended - begun); }""".replace("UNTIL", _UNTIL)
_FRAMES: Final = """() => { const frames = window.frames_ = []; let last;
  const note = (now) => {
    if (last) frames.push(now - last); last = now; window.noting_ = requestAnimationFrame(note); };
  requestAnimationFrame(note); }"""
_PAINT: Final = "() => performance.getEntriesByName('first-contentful-paint')[0].startTime"


def inspector(table: Table) -> None:
    """Add the rows of each length."""
    browser = find_browser()
    if browser is None:
        table.show(f"no rows of the inspector: {NO_BROWSER}")
        return
    moments, spaces, messages = (table.scaled(each, least=each // 50) for each in (MOMENTS, SPACES, MESSAGES))
    with TemporaryDirectory() as folder:
        for name in ("moments", "spaces", "messages"):
            url = f"sqlite:///{folder}/{name}.db?durability=normal"
            with sync.open(url) as ks:
                if name == "moments":
                    build(ks, moments)
                elif name == "spaces":
                    _fill_spaces(ks, spaces)
                else:
                    _fill_messages(ks, messages)
            with _shown(url, browser) as page:
                if name == "moments":
                    _look_at_moments(table, page, moments)
                elif name == "spaces":
                    _look_at_spaces(table, page, spaces)
                else:
                    _look_at_messages(table, page, messages)


def _fill_spaces(ks: sync.Keepstate, count: int) -> None:
    for number in range(count):
        ks.space(f"run/{number:05}").documents.put("plan", {"step": number})


def _fill_messages(ks: sync.Keepstate, count: int) -> None:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": f"message {number}"} for number in range(count)]
    ks.space(BIG).history.commit({"messages": messages, "step": count})


@contextmanager
def _shown(url: str, browser: str) -> Generator[Page]:
    """Yield a page of a server of a store, in a browser that it let in."""
    from playwright.sync_api import sync_playwright

    words = (sys.executable, "-c", _SERVE, "serve", "--open", "--port", "0", "--json", "--url", url)
    options = ["--enable-precise-memory-info", "--disable-dev-shm-usage"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        options.append("--no-sandbox")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as serving, sync_playwright() as driver:
        assert serving.stdout is not None
        told = json.loads(serving.stdout.readline())
        opened = driver.chromium.launch(executable_path=browser, args=options)
        context = opened.new_context(base_url=told["url"], viewport={"width": 1280, "height": 800})
        page = context.new_page()
        page.goto(told["open"])
        page.get_by_role("main").wait_for()
        try:
            yield page
        finally:
            opened.close()
            serving.terminate()


def _opened(page: Page, text: str, times: int, **place: Any) -> tuple[list[float], list[float]]:
    """Return the times from a navigation to the first paint, and until the view shows a text."""
    paints, shown = [], []
    for _ in range(times):
        page.goto("about:blank")
        page.goto(f"/#{urlencode(place)}", wait_until="commit")
        page.wait_for_load_state("domcontentloaded")
        shown.append(float(page.evaluate(_UNTIL, text)))
        paints.append(float(page.evaluate(_PAINT)))
    return paints, shown


def _jump(page: Page, text: str, **place: Any) -> float:
    """Return the time from a change of the place until the view shows a text."""
    return float(page.evaluate(_JUMP, [urlencode(place), text]))


def _heap_mb(page: Page) -> float:
    """Return the size of the page's heap after a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = float(session.send("Runtime.getHeapUsage")["usedSize"]) / 1e6
    session.detach()
    return used


def _look_at_moments(table: Table, page: Page, count: int) -> None:
    name = f"inspector, {count:,} moments"
    place = {"view": "timeline", "space": LONG}
    times = table.scaled(7, least=2)
    paints, shown = _opened(page, "1 difference", times, **place)
    table.limit(f"{name}: first paint", _PAINT_MS, "ms", paints)
    table.limit(f"{name}: a link, until state and changes are shown", _PAINT_MS, "ms", shown)
    jumps = [
        _jump(page, f"message {number}", **place, at=number)
        for number in _spread(count, table.scaled(20, least=3))
    ]
    table.limit(f"{name}: a jump", _JUMP_MS, "ms", jumps)
    frames = _drag(page)
    table.limit(
        f"{name}: frames while dragging, 95th percentile", _FRAME_MS, "ms", [_percentile(frames, 0.95)]
    )
    table.figure(
        Figure("inspector", "SQLite", "keepstate", "longest frame while dragging", count, max(frames), "ms")
    )
    table.limit(f"{name}: heap", _HEAP_MB, "MB", [_heap_mb(page)])


def _drag(page: Page) -> list[float]:
    """Return how long frames took while the slider was dragged over the whole line and back."""
    box = page.get_by_role("slider").first.bounding_box()
    assert box is not None
    left, width, height = box["x"] + 8, box["width"] - 16, box["y"] + box["height"] / 2
    page.mouse.move(left + width, height)
    page.mouse.down()
    page.evaluate(_FRAMES)
    for step in range(120):
        at = abs(1 - step / 60)
        page.mouse.move(left + width * at, height)
    page.mouse.up()
    frames: list[float] = page.evaluate(
        "() => { cancelAnimationFrame(window.noting_); return window.frames_; }"
    )
    assert len(frames) > 20, frames
    return frames


def _look_at_spaces(table: Table, page: Page, count: int) -> None:
    name = f"inspector, {count:,} spaces"
    paints, _ = _opened(page, "", table.scaled(7, least=2))
    table.limit(f"{name}: first paint", _PAINT_MS, "ms", paints)
    spaces = page.get_by_role("listbox", name="Spaces")
    spaces.get_by_role("option").first.wait_for()
    last = f"run/{count - 1:05}"
    times = [
        _searched(page, last if turn % 2 else f"run/{count // 2:05}")
        for turn in range(table.scaled(9, least=2))
    ]
    table.limit(f"{name}: found by its name", _JUMP_MS, "ms", times)
    table.limit(f"{name}: heap", _HEAP_MB, "MB", [_heap_mb(page)])


def _searched(page: Page, space: str) -> float:
    """Return the time from the last letter of a search until the space is shown."""
    page.get_by_role("searchbox").fill(space)
    return float(page.evaluate("""(text) => {
      const begun = performance.now(); return new Promise((resolve) => {
      const look = () => document.querySelector("[role=option]")?.innerText.replaceAll("\\n", "") === text
        ? resolve(performance.now() - begun) : setTimeout(look, 4);
      look(); }); }""", space))  # fmt: skip


def _look_at_messages(table: Table, page: Page, count: int) -> None:
    name = f"inspector, {count:,} messages"
    place = {"view": "conversation", "space": BIG}
    paints, shown = _opened(page, f"message {count - 1}", table.scaled(7, least=2), **place)
    table.limit(f"{name}: first paint", _PAINT_MS, "ms", paints)
    table.limit(f"{name}: until the last ones are shown", _PAINT_MS, "ms", shown)
    _, shown = _opened(page, "messages", table.scaled(7, least=2), view="timeline", space=BIG)
    table.limit(f"{name}: until the state is shown", _PAINT_MS, "ms", shown)
    table.limit(f"{name}: heap", _HEAP_MB, "MB", [_heap_mb(page)])


def _spread(count: int, times: int) -> list[int]:
    """Return numbers of moments, far from one another, at which a message was added."""
    numbers = (number * 7_919_317 % count for number in range(1, 2 * times + 20))
    return [number for number in numbers if number % (count // PLANS)][:times]


def _percentile(values: Sequence[float], share: float) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, ceil(len(ranked) * share) - 1)]
