"""Listings page both ways: documents, events and spaces, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.events.reducers import Fold
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import HistoryLostError, InvalidError, PrunedError
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.values import limits
from tests.engine.conftest import Turned

NAMES = sorted(["a", "b/1", "b/10", "b/2", "b/é", "b/" + "x" * 500, "c", "b*", "d\0"], key=str.encode)


async def filled(space: Space, *names: str) -> Space:
    async with space.transaction() as tx:
        for name in names or NAMES:
            await tx.documents.put(name, f"value of {name}")
    return space


async def all_of(names: AsyncIterator[Any]) -> list[Any]:
    return [name async for name in names]


def keys(page: Page[DocumentEntry[Any]]) -> list[str]:
    return [entry.key for entry in page]


# ---- names between bounds


async def test_names_lie_between_bounds_in_both_orders(space: Space) -> None:
    await filled(space)
    chosen = random.Random(7)
    bounds = [None, "", *NAMES, "b/", "b/1\0", "zzz"]
    for _ in range(40):
        after, before = chosen.choice(bounds) or None, chosen.choice(bounds) or None
        prefix, limit = chosen.choice(["", "b", "b/", "b/1", "zz"]), chosen.choice([None, 1, 2, 5])
        wanted = [
            name
            for name in NAMES
            if name.startswith(prefix) and (after or "") < name and (before is None or name < before)
        ]
        options: dict[str, Any] = {"prefix": prefix, "after": after, "before": before, "limit": limit}

        assert await all_of(space.documents.keys(**options)) == wanted[:limit]
        assert await all_of(space.documents.keys(**options, reverse=True)) == wanted[::-1][:limit]


async def test_a_prefix_has_no_special_characters_and_joins_a_pattern(space: Space) -> None:
    await filled(space)

    assert await all_of(space.documents.keys(prefix="b*")) == ["b*"]
    assert await all_of(space.documents.keys("*1*", prefix="b/")) == ["b/1", "b/10"]
    assert await all_of(space.documents.keys("b/1*", prefix="b")) == ["b/1", "b/10"]
    assert await all_of(space.documents.keys("c*", prefix="b")) == []


async def test_a_transaction_lists_its_own_writes_in_both_orders(space: Space) -> None:
    await filled(space, "a", "c", "e", "g")
    async with space.transaction() as tx:
        for name in ("b", "f", "h"):
            await tx.documents.put(name, "new")
        await tx.documents.delete("c")

        assert await all_of(tx.documents.keys()) == ["a", "b", "e", "f", "g", "h"]
        assert await all_of(tx.documents.keys(reverse=True)) == ["h", "g", "f", "e", "b", "a"]
        assert await all_of(tx.documents.keys(after="a", before="g", reverse=True)) == ["f", "e", "b"]
        page = await tx.documents.page(after=None, reverse=True, limit=2)
        assert keys(page) == ["h", "g"]
        assert keys(await tx.documents.page(after=page.next, reverse=True, limit=2)) == ["f", "e"]


# ---- pages


@pytest.mark.parametrize("reverse", [False, True])
async def test_pages_lead_forward_and_back_over_the_same_rows(space: Space, reverse: bool) -> None:
    await pages_are_whole(space, reverse)


@pytest.mark.parametrize("reverse", [False, True])
async def test_a_page_that_drops_its_first_row_is_caught(
    space: Space, reverse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a page that begins at a cursor takes one row too many for the cursor's own."""
    page_of = Positions.page_of

    def one_off(positions: Any, query: Any, read: Any, limit: int, rows: Any, mark: Any) -> Any:
        return page_of(positions, query, read, limit, rows[1:] if read.has_cursor else rows, mark)

    monkeypatch.setattr(Positions, "page_of", one_off)
    with pytest.raises(AssertionError):
        await pages_are_whole(space, reverse)


