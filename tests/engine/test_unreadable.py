"""A listing does not fail for one value that cannot be read, if its caller says what to do with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from keepstate import (
    CorruptError,
    InvalidError,
    Keepstate,
    KeepstateError,
    Space,
    Unreadable,
    Usage,
    register,
)
from keepstate.engine.approvals.records import approval_key
from keepstate.engine.kernel import layout
from keepstate.engine.queue.tasks import task_key
from keepstate.engine.usage.records import used_prefix
from keepstate.memories import Memories
from keepstate.sessions import Session
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


async def test_a_damaged_record_of_a_task_is_named_or_passed_over(space: Space) -> None:
    await space.queue.put(1, id="a")
    await space.queue.put(2, id="b")
    await damage(space, task_key("a"))

    with pytest.raises(CorruptError, match="task 'a' of"):
        await space.queue.list("ready")
    with pytest.raises(CorruptError, match="task 'a' of"):
        await space.queue.list(id_prefix="")
    assert [task.id for task in await space.queue.list("ready", unreadable="skip")] == ["b"]
    assert [task.id for task in await space.queue.list(id_prefix="", unreadable="skip")] == ["b"]


async def test_another_choice_is_refused(space: Space) -> None:
    wrong: Any = "ignore"
    seats = space.collection("seats", Seat, index={"row": lambda seat: (seat.row,)})
    calls: list[Any] = [
        space.documents.page(unreadable=wrong),
        space.events.read(unreadable=wrong),
        space.queue.list(unreadable=wrong),
        space.queue.dead(unreadable=wrong),
        space.approvals.pending(unreadable=wrong),
        Memories(space).search("tea", unreadable=wrong),
        seats.by("row", unreadable=wrong),
        space.documents.watch(unreadable=wrong).__aenter__(),
    ]
    for call in calls:
        with pytest.raises(InvalidError, match="`unreadable` is 'ignore'"):
            await call
    with pytest.raises(InvalidError, match="`unreadable` is 'ignore'"):
        _ = [item async for item in space.documents.items(unreadable=wrong)]


async def test_pending_approvals_are_listed_around_it(space: Space, older: Any) -> None:
    await space.approvals.ask("May I?", id="a", subject=1)
    await space.approvals.ask("Which seat?", id="b", subject=Seat(7), to=["ada"])
    await space.approvals.ask("And now?", id="c")
    await damage(space, approval_key("c"))
    older()

    with pytest.raises(KeepstateError, match=f"'b'.*{HINT}"):
        await space.approvals.pending(to="ada")
    with pytest.raises(CorruptError, match="approval 'c'"):
        await space.approvals.get("c")
    skipped = await space.approvals.pending(unreadable="skip")
    raw = await space.approvals.pending(unreadable="raw")
    first = await space.approvals.pending(limit=1, unreadable="skip")
    second = await space.approvals.pending(limit=1, after=first.next, unreadable="skip")

    assert [each.id for each in skipped] == [each.id for each in first] == ["a"]
    assert second == []
    assert second.next is not None
    assert [(each.id, each.question, each.subject) for each in raw] == [
        ("a", "May I?", 1), ("b", "Which seat?", FORM), ("c", "And now?", None)
    ]  # fmt: skip
    assert raw[0].unreadable is None
    assert raw[1].to == ("ada",)
    assert (raw[1].unreadable.code, raw[2].unreadable.code) == ("unsupported", "corrupt")  # type: ignore[union-attr]


async def test_the_dead_tasks_of_all_spaces_are_listed_around_it(
    ks: Keepstate, space: Space, older: Any
) -> None:
    other = ks.space(f"{space.name}/other")
    for each in (space, other):
        await each.queue.put(1, id="a", max_attempts=1)
        (claimed,) = await each.queue.claim("w", lease_s=60)
        if each is other:
            await claimed.heartbeat(progress=Seat(7))
        await claimed.fail("broken")
    older()
    queues = ks.queues(space.name)

    with pytest.raises(KeepstateError, match=f"'{other.name}'.*{HINT}"):
        await queues.dead()
    (only,) = await queues.dead(unreadable="skip")
    raw = await queues.dead(unreadable="raw")

    assert only.space == space.name
    assert [each.space for each in raw] == [space.name, other.name]
    assert is_seat(raw[1].task.progress)


async def test_an_error_of_the_usage_names_day_and_model(space: Space) -> None:
    await space.usage.record(Usage(model="small", input_tokens=1))
    async for _, entry in space.executor.scan(used_prefix("")):
        await damage(space, entry.key)

    with pytest.raises(CorruptError, match=r"the usage of 'small' on \d{4}-\d\d-\d\d"):
        await space.usage.totals()


async def test_a_conversation_is_searched_around_it(space: Space, older: Any) -> None:
    talk = Session("s", space=space).conversation
    await talk.append({"role": "user", "content": "a flight to Rome"})
    await talk.append({"role": "user", "content": "a flight to Oslo"}, meta={"seat": Seat(7)})
    await talk.append({"role": "user", "content": "no flight"})
    (damaged,) = [name async for name in space.documents.keys("**") if name.endswith("2")]
    await damage(space, layout.named_key(layout.DOCUMENTS, damaged))
    older()

    with pytest.raises(KeepstateError):
        await talk.search("flight")
    skipped = await talk.search("flight", unreadable="skip")
    raw = await talk.search("flight", role="user", unreadable="raw")

    assert [entry.number for entry in skipped] == [0]
    assert [entry.number for entry in raw] == [1, 0]
    assert raw[0].unreadable is not None
