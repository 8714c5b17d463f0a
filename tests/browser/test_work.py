"""What people do in the page, and what agents do meanwhile: seen at once, done once, and told if too late."""

from __future__ import annotations

import json
import re
from secrets import token_hex
from typing import Any

from playwright.async_api import Page, expect

from keepstate import Session
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
    answered = await approvals.wait("refund", timeout_s=60)
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


async def test_chosen_queues_are_requeued_and_what_is_no_queue_is_reported(
    chromium: Chromium, workshop: Workshop
) -> None:
    pool = workshop.ks.space("pool")
    for kind in ("mail", "fax", "call"):
        await pool.queue.put(1, id=kind, kind=kind, max_attempts=1)
        (task,) = await pool.queue.claim("w", lease_s=60, kinds=[kind])
        await task.fail("HTTP 503", is_final=True)
    await Session("chat", persistence=workshop.ks).conversation.append({"role": "user", "content": "hi"})
    page = await workshop.open(place(view="find"))
    found = page.get_by_role("listbox", name="Found")
    chosen = page.get_by_role("group", name="Chosen rows")

    for name in ("mail", "session"):
        row = found.get_by_role("option").filter(has_text=name)
        await row.locator(".box").click()
        await expect(row).to_be_checked()
    await expect(chosen.get_by_role("status")).to_have_text("2 chosen")
    await chosen.get_by_role("button", name="Requeue dead tasks…").click()
    await page.get_by_role("dialog").get_by_role("button", name="Requeue dead tasks", exact=True).click()

    await expect(chosen.get_by_role("list", name="Failures")).to_contain_text("has no tasks of its own")
    await expect(chosen.get_by_role("status")).to_have_text("1 chosen")
    await expect(page.get_by_role("alert").filter(has_text="1 task requeued; 1 row failed")).to_be_visible()
    counts = await pool.queue.counts()
    assert (counts["dead"], counts["ready"]) == (2, 1)


async def test_tasks_are_chosen_with_the_keyboard_and_cancelled(
    chromium: Chromium, workshop: Workshop
) -> None:
    pool = workshop.ks.space("pool")
    for number in range(6):
        await pool.queue.put(number, id=f"t{number}", kind="mail")
    page = await workshop.open(place(view="tasks", space="pool"))
    tasks = page.get_by_role("listbox", name="Tasks")
    await expect(tasks).to_have_attribute("aria-multiselectable", "true")

    await tasks.focus()
    for key in ("Home", "Space", "ArrowDown", "ArrowDown", "Shift+Space", "ArrowDown", "Space", "Space"):
        await page.keyboard.press(key)
    await expect(tasks.get_by_role("option", checked=True)).to_have_count(3)
    await pool.queue.cancel("t1")
    chosen = page.get_by_role("group", name="Chosen rows")
    await chosen.get_by_role("button", name="Cancel…").click()
    await expect(page.get_by_role("dialog").get_by_role("listitem")).to_have_text(["t0", "t1", "t2"])
    await page.get_by_role("dialog").get_by_role("button", name="Cancel", exact=True).click()

    await expect(chosen.get_by_role("list", name="Failures")).to_have_text("t1: it had ended already")
    counts = await pool.queue.counts()
    assert (counts["cancelled"], counts["ready"]) == (3, 3)
    await tasks.focus()
    await page.keyboard.press("Control+a")
    await expect(chosen.get_by_role("status")).to_have_text("6 chosen")


async def test_the_server_filters_events_that_the_page_has_not_read(
    chromium: Chromium, workshop: Workshop
) -> None:
    events = workshop.ks.space("desk").events
    await events.append({"to": "Bergen"}, type="booked")
    for _ in range(4):
        await events.append(*({"to": "Oslo", "n": n} for n in range(250)), type="searched")
    page = await workshop.open(place(view="events", space="desk"))
    rows = page.get_by_role("listbox", name="Events").get_by_role("option")
    await expect(rows.first).to_contain_text("249")

    await page.get_by_label("Data that contains").fill("bergen")
    await expect(rows).to_have_count(1)
    await expect(page.get_by_text("1 event of 1,001.")).to_be_visible()
    await events.append({"to": "Ghent"}, type="booked")
    await events.append({"to": "BERGEN", "late": True}, type="booked")
    await expect(rows).to_have_count(2)
    await expect(rows.first).to_contain_text("late")
    assert "text=bergen" in page.url


async def test_the_list_shows_the_size_of_a_document_that_has_changed(
    chromium: Chromium, workshop: Workshop
) -> None:
    documents = workshop.ks.space("desk").documents
    await documents.put("notes", "short")
    page = await workshop.open(place(view="documents", space="desk"))
    row = page.get_by_role("listbox", name="Documents").get_by_role("option")
    await expect(row).to_contain_text(" B")

    await documents.put("notes", token_hex(4_000))

    await expect(row).to_contain_text("KiB")


async def test_a_task_leads_to_the_trace_of_its_put(chromium: Chromium, workshop: Workshop) -> None:
    id = "0af7651916cd43dd8448eb211c80319c"
    by = workshop.ks.space("pool").by(meta={"traceparent": f"00-{id}-b7ad6b7169203331-01"})
    await by.queue.put(1, id="traced")
    await workshop.ks.space("pool").queue.put(1, id="plain")
    page = await workshop.open(place(view="tasks", space="pool", id="traced"))
    trace = page.get_by_role("link", name="Open the trace in a new tab")

    await expect(trace).to_have_attribute("href", f"https://traces.example.org/trace/{id}?by=keepstate")
    await expect(trace).to_have_attribute("rel", "noopener noreferrer")
    await page.get_by_role("option").filter(has_text="plain").click()
    await expect(page.get_by_role("heading", name="plain")).to_be_visible()
    await expect(trace).to_have_count(0)