async def pages_are_whole(space: Space, reverse: bool) -> None:
    names = [f"n/{number:02}" for number in range(11)]
    await filled(space, *names, "m", "o")
    wanted = names[::-1] if reverse else names

    pages = [await space.documents.page(prefix="n/", reverse=reverse, limit=4)]
    while pages[-1].next is not None:
        pages.append(await space.documents.page(prefix="n/", reverse=reverse, limit=4, after=pages[-1].next))
    back = [pages[-1]]
    while back[0].previous is not None:
        page = await space.documents.page(prefix="n/", reverse=reverse, limit=4, before=back[0].previous)
        back.insert(0, page)

    assert [keys(page) for page in pages] == [wanted[:4], wanted[4:8], wanted[8:]]
    assert [keys(page) for page in back] == [keys(page) for page in pages]
    assert (pages[0].previous, pages[-1].next, back[0].previous) == (None, None, None)


async def test_a_transaction_pages_a_new_space(space: Space) -> None:
    async with space.transaction() as tx:
        for name in ("a", "b"):
            await tx.documents.put(name, 1)
        page = await tx.documents.page(limit=1)
        assert keys(await tx.documents.page(after=page.next)) == ["b"]


async def test_a_page_tells_versions_expiry_and_sizes(turned: Turned) -> None:
    space = turned.space
    first = await space.documents.put("a", "x" * 100, ttl_s=60)
    second = await space.documents.put("b", b"\0" * (limits.VALUE_BYTES * 2), ttl_s=None)
    await space.documents.put("a", "y", ttl_s=60)

    a, b = await space.documents.page()
    bare = await space.documents.page(values=False)

    assert (a.value, a.created, a.version > second, b.created) == ("y", first, True, second)
    assert a.expires_at is not None
    assert (a.expires_at - await space.now()).total_seconds() == 60
    assert b.expires_at is None
    assert 0 < a.size_bytes < 10
    assert b.size_bytes > limits.VALUE_BYTES or b.size_bytes < 1_000  # the codec may compress it
    assert [(entry.key, entry.value, entry.size_bytes) for entry in bare] == [
        ("a", None, a.size_bytes),
        ("b", None, b.size_bytes),
    ]
    assert await space.documents.put("a", "z", expected_version=a.printed_version) > a.version


async def test_a_page_with_more_rows_than_one_scan_is_complete(space: Space) -> None:
    names = [f"{number:04}" for number in range(700)]
    for start in range(0, 700, 350):
        await filled(space, *names[start : start + 350])

    page = await space.documents.page("*[05]", limit=100)
    rest = await space.documents.page("*[05]", limit=100, after=page.next)

    assert keys(page) + keys(rest) == [name for name in names if name[-1] in "05"]
    assert rest.next is None
    assert keys(await space.documents.page(limit=700)) == names


async def test_a_cursor_is_good_for_its_own_listing_only(ks: Keepstate, space: Space) -> None:
    await cursors_stay_in_their_listing(ks, space)


