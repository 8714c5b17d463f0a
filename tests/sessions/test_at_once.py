"""Many who change one session, thread or machine at once: all of it is kept, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

import keepstate.sync
from keepstate.engine.kernel import locks
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions import (
    AgentStateMachine,
    BoundedState,
    Session,
    Threads,
    ValidatedState,
    VersionedState,
    conversation_store,
)
from keepstate.stores.memory import MemoryStore
from tests.contracts.sessions.stage import BusyStore
from tests.engine.conftest import Turned
from tests.processes import Program, answer_first_requests, append_to_session

MANY = 80
"""More than an operation of a part has attempts."""


class Count(msgspec.Struct):
    number: int = 0


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


@pytest.fixture
def endless_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let who waits in a line wait for so long that the test is over before."""
    monkeypatch.setattr(locks, "_LONGEST_TURN_S", 3600)


async def test_first_requests_of_one_chat_at_once_lose_no_answer(ks: Keepstate) -> None:
    answers = await asyncio.gather(*(answer_first_requests.process(ks, f"{n}") for n in range(20)))

    session = Session("c", persistence=ks)
    messages = [message["content"] async for message in session.conversation.messages()]
    assert sorted(messages) == sorted([*map(str, range(20)), *answers])
    assert (await session.task.get()).steps_completed == 20


async def test_first_requests_of_one_chat_in_many_processes_lose_no_answer(shared_url: str) -> None:
    program = (answer_first_requests.__file__, shared_url)
    running = [Program(*program, name, 5, stdout=subprocess.PIPE) for name in "abcd"]  # 20 requests
    answers = [line for process in running for line in process.communicate()[0].splitlines()]
    assert [process.returncode for process in running] == [0, 0, 0, 0]

    with keepstate.sync.open(shared_url) as ks:
        session = keepstate.sync.Session("c", persistence=ks)
        said = [message["content"] for message in session.conversation.messages()]
        assert sorted(answer for answer in said if "answered" in answer) == sorted(answers)
        assert (len(said), session.task.get().steps_completed) == (40, 20)


async def test_first_requests_of_one_id_at_once_make_one_of_each(ks: Keepstate) -> None:
    """The same for all that is made by its first use."""
    made = await asyncio.gather(*(Threads(persistence=ks).create("t") for _ in range(20)))
    numbers = await asyncio.gather(
        *(VersionedState("v", persistence=ks).checkpoint({"n": n}) for n in range(20))
    )
    await asyncio.gather(
        *(BoundedState("b", persistence=ks).add_message(said(f"{n}")) for n in range(20)),
        *(Session("s", user_id="u", persistence=ks).user.remember("trips", n) for n in range(20)),
    )

    assert len({thread.created_at for thread in made}) == 1
    assert sorted(numbers) == list(range(20))
    assert len(await BoundedState("b", persistence=ks).get_context()) == 20
    trips = await Session("s", user_id="u", persistence=ks).user.history("trips")
    assert sorted(trips) == list(range(20))


async def test_many_who_write_one_conversation_lose_no_message(ks: Keepstate) -> None:
    await asyncio.gather(
        *(Session("s", persistence=ks).conversation.append(said(f"{n}")) for n in range(MANY))
    )

    messages = Session("s", persistence=ks).conversation.messages()
    assert sorted([int(message["content"]) async for message in messages]) == list(range(MANY))
    assert not locks._queues


async def test_many_who_write_each_kind_of_state_lose_nothing(ks: Keepstate) -> None:
    threads = Threads(persistence=ks)
    thread = await threads.create()
    counting: dict[str, Any] = {"states": ["a"], "transitions": {("a", "again"): "a"}, "waiting": []}

    async def work(number: int) -> None:
        await threads.messages.create(thread.id, role="user", content=str(number))
        await VersionedState("v", persistence=ks).checkpoint(number)
        await AgentStateMachine("m", persistence=ks, **counting).transition("again")
        await ValidatedState("s", Count, persistence=ks).update(lambda old: Count(old.number + 1))

    await asyncio.gather(*(work(number) for number in range(MANY)))

    retrieved = [
        int(str(message.content))
        async for message in _all(lambda after: threads.messages.list(thread.id, after=after))
    ]
    assert sorted(retrieved) == list(range(MANY))
    assert await VersionedState("v", persistence=ks).current_version() == MANY - 1
    assert len(await AgentStateMachine("m", persistence=ks, **counting).history()) == MANY
    assert (await ValidatedState("s", Count, persistence=ks).get()).number == MANY
    assert not locks._queues


async def _all(page: Callable[[str | None], Awaitable[Any]]) -> Any:
    after = None
    while True:
        found = await page(after)
        for message in found.data:
            yield message
        if not found.has_more:
            return
        after = found.last_id


