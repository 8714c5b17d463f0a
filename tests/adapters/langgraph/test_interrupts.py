"""Interrupts that people answer: asked with the thread, withdrawn with it, and resumed once."""

from __future__ import annotations

import asyncio
from contextvars import Context
from pathlib import Path
from typing import Any

import pytest
from langgraph.func import entrypoint
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

import keepstate
import keepstate.sync
from keepstate import KeyRing
from keepstate.adapters.langgraph import KeepstateSaver, current_task, resume
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ApprovalClosedError, ConflictError, InvalidError, NotAllowedError
from tests.adapters.langgraph.asking import (
    State,
    answer,
    asks,
    config,
    inner_asks,
    one_asks,
    pending,
    said,
    space_of,
    two_ask,
    work,
)

Interrupted = tuple[Keepstate, KeepstateSaver]


@pytest.fixture
def interrupted(opened: list[Keepstate]) -> Interrupted:
    opened.append(keepstate.open("memory://"))
    return opened[0], KeepstateSaver(opened[0], approvals=True)


async def states(ks: Keepstate, ids: list[str], thread: str = "t") -> list[tuple[str, str]]:
    found = [await space_of(ks, thread).approvals.get(id) for id in ids]
    return [(each.state, each.reason) for each in found if each is not None]


# ---- on every backend


@pytest.mark.parametrize("mode", ["blocking", "async"])
async def test_an_answer_resumes_the_thread_once(any_url: str, mode: str) -> None:
    async with keepstate.open(any_url) as ks, KeepstateSaver(ks, approvals=True) as saver:
        graph, space = one_asks(saver), space_of(ks)
        if mode == "async":
            await graph.ainvoke({"said": []}, config())
        else:
            graph.invoke({"said": []}, config())
        [asked] = await pending(space)
        assert (asked.question, asked.subject, asked.schema, asked.state) == ("pay?", "pay?", None, "pending")
        assert await work(space, graph) == []

        await space.approvals.answer(asked.id, True, by="ann", saw=asked.digest)
        await space.approvals.answer(asked.id, True, by="ann")

        assert await work(space, graph) == ["resumed"]
        assert await said(graph) == ["pay: True", "end"]
        assert await work(space, graph) == []
        assert (await space.queue.result(str(asked.task)))["outcome"] == "resumed"
        with pytest.raises(ApprovalClosedError):
            await space.approvals.answer(asked.id, False, by="ann")


