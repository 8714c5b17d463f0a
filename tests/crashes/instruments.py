"""What finds bugs: each instrument of the proof, in a form that takes a second and fails if it finds one."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from keepstate_testing.faults.disk import Call, Disk, DiskFiles, FailingDisk
from keepstate_testing.faults.power import PAGE_BYTES, images
from keepstate_testing.simulation import Dials, simulate
from keepstate_testing.simulation.workloads.every import EVERY
from keepstate_testing.simulation.workloads.workload import Workload

from keepstate import sync
from keepstate._finish import finish
from keepstate._runner import Signal, ThreadRunner
from keepstate.errors import (
    CorruptError,
    HistoryLostError,
    OutcomeUnknownError,
    StorageError,
)
from keepstate.stores.base import StoreBase
from keepstate.stores.combiner import Combiner
from keepstate.stores.file import FileStore
from keepstate.stores.file.frames import FRAME_HEAD_BYTES, Head
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Outcome, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.encrypted import EncryptedStore, KeyRing
from keepstate.stores.wrappers.sealing import Sealer
from keepstate.testing.clocks import ManualClock
from tests.crashes import (
    cut_and_bound,
    history_stage,
    kept_rows_stories,
    power_workload,
    restored,
    supposed_stories,
)
from tests.crashes.test_expiring_scans import play
from tests.crashes.test_power_cuts import folder, refuse

SPACE, KEY = "space", b"\x01key"
LEADS_END_WITHIN_S = 60.0
"""A guard against hangs. A planted bug hangs, so its test shortens this."""


@dataclass(frozen=True)
class Instrument:
    """A part of the proof.

    Args:
        name: What it is.
        run: Fails if it finds something; gets a folder, and the test's fixtures.
    """

    name: str
    run: Callable[[Path, pytest.FixtureRequest], None]

    def __repr__(self) -> str:
        return self.name


def worlds(
    name: str,
    count: int,
    dials: Dials | None = None,
    workloads: Sequence[type[Workload]] = EVERY,
) -> Instrument:
    """Simulated worlds from seed 0 on."""

    def run(_place: Path, _request: pytest.FixtureRequest) -> None:
        for seed in range(count):
            simulate(seed, steps=300, dials=dials, workloads=workloads)

    return Instrument(f"{count} {name}", run)


def power_cuts(kind: str, count: int) -> Instrument:
    """Images of a disk after power cuts."""

    def run(place: Path, _request: pytest.FixtureRequest) -> None:
        recording = power_workload.record(kind, folder(place, "recorded"), 0, sessions=1)
        for number, image in enumerate(images(recording.moments, count, random.Random(0))):
            shown = folder(place, "image")
            image.write(shown)
            with _closed_in_the_end():
                refuse(kind, shown, image, recording.states, f"image {number}")
            shutil.rmtree(shown)

    return Instrument(f"{count} power cuts on {kind}", run)


@contextmanager
def _closed_in_the_end() -> Generator[None]:
    """Close the stores that a failed comparison has left open."""
    right, stores = power_workload.opened, list[StoreBase]()

    def opened(*args: Any) -> StoreBase:
        stores.append(right(*args))
        return stores[-1]

    with patch.object(power_workload, "opened", opened):
        try:
            yield
        finally:
            for store in stores:
                finish(store.close())


def _read_during_syncs(place: Path, _request: pytest.FixtureRequest) -> None:
    """Read while the disk is still at work: nothing may be seen that a power cut could take back."""
    acknowledged = 0

    class Reading(Disk):
        def asked(self, call: Call, path: str, size_bytes: int = 0, at: int = 0) -> int:
            if call == "sync" and store.is_open:
                assert finish(store.read(SPACE, [])).revision == acknowledged, "seen before it was durable"
            return size_bytes

    store = FileStore(place / "journal", runner=ThreadRunner(), files=DiskFiles(Reading()))
    finish(store.open())
    try:
        for number in range(5):
            finish(store.apply([Batch(SPACE, [Put(KEY, b"%d" % number)])]))
            acknowledged += 1
    finally:
        finish(store.close())


def _flipped_bits(place: Path, _request: pytest.FixtureRequest) -> None:
    """Flip bits in the heads of a journal's frames: damage is told, and take nothing with it."""
    path, count = place / "journal", 4
    store = finish(FileStore(path, runner=ThreadRunner(), clock=ManualClock()).open())
    for number in range(count):
        finish(store.apply([Batch(SPACE, [Put(KEY, b"%d" % number)])]))
    finish(store.close())
    sound = path.read_bytes()
    last = sound.rindex(b"frame ")
    first = len(bytes(Head.of(sound, "the journal")))
    bits = FRAME_HEAD_BYTES * 8
    for bit in (*range(first * 8, first * 8 + bits, 7), *range(last * 8, last * 8 + bits)):
        damaged = bytearray(sound)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        path.with_name("journal.lock").unlink(missing_ok=True)  # what is noted there would tell by itself
        assert _revision_of(path) in (None, count), (
            f"a flip of bit {bit} took data with it, and nobody was told"
        )