async def test_a_cursor_taken_across_queries_is_caught(
    ks: Keepstate, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The planted bug: a cursor names its space, and not its listing."""
    target = Positions.target
    monkeypatch.setattr(Positions, "target", lambda positions, _=b"": target(positions))

    with pytest.raises((AssertionError, pytest.fail.Exception)):
        await cursors_stay_in_their_listing(ks, space)


async def cursors_stay_in_their_listing(ks: Keepstate, space: Space) -> None:
    await filled(space, "a", "b", "c")
    await filled(ks.space("other"), "a", "b", "c")
    cursor = (await space.documents.page(limit=1)).next
    assert cursor is not None

    for listing in (
        lambda: ks.space("other").documents.page(after=cursor),
        lambda: space.documents.page("*[abc]", after=cursor),
        lambda: space.documents.page(prefix="a", after=cursor),
        lambda: space.queue.list("ready", after=cursor),
    ):
        with pytest.raises(InvalidError, match="of another"):
            await listing()
    with pytest.raises(InvalidError, match="both given"):
        await space.documents.page(after=cursor, before=cursor)
    with pytest.raises(InvalidError, match="not a position"):
        await space.documents.page(after="a")
    assert keys(await space.documents.page(after=cursor)) == ["b", "c"]


async def test_a_cursor_tells_that_its_history_is_gone() -> None:
    async with keepstate.open("memory://paging-before") as ks, keepstate.open("memory://paging-after") as new:
        await filled(ks.space("s"), "a", "b", "c")
        cursor = (await ks.space("s").documents.page(limit=1)).next
        await filled(new.space("s"), "a", "b", "c")

        with pytest.raises(HistoryLostError):
            await new.space("s").documents.page(after=cursor)


async def test_a_page_is_a_list_that_can_be_pickled(space: Space) -> None:
    await filled(space, "a", "b")
    page = await space.documents.page(limit=1)

    copy = pickle.loads(pickle.dumps(page))

    assert isinstance(page, list)
    assert (list(copy), copy.next, copy.previous) == (list(page), page.next, page.previous)


@pytest.mark.parametrize(
    "wrong",
    [{"limit": 0}, {"limit": True}, {"reverse": 1}, {"prefix": 1}, {"values": None}, {"after": 7}],
)
async def test_wrong_arguments_are_named(space: Space, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=f"`{next(iter(wrong))}`"):
        await space.documents.page(**wrong)


# ---- deletion in steps


async def test_all_documents_of_a_prefix_are_deleted(space: Space) -> None:
    names = [f"old/{number:04}" for number in range(1_100)]
    for start in range(0, 1_100, 550):
        await filled(space, *names[start : start + 550])
    await filled(space, "new", "old", "old/" + "x" * 500)
    before = await space.revision()

    assert await space.documents.delete_all("old/") == 1_101
    assert await space.revision() == before + 3
    assert await all_of(space.documents.keys()) == ["new", "old"]
    assert await space.documents.delete_all("old/") == 0


async def test_a_prefix_may_be_longer_than_the_name_in_a_key(space: Space) -> None:
    long = "n" * 470
    await filled(space, "n" * 440, long + "a", long + "b", long + "b2")

    assert await space.documents.delete_all(long + "b") == 2
    assert await all_of(space.documents.keys()) == ["n" * 440, long + "a"]


async def test_a_transaction_deletes_all_or_nothing(space: Space) -> None:
    await filled(space, "a/1", "a/2", "b")
    with pytest.raises(RuntimeError):
        async with space.transaction() as tx:
            assert await tx.documents.delete_all("a/") == 2
            raise RuntimeError
    assert len(await all_of(space.documents.keys())) == 3

    async with space.transaction() as tx:
        await tx.documents.delete_all("a/")

    assert await all_of(space.documents.keys()) == ["b"]


async def test_a_recorded_space_records_the_deletion(ks: Keepstate) -> None:
    space = ks.space("recorded", record=True)
    await filled(space, "a/1", "a/" + "x" * 500, "b")

    assert await space.documents.delete_all("a/") == 2

    assert dict(await space.at()) == {"b": "value of b"}


# ---- events


async def test_events_are_read_from_the_newest_on(space: Space) -> None:
    for start in range(0, 600, 200):
        await space.events.append(*range(start, start + 200))
    found: list[Any] = []
    before: str | None = None
    while events := await space.events.read(reverse=True, before=before, limit=250):
        found += [event.data for event in events]
        before = events[-1].position

    assert found == list(range(600))[::-1]


async def test_events_lie_between_positions_and_numbers(space: Space) -> None:
    for data in range(6):
        await space.events.append(data)
    events = await space.events.read()

    async def between(**options: Any) -> list[Any]:
        return [event.data for event in await space.events.read(**options)]

    for of in (lambda event: event.position, lambda event: event.number):
        assert await between(before=of(events[3])) == [0, 1, 2]
        assert await between(after=of(events[0]), before=of(events[3])) == [1, 2]
        assert await between(after=of(events[0]), before=of(events[3]), reverse=True) == [2, 1]
        assert await between(after=of(events[4]), reverse=True) == [5]
        assert await between(after=of(events[3]), before=of(events[2])) == []
        assert await between(before=of(events[0]), reverse=True) == []
    assert [event.data for event in await space.events.stream().read(reverse=True, limit=1)] == [5]


async def test_a_transaction_reads_its_own_events_first(space: Space) -> None:
    await space.events.append("old")
    async with space.transaction() as tx:
        await tx.events.append("new", "newer")

        newest = await tx.events.read(reverse=True)
        assert [event.data for event in newest] == ["newer", "new", "old"]
        assert [event.data for event in await tx.events.read(reverse=True, limit=1)] == ["newer"]
        assert [event.data for event in await tx.events.read(before=newest[-1].number)] == []


async def test_a_past_stream_is_read_from_its_end(space: Space) -> None:
    for data in range(5):
        await space.events.append(data)
    events = await space.events.read()
    assert events[2].number is not None

    for moment in (events[2].number, events[2].recorded_at):
        past = space.events.stream().at(moment)
        newest = [event.data for event in await past.read(reverse=True)]
        assert newest == newest[:1] + list(range(newest[0]))[::-1]
        if moment == events[2].number:
            assert newest == [2, 1, 0]
            assert [event.data for event in await past.read(reverse=True, before=events[4].position)] == [
                2,
                1,
                0,
            ]
            assert [event.data for event in await past.read(reverse=True, before=events[1].position)] == [0]


async def test_reading_back_ends_at_a_truncation(space: Space) -> None:
    for data in range(5):
        await space.events.append(data)
    events = await space.events.read()
    assert events[1].number is not None
    await space.events.stream().truncate(events[1].number)

    assert [event.data for event in await space.events.read(reverse=True)] == [4, 3, 2]
    assert [event.data for event in await space.events.read(before=events[3].position)] == [2]
    with pytest.raises(PrunedError):
        await space.events.read(reverse=True, after=events[0].position)
    with pytest.raises(PrunedError):
        await space.events.read(reverse=True, before=events[0].position)
    for reverse in (False, True):
        with pytest.raises(PrunedError):
            await space.events.read(reverse=reverse, before=events[0].number)
        assert await space.events.read(reverse=reverse, before=events[1].number) == []


async def test_a_position_whose_event_is_lost_is_told(space: Space) -> None:
    async with keepstate.open("memory://paging-lost") as ks:
        strange = ks.space(space.name)
        await strange.events.append("other")
        await space.events.append("one")
        position = (await strange.events.read())[0].position

        for options in ({"before": position}, {"before": position, "reverse": True}):
            with pytest.raises(HistoryLostError):
                await space.events.read(**options)  # type: ignore[arg-type]


async def test_a_dropped_stream_is_gone_and_can_be_used_again(space: Space) -> None:
    await space.events.append(*range(450), stream="gone", id=[str(number) for number in range(450)])
    await space.events.append("other", stream="stays")
    stream = space.events.stream("gone")
    assert await stream.fold(lambda state, event: state + event.data, 0, 1, name="sum") == sum(range(450))
    last = (await stream.read(reverse=True, limit=1))[0]

    assert await space.events.drop("gone") == 450

    assert await all_of(space.events.streams()) == ["stays"]
    assert (await stream.read(), await stream.last()) == ([], None)
    with pytest.raises(PrunedError):
        await stream.read(after=last.position)
    assert await stream.append("new", id="7", expected=keepstate.NO_STREAM) > 0
    assert [event.data for event in await stream.read()] == ["new"]
    assert await stream.fold(lambda state, event: [*state, event.data], [], 1, name="sum") == ["new"]
    assert await space.events.drop("never") == 0


def count(state: int, _: object) -> int:
    return state + 1


async def test_a_drop_leaves_a_stream_whose_name_goes_on_with_a_nul(space: Space) -> None:
    longer = space.events.stream("s\0t")
    number = max([await longer.append(data) for data in range(3)])
    await longer.truncate(number, Fold(count, 0))
    await space.events.append(1, stream="s")

    assert await space.events.drop("s") == 1

    await longer.append(3)
    assert await longer.fold(count, 0, from_base=True) == 4


@contextlib.contextmanager
def interrupted(executor: Any, *, at: int) -> Iterator[None]:
    """Let a Ctrl-C arrive before the given run of an executor, counted from 1."""
    run, calls = executor.run, 0

    async def stopped(work: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == at:
            raise KeyboardInterrupt
        return await run(work, **options)

    executor.run = stopped
    with pytest.raises(KeyboardInterrupt):
        yield
    del executor.run


async def test_an_interrupted_drop_hides_the_events_and_is_completed(space: Space) -> None:
    await space.events.append(*range(500), stream="gone")
    with interrupted(space.events.executor, at=3):
        await space.events.drop("gone")

    assert await space.events.read(stream="gone") == []
    assert await space.events.drop("gone") == 100
    assert await all_of(space.events.streams()) == []


async def test_an_id_that_an_interrupted_drop_hides_can_be_used_again(space: Space) -> None:
    names = [str(number) for number in range(450)]
    old = await space.events.append(*names, stream="gone", id=names)
    with interrupted(space.events.executor, at=2):
        await space.events.drop("gone")

    number = await space.events.append("again", stream="gone", id="449")
    assert number > old
    assert await space.events.append("again", stream="gone", id="449") == number
    assert [event.data for event in await space.events.read(stream="gone", reverse=True)] == ["again"]

    assert await space.events.drop("gone") == 451
    assert await space.events.append("third", stream="gone", id="449") > number


async def test_a_drop_leaves_the_ids_that_were_used_again_meanwhile(space: Space) -> None:
    await space.events.append(*range(450), stream="gone", id=[str(number) for number in range(450)])
    executor, run, calls = space.events.executor, space.events.executor.run, 0

    async def crossed(work: Any, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 2:  # the drop has begun, and nothing is deleted yet
            del executor.run  # type: ignore[attr-defined]
            await space.events.append("again", stream="gone", id="7")
        return await run(work, **options)

    executor.run = crossed  # type: ignore[method-assign]
    assert await space.events.drop("gone") == 450
    (event,) = await space.events.read(stream="gone")
    assert (event.data, await space.events.append("again", stream="gone", id="7")) == ("again", event.number)
    assert len(await space.events.read(stream="gone")) == 1


async def test_a_dropped_stream_leaves_nothing_that_verification_reports(ks: Keepstate, space: Space) -> None:
    from keepstate.engine.repair.verifier import Verifier

    await space.events.append(1, 2, stream="gone")
    await space.events.drop("gone")
    store = await ks.opened()

    class Live:
        async def read(self, name: str, wanted: Any) -> Any:
            return (await store.read(name, wanted)).entries

        def pages(self, name: str) -> Any:
            raise NotImplementedError

    name = space.executor.stored_name
    verifier = Verifier(Live(), name)
    found = [
        each
        for part in (b"\1", b"\2")
        for each in (await store.scan(space.executor.stored_name, part)).entries
    ]
    assert [problem for entry in found for problem in await verifier.problems(entry)] == []


# ---- blocking mode


def test_blocking_calls_page_alike(url: str) -> None:
    with keepstate.sync.open(url) as ks:
        space = ks.space("run/1")
        with space.transaction() as tx:
            for number in range(5):
                tx.documents.put(f"n{number}", number)
        page = space.documents.page(limit=2, reverse=True)
        rest = space.documents.page(limit=5, reverse=True, after=page.next)

        assert [entry.key for entry in [*page, *rest]] == ["n4", "n3", "n2", "n1", "n0"]
        assert list(space.documents.keys(prefix="n", before="n3", reverse=True, limit=1)) == ["n2"]
        space.events.append(1, 2, 3)
        assert [event.data for event in space.events.read(reverse=True)] == [3, 2, 1]
        assert (space.events.drop("main"), space.documents.delete_all("n")) == (3, 5)


# ---- spaces


async def test_spaces_are_listed_from_a_name_on(ks: Keepstate) -> None:
    names = ["a", "a/b", "a/c", "b", "é"]
    for handle in (ks, ks.tenant("t")):
        for name in names:
            await handle.space(name).documents.put("x", 1)

        assert await all_of(handle.spaces()) == names
        assert await all_of(handle.spaces(limit=2)) == ["a", "a/b"]
        assert await all_of(handle.spaces(after="a/b", limit=2)) == ["a/c", "b"]
        assert await all_of(handle.spaces(after="a/bx")) == ["a/c", "b", "é"]
        assert await all_of(handle.spaces("a", after="a")) == ["a/b", "a/c"]
        assert await all_of(handle.spaces("a", after="0")) == ["a", "a/b", "a/c"]
        assert await all_of(handle.spaces("a", after="a/b")) == ["a/c"]
        assert await all_of(handle.spaces("a", after="b")) == []


async def test_listed_spaces_tell_when_they_changed(ks: Keepstate) -> None:
    for name in ("a", "b", "c"):
        await ks.space(name).documents.put("x", 1)
    await asyncio.sleep(0.005)
    before = await ks.space("b").now()
    await ks.space("b").documents.put("x", 2)

    first = await ks.list_spaces(limit=2)
    rest = await ks.list_spaces(limit=2, after=first.next)

    assert [info.name for info in first] + [info.name for info in rest] == ["a", "b", "c"]
    assert rest.next is None
    a, b = first[0].changed_at, first[1].changed_at
    assert a is not None
    assert b is not None
    assert a < before <= b <= await ks.space("b").now()
    await ks.space("c").documents.get("x")
    assert list(await ks.list_spaces("c")) == list(rest), "reading is not a change"


async def test_a_wrapped_store_tells_when_spaces_changed(tmp_path: Path) -> None:
    keys = KeyRing(bytes(32))
    for opened in (
        keepstate.open("memory://", encryption=keys),
        keepstate.open(f"tiered+sqlite:///{tmp_path}/t.db?hot_bytes=100000"),
    ):
        async with opened as ks:
            await ks.space("a").documents.put("x", 1)
            (info,) = await ks.list_spaces()
            assert info.changed_at is not None


# ---- builtin form


async def test_a_handle_reads_values_in_builtin_form(ks: Keepstate, space: Space) -> None:
    from dataclasses import dataclass

    @keepstate.register("tests.paging.Note")
    @dataclass
    class Note:
        text: str

    await space.documents.put("note", Note("a"))
    await space.events.append(Note("b"))
    form = {"@type": "tests.paging.Note@1", "text": "a"}
    async with keepstate.open(ks.store, values="builtin") as plain:
        documents = plain.space(space.name).documents

        assert await documents.get("note") == form
        assert (await documents.page())[0].value == form
        assert (await plain.space(space.name).events.read())[0].data == {**form, "text": "b"}
        assert await documents.get("note", type=Note) == Note("a")
        await documents.put("copy", await documents.get("note"))
        with pytest.raises(InvalidError):
            await documents.update("note", {"text": "c"})
    assert await space.documents.get("note") == await space.documents.get("copy") == Note("a")
    for wrong in ("plain", None, 1):
        with pytest.raises(InvalidError, match="`values`"):
            keepstate.open("memory://", values=wrong)  # type: ignore[arg-type]


# ---- costs


async def test_pages_and_tokens_cost_so_many_round_trips() -> None:
    from keepstate.stores.memory import MemoryStore
    from keepstate.stores.wrappers.measured import MeasuredStore

    trips: list[str] = []
    store = MeasuredStore(MemoryStore(), lambda measurement: trips.append(measurement.operation))
    async with keepstate.open(store) as ks:
        space = ks.space("run/1")
        things = space.collection("things", int, index={"at": lambda at: (at,)})
        for number in range(9):
            await things.put(str(number), number)
            await space.events.append(number)
        await things.by("at", limit=2)

        async def cost(work: Callable[[], Awaitable[Any]]) -> list[str]:
            trips.clear()
            await work()
            return list(trips)

        async def with_token() -> None:
            async with space.transaction(token="t") as tx:
                await tx.documents.put("a", 1)

        assert await cost(lambda: space.documents.page(limit=3)) == ["scan"]
        assert await cost(lambda: space.events.read(reverse=True, limit=3)) == ["scan"]
        assert await cost(lambda: things.by("at", reverse=True, limit=3)) == ["scan", "read"]
        assert await cost(lambda: things.put("1", 5)) == ["read", "apply"]
        assert await cost(lambda: things.delete("2")) == ["read", "apply"]
        assert await cost(lambda: space.documents.put("free", 1)) == ["apply"]
        assert await cost(with_token) == ["read", "apply"]
        assert await cost(lambda: ks.list_spaces(limit=3)) == ["spaces", "spaces"]
        assert await cost(lambda: space.leases.held(limit=3)) == ["scan"]
