"""Transactions: one batch, one revision read, nothing lost to others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from keepstate import Session, StateManager
from keepstate.engine.events.events import EXISTS, NO_STREAM
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    AttemptsExhaustedError,
    ClosedError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    OutcomeUnknownError,
)
from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.protocol import Batch, Entry
from keepstate.values import limits
from tests.engine.conftest import Turned


async def test_a_transaction_applies_everything_at_one_revision(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.documents.put("plan", 1)
        await tx.documents.put("notes", 2)
        await tx.events.append("started")
        await tx.queue.put("work", id="t")

    versions = [entry.version async for entry in _entries(space, "plan", "notes")]
    assert versions == [tx.revision, tx.revision]
    assert [event.data for event in await space.events.read()] == ["started"]
    assert (await space.queue.counts())["ready"] == 1


async def _entries(space: Space, *keys: str):  # type: ignore[no-untyped-def]
    for key in keys:
        entry = await space.documents.entry(key)
        assert entry is not None
        yield entry


async def test_a_body_that_raises_applies_nothing(space: Space) -> None:
    with pytest.raises(ZeroDivisionError):
        async with space.transaction() as tx:
            await tx.documents.put("plan", 1)
            raise ZeroDivisionError

    assert await space.documents.get("plan") is None
    assert await space.revision() == 0


async def test_a_transaction_reads_its_own_writes(space: Space) -> None:
    await space.documents.put("a", 1)
    await space.documents.put("b", 2)

    async with space.transaction() as tx:
        await tx.documents.put("a", 10)
        await tx.documents.put("c", 30)
        await tx.documents.delete("b")
        await tx.events.append("mine")
        found = {key: value async for key, value in tx.documents.items()}
        events = [event.data for event in await tx.events.read()]

        assert (found, events) == ({"a": 10, "c": 30}, ["mine"])
        assert await tx.documents.get("b") is None


async def test_a_conflict_is_raised_at_the_exit_of_a_body_that_ran_once(space: Space) -> None:
    runs = 0
    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            runs += 1
            value = await tx.documents.get("n", 0)
            await space.documents.put("n", 5)
            await tx.documents.put("n", value + 1)

    assert runs == 1
    assert await space.documents.get("n") == 5


async def test_a_read_moves_along_with_changes_of_what_was_not_read(space: Space) -> None:
    await space.documents.put("a", 1)

    async with space.transaction() as tx:
        await tx.documents.get("a")
        await space.documents.put("other", 1)
        assert await tx.documents.get("other") == 1
        await tx.documents.put("b", 2)

    assert await space.documents.get("b") == 2


async def test_a_read_after_a_change_of_what_was_read_raises_at_once(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.documents.get("a")
        await space.documents.put("a", 1)

        with pytest.raises(ConflictError, match="changed while a transaction read it"):
            await tx.documents.get("b")


@pytest.mark.parametrize("changed", ["a", "b", "c"])
async def test_a_view_does_not_move_past_a_change_of_any_of_what_was_read(space: Space, changed: str) -> None:
    async with space.transaction() as tx:
        for key in ("a", "b", "c"):
            await tx.documents.get(key)
        await space.documents.put(changed, 1)

        with pytest.raises(ConflictError, match=f"'{changed}'.*changed while a transaction read it"):
            await tx.documents.get("d")


async def test_a_phantom_is_refused(space: Space) -> None:
    await space.documents.put("item/1", 1)

    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            count = len([key async for key in tx.documents.keys("item/*")])
            await space.documents.put("item/2", 1)
            await tx.documents.put("count", count)

    assert await space.documents.get("count") is None


async def test_write_skew_is_refused(space: Space) -> None:
    await space.documents.put("alice", "on call")
    await space.documents.put("bob", "on call")

    with pytest.raises(ConflictError):
        async with space.transaction() as first:
            assert await first.documents.get("bob") == "on call"
            async with space.transaction() as second:
                assert await second.documents.get("alice") == "on call"
                await second.documents.put("bob", "off")
            await first.documents.put("alice", "off")

    assert await space.documents.get("alice") == "on call"


async def test_over_a_thousand_writes_raise_and_nothing_is_sent(space: Space) -> None:
    with pytest.raises(InvalidError):
        async with space.transaction() as tx:
            for number in range(1001):
                await tx.documents.put(f"d{number}", number)

    assert await space.revision() == 0


async def test_a_thousand_writes_beside_a_large_value_send_no_part_when_refused(space: Space) -> None:
    with pytest.raises(InvalidError):
        async with space.transaction() as tx:
            await tx.documents.put("large", bytes(3 << 20))
            for number in range(1000):
                await tx.documents.put(f"d{number}", number)

    assert await space.revision() == 0


async def test_an_ended_transaction_is_closed_for_every_use(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.documents.put("a", 1)

    with pytest.raises(ClosedError):
        await tx.documents.get("a")
    with pytest.raises(ClosedError):
        await tx.documents.put("a", 2)
    with pytest.raises(ClosedError):
        _ = [key async for key in tx.documents.keys("*")]
    with pytest.raises(ClosedError):
        await tx.events.read()


async def test_transact_calls_again_until_there_is_no_conflict(space: Space) -> None:
    calls = 0

    async def step(tx: Transaction) -> int:
        nonlocal calls
        calls += 1
        value: int = await tx.documents.get("n", 0)
        if calls < 3:
            await space.documents.put("n", value + 10)
        await tx.documents.put("n", value + 1)
        return value + 1

    assert await space.transact(step) == 21
    assert calls == 3


async def test_transact_gives_up_after_its_attempts(space: Space) -> None:
    async def step(tx: Transaction) -> None:
        value = await tx.documents.get("n", 0)
        await space.documents.put("n", value + 1)
        await tx.documents.put("n", -1)

    with pytest.raises(AttemptsExhaustedError, match="allow more `attempts`") as caught:
        await space.transact(step, attempts=3)

    assert caught.value.attempts == 3
    assert await space.documents.get("n") == 3


async def test_who_lost_a_transaction_waits_for_those_who_lost_before(space: Space) -> None:
    calls: list[int] = []

    async def step(tx: Transaction) -> None:
        value: int = await tx.documents.get("n", 0)
        calls.append(value)
        await asyncio.sleep(0)
        await tx.documents.put("n", value + 1)

    await space.documents.put("n", 0)
    await asyncio.gather(*(space.transact(step) for _ in range(40)))

    assert await space.documents.get("n") == 40
    assert len(calls) < 100  # each once, those who lost then one after the other


async def test_a_version_expected_of_what_was_read_at_another_is_refused_at_once(space: Space) -> None:
    await space.documents.put("a", 1)

    async with space.transaction() as tx:
        await tx.documents.get("a")
        with pytest.raises(ConflictError) as caught:
            await tx.documents.put("a", 2, expected_version=7)

    assert caught.value.actual == 1


async def test_two_versions_expected_of_one_document_never_both_hold(space: Space) -> None:
    version = await space.documents.put("a", 1)

    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            await tx.documents.put("a", 2, expected_version=version + 9)
            await tx.documents.put("a", 3, expected_version=version)

    assert await space.documents.get("a") == 1


async def test_a_transaction_may_read_more_than_a_batch_has_checks(turned: Turned) -> None:
    space = turned.space
    async with space.transaction() as tx:
        for number in range(1001):
            await tx.documents.get(f"d{number}")
        await tx.documents.put("seen", 1001)

    assert await space.documents.get("seen") == 1001


async def test_an_event_expectation_is_not_weakened_by_a_later_one(space: Space) -> None:
    last = await space.events.append(1)

    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            await tx.events.append(2, expected=last)
            await tx.events.append(3, expected=EXISTS)
            await space.events.append("between")

    assert [event.data for event in await space.events.read()] == [1, "between"]


async def test_a_stream_begun_in_a_transaction_is_one_there(space: Space) -> None:
    async with space.transaction() as tx:
        await tx.events.append(1, expected=NO_STREAM)
        await tx.events.append(2, expected=EXISTS)
        with pytest.raises(ConflictError):
            await tx.events.append(3, expected=NO_STREAM)

    assert [event.data for event in await space.events.read()] == [1, 2]


async def test_a_stale_holder_that_has_scanned_is_told_that_its_lease_is_lost(turned: Turned) -> None:
    space = turned.space
    lease = await space.leases.acquire("job", 1)

    with pytest.raises(LeaseLostError):
        async with space.transaction(lease=lease) as tx:
            _ = [key async for key in tx.documents.keys("*")]
            turned.clock.advance(1001)
            await space.leases.acquire("job", 1)
            await tx.documents.put("a", 1)

    assert await space.documents.get("a") is None


async def test_a_renewal_does_not_refuse_the_holder(space: Space) -> None:
    lease = await space.leases.acquire("job", 30)

    async with space.transaction(lease=lease) as tx:
        await lease.renew()
        await tx.documents.put("a", 1)

    assert await space.documents.get("a") == 1


async def test_a_block_for_async_with_that_is_entered_by_with_is_told_so(space: Space, ks: Keepstate) -> None:
    blocks: list[Any] = [ks, space.transaction(), StateManager(persistence=ks), Session("s", persistence=ks)]
    for block in blocks:
        with pytest.raises(InvalidError, match="is async: use `async with`"), block:
            pass


async def test_a_block_is_entered_once(space: Space) -> None:
    for block, name in ((space.transaction(), "transaction"), (space.documents.watch(), "watch")):
        async with block:
            pass
        with pytest.raises(InvalidError, match=rf"the result of {name}\(\) was entered twice"):
            async with block:
                pass


async def test_a_transaction_that_listed_what_has_expired_since_is_refused(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    await space.documents.put("slot/a", 1, ttl_s=1)

    with pytest.raises(ConflictError, match="expired"):
        async with space.transaction() as tx:
            assert [key async for key in tx.documents.keys("slot/*")] == ["slot/a"]
            clock.advance(1000)
            assert await space.documents.get("slot/a") is None
            await tx.documents.put("answer", "one is alive")

    assert await space.documents.get("answer") is None


async def test_a_transaction_that_listed_what_still_lives_applies(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    await space.documents.put("slot/a", 1, ttl_s=2)

    async with space.transaction() as tx:
        assert [key async for key in tx.documents.keys("slot/*")] == ["slot/a"]
        clock.advance(1999)
        await tx.documents.put("answer", "one is alive")

    assert await space.documents.get("answer") == "one is alive"


async def test_all_readings_of_a_transaction_are_of_one_time(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    await space.documents.put("a", 1, ttl_s=1)
    await space.documents.put("b", 2, ttl_s=2)

    async with space.transaction() as tx:
        assert await tx.documents.get("a") == 1
        clock.advance(3000)
        found = await tx.documents.get("b"), [key async for key in tx.documents.keys("*")]

    assert found == (2, ["a", "b"])
    assert [key async for key in space.documents.keys("*")] == []


async def test_all_pages_of_a_listing_are_of_one_time(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    names = [f"{number:04d}" for number in range(limits.PAGE_ROWS)]
    for begin in range(0, len(names), 500):
        async with space.transaction() as tx:
            for name in names[begin : begin + 500]:
                await tx.documents.put(name, None)
    await space.documents.put("on the second page", None, ttl_s=1)

    found: list[str] = []
    async with space.transaction() as tx:
        async for name in tx.documents.keys():
            clock.advance(1000 if not found else 0)
            found.append(name)

    assert found == [*names, "on the second page"]


async def _with_one_to_expire_in_a_second(space: Space) -> None:
    """Write `a`, and more that expires before it than the next two flushes sweep."""
    async with space.transaction() as tx:
        for number in range(2 * SWEPT_BY_FLUSH):
            await tx.documents.put(f"many/{number:02d}", number, ttl_s=0.5)
        await tx.documents.put("a", 1, ttl_s=1)


@pytest.mark.parametrize("passed_ms", [1000, 2000])
async def test_a_view_does_not_move_past_the_end_of_what_it_has_seen(turned: Turned, passed_ms: int) -> None:
    space, clock = turned.space, turned.clock
    await _with_one_to_expire_in_a_second(space)

    with pytest.raises(ConflictError, match="expired"):
        async with space.transaction() as tx:
            assert await tx.documents.get("a") == 1
            clock.advance(passed_ms)
            await space.documents.put("b", "written when a was gone")
            await tx.documents.get("b")


async def test_a_view_moves_along_while_what_it_has_seen_still_lives(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    await _with_one_to_expire_in_a_second(space)

    async with space.transaction() as tx:
        assert await tx.documents.get("a") == 1
        clock.advance(999)
        await space.documents.put("b", "written while a was there")
        assert await tx.documents.get("b") == "written while a was there"


async def test_more_keys_than_a_batch_checks_are_guarded_against_expiry_too(turned: Turned) -> None:
    space, clock = turned.space, turned.clock
    await space.documents.put("lease", 1, ttl_s=1)

    with pytest.raises(ConflictError, match="expired"):
        async with space.transaction() as tx:
            assert await tx.documents.get("lease") == 1
            for number in range(limits.BATCH_CHECKS):
                await tx.documents.get(f"missing/{number}")
            clock.advance(1000)
            await tx.documents.put("answer", "the lease is held")

    assert await space.documents.get("answer") is None


async def test_a_listing_in_a_transaction_shows_each_document_once_as_it_has_it(space: Space) -> None:
    for name in "bdf":
        await space.documents.put(name, 0)

    async with space.transaction() as tx:
        for name in "acdg":
            await tx.documents.put(name, 1)
        await tx.documents.delete("f")
        found = [item async for item in tx.documents.items()]

    assert found == [("a", 1), ("b", 0), ("c", 1), ("d", 1), ("g", 1)]
    assert [item async for item in space.documents.items()] == found


# ---- a caller's token


async def add(space: Space, token: str | None, by: int = 1) -> tuple[int, int]:
    """Add to a counter, and return the transaction's revision at the beginning and at the end of its body."""
    async with space.transaction(token=token) as tx:
        begin = tx.revision
        await tx.documents.update("n", lambda n: n + by, default=0)
        await tx.events.append("added")
    return begin, tx.revision


