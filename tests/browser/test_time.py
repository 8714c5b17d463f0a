"""Going through time in the page: moments, origins, conversations, what would have been, and merges."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from playwright.async_api import Locator, Page, expect

from keepstate import Session
from keepstate.adapters.langgraph import KeepstateSaver, resume
from tests.browser import threads
from tests.browser.conftest import Workshop
from tests.browser_fixtures import Chromium

RUN = "run/plan"


def place(view: str, space: str = RUN, **more: str) -> str:
    """Return the hash of a place."""
    return urlencode({"view": view, "space": space, **more})


def picked(page: Page) -> Locator:
    """Return the picked row of the list of moments."""
    return page.get_by_role("listbox", name="Moments, the newest first").get_by_role("option", selected=True)


async def fill(workshop: Workshop, moments: int = 6) -> Any:
    """Commit some moments, the third of which changes the price, and return the history."""
    history = workshop.ks.space(RUN).history
    for number in range(1, moments + 1):
        state = {
            "plan": {"step": number, "price": 100 if number < 3 else 80},
            "messages": [{"role": "user", "content": f"message {each}"} for each in range(number)],
        }
        who, model = ("ada", "large") if number % 2 else ("bob", "small")
        await history.commit(
            state, message=f"step {number}", author=who, meta={"model": model, "tokens": "10"}
        )
    return history


async def test_arrow_keys_go_through_time_and_each_moment_has_a_link(
    chromium: Chromium, workshop: Workshop
) -> None:
    await fill(workshop)
    page = await workshop.open(place("timeline"))
    state = page.get_by_label("The state at this moment")

    await expect(state.get_by_role("button", name="step 6")).to_be_visible()
    for _ in range(4):
        await page.keyboard.press("ArrowLeft")
    await expect(state.get_by_role("button", name="step 2")).to_be_visible()
    await expect(picked(page)).to_contain_text("step 2")
    assert "at=2" in page.url
    await page.keyboard.press("ArrowRight")
    changes = page.get_by_role("region", name="Changes")
    await expect(changes.get_by_text("+ after: 80")).to_be_visible()
    other = await workshop.open(page.url.partition("#")[2])
    await expect(
        other.get_by_label("The state at this moment").get_by_role("button", name="price 80")
    ).to_be_visible()


async def test_a_click_on_a_value_says_who_gave_it_and_leads_there(
    chromium: Chromium, workshop: Workshop
) -> None:
    await fill(workshop)
    page = await workshop.open(place("timeline"))

    await page.get_by_role("button", name="price 80").click()
    origin = page.get_by_role("group", name="Origin of plan.price")
    first = origin.get_by_role("button").first
    await expect(first).to_contain_text("ada")
    await expect(first).to_contain_text("step 3")
    await first.click()

    await expect(picked(page)).to_contain_text("step 3")
    assert "at=3" in page.url and "path=" in page.url


async def test_a_marked_moment_is_compared_with_others_and_filters_find_moments(
    chromium: Chromium, workshop: Workshop
) -> None:
    await fill(workshop)
    page = await workshop.open(place("timeline", at="2"))

    await page.keyboard.press("m")
    await expect(page.get_by_text("compared with 2")).to_be_visible()
    await page.get_by_label("Number of the moment").fill("5")
    await page.keyboard.press("Enter")
    await expect(page.get_by_text("5 differences")).to_be_visible()  # step, price and three messages
    await page.get_by_role("button", name="Filter").click()
    await page.get_by_label("Notes, as name=value").fill("model=small")
    await page.get_by_label("Author", exact=True).fill("bob")

    found = page.get_by_role("listbox", name="Found moments").get_by_role("option")
    await expect(found).to_have_count(3)
    await found.last.click()
    await expect(
        page.get_by_label("The state at this moment").get_by_role("button", name="step 2")
    ).to_be_visible()
    assert "author=bob" in page.url and "to=2" in page.url


async def test_an_edited_moment_goes_on_as_a_branch_that_is_compared_and_merged(
    chromium: Chromium, workshop: Workshop
) -> None:
    history = await fill(workshop)
    page = await workshop.open(place("compare", at="4", path='["plan","price"]'))

    await page.get_by_label("New value of plan.price").fill("60")
    await page.get_by_role("button", name="Go on as what-if/1").click()
    await expect(page.get_by_role("row", name="tokens 20 0")).to_be_visible()
    assert (await history.checkout("what-if/1"))["plan"] == {"step": 4, "price": 60}
    changed = await history.begin()
    changed["plan"]["price"] = 90
    await changed.commit(message="dearer")
    await page.get_by_role("link", name="Merge what-if/1").click()
    await expect(page.get_by_text("1 value was changed on both sides.")).to_be_visible()
    await expect(page.get_by_role("button", name="Merge", exact=True)).to_have_count(0)
    await page.get_by_label("Rule for plan.price").select_option("take theirs")
    await page.get_by_role("button", name="Merge", exact=True).click()

    await expect(page.get_by_role("status").get_by_text("what-if/1 was merged into main.")).to_be_visible()
    assert (await history.checkout())["plan"] == {"step": 6, "price": 60}
    assert len((await history.find()).parents) == 2


async def test_a_moment_leads_to_its_trace_if_its_id_is_one(chromium: Chromium, workshop: Workshop) -> None:
    history, id = workshop.ks.space(RUN).history, "0af7651916cd43dd8448eb211c80319c"
    strange = (
        f"00-{id}-b7ad6b7169203331-01/../../evil",
        f"00-{id.upper()}-b7ad6b7169203331-01",
        f"00-{'0' * 32}-b7ad6b7169203331-01",
        f"ff-{id}-b7ad6b7169203331-01",
        f"00-{id}-01",
        "javascript:alert(1)",
    )
    for number, traceparent in enumerate((f"00-{id}-b7ad6b7169203331-01", *strange), start=1):
        await history.commit({"step": number}, message=f"step {number}", meta={"traceparent": traceparent})
    page = await workshop.open(place("timeline", at="1"))
    trace = page.get_by_role("link", name="Trace in a new tab")

    await expect(trace).to_have_attribute("href", f"https://traces.example.org/trace/{id}?by=keepstate")
    await expect(trace).to_have_attribute("rel", "noopener noreferrer")
    await expect(trace).to_have_attribute("target", "_blank")
    for number, _ in enumerate(strange, start=2):
        await page.keyboard.press("ArrowRight")
        await expect(picked(page)).to_contain_text(f"step {number}")
        await expect(page.get_by_role("button", name=f"step {number}")).to_be_visible()
        await expect(trace).to_have_count(0)


async def test_a_conversation_is_live_has_a_past_and_forks(chromium: Chromium, workshop: Workshop) -> None:
    talk = Session("chat", persistence=workshop.ks).conversation
    for text in ("one", "two", "three"):
        await talk.append({"role": "user", "content": text})
    page = await workshop.open(place("conversation", "session/chat"))
    messages = page.get_by_role("article")
    await expect(messages).to_have_count(3)

    async with talk.reply(flush_s=0.01) as reply:
        await reply.write("I am think")
        await expect(page.get_by_role("article", name="A reply that is being written")).to_contain_text(
            "I am think"
        )
        await reply.write("ing.")
    await expect(page.get_by_role("article", name="assistant 3")).to_contain_text("I am thinking.")
    await expect(page.get_by_text("now of 4")).to_be_visible()
    await page.keyboard.press("ArrowLeft")
    await page.keyboard.press("ArrowLeft")
    await expect(messages).to_have_count(2)
    await page.get_by_role("button", name="to now").click()
    await page.get_by_role("article", name="user 1").get_by_role("button", name="Fork here").click()
    await page.get_by_label("First message of the fork").fill("and if not?")
    await page.get_by_role("button", name="Create the fork").click()
    await expect(page.get_by_role("article", name="user 2")).to_contain_text("and if not?")
    await page.get_by_role("button", name="Merge…").click()
    await page.get_by_role("textbox", name="Summary").fill("it went well")
    await page.get_by_role("button", name="Merge", exact=True).click()

    await expect(page.get_by_role("article", name="assistant 4")).to_contain_text("it went well")
    assert (await talk.get_fork("try-1").count(), await talk.count()) == (3, 5)


async def test_a_thread_shows_its_graph_and_takes_the_answer_to_its_question(
    chromium: Chromium, workshop: Workshop
) -> None:
    space = workshop.ks.space("thread/ann")
    for step, nodes in enumerate(("", "plan", "tools", "plan")):
        state = {"amount": step, "branch:to:approve": None} if step == 3 else {"amount": step}
        notes = {"nodes": nodes} if nodes else {}
        await space.history.commit(state, message=f"loop, step {step}, 1f1e{step}", meta=notes)
    asked = await space.approvals.ask("Pay 3?", id="langgraph/1f1e3/i")
    page = await workshop.open(place("thread", "thread/ann"))

    graph = page.get_by_role("img", name="Graph of the thread")
    await expect(graph).to_have_attribute("aria-label", "Graph of the thread: start to plan, 1 times; "
        "plan to tools, 1 times; tools to plan, 1 times; plan to approve, next. Here: plan.")  # fmt: skip
    await page.get_by_role("button", name="Yes, approve").click()

    await expect(page.get_by_role("article", name="Pay 3?")).to_have_count(0)
    answered = await space.approvals.wait(asked.id, timeout_s=60)
    assert (answered.value, answered.by) == (True, "ann")


async def test_a_thread_without_approvals_is_answered_forked_and_run_by_a_worker(
    chromium: Chromium, workshop: Workshop
) -> None:
    saver = KeepstateSaver(workshop.ks)
    graph, config = threads.compile(saver), {"configurable": {"thread_id": "dan"}}
    stay = {"messages": [], "city": "Bergen", "nights": 3}
    await graph.ainvoke(stay, config)
    worker = partial(workshop.ks.queues("thread/").run, {"langgraph.resume": resume(graph)}, idle_s=0.1)
    page = await workshop.open(place("thread", "thread/dan"))
    run = page.get_by_role("group", name="Run of the graph")

    await expect(page.get_by_role("list", name="Value of the interrupt")).to_contain_text("210 EUR")
    answer = page.get_by_label("Answer, as JSON")
    await answer.fill("yes")
    await expect(page.get_by_text("Not JSON")).to_be_visible()
    await expect(page.get_by_role("button", name="Answer", exact=True)).to_be_disabled()
    await answer.fill("true")
    await page.get_by_role("button", name="Answer", exact=True).click()
    await expect(run.get_by_text("No worker has claimed it yet.")).to_be_visible()
    await worker()
    await expect(answer).to_have_count(0)
    assert (await graph.aget_state(config)).values["booked"] == "H-210"

    await page.get_by_role("option").filter(has_text="search").click()
    await page.get_by_role("button", name="Fork with edits…").click()
    await page.get_by_role("button", name="nights 3").click()
    nights = page.get_by_label("New value of nights")
    await nights.fill("{")
    await expect(page.get_by_role("button", name="Fork the thread")).to_be_disabled()
    await nights.fill("5")
    await page.get_by_role("button", name="Fork the thread").click()
    await expect(run.get_by_text("Waits for a worker")).to_be_visible()
    await worker()

    await expect(run.get_by_text("The graph ran")).to_be_visible()
    await expect(page.get_by_role("list", name="Value of the interrupt")).to_contain_text("350 EUR")
    state = await graph.aget_state(config)
    assert (state.values["nights"], state.values["price"], state.next) == (5, 350, ("approve",))
