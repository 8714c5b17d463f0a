"""What clients live through when a replica takes over that missed what they had seen.

Each story is a generator with two stops. Before the first all is replicated; between the two the master still
acknowledges what its replica will not have; after the second the replica is master, and the story goes on in
strangers' company.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from keepstate._runner import Mode, TaskRunner, ThreadRunner
from keepstate.engine.space.space import Space
from keepstate.errors import (
    HistoryLostError,
    LeaseLostError,
    NotLoadedError,
    OutcomeUnknownError,
    StateConflictError,
)
from keepstate.stores.protocol import Applied, Batch, Check, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import applied, changed, revision_of, scanned, value_of
from keepstate.typed.batch import MutationBatch
from keepstate.typed.state import KeyedState
from tests.contracts.typed.keys import KEYS, Goal, Plan, Visits
from tests.crashes.lossy_stage import space_in

A, B = b"\x02a", b"\x02b"


@dataclass
class Cast:
    """A space of the story's own, and the clients on it."""

    url: str
    space: str
    mode: Mode
    opened: list[RedisStore] = field(default_factory=list)

    async def client(self) -> RedisStore:
        """Return a client that has seen nothing."""
        runner = TaskRunner() if self.mode == "async" else ThreadRunner()
        self.opened.append(await RedisStore(StoreUrl.parse(self.url), runner=runner).open())
        return self.opened[-1]

    async def end(self) -> None:
        """Close what was opened."""
        for store in self.opened:
            await store.close()

    async def stranger(self, *values: bytes) -> RedisStore:
        """Return somebody else, who has seen nothing and write over what is there now."""
        store = await self.client()
        for value in values:
            await applied(store, self.space, Put(A, value))
        return store

    def of(self, store: RedisStore) -> Space:
        """Return the space in the hands of a client."""
        return space_in(store, self.space)


Story = Callable[[Cast], AsyncGenerator[None]]
Call = Callable[[RedisStore], Awaitable[object]]


async def refusal_of(call: Call, store: RedisStore) -> object:
    """Return what a call raises or answer; a drop under which the connection broke is made once more."""
    try:
        try:
            answer = await call(store)
        except OutcomeUnknownError:
            answer = await call(store)
    except HistoryLostError as error:
        return error
    return answer[0] if isinstance(answer, list) else answer


async def who_wrote_what_was_lost_is_told_once_and_then_works_on(cast: Cast) -> AsyncGenerator[None]:
    writer = await cast.client()
    await applied(writer, cast.space, Put(A, b"kept"))
    yield
    await applied(writer, cast.space, Put(A, b"lost"))
    yield

    with pytest.raises(HistoryLostError) as told:
        await value_of(writer, cast.space, A)

    assert (told.value.space, told.value.revision) == (cast.space, 2)
    assert await value_of(writer, cast.space, A) == b"kept"
    assert (await applied(writer, cast.space, Put(A, b"again"), checks=[Check(A, version=1)])).revision == 2


async def every_kind_of_call_notices_also_when_strangers_have_passed_the_revision(
    cast: Cast,
) -> AsyncGenerator[None]:
    clients = [await cast.client() for _ in range(7)]
    await applied(clients[0], cast.space, Put(A, b"kept"))
    yield
    await applied(clients[0], cast.space, Put(A, b"lost"))
    for store in clients:
        assert await value_of(store, cast.space, A) == b"lost"
    yield
    stranger = await cast.stranger(b"2", b"3", b"4")

    calls: dict[str, Call] = {
        "read": lambda store: revision_of(store, cast.space),
        "read many": lambda store: store.read(cast.space, [b"\x02%d" % n for n in range(20)]),
        "scan": lambda store: scanned(store, cast.space, A),
        "changes": lambda store: changed(store, cast.space, 1),
        "apply": lambda store: store.apply([Batch(cast.space, [Put(B, b"after a loss")])]),
        "judge": lambda store: store.apply([Batch(cast.space, (), [Check(A, version=2)])]),
        "drop": lambda store: store.drop(cast.space),
    }
    noticed = {
        name: type(await refusal_of(call, store))
        for (name, call), store in zip(calls.items(), clients, strict=True)
    }

    assert noticed == dict.fromkeys(calls, HistoryLostError)
    assert [entry.value for entry in await scanned(stranger, cast.space, b"\x02")] == [b"4"]


