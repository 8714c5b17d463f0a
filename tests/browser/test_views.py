"""Every view on every store: what it shows, for whom, how narrow, and that its link restores it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from playwright.async_api import expect

from tests.browser.conftest import Tabs, faults_of, go, loaded, walk
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


@pytest.mark.parametrize("store", PLACES)
async def test_each_view_shows_what_is_stored_and_fits_into_360_pixels(
    chromium: Chromium, tabs: Tabs, store: str
) -> None:
    wrong: list[str] = []
    async for page, place, text in walk(await tabs.open(store), PLACES[store]):
        wrong += [f"{place}: {each}" for each in await faults_of(page, text)]

    assert wrong == [], "\n".join(wrong)


@pytest.mark.parametrize("store", ["desk", pytest.param("hostile", marks=pytest.mark.deep)])
async def test_each_view_is_accessible_in_light_and_dark(chromium: Chromium, tabs: Tabs, store: str) -> None:
    axe = AXE.read_text(encoding="utf-8")
    found: set[str] = set()
    page = await tabs.open(store, bypass_csp=True)
    await page.evaluate(axe)
    for number, place in enumerate(PLACES[store]):
        await go(page, place)
        told: list[str] = await page.evaluate(RUN_AXE, [RULES, None])
        if number % 2:  # pairs of text and ground recur in all views
            await page.emulate_media(color_scheme="dark")
            told += await page.evaluate(RUN_AXE, [RULES, {"type": "rule", "values": ["color-contrast"]}])
            await page.emulate_media(color_scheme="light")
        found |= {f"{place}: {each}" for each in told}

    assert not found, "\n".join(sorted(found))


async def test_a_link_restores_each_place(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    shown: dict[str, str] = {}
    async for _, place, _ in walk(page, DESK):
        await asyncio.sleep(SETTLES_S)
        await loaded(page)
        shown[place] = await text_of(page)

    for place, text in shown.items():
        await page.goto("about:blank")
        await page.goto(f"/#{place}")
        await loaded(page)
        assert await text_of(page) == text, place


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
