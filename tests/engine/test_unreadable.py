"""A listing does not fail for one value that cannot be read, if its caller says what to do with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from keepstate import InvalidError, KeepstateError, Space, Unreadable, register
from keepstate.engine.kernel import layout
from keepstate.stores.protocol import Batch, Put
from keepstate.values.schema import CLASSES


@register("tests/seat", version=2)
@dataclass
class Seat:
    row: int


FORM = {"@type": "tests/seat@2", "row": 7}
HINT = 'unreadable="skip" or "raw"'


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function after which this process knows the first version only."""

    def downgrade() -> None:
        known = CLASSES._by_name["tests/seat"]
        monkeypatch.setattr(
            CLASSES, "_by_name", {**CLASSES._by_name, "tests/seat": replace(known, version=1)}
        )

    return downgrade


async def damage(space: Space, key: bytes) -> None:
    """Overwrite an entry with bytes that are not a value."""
    store = await space.executor.store()
    await store.apply([Batch(space.executor.stored_name, [Put(key, b"\xff\xff")])])


def is_seat(value: object) -> bool:
    """Return whether this stands for a seat of the newer version."""
    assert isinstance(value, Unreadable)
    return value.value == FORM and value.classes == ("tests/seat@2",) and value.code == "unsupported"


async def test_documents_are_listed_and_paged_around_it(space: Space, older: Any) -> None:
    for name in "abcde":
        await space.documents.put(name, Seat(7) if name in "be" else name)
    await damage(space, layout.named_key(layout.DOCUMENTS, "c"))
    older()

    with pytest.raises(KeepstateError, match=HINT) as caught:
        _ = [item async for item in space.documents.items()]
    with pytest.raises(KeepstateError, match=HINT):
        await space.documents.page()
    skipped = [item async for item in space.documents.items(unreadable="skip")]
    raw = dict([item async for item in space.documents.items(unreadable="raw")])
    names, after = list[list[str]](), None
    while True:
        page = await space.documents.page(after=after, limit=1, unreadable="skip")
        names.append([entry.key for entry in page])
        if (after := page.next) is None:
            break

    assert getattr(caught.value, "key", None) == "b"
    assert skipped == [("a", "a"), ("d", "d")]
    assert list(raw) == list("abcde")
    assert is_seat(raw["b"])
    assert is_seat(raw["e"])
    assert (raw["c"].value, raw["c"].classes, raw["c"].code) == (None, (), "corrupt")
    assert names == [["a"], ["d"]]
    assert [type(entry.value) for entry in await space.documents.page(unreadable="raw", limit=3)] == [
        str, Unreadable, Unreadable
    ]  # fmt: skip


async def test_a_raw_value_is_written_back_as_it_was(
    space: Space, older: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await space.documents.put("a", {"seats": [Seat(1), Seat(2)]})
    older()
    (found,) = [value async for _, value in space.documents.items(unreadable="raw")]

    await space.documents.put("b", found.value)

    monkeypatch.undo()
    assert await space.documents.get("b") == {"seats": [Seat(1), Seat(2)]}


async def test_a_watch_goes_on(space: Space, older: Any) -> None:
    start = await space.revision()
    await space.documents.put("a", 1)
    await space.documents.put("b", Seat(7))
    await space.documents.put("b", 2)
    await damage(space, layout.named_key(layout.DOCUMENTS, "c"))
    await space.documents.put("d", 3)
    older()

    async def changes(unreadable: Any) -> list[tuple[str, Any, Any]]:
        async with space.documents.watch(after=start, timeout_s=0.001, unreadable=unreadable) as watch:
            return [(change.key, change.old, change.new) async for change in watch]

    with pytest.raises(KeepstateError, match=HINT):
        await changes("raise")
    assert await changes("skip") == [("a", None, 1), ("d", None, 3)]
    one, two, three, four, five = await changes("raw")

    assert (one, five) == (("a", None, 1), ("d", None, 3))
    assert two[0] == three[0] == "b"
    assert is_seat(two[2])
    assert is_seat(three[1])
    assert three[2] == 2
    assert (four[0], four[1], four[2].code) == ("c", None, "corrupt")


async def test_collections_are_listed_by_id_and_by_index(space: Space, older: Any) -> None:
    seats = space.collection("seats", Seat, index={"row": lambda seat: (seat.row,)})
    await seats.put("a", Seat(7))
    older()
    await space.documents.put("others/x", "text")
    others = space.collection("others", Seat)

    with pytest.raises(KeepstateError, match=HINT):
        await seats.by("row")
    assert await seats.by("row", unreadable="skip") == []
    assert is_seat((await seats.by("row", unreadable="raw"))[0])
    assert [item async for item in others.items(unreadable="skip")] == []
    ((_, raw),) = [item async for item in others.items(unreadable="raw")]
    assert isinstance(raw, Unreadable)
    assert (raw.value, raw.code) == ("text", "invalid")


async def test_events_are_read_around_it(space: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    for row in range(4):
        await space.events.append(Seat(row))
    build = type(CLASSES._by_name["tests/seat"]).build

    def refusing(known: Any, fields: dict[str, Any], unset: Any = ()) -> object:
        if fields.get("row") == 1:
            raise InvalidError("no such row")
        return build(known, fields, unset)

    monkeypatch.setattr(type(CLASSES._by_name["tests/seat"]), "build", refusing)
    (last,) = await space.events.read(reverse=True, limit=1)

    with pytest.raises(InvalidError, match=HINT):
        await space.events.read()
    skipped = await space.events.read(unreadable="skip")
    forwards = await space.events.read(unreadable="raw")
    raw = await space.events.read(unreadable="raw", reverse=True)

    assert [event.is_known for event in forwards] == [True, False, True, True]
    assert [event.is_known for event in raw] == [True, True, False, True]
    assert [event.data for event in skipped] == [Seat(0), Seat(2), Seat(3)]
    found = raw[2]
    assert (found.data.value, found.data.reason) == ({**FORM, "row": 1}, "no such row")
    assert await space.events.read(after=found.position, limit=9) == [skipped[1], last]


async def test_tasks_are_listed_around_it(space: Space, older: Any) -> None:
    await space.queue.put(1, id="a")
    await space.queue.put(Seat(7), id="b")
    older()

    with pytest.raises(KeepstateError, match=HINT):
        await space.queue.list(payloads=True)
    skipped = await space.queue.list(payloads=True, unreadable="skip")
    raw = await space.queue.list(payloads=True, unreadable="raw")

    assert [task.id for task in skipped] == ["a"]
    assert [task.id for task in raw] == ["a", "b"]
    assert is_seat(raw[1].payload)
    assert [task.id for task in await space.queue.list()] == ["a", "b"]


async def test_another_choice_is_refused(space: Space) -> None:
    wrong: Any = "ignore"
    seats = space.collection("seats", Seat, index={"row": lambda seat: (seat.row,)})
    calls: list[Any] = [
        space.documents.page(unreadable=wrong),
        space.events.read(unreadable=wrong),
        space.queue.list(unreadable=wrong),
        space.queue.dead(unreadable=wrong),
        seats.by("row", unreadable=wrong),
        space.documents.watch(unreadable=wrong).__aenter__(),
    ]
    for call in calls:
        with pytest.raises(InvalidError, match="`unreadable` is 'ignore'"):
            await call
    with pytest.raises(InvalidError, match="`unreadable` is 'ignore'"):
        _ = [item async for item in space.documents.items(unreadable=wrong)]
