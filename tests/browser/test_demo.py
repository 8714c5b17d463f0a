"""The store of the demo in the page: live while its processes write, then each view of what they left."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

from playwright.async_api import expect

import keepstate
from tests.browser import places
from tests.browser.conftest import Demo, Tabs, faults_of, walk
from tests.browser.places import place
from tests.browser_fixtures import Chromium

if TYPE_CHECKING:
    import httpx
    from playwright.async_api import Page

DONE, TOTAL = re.compile(r"done ([\d,]+)"), re.compile(r"of ([\d,]+)")


async def test_views_follow_while_processes_write_and_then_show_each_part(
    chromium: Chromium, tabs: Tabs, demo: Demo
) -> None:
    tasks = await tabs.open("demo")
    program = demo.start()
    async with tabs.stores.client("demo") as client:
        space = await begun(client)
        timeline = await tabs.again(tasks, place(view="timeline", space=space))
        events = await tabs.again(tasks, place(view="events", space=space))
        await tasks.evaluate("(place) => { location.hash = place; }", place(view="tasks", space=space))
        seen: dict[str, list[int]] = {"tasks": [], "moments": []}
        while program.poll() is None:
            seen["tasks"].append(await number_in(tasks, DONE))
            seen["moments"].append(await number_in(timeline, TOTAL))
            await asyncio.sleep(0.2)
        newest = (await client.get("/v1/history/log", params={"space": space, "limit": 1})).json()

    assert program.returncode == 0
    for name, least in (("tasks", 3), ("moments", 2)):  # the timeline reads its length every few seconds
        numbers = seen[name]
        assert numbers == sorted(numbers) and len(set(numbers)) >= least, seen
    async with keepstate.open(demo.url) as ks:
        await ks.deliver()  # what its killed processes have left
    total = newest["items"][0]["number"]
    await expect(tasks.get_by_role("main")).to_contain_text(f"done {demo.modules}")
    await expect(timeline.get_by_role("main")).to_contain_text(f"of {total:,}")
    await expect(events.get_by_role("main")).to_contain_text('"name":"report"')
    wrong: list[str] = []
    async for page, where, text in walk(tasks, places.demo(space)):
        wrong += [f"{where}: {each}" for each in await faults_of(page, text)]
    assert wrong == [], "\n".join(wrong)


async def begun(client: httpx.AsyncClient) -> str:
    """Return the name of the run's space, once it has one."""
    async with asyncio.timeout(60):
        while True:
            names = [row["name"] for row in (await client.get("/v1/spaces")).json()["items"]]
            if names:
                return str(names[0])
            await asyncio.sleep(0.05)


async def number_in(page: Page, shape: re.Pattern[str]) -> int:
    """Return the number that a view shows, 0 if it shows none yet."""
    found = shape.search(await page.get_by_role("main").inner_text())
    return int(found[1].replace(",", "")) if found else 0