async def test_transactions_and_exclusive_blocks_go_on_beside_many_who_write(
    ks: Keepstate, endless_patience: None
) -> None:
    def mine() -> Session:
        return Session("s", persistence=ks)

    async def alone(number: int) -> None:
        async with mine().exclusive(ttl_s=600, wait_s=600) as one:
            await one.conversation.append(said(f"alone {number}"))
            async with one.transaction() as both:
                await both.conversation.append(said(f"both {number}"))
                await both.update({f"n{number}": number})

    async def aside(number: int) -> None:
        await mine().conversation.append(said(f"aside {number}"))

    await mine().conversation.append(said("first"))
    async with mine().exclusive() as one:
        await asyncio.gather(*(one.conversation.append(said(f"inside {n}")) for n in range(8)))
    async with mine().transaction() as together:
        await asyncio.gather(*(together.conversation.append(said(f"joined {n}")) for n in range(8)))
    await asyncio.wait_for(asyncio.gather(alone(0), *(aside(number) for number in range(3))), 60)

    assert await mine().conversation.count() == 1 + 8 + 8 + 2 + 3
    assert await mine().get_state() == {"n0": 0}


async def test_a_function_that_updates_may_write_elsewhere_in_the_session_and_waits_for_nobody(
    turned: Turned, endless_patience: None
) -> None:
    session = Session("s", user_id="u", persistence=turned.ks)
    await session.conversation.append(said("first"))

    async def change(state: dict[str, Any]) -> dict[str, Any]:
        await session.conversation.append(said("from inside"))
        await session.user.update_preferences({"seat": "aisle"})
        return {**state, "count": state.get("count", 0) + 1}

    await asyncio.wait_for(session.update(change), 60)
    await asyncio.wait_for(session.user.update_preferences(lambda old: {**old, "more": 1}), 60)

    assert await session.get_state() == {"count": 1}
    assert await session.conversation.count() == 2
    assert await session.user.get_preferences() == {"seat": "aisle", "more": 1}


async def test_a_function_that_writes_the_state_that_it_updates_is_refused_by_name(turned: Turned) -> None:
    session = Session("s", user_id="u", persistence=turned.ks)
    counts = session.state(Count)

    async def of_session(state: dict[str, Any]) -> dict[str, Any]:
        return await session.update({"x": 1})

    async def of_model(count: Count) -> Count:
        return await counts.put(Count(1))

    with pytest.raises(InvalidError, match=r"state/data' of 'session/s' is written inside the function"):
        await session.update(of_session)
    with pytest.raises(InvalidError, match=r"state/Count' of 'session/s' is written inside the function"):
        await counts.update(of_model)
    assert await session.get_state() == {}


async def test_a_function_that_raises_leaves_nobody_in_the_line(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks)

    with pytest.raises(ZeroDivisionError):
        await session.update(lambda old: {"x": 1 // 0})
    await session.update({"x": 1})

    assert await session.get_state() == {"x": 1}
    assert not locks._queues


@pytest.mark.slow
def test_many_processes_write_one_conversation(shared_url: str) -> None:
    processes = [Program(append_to_session.__file__, shared_url, name, 12) for name in "abc"]
    assert [process.wait(timeout=60) for process in processes] == [0, 0, 0]

    with keepstate.sync.open(shared_url) as ks:
        messages = keepstate.sync.Session("s", persistence=ks).conversation.messages()
        said = [str(message["content"]) for message in messages]
    for name in "abc":
        assert [each for each in said if each.startswith(name)] == [f"{name} {n}" for n in range(12)]


def test_many_threads_write_one_conversation() -> None:
    with keepstate.sync.open("memory://") as ks, ThreadPoolExecutor(8) as threads:
        append = keepstate.sync.Session("s", persistence=ks).conversation.append
        for done in [threads.submit(append, said(f"{n}")) for n in range(MANY)]:
            done.result()

        assert keepstate.sync.Session("s", persistence=ks).conversation.count() == MANY
    assert not locks._queues


@pytest.mark.parametrize("reads", range(8))
async def test_a_context_of_more_pages_than_one_read_takes_is_of_one_moment(
    monkeypatch: pytest.MonkeyPatch, reads: int
) -> None:
    monkeypatch.setattr(conversation_store, "PAGES_AT_ONCE", 1)
    inner = await MemoryStore().open()
    store = BusyStore(inner)
    mine, others = (BoundedState("c", max_tokens=2_000, persistence=each) for each in (store, inner))
    for number in range(60):
        await others.add_message(said(f"{number}"), pinned=number == 3)
    before = await mine.get_context()

    async def much() -> None:
        await others.add_message(said("y" * 7_000))

    store.meanwhile, store.after_reads = much, reads
    found = await mine.get_context()
    assert found in (before, await mine.get_context())
    assert len(before) == 60 and before[3] == said("3")
    await inner.close()
