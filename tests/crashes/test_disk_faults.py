"""A disk that is full, fails, writes half or changes bits: a named error or the right data, nothing else."""

from __future__ import annotations

import errno
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import apsw
import pytest
from keepstate_testing.faults.disk import Call, Disk, FailingDisk, files_in, flip

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, OutcomeUnknownError, StorageError, StoreFullError
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Delete, Put
from keepstate.stores.sqlite import connection as connections
from keepstate.testing.clocks import ManualClock
from tests.crashes import power_workload as workload
from tests.crashes.power_workload import State
from tests.tally import Tally, first_seed

KINDS = workload.KINDS
CALLS: list[tuple[Call, int]] = [
    ("write", errno.ENOSPC),
    ("write", errno.EIO),
    ("sync", errno.EIO),
    ("sync", errno.ENOSPC),
    ("truncate", errno.EIO),
    ("replace", errno.EIO),
    ("sync_folder", errno.EIO),
    ("open", errno.EMFILE),
    ("remove", errno.EIO),
]
SPACES = ["plain", "documents"]


def batches(count: int = 16) -> list[Batch]:
    """Return writes that make a log move and a journal be written anew."""
    chance = random.Random(7)
    made: list[Batch] = []
    for number in range(count):
        keys = chance.sample(range(12), 3)
        puts = [Put(bytes([chance.choice([1, 2])]) + b"k%d" % key, chance.randbytes(3_000)) for key in keys]
        made.append(Batch(SPACES[number % 2], [*puts, Delete(b"\x01gone"), Put(b"\x01n", b"%d" % number)]))
    return made


# ---- calls that fail


@dataclass
class Told:
    """What a store answered, and the states that it may be in: two where an outcome is not known."""

    possible: list[State]
    past: list[State] = field(default_factory=list)
    applied: int = 0
    errors: list[StorageError] = field(default_factory=list)


@pytest.mark.parametrize(
    "tried",
    [
        pytest.param(6, id="short"),
        pytest.param(120, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(600)]),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_whichever_call_fails_what_is_told_is_what_stands(
    kind: str, tried: int, tmp_path: Path, tally: Tally
) -> None:
    counted = FailingDisk()
    exercise(kind, folder(tmp_path, "whole"), counted)
    faults = [
        (call, number, nth)
        for call, number in CALLS
        for nth in range(1, 1 + sum(passed == call for passed, _ in counted.passed))
    ]
    faults = random.Random(first_seed()).sample(faults, min(tried, len(faults)))
    lost, partial = list[str](), list[str]()

    for call, number, nth in faults:
        shown = f"{kind}: {call} {nth} fails with {errno.errorcode[number]}"
        disk = FailingDisk()
        disk.fail(call, number, nth=nth)
        place = folder(tmp_path, "failing")
        told = exercise(kind, place, disk)
        assert disk.refused == 1, shown
        again = workload.opened(kind, place, ManualClock())
        if (found := workload.state_of(again)) not in told.possible:
            (lost if found in told.past else partial).append(shown)
        [outcome] = finish(again.apply([Batch("plain", [Put(b"\x01after", b"")])]))
        assert isinstance(outcome, Applied), shown
        finish(again.close())
        shutil.rmtree(place)

    tally(f"{title(kind)}: disk faults", faults=len(faults), lost=len(lost), partial=len(partial))
    assert (lost, partial) == ([], [])


def exercise(kind: str, place: Path, disk: Disk) -> Told:
    """Apply all batches over a disk, and check each answer against what can be read."""
    clock = ManualClock()
    twin = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    told = Told([workload.state_of(twin)])
    with workload.soon(), workload.beneath(kind, disk):
        try:
            store = workload.opened(kind, place, clock, disk)
        except StorageError as error:
            told.errors.append(error)
        else:
            for batch in batches():
                answer(store, twin, batch, told)
            finish(store.close())
    finish(twin.close())
    return told


def answer(store: StoreBase, twin: StoreBase, batch: Batch, told: Told) -> None:
    [outcome] = finish(store.apply([batch]))
    if isinstance(outcome, Applied):
        assert len(told.possible) == 1, "acknowledged after the disk had failed"
        assert finish(twin.apply([batch])) == [outcome]
        told.past += told.possible
        told.possible = [workload.state_of(twin)]
        told.applied += 1
    elif isinstance(outcome, OutcomeUnknownError):
        assert len(told.possible) == 1, "tried again after the disk had failed"
        finish(twin.apply([batch]))
        told.possible.append(workload.state_of(twin))
        told.errors.append(outcome)
    else:
        assert isinstance(outcome, StorageError)
        told.errors.append(outcome)
    assert workload.state_of(store) == told.possible[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_is_told_and_the_store_goes_on_when_there_is_room(kind: str, tmp_path: Path) -> None:
    disk, clock = FailingDisk(), ManualClock()
    twin = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    told = Told([workload.state_of(twin)])
    with workload.beneath(kind, disk):
        store = workload.opened(kind, tmp_path, clock, disk)
        answer(store, twin, batches()[0], told)
        disk.room_bytes = 1 + max(file.stat().st_size for file in tmp_path.iterdir())
        for batch in batches()[1:4]:
            answer(store, twin, batch, told)
        disk.mend()
        for batch in batches()[4:]:
            answer(store, twin, batch, told)
        finish(store.close())

    assert [type(error) for error in told.errors] == [StoreFullError] * 3
    assert all("Free space" in str(error) for error in told.errors)
    assert told.applied == len(batches()) - 3
    again = workload.opened(kind, tmp_path, clock)
    assert workload.state_of(again) == told.possible[0]
    finish(again.close())
    finish(twin.close())


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "sqlite-normal"])
def test_after_a_failed_sync_the_disk_is_asked_for_nothing_more(kind: str, tmp_path: Path) -> None:
    disk, clock = FailingDisk(), ManualClock()
    with workload.beneath(kind, disk):
        store = workload.opened(kind, tmp_path, clock, disk)
        finish(store.apply([batches()[0]]))
        disk.fail("sync")
        [unknown] = finish(store.apply([batches()[1]]))
        asked = list(disk.passed)

        later = [finish(store.apply([batch]))[0] for batch in batches()[2:]]

        assert disk.passed == asked
        finish(store.close())
    assert isinstance(unknown, OutcomeUnknownError)
    assert {type(outcome) for outcome in later} == {StorageError}
    assert all("takes no more writes" in str(outcome) for outcome in later)