async def applies_once_in_each_space(ks: Keepstate) -> None:
    places = [ks.space("one"), ks.space("two"), ks.tenant("t").space("one")]
    for place in places:
        (_, first), (again, second) = await add(place, "request/7"), await add(place, "request/7", 50)
        assert first == again == second > 0
        await add(place, "request/8")
    assert [await place.documents.get("n") for place in places] == [2, 2, 2]
    assert [len(await place.events.read()) for place in places] == [2, 2, 2]


async def test_a_token_is_applied_once_in_its_space(ks: Keepstate) -> None:
    await applies_once_in_each_space(ks)


async def test_a_token_answered_for_another_space_is_caught(
    ks: Keepstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a cache of applied tokens that leaves out the space."""
    applied = dict[bytes, Entry]()
    get = Unit.get

    async def get_anywhere(unit: Unit, key: bytes) -> Entry | None:
        found = await get(unit, key)
        if found is not None and key.startswith(layout.TOKENS):
            applied[key] = found
        return applied.get(key, found)

    monkeypatch.setattr(Unit, "get", get_anywhere)
    with pytest.raises(AssertionError):
        await applies_once_in_each_space(ks)


async def test_a_note_is_stored_with_its_token_and_is_the_first_one_for_ever(
    ks: Keepstate, space: Space
) -> None:
    async def write(note: bytes) -> tuple[bytes, int]:
        async with space.transaction(token="t") as tx:
            await tx.documents.put("plan", note.decode())
            tx.set_note(note)
        return tx.note, tx.revision

    first = await write(b"one")
    second = await write(b"two")

    assert first == second == (b"one", 1)
    assert await space.documents.get("plan") == "one"
    async with ks.space("other").transaction(token="t") as tx:
        assert tx.note == b""


async def test_of_notes_at_once_every_caller_gets_the_one_that_was_applied(space: Space) -> None:
    async def write(number: int) -> bytes:
        async with space.transaction(token="t") as tx:
            await tx.documents.put("plan", number)
            tx.set_note(b"%d" % number)
        return tx.note

    notes = await asyncio.gather(*(write(number) for number in range(6)))

    assert {*notes} == {b"%d" % await space.documents.get("plan")}


async def test_a_note_needs_a_token_and_has_a_size(space: Space) -> None:
    async with space.transaction() as tx:
        with pytest.raises(InvalidError, match="token="):
            tx.set_note(b"x")
    async with space.transaction(token="t") as tx:
        with pytest.raises(InvalidError, match="16384"):
            tx.set_note(b"x" * (16 * 1024 + 1))
        with pytest.raises(InvalidError, match="note"):
            tx.set_note("x")  # type: ignore[arg-type]


async def test_a_token_works_in_a_recorded_space_and_with_an_old_lease(ks: Keepstate) -> None:
    space = ks.space("recorded", record=True)
    lease = await space.leases.acquire("work", 60)
    async with space.transaction(token="t", lease=lease) as tx:
        await tx.documents.put("a", 1)
    await space.documents.put("a", 2)
    await lease.release()
    async with space.transaction(token="t", lease=lease) as again:
        await again.documents.put("a", 1)
    await space.documents.put("b", 3)

    assert again.revision == tx.revision
    assert dict(await space.at()) == {"a": 2, "b": 3}
    assert len([commit async for commit in space.history.log()]) == 3


async def test_the_same_token_at_once_is_applied_once(ks: Keepstate, space: Space) -> None:
    async def add_at_last() -> tuple[int, int]:
        try:
            return await add(space, "t")
        except ConflictError:  # of a read in the body; the next attempt is answered
            return await add_at_last()

    answers = await asyncio.gather(*(add_at_last() for _ in range(6)))

    assert len({end for _, end in answers}) == 1
    assert await space.documents.get("n") == 1


async def test_a_body_that_fails_or_writes_nothing_uses_no_token(space: Space) -> None:
    with pytest.raises(RuntimeError):
        async with space.transaction(token="t") as tx:
            await tx.documents.put("a", 1)
            raise RuntimeError
    async with space.transaction(token="t") as tx:
        assert await tx.documents.get("a") is None
    assert tx.revision == 0

    assert (await add(space, "t"))[0] == 0
    with pytest.raises(RuntimeError):
        async with space.transaction(token="t"):
            raise RuntimeError
    assert await space.documents.get("n") == 1


async def test_a_conflict_without_the_token_is_still_a_conflict(space: Space) -> None:
    await space.documents.put("a", 1)
    with pytest.raises(ConflictError):
        async with space.transaction(token="t") as tx:
            await tx.documents.get("a")
            await space.documents.put("a", 2)
            await tx.documents.put("b", 1)

    assert (await add(space, "t"))[0] == 0


async def test_a_token_is_forgotten_after_a_day(turned: Turned) -> None:
    await add(turned.space, "t")
    turned.clock.advance(limits.TOKEN_KEPT_MS - 1)
    await add(turned.space, "t")
    assert await turned.space.documents.get("n") == 1

    turned.clock.advance(1)
    await add(turned.space, "t")
    assert await turned.space.documents.get("n") == 2


async def test_a_lost_reply_is_settled_by_the_token(ks: Keepstate, space: Space) -> None:
    store = await ks.opened()
    apply = store.apply

    async def lose(batches: Sequence[Batch]) -> list[Any]:
        await apply(batches)
        return [OutcomeUnknownError("the reply was lost", token=b"x") for _ in batches]

    store.apply = lose  # type: ignore[method-assign]
    with pytest.raises(OutcomeUnknownError) as caught:
        await add(space, "t")
    store.apply = apply  # type: ignore[method-assign]
    begin, end = await add(space, "t")

    assert "within 24 hours" in caught.value.__notes__[0]
    assert begin == end == await space.revision()
    assert await space.documents.get("n") == 1


# ---- value and revision


async def test_an_applied_function_tells_value_and_revision(space: Space) -> None:
    await space.documents.put("n", 1)

    async def double(tx: Transaction) -> int:
        n: int = await tx.documents.update("n", lambda n: n * 2)
        return n

    written = await space.apply(double)
    read = await space.apply(lambda tx: tx.documents.get("n"))

    assert (written.value, written.revision) == (2, await space.revision())
    assert (read.value, read.revision) == (2, 0)


async def test_a_function_is_called_until_it_applies(space: Space) -> None:
    calls = 0

    async def disturbed(tx: Transaction) -> int:
        nonlocal calls
        calls += 1
        n: int = await tx.documents.get("n", 0)
        if calls < 30:
            await space.documents.put("n", calls)
        await tx.documents.put("n", n + 1)
        return calls

    with pytest.raises(AttemptsExhaustedError):
        await space.transact(disturbed)
    assert calls == 8

    assert await space.transact(disturbed, attempts=None) == 30
    assert (await space.apply(disturbed)).value == 31
