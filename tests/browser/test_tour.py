"""The pictures of the tour: each is what the page shows now, in light and dark, and the tour shows each."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.browser import desk, threads
from tests.browser.conftest import Tabs, go, loaded
from tests.browser.pictures import FOLDER, MOST_BYTES, Pictures
from tests.browser.places import place
from tests.browser.six_tasks import ERRANDS, Person, row
from tests.browser_fixtures import TESTS, Chromium

if TYPE_CHECKING:
    from playwright.async_api import Page

ROOT = TESTS.parent
TOUR = ROOT / "docs" / "tutorial" / "inspector.md"
WIDE, NARROW = {"width": 1200, "height": 720}, {"width": 360, "height": 720}
TRIP = desk.TRIP
PLACES = {
    "inbox": place(view="inbox"),
    "conversation": place(view="conversation", space=f"session/{desk.CHAT}"),
    "timeline": place(view="timeline", space=TRIP, at=str(desk.PRICED_AT), path='["price","amount"]'),
    "task": place(view="tasks", space=desk.BOOKINGS, id="book/4", step="price"),
    "find": place(view="find"),
    "documents": place(view="documents", space="desk", id="opening hours"),
    "branches": place(view="branches", space=TRIP, at="by-plane"),
    "what-if": place(view="compare", space=TRIP, branch="main", with_="night-train").replace("with_", "with"),
    "thread": place(view="thread", space=threads.WAITING),
    "events": place(view="events", space="desk", stream="visits"),
    "store": place(view="store"),
}
"""The place that each picture shows."""
ON_PHONES = ("inbox", "timeline")


async def test_the_pictures_of_the_tour_show_the_page(
    chromium: Chromium, tabs: Tabs, pictures: Pictures
) -> None:
    page = await tabs.open("desk", **WIDE)
    for name, where in PLACES.items():
        await page.set_viewport_size({"width": WIDE["width"], "height": WIDE["height"]})
        await shown(page, where)
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            await pictures.take(page, f"{name}-{scheme}")
    await page.set_viewport_size({"width": NARROW["width"], "height": NARROW["height"]})
    for name in ON_PHONES:
        await shown(page, PLACES[name])
        await page.emulate_media(color_scheme="light", reduced_motion="reduce")
        await pictures.take(page, f"{name}-narrow")


def test_the_tour_shows_each_picture_and_they_are_small() -> None:
    names = {f"{name}-{scheme}" for name in PLACES for scheme in ("light", "dark")}
    names |= {f"{name}-narrow" for name in ON_PHONES}
    page = TOUR.read_text(encoding="utf-8")

    assert set(re.findall(r"inspector/([\w-]+)\.webp", page)) == names
    assert {each.stem for each in FOLDER.glob("*.webp")} == names
    assert sum(each.stat().st_size for each in FOLDER.glob("*")) <= MOST_BYTES


def test_the_first_page_shows_two_pictures() -> None:
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"docs/tutorial/inspector/[\w-]+\.webp", page)

    assert len({each.rpartition("-")[0] for each in shown}) == 2
    assert all((ROOT / each).exists() for each in shown)


async def shown(page: Page, where: str) -> None:
    """Show a place as if it were the first one that is opened, with the focus nowhere."""
    await go(page, "")
    await go(page, where)
    await page.evaluate("() => document.activeElement?.blur()")
    await page.mouse.move(0, 0)
    await page.wait_for_timeout(400)
    await loaded(page)


async def test_six_tasks_take_what_the_tour_says(chromium: Chromium, tabs: Tabs) -> None:
    rows: list[str] = []
    page, url = await tabs.open("errands", **WIDE), tabs.stores.urls["errands"]
    for errand in ERRANDS:
        told = [await command(words, url) for words in errand.commands if errand.tells]
        assert errand.tells in "".join(told), told
        await page.goto("about:blank")
        await page.goto("/")
        await loaded(page)
        person = Person(page)
        await errand.do(person)
        rows.append(row(errand, person))

    written = TOUR.read_text(encoding="utf-8")
    assert [each for each in rows if each not in written] == [], "\n".join(rows)


async def command(words: str, url: str) -> str:
    """Return what a command prints."""
    _, *rest = shlex.split(words)
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "keepstate", *rest, "--url", url),
        stdout=subprocess.PIPE,
        env={**os.environ, "COLUMNS": "200"},
    )
    told, _ = await started.communicate()
    assert started.returncode == 0, words
    return told.decode()
