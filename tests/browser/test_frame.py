"""The frame of the page: how a browser is let in and out, its keys, and what its policy forbids."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser import desk, hostile
from tests.browser.conftest import WAIT_MS, Tabs, go, loaded
from tests.browser.places import DESK, place
from tests.browser_fixtures import Chromium

if TYPE_CHECKING:
    from playwright.async_api import Page

SERVE = "from keepstate.cli.app import main; main()"


async def test_the_link_of_the_command_lets_one_browser_in_once(
    chromium: Chromium, tabs: Tabs, tmp_path: Path
) -> None:
    options = ("--open", "--port", "0", "--json", "--url", f"sqlite:///{tmp_path}/a.db")
    words = (sys.executable, "-c", SERVE, "serve", *options)
    serving = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert serving.stdout is not None
    link = json.loads(serving.stdout.readline())["open"]
    context, other = [await chromium.browser.new_context() for _ in range(2)]
    tabs.contexts += [context, other]
    page, stranger = await context.new_page(), await other.new_page()
    tabs.listen(page)
    try:
        await page.goto(link)
        await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
        assert "#" not in page.url.rstrip("#")
        assert link.partition("#")[2] not in page.url

        await stranger.goto(link)
        await expect(stranger.get_by_text("used before, or has expired")).to_be_visible()
    finally:
        await page.close()
        serving.send_signal(15)
        assert serving.wait(60) == 0
        serving.stdout.close()


async def test_a_browser_without_a_session_is_told_how_to_get_one(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    tabs.allowed |= {401}
    await page.context.clear_cookies()
    await page.reload()

    await expect(page.get_by_role("heading", name="This browser is not let in")).to_be_visible()
    await expect(page.get_by_text("refund")).to_have_count(0)
    secret = str(tabs.stores.ask("desk", stored=True, name="pasted"))
    await page.get_by_role("textbox", name="show a key").fill(secret)
    await page.get_by_role("button", name="Enter").click()
    await expect(page.get_by_role("article", name="How much may I refund?")).to_be_visible()
    assert secret not in await page.evaluate("() => JSON.stringify([{...localStorage}, document.cookie])")


async def test_a_key_that_is_revoked_ends_the_open_page_within_a_second(
    chromium: Chromium, tabs: Tabs
) -> None:
    page = await tabs.open("workshop", key={"stored": True, "name": "temporary", "tenant": "revoked"})
    tabs.allowed |= {401}
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()

    tabs.stores.ask("workshop", revoke=True, name="temporary")

    told = page.get_by_role("heading", name="This browser is not let in")
    await expect(told).to_be_visible(timeout=WAIT_MS)
    await expect(page.get_by_text("Nothing waits for you.")).to_have_count(0)


async def test_the_policy_stops_code_that_is_not_of_the_page(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    tabs.allowed |= {"Content Security Policy", "TrustedHTML", "TrustedScript"}

    ran = await page.evaluate(
        """async (mark) => {
          const told = [];
          addEventListener("securitypolicyviolation", (event) => told.push(event.effectiveDirective));
          const script = document.createElement("script");
          const attack = `window.${mark} = 1`;
          try { script.textContent = attack; document.body.append(script); } catch {}
          try { document.body.insertAdjacentHTML("beforeend", `<img src=x onerror="${attack}">`); } catch {}
          const frame = document.createElement("iframe");
          frame.src = "data:text/html,<script>parent.pwned=1</script>";
          document.body.append(frame);
          await fetch("https://example.org/").catch(() => told.push("fetch"));
          await new Promise((done) => setTimeout(done, 300));
          return [window[mark] ?? null, told];
        }""",
        hostile.MARK,
    )

    assert ran[0] is None
    assert {"require-trusted-types-for", "frame-src", "connect-src", "fetch"} <= set(ran[1])


async def test_keys_open_views_and_the_help_lists_them(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk", place(view="documents", space="desk"))

    for keys, view in {"gf": "find", "gs": "store", "gi": "inbox"}.items():
        for key in keys:
            await page.keyboard.press(key)
        await loaded(page)
        assert await view_of(page) == view
    await page.keyboard.press("?")
    help = page.get_by_role("dialog")
    await expect(help).to_be_visible()
    for label in ("Show this help", "Search spaces", "Copy a link to this place", "Next row"):
        await expect(help.get_by_text(label)).to_be_visible()
    await page.keyboard.press("g")
    await page.keyboard.press("f")
    assert await view_of(page) == "inbox"  # keys do not act through a dialog
    await page.keyboard.press("Escape")
    await expect(help).to_have_count(0)


async def test_single_keys_can_be_turned_off(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    await page.keyboard.press("?")
    await page.get_by_role("checkbox", name="Single keys act").uncheck()
    await page.keyboard.press("Escape")
    await page.reload()
    await loaded(page)

    for key in "gf":
        await page.keyboard.press(key)
    await loaded(page)

    assert await view_of(page) == "inbox"


async def test_a_space_is_found_and_opened_without_a_mouse(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")

    await page.keyboard.press("/")
    await expect(page.get_by_role("searchbox")).to_be_focused()
    await page.keyboard.type("session/")
    spaces = page.get_by_role("listbox", name="Spaces")
    await expect(spaces.get_by_role("option")).to_have_count(9)
    for key in ("ArrowDown", "ArrowDown", "ArrowDown", "ArrowUp", "Enter"):  # the first enters the list
        await page.keyboard.press(key)
    await loaded(page)

    await expect(page.get_by_role("heading", level=1)).to_have_text("session/chat-1")
    assert await spaces.get_attribute("aria-activedescendant")
    await page.keyboard.press("End")
    picked = spaces.locator("[aria-selected=true]")
    await expect(picked).to_have_attribute("aria-posinset", "9")


async def test_the_view_can_be_reached_past_the_list_of_spaces(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")

    await page.keyboard.press("Tab")
    skip = page.get_by_role("link", name="Skip to the view")
    await expect(skip).to_be_focused()
    await expect(skip).to_be_in_viewport()
    await page.keyboard.press("Enter")

    await expect(page.get_by_role("main")).to_be_focused()


async def test_a_link_to_this_place_is_copied(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk", place(view="timeline", space=desk.TRIP, at="9"))
    await page.keyboard.press("y")
    await expect(page.get_by_role("status").filter(has_text="Link copied")).to_be_visible()

    copied = await page.evaluate("() => navigator.clipboard.readText()")

    assert copied == page.url and "at=9" in copied


async def test_everything_is_reached_by_the_tab_key_in_sight(chromium: Chromium, tabs: Tabs) -> None:
    """Nothing takes the focus that cannot be seen, and no element keeps it for ever."""
    hidden: list[str] = []
    for store_place in list(DESK)[:6]:
        page = await tabs.open("desk", store_place)
        for _ in range(40):
            await page.keyboard.press("Tab")
            told = await page.evaluate(
                """() => { const at = document.activeElement; if (at === document.body) return null;
                  const { width, height, right, bottom } = at.getBoundingClientRect();
                  const style = getComputedStyle(at);
                  return width && height && right > 0 && bottom > 0 && style.visibility === "visible"
                    ? "" : at.outerHTML.slice(0, 120); }"""
            )
            if told is None:
                break
            hidden += [f"{store_place}: {told}"] if told else []
        await page.close()

    assert hidden == []


async def test_on_a_narrow_screen_a_menu_has_the_spaces(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk", width=360, height=740)
    spaces = page.get_by_role("listbox", name="Spaces")
    await expect(spaces).not_to_be_visible()

    await page.get_by_role("button", name="Menu").click()
    await spaces.get_by_role("option", name="desk", exact=True).click()
    await loaded(page)

    await expect(spaces).not_to_be_visible()
    assert "space=desk" in page.url


async def test_a_place_that_does_not_exist_says_so(chromium: Chromium, tabs: Tabs) -> None:
    page = await tabs.open("desk")
    tabs.allowed |= {404}
    for strange in (
        "view=nothing&x=1",
        "view=documents&space=absent",
        "view=timeline&space=desk&at=999999",
        "%%%",
    ):
        await go(page, strange)
        main = await page.get_by_role("main").inner_text()
        assert main.strip(), strange


async def view_of(page: Page) -> str:
    """Return the name of the view in the address."""
    fields = dict(each.partition("=")[::2] for each in page.url.partition("#")[2].split("&"))
    return fields.get("view", "inbox")
