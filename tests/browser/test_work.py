"""What people do in the page, and what agents do meanwhile: seen at once, done once, and told if too late."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.async_api import Page, expect

from tests.browser.conftest import Workshop
from tests.browser.places import place
from tests.browser_fixtures import Chromium


async def test_a_question_is_answered_by_a_form_of_its_schema(chromium: Chromium, workshop: Workshop) -> None:
    approvals = workshop.ks.space("desk").approvals
    schema = {
        "type": "object",
        "properties": {"amount": {"type": "integer", "maximum": 500}, "way": {"enum": ["card", "bank"]}},
        "required": ["amount", "way"],
    }
    await approvals.ask("How much?", id="refund", schema=schema, subject={"booking": "B1"}, to=["ann"])
    page = await workshop.open()
    card = page.get_by_role("article", name="How much?")
    send = card.get_by_role("button", name="Send the answer")

    await card.get_by_label("amount").fill("900")
    await expect(card.get_by_text("Enter at most 500.")).to_be_visible()
    await expect(send).to_be_disabled()
    await card.get_by_label("amount").fill("300")
    await card.get_by_label("way").select_option("bank")
    await card.get_by_label("Note").fill("late train")
    await send.click()

    await expect(card).to_have_count(0)
    answered = await approvals.wait("refund", timeout_s=5)
    assert (answered.value, answered.by, answered.note) == (
        {"amount": 300, "way": "bank"},
        "ann",
        "late train",
    )


async def test_a_question_appears_while_the_page_is_open_and_goes_once_it_is_settled(
    chromium: Chromium, workshop: Workshop
) -> None:
    page = await workshop.open()
    await expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
    approvals = workshop.ks.space("desk").approvals

    await approvals.ask("Publish it?", id="go")
    card = page.get_by_role("article", name="Publish it?")
    await expect(card).to_be_visible()
    await approvals.withdraw("go", by="agent")
    await expect(card).to_have_count(0)


async def test_of_two_people_who_answer_the_second_is_told(chromium: Chromium, workshop: Workshop) -> None:
    await workshop.ks.space("desk").approvals.ask("Publish it?", id="go")
    first, second = [await workshop.open(name=name) for name in ("ann", "bob")]
    await second.context.set_offline(True)  # it hears nothing of the first
    workshop.tabs.allowed |= {409, "net::ERR_INTERNET_DISCONNECTED"}

    await first.get_by_role("button", name="Yes, approve").click()
    await expect(first.get_by_role("article")).to_have_count(0)
    await second.context.set_offline(False)
    await second.get_by_role("button", name="No, refuse").click()

    await expect(second.get_by_role("alert").filter(has_text="answered")).to_be_visible()


async def test_a_person_who_may_not_answer_is_told_who_may(chromium: Chromium, workshop: Workshop) -> None:
    await workshop.ks.space("desk").approvals.ask("Publish it?", id="go", to=["bob"])
    page = await workshop.open(name="ann")

    await expect(page.get_by_text("Only bob may answer.")).to_be_visible()
    await expect(page.get_by_role("button", name="Yes, approve")).to_have_count(0)


async def test_an_edit_keeps_the_numbers_that_it_does_not_touch(
    chromium: Chromium, workshop: Workshop
) -> None:
    documents = workshop.ks.space("desk").documents
    await documents.put(
        "prices", {"rate": 1.0, "big": 2**60, "note": "old", "parts": [], "text": 'a "b": {c}'}
    )
    page = await workshop.open(place(view="documents", space="desk", id="prices"))
    await page.get_by_role("button", name="Edit", exact=True).click()
    editor = page.get_by_label("Value, as JSON")
    await expect(editor).to_have_value(re.compile('"rate": 1.0'))

    text = await editor.input_value()
    await editor.fill(text.replace("old", "new"))
    await page.get_by_role("button", name="Save", exact=True).click()
    await expect(page.get_by_text("Saved.")).to_be_visible()

    saved = await documents.get("prices")
    assert saved == {"rate": 1.0, "big": 2**60, "note": "new", "parts": [], "text": 'a "b": {c}'}
    assert type(saved["rate"]) is float and type(saved["big"]) is int


async def edit(page: Page, **changed: Any) -> None:
    """Change members of the value in the editor of a page."""
    editor = page.get_by_label("Value, as JSON")
    value = json.loads(await editor.input_value())
    await editor.fill(json.dumps(value | changed))


async def test_of_two_tabs_that_edit_a_document_the_later_one_is_told_and_nothing_is_lost(
    chromium: Chromium, workshop: Workshop
) -> None:
    documents = workshop.ks.space("desk").documents
    await documents.put("hours", {"saturday": "10-12", "sunday": "closed"})
    where = place(view="documents", space="desk", id="hours")
    first = await workshop.open(where)
    second = await workshop.tabs.again(first, where)
    workshop.tabs.allowed |= {412}
    for tab in (first, second):
        await tab.get_by_role("button", name="Edit", exact=True).click()
    await edit(second, sunday="11-13")

    await edit(first, saturday="9-14")
    await first.get_by_role("button", name="Save", exact=True).click()
    await expect(first.get_by_text("Saved.")).to_be_visible()
    await expect(second.get_by_text("Another writer has changed this document")).to_be_visible()
    await second.get_by_role("button", name="Save", exact=True).click()
    told = second.get_by_role("alert").filter(has_text="Nothing was saved.")
    await expect(told).to_contain_text("9-14")

    assert await documents.get("hours") == {"saturday": "9-14", "sunday": "closed"}
    kept = json.loads(await second.get_by_label("Value, as JSON").input_value())
    assert kept == {"saturday": "10-12", "sunday": "11-13"}
    await edit(second, saturday="9-14")
    await second.get_by_role("button", name="Save mine over it").click()
    await expect(second.get_by_text("Saved.")).to_be_visible()
    assert await documents.get("hours") == {"saturday": "9-14", "sunday": "11-13"}
    await expect(first.get_by_role("main")).to_contain_text("11-13")


async def test_mine_is_not_saved_over_a_value_that_changed_since_it_was_shown(
    chromium: Chromium, workshop: Workshop
) -> None:
    documents = workshop.ks.space("desk").documents
    await documents.put("hours", {"saturday": "10-12"})
    page = await workshop.open(place(view="documents", space="desk", id="hours"))
    workshop.tabs.allowed |= {412}
    await page.get_by_role("button", name="Edit", exact=True).click()
    await edit(page, saturday="mine")
    alert = page.get_by_role("alert").filter(has_text="Nothing was saved.")

    for theirs in ("9-14", "8-15"):
        await documents.put("hours", {"saturday": theirs})
        await page.get_by_role("button", name=re.compile("^Save( mine over it)?$")).click()
        await expect(alert).to_contain_text(theirs)
    await page.get_by_role("button", name="Take theirs").click()

    await expect(page.get_by_role("list", name="Value")).to_contain_text("8-15")
    assert await documents.get("hours") == {"saturday": "8-15"}