def _failing_syncs(place: Path, _request: pytest.FixtureRequest) -> None:
    """Fail one sync: what it was for is in doubt, and nothing is written after it."""
    disk = FailingDisk()
    store = FileStore(place / "journal", runner=ThreadRunner(), files=DiskFiles(disk))
    finish(store.open())
    try:
        disk.fail("sync", ends="journal")
        outcomes = [finish(store.apply([Batch(SPACE, [Put(KEY, b"")])]))[0] for _ in range(2)]
        assert all(isinstance(outcome, StorageError) for outcome in outcomes), outcomes
    finally:
        finish(store.close())


def _flipped_tables(place: Path, _request: pytest.FixtureRequest) -> None:
    """Flip bits where a database's pages say how many rows they hold: none may be missing without a word."""
    path, count = place / "keepstate.db", 40
    keys = [b"\x01%d" % number for number in range(count)]
    store = _database(path)
    for key in keys:
        finish(store.apply([Batch(SPACE, [Put(key, key * 40)])]))
    finish(store.close())
    sound = path.read_bytes()
    for page in range(1, len(sound) // PAGE_BYTES):
        for bit in range(24, 40):
            damaged = bytearray(sound)
            damaged[page * PAGE_BYTES + bit // 8] ^= 1 << bit % 8
            path.write_bytes(damaged)
            found = _found(path, keys)
            assert found in (None, count), f"{count - (found or 0)} rows of page {page} went, nobody was told"


def _found(path: Path, keys: list[bytes]) -> int | None:
    """Return how many entries are there, None if the damage was told."""
    store: SqliteStore | None = None
    try:
        store = _database(path)
        read = finish(store.read(SPACE, keys))
        listed = finish(store.scan(SPACE, b"\x01"))
    except StorageError:
        return None
    finally:
        if store is not None:
            finish(store.close())
    return min(sum(entry is not None for entry in read.entries), len(listed.entries))


def _database(path: Path) -> SqliteStore:
    return finish(SqliteStore(path, durability="normal", runner=ThreadRunner()).open())


def _moved_values(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Move a sealed value to another key, and to another space."""
    sealer = Sealer(KeyRing(bytes(32)), bytes(16), ManualClock())
    sealed = sealer.seal(SPACE, KEY, b"secret")
    assert sealer.open(SPACE, KEY, sealed).value == b"secret"
    for space, key in ((SPACE, KEY + b"2"), (SPACE + "2", KEY)):
        with pytest.raises(CorruptError):
            sealer.open(space, key, sealed)
            raise AssertionError(f"a value of {KEY!r} was opened at {key!r} of {space!r}")


def _altered_rows(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Put a sealed value with a time to live back into rows of other terms."""
    plain = finish(MemoryStore(runner=ThreadRunner(), clock=ManualClock()).open())
    store = finish(EncryptedStore(plain, KeyRing(bytes(32)), clock=ManualClock()).open())
    finish(store.apply([Batch(SPACE, [Put(KEY, b"lease", ttl_ms=5)], [Check(KEY, version=ABSENT)])]))
    (row,) = finish(plain.read(SPACE, [KEY])).entries
    assert row is not None
    try:
        for ttl_ms in (None, 6, 5):  # the last one with another creation
            writes = [Put(KEY, row.value, ttl_ms)]
            finish(plain.apply([Batch(SPACE, writes)]))
            with pytest.raises(CorruptError):
                finish(store.read(SPACE, [KEY]))
                raise AssertionError(f"a row that was altered to a time to live of {ttl_ms} was believed")
    finally:
        finish(plain.close())


def _searched_names(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Search the keys of an encrypted store for the digest of each id that an event may have."""
    plain = finish(MemoryStore(runner=ThreadRunner(), clock=ManualClock()).open())
    try:
        with sync.open(finish(EncryptedStore(plain, KeyRing(bytes(32))).open())) as ks:
            ks.space(SPACE).events.append("entered", id="47")
        keys = b"".join(entry.key for entry in finish(plain.scan(SPACE, b"\x01")).entries)
        found = [pin for pin in map(str, range(100)) if sha256(pin.encode()).digest()[:16] in keys]
        assert not found, f"the id {found} was found by a search"
    finally:
        finish(plain.close())


def _revision_of(path: Path) -> int | None:
    try:
        store = finish(FileStore(path, runner=ThreadRunner(), clock=ManualClock()).open())
    except CorruptError:
        return None
    try:
        return finish(store.read(SPACE, [])).revision
    finally:
        finish(store.close())


def _lost_history(_place: Path, request: pytest.FixtureRequest) -> None:
    """Let a Redis forget what it acknowledged, and go on to the same revision."""
    server: Any = request.getfixturevalue("redis_server")
    store, newcomer = (_redis(server.url) for _ in range(2))
    try:
        for handle in (store, newcomer):
            for number in range(3):
                finish(handle.apply([Batch(SPACE, [Put(KEY, b"%d of %d" % (number, id(handle)))])]))
            if handle is store:
                server.flush()
        with pytest.raises(HistoryLostError):
            finish(store.read(SPACE, [KEY]))
            raise AssertionError("another history was read as the one that was lost")
    finally:
        server.flush()
        finish(store.close())
        finish(newcomer.close())


def _redis(url: str) -> RedisStore:
    return finish(RedisStore(StoreUrl.parse(url), runner=ThreadRunner()).open())


READ_DURING_SYNCS = Instrument("reads during syncs", _read_during_syncs)
FAILING_SYNCS = Instrument("failing syncs", _failing_syncs)
FLIPPED_TABLES = Instrument("flipped bits in a database", _flipped_tables)
MOVED_VALUES = Instrument("moved values", _moved_values)
ALTERED_ROWS = Instrument("altered rows", _altered_rows)
SEARCHED_NAMES = Instrument("searched names", _searched_names)
FLIPPED_BITS = Instrument("flipped bits in a journal", _flipped_bits)
LOST_HISTORY = Instrument("a Redis that forgets", _lost_history)


def _cut_off(kind: str) -> Instrument:
    def run(place: Path, _request: pytest.FixtureRequest) -> None:
        for seed in range(12):
            cut_and_bound.cut_off(kind, folder(place, f"cut {seed}"), random.Random(seed))

    return Instrument(f"{kind} files that are cut off", run)


def _second_name(place: Path, _request: pytest.FixtureRequest) -> None:
    """Open one journal under two names."""
    cut_and_bound.two_names(place)


CUT_JOURNAL, CUT_LOG = _cut_off("file"), _cut_off("sqlite")
SECOND_NAME = Instrument("a journal with two names", _second_name)


def _company(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Let writers and collectors of a history be at work together."""
    removed = 0
    for seed in range(12):
        findings, collected, _ = asyncio.run(history_stage.play(seed, turns=40))
        assert findings == [], f"seed {seed}: {findings}"
        removed += collected.removed
    assert removed >= 100, f"only {removed} objects were collected"


def _moments(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Name commits and write objects at the worst moments of a collection."""
    for story in history_stage.STORIES:
        problems = asyncio.run(story())
        assert problems == (), f"{story.__name__}: {problems}"


def _resumed_watches(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Go on behind each change that a watch tells, by another watch, until all is told."""
    chance = random.Random(0)
    with sync.open("memory://") as ks:
        space = ks.space(SPACE)
        for number in range(40):
            with space.transaction() as tx:
                for name in chance.sample("abcdef", chance.randint(1, 4)):
                    tx.documents.put(name, number)
        with space.documents.watch(after=0, timeout_s=0) as watch:
            every = [(change.revision, change.key) for change in watch]
        for numbered in (True, False):
            after: int | str = 0
            told = dict[tuple[int, str], None]()
            for place in range(len(every)):
                with space.documents.watch(after=after, timeout_s=0) as watch:
                    while every[place] not in told:
                        change = next(watch, None)
                        assert change is not None, f"{every[place]} was missed by a watch that went on"
                        told[change.revision, change.key] = None
                    after = watch.revision if numbered else watch.position
            assert list(told) == every, "a watch that went on told another order"


def _restored_journals(place: Path, _request: pytest.FixtureRequest) -> None:
    """Put copies of journals back, let strangers write, and go on behind what is gone."""
    for seed in range(6):
        restored.go_on("file", place / f"restored-{seed}", random.Random(seed))


RESUMED_WATCHES = Instrument("watches that go on", _resumed_watches)
RESTORED_JOURNALS = Instrument("journals put back", _restored_journals)
COLLECTORS = Instrument("12 histories with collectors", _company)
MOMENTS = Instrument("collections at their worst moments", _moments)


def _schedules(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Play transactions over entries that expire, and looks for a serial order of each."""
    clock = ManualClock()
    store = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    try:
        finish(play(store, clock, range(80)))
    finally:
        finish(store.close())


class _InterruptedRunner(ThreadRunner):
    """A runner whose first waits and wake-ups are interrupted: before they begin, or after they are done.

    Args:
        moment: What is interrupted.
        dice: Which of them are.
    """

    def __init__(self, moment: str, dice: random.Random) -> None:
        super().__init__()
        self._moment, self._dice, self._left = moment, dice, 3
        self.is_over = False

    async def sleep(self, seconds: float) -> None:
        if self.is_over:
            raise KeyboardInterrupt  # a planted bug leaves no thread behind that turns for ever
        await super().sleep(seconds)

    def signal(self) -> Any:
        return _InterruptedSignal(super().signal(), self.interrupt)

    def interrupt(self, moment: str) -> None:
        if moment == self._moment and self._left and self._dice.random() < 0.5:
            self._left -= 1
            raise KeyboardInterrupt


class _InterruptedSignal:
    def __init__(self, signal: Signal, interrupt: Callable[[str], None]) -> None:
        self._signal, self._interrupt = signal, interrupt

    def set(self) -> None:
        self._interrupt("before a wake-up")
        self._signal.set()
        self._interrupt("after a wake-up")

    async def wait(self, timeout_s: float) -> bool:
        self._interrupt("before a wait")
        is_set = await self._signal.wait(timeout_s)
        self._interrupt("after a wait")
        return is_set


class _InterruptedCombiner(Combiner):
    """A combiner whose leader is once interrupted between the queue and the flush."""

    is_drain_interrupted = False

    def _drain(self) -> Any:
        requests = super()._drain()
        if len(requests) > 1 and self.is_drain_interrupted:
            self.is_drain_interrupted = False
            raise KeyboardInterrupt
        return requests


_LEAD_MOMENTS = (
    *("before a wait", "after a wait", "before a wake-up", "after a wake-up"),
    *("a flush", "before a flush"),
)


def _handed_leads(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Interrupt threads while they wait, wake others and flush: all others are answered, and soon."""
    for seed, moment in enumerate(_LEAD_MOMENTS * 3):
        dice = random.Random(seed)
        runner = _InterruptedRunner(moment, dice)
        applied, answered, interrupted = list[str](), list[str](), list[str]()

        async def flush(
            batches: Sequence[Batch],
            applied: list[str] = applied,
            runner: _InterruptedRunner = runner,
        ) -> list[Outcome]:
            time.sleep(0.0005)
            runner.interrupt("a flush")
            applied += [batch.space for batch in batches]
            return [Applied(1, now_ms=1) for _ in batches]

        combiner = _InterruptedCombiner(runner, flush)
        combiner.is_drain_interrupted = moment == "before a flush"

        def call(
            name: str,
            combiner: Combiner = combiner,
            answered: list[str] = answered,
            interrupted: list[str] = interrupted,
        ) -> None:
            for number in range(6):
                space = f"{name}/{number}"
                try:
                    finish(combiner.apply([Batch(space, ())], 0))
                    answered.append(space)
                except (KeyboardInterrupt, OutcomeUnknownError):
                    interrupted.append(space)

        threads = [threading.Thread(target=call, args=(f"{n}",), daemon=True) for n in range(8)]
        for thread in threads:
            thread.start()
        until_s = time.monotonic() + LEADS_END_WITHIN_S
        for thread in threads:
            thread.join(max(0.0, until_s - time.monotonic()))
            runner.is_over |= thread.is_alive()
            assert not thread.is_alive(), f"a thread still waits after an interrupt of {moment}"
        assert len(answered) + len(interrupted) == 48
        assert set(answered) <= set(applied), "a batch was answered that was not applied"
        assert len(set(applied)) == len(applied), "a batch was applied twice"
        finish(combiner.wait_until_idle())


def _supposed(_place: Path, _request: pytest.FixtureRequest) -> None:
    """Let one process suppose what another one has changed."""
    for story in supposed_stories.STORIES:
        asyncio.run(supposed_stories.tell(story))


def _kept_rows(place: Path, _request: pytest.FixtureRequest) -> None:
    """Let other writers and failures come between the write sections of a process."""
    for story in kept_rows_stories.STORIES:
        kept_rows_stories.tell(story, folder(place, story.__name__))


KEPT_ROWS = Instrument("stories of kept rows", _kept_rows)
SUPPOSED = Instrument("stories of what is supposed", _supposed)
HANDED_LEADS = Instrument("interrupted leads", _handed_leads)
SCHEDULES = Instrument("80 schedules of what expires", _schedules)