# ---- bits that change

FLIPS = [
    pytest.param(50, id="short"),
    pytest.param(4_000, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(900)]),
]
WRITTEN_ON = 20
"""After so many flips one store is also written to."""


@pytest.mark.parametrize("tried", FLIPS)
@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_bit_is_damage_or_changes_nothing(
    kind: str, end: str, tried: int, tmp_path: Path, tally: Tally
) -> None:
    whole, right = made(kind, folder(tmp_path, "whole"), is_killed=end == "killed")
    flips, corrupt = list(places_of(whole, tried)), list[str]()

    for number, (name, at, bit) in enumerate(flips):
        place = folder(tmp_path, "flipped")
        for other, data in whole.items():
            (place / other).write_bytes(flip(data, at, bit) if other == name else data)
        shown = f"{kind}, {end}: bit {bit} of byte {at} of {name}"
        try:
            look(kind, place, right, shown, writes=number % WRITTEN_ON == 0)
        except AssertionError as error:
            corrupt.append(f"{shown}: {error}")
        shutil.rmtree(place)

    tally(f"{title(kind)}: flipped bits", flipped_bits=len(flips), corrupt=len(corrupt))
    assert corrupt == []


@pytest.mark.deep
def test_every_bit_of_a_page_counts_in_its_checksum(tmp_path: Path, tally: Tally) -> None:
    workload.record("sqlite-full", tmp_path, first_seed(), sessions=1)
    data, size = (tmp_path / "keepstate.db").read_bytes(), 4_096
    whole = [data[at : at + size] for at in range(0, len(data), size)]
    connections.file_system()
    judge = apsw.Connection(":memory:")

    def is_sound(page: bytes) -> bool:
        return bool(judge.execute("SELECT verify_checksum(?)", (page,)).get)

    assert all(is_sound(page) for page in whole)
    corrupt = sum(is_sound(flip(page, at, at % 8)) for page in whole for at in range(size))
    judge.close()
    tally("SQLite: flipped bits of pages", flipped_bits=len(data), corrupt=corrupt)
    assert corrupt == 0