async def a_check_of_a_version_from_before_does_not_pass_on_a_stranger_s_write(
    cast: Cast,
) -> AsyncGenerator[None]:
    store, other = await cast.client(), await cast.client()
    await applied(store, cast.space, Put(A, b"kept"))
    yield
    lost = (await applied(store, cast.space, Put(A, b"lost"))).revision
    assert await value_of(other, cast.space, A) == b"lost"
    yield
    stranger = await cast.stranger(b"stranger's")
    assert await revision_of(stranger, cast.space) == lost

    by_version = await store.apply([Batch(cast.space, [Put(A, b"stale")], [Check(A, version=lost)])])
    by_revision = await other.apply([Batch(cast.space, [Put(A, b"stale")], at=lost)])

    assert [type(outcome) for outcome in (*by_version, *by_revision)] == [HistoryLostError] * 2
    assert await value_of(stranger, cast.space, A) == b"stranger's"


async def a_batch_built_before_another_call_was_told_is_void(cast: Cast) -> AsyncGenerator[None]:
    store = await cast.client()
    await applied(store, cast.space, Put(A, b"kept"))
    yield
    lost = (await applied(store, cast.space, Put(A, b"lost"))).revision
    losses = store.losses(cast.space)
    yield
    stranger = await cast.stranger(b"stranger's")
    with pytest.raises(HistoryLostError):
        await value_of(store, cast.space, A)

    stale = Batch(cast.space, [Put(A, b"stale")], [Check(A, version=lost)], losses=losses)
    fresh = Batch(cast.space, [Put(B, b"fresh")], losses=store.losses(cast.space))
    outcomes = await store.apply([stale, fresh])

    assert [type(outcome) for outcome in outcomes] == [HistoryLostError, Applied]
    assert await value_of(stranger, cast.space, A) == b"stranger's"


async def a_draft_begun_before_is_void_although_its_versions_match(cast: Cast) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    await space.documents.put("plan", "kept")
    yield
    await space.documents.put("plan", "lost")
    draft = space.transaction()
    tx = await draft.__aenter__()
    await tx.documents.put("plan", [await tx.documents.get("plan"), "and more"])
    reader = space.transaction()
    reading = await reader.__aenter__()
    await reading.documents.get("plan")
    yield
    stranger = cast.of(await cast.client())
    await stranger.documents.put("plan", "stranger's")
    assert await stranger.revision() == 2
    with pytest.raises(HistoryLostError):
        await space.revision()

    with pytest.raises(HistoryLostError):
        await draft.__aexit__(None, None, None)
    with pytest.raises(HistoryLostError):
        await reading.documents.get("another")
    await reader.__aexit__(None, None, None)

    assert await space.documents.get("plan") == "stranger's"


async def a_lease_is_void_although_its_token_is_a_stranger_s_now(cast: Cast) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    await space.documents.put("plan", "kept")
    yield
    lease = await space.leases.acquire("job", 600)
    yield
    stranger = cast.of(await cast.client())
    theirs = await stranger.leases.acquire("job", 600)
    assert (theirs.token, lease.is_held()) == (lease.token, True)
    with pytest.raises(HistoryLostError):
        await lease.check()

    assert not lease.is_held()
    for use in (lease.check, lease.renew):
        with pytest.raises(LeaseLostError):
            await use()
    with pytest.raises(LeaseLostError):
        async with space.transaction(lease=lease) as tx:
            await tx.documents.put("plan", "by a former holder")
    assert not await lease.release()
    await theirs.check()
    assert await stranger.documents.get("plan") == "kept"


async def a_lease_fences_a_transaction_that_is_the_first_to_notice(cast: Cast) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    await space.documents.put("plan", "kept")
    yield
    lease = await space.leases.acquire("job", 600)
    yield
    stranger = cast.of(await cast.client())
    await stranger.leases.acquire("job", 600)

    with pytest.raises(HistoryLostError):
        async with space.transaction(lease=lease) as tx:
            await tx.documents.put("plan", "by a former holder")

    assert not lease.is_held()
    assert await stranger.documents.get("plan") == "kept"


async def a_claimed_task_is_void_although_its_token_is_a_stranger_s_now(cast: Cast) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    await space.queue.put("dig", id="t")
    yield
    (task,) = await space.queue.claim("w", lease_s=600)
    yield
    stranger = cast.of(await cast.client())
    (theirs,) = await stranger.queue.claim("v", lease_s=600)
    assert theirs.token == task.token
    with pytest.raises(HistoryLostError):
        await space.revision()

    for use in (task.heartbeat, task.complete, task.release):
        with pytest.raises(LeaseLostError):
            await use()

    await theirs.complete("done")


