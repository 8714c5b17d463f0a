"""Every view on every store: what it shows, for whom, how narrow, and that its link restores it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Tabs, loaded, walk
from tests.browser.places import DESK, PLACES
from tests.browser_fixtures import TESTS, Chromium

if TYPE_CHECKING:
    from playwright.async_api import Page

AXE = TESTS.parent / "inspector" / "node_modules" / "axe-core" / "axe.min.js"
SETTLES_S = 0.3
"""A view may wait so long before it asks for what a filter finds."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
RUN_AXE = """([rules, only]) => axe.run(document, { runOnly: only ?? rules, resultTypes: ["violations"] })
  .then(({ violations }) => violations.map(({ id, nodes }) => id + ": " + nodes.slice(0, 3)
    .map(({ html, failureSummary }) => html.slice(0, 160) + " " + failureSummary).join(" | ")))"""
TOO_WIDE = """() => [...document.querySelectorAll("*")]
  .filter((each) => each.getBoundingClientRect().right > innerWidth + 1 && each.checkVisibility())
  .filter((each) => {
    for (let up = each.parentElement; up; up = up.parentElement)
      if (/auto|scroll|hidden|clip/.test(getComputedStyle(up).overflowX)) return false;
    return true;
  })
  .map((each) => each.outerHTML.slice(0, 120))"""


@pytest.mark.parametrize("store", PLACES)
async def test_each_view_shows_what_is_stored(chromium: Chromium, tabs: Tabs, store: str) -> None:
    missing: list[str] = []
    async for page, place, text in walk(await tabs.open(store), PLACES[store]):
        shown = await page.get_by_role("main").inner_text()
        failed = await page.get_by_role("alert").all_inner_texts()
        if text not in shown or any(failed) or not await page.get_by_role("heading", level=1).count():
            missing.append(f"{place}: {text!r} is missing or {failed} is shown, in: {shown[:300]}")

    assert missing == [], "\n".join(missing)


@pytest.mark.parametrize("store", ["desk", "hostile"])
async def test_each_view_is_accessible_in_light_and_dark(chromium: Chromium, tabs: Tabs, store: str) -> None:
    axe = AXE.read_text(encoding="utf-8")
    found: set[str] = set()
    page = await tabs.open(store, bypass_csp=True)
    await page.evaluate(axe)
    async for _, place, _ in walk(page, PLACES[store]):
        await page.emulate_media(color_scheme="light")
        told: list[str] = await page.evaluate(RUN_AXE, [RULES, None])
        await page.emulate_media(color_scheme="dark")
        told += await page.evaluate(RUN_AXE, [RULES, {"type": "rule", "values": ["color-contrast"]}])
        found |= {f"{place}: {each}" for each in told}

    assert not found, "\n".join(sorted(found))


@pytest.mark.parametrize("store", ["desk", "hostile"])
async def test_each_view_fits_into_360_pixels(chromium: Chromium, tabs: Tabs, store: str) -> None:
    wide: dict[str, Any] = {}
    async for page, place, _ in walk(await tabs.open(store, width=360, height=740), PLACES[store]):
        if found := await page.evaluate(TOO_WIDE):
            wide[place] = found
        if await page.evaluate("() => document.scrollingElement.scrollWidth > innerWidth"):
            wide[place] = [*found, "the page scrolls sideways"]

    assert wide == {}


async def test_a_link_restores_each_place(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    shown: dict[str, str] = {}
    async for _, place, _ in walk(page, DESK):
        await asyncio.sleep(SETTLES_S)
        await loaded(page)
        shown[place] = await text_of(page)

    for place, text in shown.items():
        fresh = await tabs.again(page, place)
        assert await text_of(fresh) == text, place
        await fresh.close()


async def test_the_back_button_leads_through_the_places_that_were_opened(
    chromium: Chromium, tabs: Tabs
) -> None:
    page = await tabs.open("desk")
    for name in ("Find", "Store"):
        await page.get_by_role("navigation", name="The store").get_by_role("link", name=name).click()
        await loaded(page)

    await page.go_back()
    await expect(page.get_by_role("link", name="Find")).to_have_attribute("aria-current", "page")
    await page.go_back()
    await expect(page.get_by_role("link", name="Inbox", exact=True)).to_have_attribute("aria-current", "page")


async def text_of(page: Page) -> str:
    """Return what the view shows."""
    return await page.get_by_role("main").inner_text()