@pytest.mark.parametrize("end", ["closed", "killed"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_was_cut_off_is_damage_or_changes_nothing(kind: str, end: str, tmp_path: Path) -> None:
    whole, right = made(kind, folder(tmp_path, "whole"), is_killed=end == "killed")
    chance = random.Random(first_seed())

    for name, data in whole.items():
        for size in [0, 1, 4_096, *chance.sample(range(len(data)), min(8, len(data)))]:
            if size == 0 and end == "closed" and name == "keepstate.db":
                continue  # an empty file is a new one
            place = folder(tmp_path, "cut")
            for other, content in whole.items():
                (place / other).write_bytes(content[:size] if other == name else content)
            look(kind, place, right, f"{kind}, {end}: {name} cut to {size}", writes=True)
            shutil.rmtree(place)


def made(kind: str, place: Path, *, is_killed: bool) -> tuple[dict[str, bytes], State]:
    """Return the files of a small store, as a close or a kill would leave them, and what they hold."""
    store = workload.opened(kind, place, ManualClock())
    for batch in batches(6):
        small = [
            Put(write.key, write.value[:100]) if isinstance(write, Put) else write for write in batch.writes
        ]
        finish(store.apply([Batch(batch.space, small)]))
    state = workload.state_of(store)
    if is_killed:
        files = files_in(place)
        finish(store.close())
    else:
        finish(store.close())
        files = files_in(place)
    return {name: data for name, data in files.items() if not name.endswith("-shm")}, state


def places_of(files: dict[str, bytes], tried: int) -> Iterator[tuple[str, int, int]]:
    chance = random.Random(first_seed())
    every = [(name, at) for name, data in files.items() for at in range(len(data))]
    for name, at in chance.sample(every, min(tried, len(every))):
        yield name, at, chance.randrange(8)


def look(kind: str, place: Path, right: State, shown: str, *, writes: bool) -> None:
    """Fail if anything that is read differs from what was written, or if writing on takes anything away."""
    before = {name: data for name, data in files_in(place).items() if not name.endswith((".lock", "-shm"))}
    try:
        store = workload.opened(kind, place, ManualClock())
    except CorruptError as error:
        assert str(place) in str(error.place), shown  # noqa: PT017  only some images are refused
        assert before.items() <= files_in(place).items(), f"{shown}: touched"
        return
    seen = read(store, right, shown)
    if writes:
        for space in SPACES:
            [outcome] = finish(store.apply([Batch(space, [Put(b"\x01after", b"")])]))
            assert isinstance(outcome, Applied | CorruptError), shown
    finish(store.close())
    if writes:
        again = workload.opened(kind, place, ManualClock())
        assert seen <= read(again, right, shown), f"{shown}: made worse"
        finish(again.close())


def read(store: StoreBase, right: State, shown: str) -> set[tuple[str, bytes]]:
    """Return the keys that are read right; the others must be damaged."""
    found: set[tuple[str, bytes]] = set()
    for space in SPACES:
        _, entries, log = right[space]
        for entry in entries:
            try:
                reading = finish(store.read(space, [entry.key]))
            except CorruptError:
                continue
            assert reading.entries == [entry], f"{shown}: {space} {entry.key!r}"
            found.add((space, entry.key))
        for part, expected in ((scanned, entries), (logged, log.items)):
            try:
                present = part(store, space)
            except CorruptError:
                continue
            assert present[: len(expected)] == expected, f"{shown}: {part.__name__} of {space}"
    return found


def scanned(store: StoreBase, space: str) -> list[object]:
    sections = [finish(store.scan(space, section)).entries for section in (b"\x01", b"\x02")]
    return [entry for section in sections for entry in section if entry.key != b"\x01after"]


def logged(store: StoreBase, space: str) -> list[object]:
    return list(finish(store.changes(space, 0)).items)


def title(kind: str) -> str:
    backend, _, form = kind.partition("-")
    return f"{'SQLite' if backend == 'sqlite' else backend}, {form}"


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made