async def a_state_read_before_is_void_although_its_revision_is_a_stranger_s_now(
    cast: Cast,
) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    first, second = [KeyedState("t", space=space, keys=KEYS, _mode=cast.mode) for _ in range(2)]
    await first.commit(MutationBatch().update(Plan, "kept").update(Visits, 1))
    yield
    await first.commit(MutationBatch().update(Plan, "lost").update(Goal, "lost"))
    await second.refresh()
    late = first.begin_mutation().update(Plan, "late")
    yield
    stranger = KeyedState("t", space=cast.of(await cast.client()), keys=KEYS, _mode=cast.mode)
    for _ in range(3):
        await stranger.commit(MutationBatch().update(Visits, 1))

    for state in (first, second):
        with pytest.raises(HistoryLostError):
            await state.refresh()
        with pytest.raises(NotLoadedError):
            state.snapshot()
        await state.refresh()
        assert (state.revision, state.read(Visits), state.read(Plan), state.read(Goal)) == (
            4,
            4,
            "kept",
            None,
        )
    with pytest.raises(StateConflictError, match="lost since"):
        await first.commit(late)
    await first.commit(first.begin_mutation().update(Plan, "next"))
    await second.commit(second.begin_mutation().update(Visits, 1))
    await stranger.refresh()
    assert (stranger.revision, stranger.read(Plan), stranger.read(Visits)) == (6, "next", 5)


async def an_open_watch_is_told(cast: Cast) -> AsyncGenerator[None]:
    space, other = cast.of(await cast.client()), cast.of(await cast.client())
    await space.documents.put("plan", "kept")
    idle, told = (each.documents.watch(timeout_s=10) for each in (space, other))
    idle_watch, told_watch = await idle.__aenter__(), await told.__aenter__()
    yield
    await space.documents.put("plan", "lost")
    assert [(await anext(watch)).new for watch in (idle_watch, told_watch)] == ["lost", "lost"]
    yield
    stranger = cast.of(await cast.client())
    for value in ("stranger's", "and another"):
        await stranger.documents.put("plan", value)
    with pytest.raises(HistoryLostError):
        await other.revision()

    for watch in (idle_watch, told_watch, told_watch):
        with pytest.raises(HistoryLostError):
            await anext(watch)
    for opened in (idle, told):
        await opened.__aexit__(None, None, None)


async def who_has_seen_nothing_of_what_was_lost_works_on(cast: Cast) -> AsyncGenerator[None]:
    ignorant, writer = await cast.client(), await cast.client()
    await applied(writer, cast.space, Put(A, b"kept"))
    assert await value_of(ignorant, cast.space, A) == b"kept"
    lease = await cast.of(ignorant).leases.acquire("job", 600)
    yield
    await applied(writer, cast.space, Put(A, b"lost"))
    yield
    await cast.stranger(b"stranger's")

    await lease.check()
    async with cast.of(ignorant).transaction(lease=lease) as tx:
        await tx.documents.put("plan", "mine")

    assert await value_of(ignorant, cast.space, A) == b"stranger's"
    assert await value_of(await cast.client(), cast.space, A) == b"stranger's"


async def a_position_that_outlived_its_process_is_told(cast: Cast) -> AsyncGenerator[None]:
    space = cast.of(await cast.client())
    async with space.documents.watch(timeout_s=10) as watch:
        await space.documents.put("plan", "kept")
        kept = (await anext(watch)).position
        yield
        await space.documents.put("plan", "lost")
        await space.events.append({"by": "the lost"})
        lost, event = (await anext(watch)).position, (await space.events.read())[0].position
    yield
    stranger = cast.of(await cast.client())
    for number in range(3):
        await stranger.documents.put("plan", f"stranger's {number}")
        await stranger.events.append({"by": "a stranger"})

    ignorant = cast.of(await cast.client())
    with pytest.raises(HistoryLostError):
        async with ignorant.documents.watch(after=lost, timeout_s=0):
            pass
    with pytest.raises(HistoryLostError):
        await ignorant.events.read(after=event)
    async with ignorant.documents.watch(after=kept, timeout_s=0) as watch:
        assert [change.new async for change in watch] == [f"stranger's {number}" for number in range(3)]


STORIES: tuple[Story, ...] = (
    who_wrote_what_was_lost_is_told_once_and_then_works_on,
    every_kind_of_call_notices_also_when_strangers_have_passed_the_revision,
    a_check_of_a_version_from_before_does_not_pass_on_a_stranger_s_write,
    a_batch_built_before_another_call_was_told_is_void,
    a_draft_begun_before_is_void_although_its_versions_match,
    a_lease_is_void_although_its_token_is_a_stranger_s_now,
    a_lease_fences_a_transaction_that_is_the_first_to_notice,
    a_claimed_task_is_void_although_its_token_is_a_stranger_s_now,
    a_state_read_before_is_void_although_its_revision_is_a_stranger_s_now,
    an_open_watch_is_told,
    a_position_that_outlived_its_process_is_told,
    who_has_seen_nothing_of_what_was_lost_works_on,
)