async def test_one_batch_stores_an_interrupt_and_asks(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    await one_asks(saver).ainvoke({"said": []}, config())
    store, space = await ks.opened(), space_of(ks)

    written = {}
    for part in (layout.PENDING, layout.APPROVALS, layout.ASKED, layout.TASKS):
        found = await store.scan(space.executor.stored_name, part, limit=10, reverse=True)
        written[part] = max(entry.version for entry in found.entries)
    assert len(set(written.values())) == 1


async def test_a_worker_over_all_threads_resumes_each(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph = one_asks(saver)
    for thread in ("a", "b", "c"):
        await graph.ainvoke({"said": []}, config(thread))
        await answer(space_of(ks, thread), thread != "b")

    report = await ks.queues("thread/").run({"langgraph.resume": resume(lambda _: graph)}, idle_s=0.1)

    assert (report.completed, report.failed) == (3, 0)
    assert [await said(graph, thread) for thread in ("a", "b", "c")] == [
        ["pay: True", "end"],
        ["pay: False", "end"],
        ["pay: True", "end"],
    ]


# ---- several interrupts


async def test_of_two_interrupts_of_a_step_the_answered_one_goes_on(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    began = list[str]()
    graph, space = two_ask(saver, began.append), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    first, second = await pending(space)

    await space.approvals.answer(first.id, True, by="ann")
    assert await work(space, graph) == ["resumed"]
    assert await said(graph) == ["a: True"]  # as a reader sees it, with the writes of the unfinished step
    assert await states(ks, [first.id, second.id]) == [("answered", ""), ("pending", "")]

    await space.approvals.answer(second.id, True, by="ann")
    assert await work(space, graph) == ["resumed"]
    assert await said(graph) == ["a: True", "b: True", "end"]
    assert sorted(began) == ["a", "a", "b", "b", "b"]  # the node without an answer begins again too


async def test_answers_that_came_together_are_resumed_together(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    began = list[str]()
    graph, space = two_ask(saver, began.append), space_of(ks)
    await graph.ainvoke({"said": []}, config())

    await answer(space)

    assert sorted(await work(space, graph)) == ["answered elsewhere", "resumed"]
    assert await said(graph) == ["a: True", "b: True", "end"]
    assert sorted(began) == ["a", "a", "b", "b"]


async def test_a_subgraph_asks_twice_and_each_question_once(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = inner_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    [first] = await pending(space)
    assert first.question == "inner0?"
    await space.approvals.answer(first.id, True, by="ann")
    assert await work(space, graph) == ["resumed"]

    [second] = await pending(space)
    assert second.question == "inner1?"
    await space.approvals.answer(second.id, False, by="ann")
    assert await work(space, graph) == ["resumed"]

    assert await said(graph) == ["inner: True", "inner: False", "end"]
    assert [each[0] for each in await states(ks, [first.id, second.id])] == ["answered", "answered"]


async def test_an_answer_goes_to_no_other_question_of_its_node(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    failures = ["once"]

    def twice(state: State) -> dict[str, Any]:
        first = interrupt("may I read?")
        if failures:
            raise OSError(failures.pop())
        return {"said": [f"read {first}, delete {interrupt('may I delete?')}"]}

    graph, space = one_asks(saver, twice), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    with pytest.raises(OSError, match="once"):
        await resume(graph)(task)
    await task.fail("once", retry_in_s=0)
    assert await work(space, graph) == ["resumed"]

    [asked] = await pending(space)
    assert asked.question == "may I delete?"
    await answer(space, False)
    assert await work(space, graph) == ["resumed"]
    assert await said(graph) == ["read True, delete False", "end"]


async def test_the_answer_to_another_node_is_not_given_again(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    failures = ["once"]

    def twice(state: State) -> dict[str, Any]:
        first = interrupt("may I read?")
        if failures:
            raise OSError(failures.pop())
        return {"said": [f"read {first}, delete {interrupt('may I delete?')}"]}

    builder = StateGraph(State)
    builder.add_node("a", twice)
    builder.add_node("b", asks("b"))
    builder.add_edge(START, "a")
    builder.add_edge(START, "b")
    graph, space = builder.compile(checkpointer=saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    second, first = await pending(space)
    await space.approvals.answer(first.id, True, by="ann")
    [task] = await space.queue.claim("worker", lease_s=60)
    with pytest.raises(OSError, match="once"):
        await resume(graph)(task)
    await task.fail("once", retry_in_s=3600)

    await space.approvals.answer(second.id, True, by="ann")
    assert await work(space, graph) == ["resumed"]

    assert [each.question for each in await pending(space)] == ["may I delete?"]
    assert await said(graph) == ["b: True"]


async def test_a_run_that_failed_in_a_later_node_goes_on(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    failures = ["once"]

    def end(state: State) -> dict[str, Any]:
        if failures:
            raise OSError(failures.pop())
        return {"said": ["end"]}

    graph, space = one_asks(saver, end=end), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    with pytest.raises(OSError, match="once"):
        await resume(graph)(task)
    await task.fail("once", retry_in_s=0)

    assert await work(space, graph) == ["resumed"]
    assert await said(graph) == ["pay: True", "end"]


async def test_an_encrypted_thread_of_a_tenant_asks_too(tmp_path: Path) -> None:
    options: Any = {"tenant": "acme", "encryption": KeyRing(b"k" * 32)}
    url = f"sqlite:///{tmp_path}/a.db?durability=normal"
    async with keepstate.open(url, **options) as ks, KeepstateSaver(ks, approvals=True) as saver:
        graph, space = one_asks(saver), space_of(ks)
        await graph.ainvoke({"said": []}, config())
        [left] = await pending(space)
        await graph.ainvoke({"said": ["never mind"]}, config())
        assert await states(ks, [left.id]) == [("withdrawn", "the thread has gone on")]

        await answer(space)

        assert await work(space, graph) == ["resumed"]
        assert await said(graph) == ["never mind", "pay: True", "end"]


@pytest.mark.parametrize("option", ["interrupt_before", "interrupt_after"])
async def test_a_run_that_stopped_at_a_breakpoint_does_not_pass_it(
    interrupted: Interrupted, option: str
) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    stopping = graph.copy({f"{option}_nodes": ["end" if option == "interrupt_before" else "pay"]})
    await stopping.ainvoke({"said": []}, config())
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    await resume(stopping)(task)
    await task.release()  # as if the worker was killed before it completed the task

    assert await work(space, stopping) == ["resumed"]
    assert await said(graph) == ["pay: True"]


async def test_a_function_of_tasks_asks_too(interrupted: Interrupted) -> None:
    ks, saver = interrupted

    @entrypoint(checkpointer=saver)
    async def pay(amount: int) -> str:
        return f"{amount}: {interrupt(f'Pay {amount}?')}"

    await pay.ainvoke(7, config())
    [asked] = await pending(space_of(ks))
    [found] = await ks.find(kind="approval", state="pending")
    assert (asked.question, found.title) == ("Pay 7?", "Pay 7?")
    await answer(space_of(ks))

    assert await work(space_of(ks), pay) == ["resumed"]
    assert (await pay.aget_state(config())).values == "7: True"


async def test_of_two_tasks_at_once_one_run_uses_both_answers(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    began = list[str]()
    graph, space = two_ask(saver, began.append), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)
    tasks = await space.queue.claim("worker", lease_s=60, count=2)

    await asyncio.gather(*map(resume(graph), tasks))

    assert {task.ended_as for task in tasks} == {None, "waiting"}
    assert sorted(began) == ["a", "a", "b", "b"]
    assert await said(graph) == ["a: True", "b: True", "end"]


# ---- answered elsewhere, and threads that go on


async def test_an_answer_by_other_means_withdraws_the_approval(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    [asked] = await pending(space)

    await graph.ainvoke(Command(resume="by hand"), config())

    assert await states(ks, [asked.id]) == [("withdrawn", "answered elsewhere")]
    task = await space.queue.get(str(asked.task))
    assert task is not None
    assert (task.state, await work(space, graph)) == ("cancelled", [])
    assert await said(graph) == ["pay: by hand", "end"]


async def test_of_two_interrupts_only_the_one_answered_elsewhere_is_withdrawn(
    interrupted: Interrupted,
) -> None:
    ks, saver = interrupted
    graph, space = two_ask(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    first, second = await pending(space)

    state = await graph.aget_state(config())
    await graph.ainvoke(Command(resume={state.interrupts[0].id: "by hand"}), config())

    assert await states(ks, [first.id, second.id]) == [("withdrawn", "answered elsewhere"), ("pending", "")]


async def test_an_answer_that_lost_against_another_one_runs_nothing(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)  # a worker is about to come

    await graph.ainvoke(Command(resume="by hand"), config())

    assert await work(space, graph) == ["answered elsewhere"]
    assert await said(graph) == ["pay: by hand", "end"]


@pytest.mark.parametrize("how", ["new input", "new state", "time travel"])
async def test_a_thread_that_goes_on_withdraws_what_it_asked(interrupted: Interrupted, how: str) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    [asked] = await pending(space)

    if how == "new input":
        await graph.ainvoke({"said": ["never mind"]}, config())
    elif how == "new state":
        await graph.aupdate_state(config(), {"said": ["never mind"]}, as_node="__start__")
        await graph.ainvoke(None, config())
    else:
        first = [state async for state in graph.aget_state_history(config())][-1]
        await graph.ainvoke(None, first.config)

    assert await states(ks, [asked.id]) == [("withdrawn", "the thread has gone on")]
    [fresh] = await pending(space)
    assert fresh.id != asked.id
    await answer(space)
    assert await work(space, graph) == ["resumed"]
    assert (await said(graph))[-2:] == ["pay: True", "end"]


async def test_an_interrupt_of_an_old_checkpoint_is_not_asked(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    old = (await graph.aget_state(config())).config
    [interrupting] = [w for w in (await saver.aget_tuple(old)).pending_writes if w[1] == "__interrupt__"]  # type: ignore[union-attr]
    await graph.ainvoke(Command(resume=True), config())

    await saver.aput_writes(old, [("__interrupt__", interrupting[2])], "another-task")

    assert await pending(space) == []


async def test_running_again_to_an_interrupt_asks_once(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    [asked] = await pending(space)

    await graph.ainvoke(None, config())
    assert [each.id for each in await pending(space)] == [asked.id]

    await space.approvals.withdraw(asked.id, by="ann")
    assert await work(space, graph) == ["withdrawn"]
    await graph.ainvoke(None, config())
    [again] = await pending(space)
    assert again.id == f"{asked.id}/2"
    await answer(space)
    assert await work(space, graph) == ["resumed"]
    assert await said(graph) == ["pay: True", "end"]


async def test_a_thread_interrupted_before_approvals_asks_when_it_runs_again(
    interrupted: Interrupted,
) -> None:
    ks, saver = interrupted
    await one_asks(KeepstateSaver(ks)).ainvoke({"said": []}, config())
    assert await pending(space_of(ks)) == []

    await one_asks(saver).ainvoke(None, config())

    assert [each.question for each in await pending(space_of(ks))] == ["pay?"]


async def test_a_run_that_is_stored_at_its_end_asks_too(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config(), durability="exit")
    await answer(space)

    assert await work(space, graph, durability="exit") == ["resumed"]
    assert await said(graph) == ["pay: True", "end"]


# ---- strictly


async def test_a_resumed_run_that_is_overtaken_raises_and_forks_nothing(interrupted: Interrupted) -> None:
    ks, saver = interrupted

    async def pay(state: State) -> dict[str, Any]:
        given = interrupt("pay?")
        if current_task() is not None:  # another program, which does not wait for the lease
            run = graph.ainvoke({"said": ["never mind"]}, config())
            await asyncio.get_running_loop().create_task(run, context=Context())
        return {"said": [f"pay: {given}"]}

    graph, space = one_asks(saver, pay), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    with pytest.raises(ConflictError, match="has gone on"):
        await resume(graph)(task)

    assert [branch.name async for branch in space.history.branches()] == ["main"]
    await task.fail("overtaken", retry_in_s=0)
    assert await work(space, graph) == ["answered elsewhere"]


async def test_a_thread_whose_lease_is_held_is_left_for_later(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph, space = one_asks(saver), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)

    async with await space.leases.acquire("langgraph", ttl_s=60):
        assert await work(space, graph) == ["waiting"]

    assert await said(graph) == []


async def test_a_worker_on_another_store_than_the_graph_says_so(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    await one_asks(saver).ainvoke({"said": []}, config())
    await answer(space_of(ks))

    other = KeepstateSaver("memory://", approvals=True)
    with other, pytest.raises(InvalidError, match="does not see task"):
        await work(space_of(ks), one_asks(other))


async def test_a_node_makes_an_outside_effect_once(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    paid, failures = list[int](), ["after the payment"]

    def transfer() -> str:
        paid.append(100)
        return "receipt 1"

    async def pay(state: State) -> dict[str, Any]:
        interrupt("pay?")
        task = current_task()
        assert task is not None
        receipt = await task.step("transfer", transfer, once=True)
        if failures:
            raise OSError(failures.pop())
        return {"said": [receipt]}

    graph, space = one_asks(saver, pay), space_of(ks)
    await graph.ainvoke({"said": []}, config())
    await answer(space)
    [task] = await space.queue.claim("worker", lease_s=60)
    with pytest.raises(OSError, match="after the payment"):
        await resume(graph)(task)
    await task.fail("failed", retry_in_s=0)

    assert await work(space, graph) == ["resumed"]
    assert (paid, await said(graph)) == ([100], ["receipt 1", "end"])
    assert current_task() is None


async def test_a_breakpoint_asks_nothing(interrupted: Interrupted) -> None:
    ks, saver = interrupted
    graph = StateGraph(State)
    graph.add_node("say", lambda state: {"said": ["said"]})
    graph.add_edge(START, "say")

    await graph.compile(checkpointer=saver, interrupt_before=["say"]).ainvoke({"said": []}, config())

    assert await pending(space_of(ks)) == []


def test_the_author_of_the_saver_asks() -> None:
    with keepstate.sync.open("memory://", author="agent") as ks:
        one_asks(KeepstateSaver(ks, approvals=True)).invoke({"said": []}, config())
        [asked] = ks.space("thread/t").approvals.pending()

        with pytest.raises(NotAllowedError):
            ks.space("thread/t").approvals.answer(asked.id, True, by="agent")
