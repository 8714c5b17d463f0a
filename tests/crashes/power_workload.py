"""What a store does while the power may go at any moment, and what it must hold after each step.

Beside the store that is recorded runs one in memory with the same clock: what that holds after a step is what
the disk must hold once the step was acknowledged. Run as a program, it records alone and writes down what it
saw, to be compared with what the system saw.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
from keepstate_testing.faults.disk import Disk, DiskFiles, Event
from keepstate_testing.faults.power import Moment, Recorder
from keepstate_testing.faults.vfs import beneath_sqlite

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CompactedError
from keepstate.stores.base import StoreBase
from keepstate.stores.file import FileStore, journal
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Changes, Delete, Put, Write
from keepstate.stores.sqlite import SqliteStore, writer
from keepstate.testing.clocks import ManualClock

KINDS = ["file-msgpack", "file-json", "sqlite-full", "sqlite-normal"]
SPACES = ["plain", "other", "documents", "timed", "dropped"]
NAME = {"file": "journal", "sqlite": "keepstate.db"}
STEPS_A_SESSION = 45
LIFE_MS = 50

State: TypeAlias = dict[str, Any]
"""What each space answers: its revision, its entries, its log."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was written, and what stands after each number of steps."""

    moments: list[Moment]
    states: list[State]
    locks: list[tuple[int, bytes]]
    """What the lock file held, and from which moment on."""

    def locks_until(self, cut: int) -> list[bytes]:
        """Return what a cut may leave of the lock file, the newest last: nobody syncs it."""
        return [content for moment, content in self.locks if moment <= cut]


class Watcher(Recorder):
    """Also looks at the lock file, which is not written by way of the disk, at every moment."""

    def __init__(self, lock: Path) -> None:
        super().__init__()
        self.locks = [(0, b"")]
        self._lock = lock

    @classmethod
    def above(cls, recorder: Recorder, lock: Path) -> Watcher:
        """Return one that goes on with a record."""
        watcher = cls(lock)
        watcher.moments = recorder.moments
        return watcher

    def did(self, event: Event) -> None:
        self._look()
        super().did(event)

    def mark(self, steps: int, *, is_closed: bool = False) -> None:
        self._look()
        super().mark(steps, is_closed=is_closed)

    def _look(self) -> None:
        content = self._lock.read_bytes() if self._lock.exists() else b""
        if content != self.locks[-1][1]:
            self.locks.append((len(self.moments), content))


def record(kind: str, folder: Path, seed: int, *, sessions: int = 3) -> Recording:
    """Run the workload in an empty folder; each session opens the store anew, and close it."""
    clock, chance = ManualClock(seed=seed), random.Random(seed)
    recorder = Watcher(lock_of(kind, folder))
    twin = finish(MemoryStore(runner=ThreadRunner(), clock=clock).open())
    states = [state_of(twin)]
    with soon(), beneath(kind, recorder):
        for _ in range(sessions):
            store = opened(kind, folder, clock, recorder)
            for _ in range(STEPS_A_SESSION):
                _step(store, twin, clock, chance)
                recorder.mark(len(states))
                states.append(state_of(twin))
            finish(store.close())
            recorder.mark(len(states) - 1, is_closed=True)
    finish(twin.close())
    return Recording(recorder.moments, states, recorder.locks)


def lock_of(kind: str, folder: Path) -> Path:
    """Return where a store of a kind has its lock file."""
    return folder / f"{NAME[kind.partition('-')[0]]}.lock"


def beneath(kind: str, disk: Disk) -> Any:
    """Put a disk below SQLite; a file store is given one when it is opened."""
    return beneath_sqlite(disk) if kind.startswith("sqlite") else nullcontext()


def opened(kind: str, folder: Path, clock: ManualClock, disk: Disk | None = None) -> StoreBase:
    """Open a store of a kind in a folder."""
    backend, _, form = kind.partition("-")
    path: Any = folder / NAME[backend]
    if backend == "file":
        files = {} if disk is None else {"files": DiskFiles(disk)}
        return finish(FileStore(path, format=form, runner=ThreadRunner(), clock=clock, **files).open())  # type: ignore[arg-type]
    return finish(SqliteStore(path, durability=form, runner=ThreadRunner(), clock=clock).open())  # type: ignore[arg-type]


@contextmanager
def soon() -> Generator[None]:
    """Let checkpoints and compactions come after kilobytes instead of megabytes."""
    before = writer.CHECKPOINT_BYTES, journal._LEAST_GROWTH_BYTES
    writer.CHECKPOINT_BYTES, journal._LEAST_GROWTH_BYTES = 96 << 10, 12 << 10  # type: ignore[misc]
    try:
        yield
    finally:
        writer.CHECKPOINT_BYTES, journal._LEAST_GROWTH_BYTES = before  # type: ignore[misc]


def state_of(store: StoreBase) -> State:
    """Read all that a store holds of the workload's spaces."""
    return {space: _space_of(store, space) for space in SPACES}


def _space_of(store: StoreBase, space: str) -> Any:
    entries = [entry for section in (b"\x00", b"\x01", b"\x02") for entry in _scanned(store, space, section)]
    return finish(store.read(space, [])).revision, entries, _log_of(store, space)


def _log_of(store: StoreBase, space: str) -> Changes:
    """Return the log without its nonces, which another store that has done the same draws for itself."""
    try:
        changes = finish(store.changes(space, 0, limit=100_000))
    except CompactedError as error:
        changes = finish(store.changes(space, error.floor or 0, limit=100_000))
    return msgspec.structs.replace(changes, nonces={})


def _scanned(store: StoreBase, space: str, section: bytes) -> list[Any]:
    found: list[Any] = []
    after: bytes | None = None
    while True:
        page = finish(store.scan(space, section, after=after))
        found += page.entries
        after = page.next
        if after is None:
            return found


def _step(store: StoreBase, twin: StoreBase, clock: ManualClock, chance: random.Random) -> None:
    match chance.choices(["apply", "flush", "expire", "sweep", "drop"], [12, 3, 2, 1, 1])[0]:
        case "apply":
            _apply(store, twin, [_batch(chance.choice(["plain", "other", "documents", "dropped"]), chance)])
        case "flush":
            spaces = ("plain", "documents", "plain", "other", "dropped")
            _apply(store, twin, [_batch(space, chance) for space in spaces])
        case "expire":
            clock.advance(chance.randint(1, LIFE_MS))
            _apply(store, twin, [_batch("timed", chance, ttl_ms=chance.randint(1, LIFE_MS))])
        case "sweep":
            clock.advance(LIFE_MS)
            assert finish(store.sweep()) == finish(twin.sweep())
        case _:
            finish(store.drop("dropped"))
            finish(twin.drop("dropped"))


def _apply(store: StoreBase, twin: StoreBase, batches: list[Batch]) -> None:
    outcomes, expected = finish(store.apply(batches)), finish(twin.apply(batches))
    assert [type(outcome) for outcome in outcomes] == [Applied] * len(batches)
    assert outcomes == expected


def _batch(space: str, chance: random.Random, ttl_ms: int | None = None) -> Batch:
    keys = chance.sample(range(14), chance.randint(1, 6))
    writes: list[Write] = []
    for number in keys:
        key = bytes([chance.choice([0, 1, 1, 2])]) + b"key %d" % number
        size = chance.choice([0, 10, 300, 300, 1_000, 9_000])
        writes.append(Delete(key) if chance.random() < 0.2 else Put(key, chance.randbytes(size), ttl_ms))
    writes.append(Put(b"\x01log", b"stamped", ttl_ms, stamp=True))
    return Batch(space, writes)


def main() -> None:
    """Record one kind in a folder: `power_workload KIND FOLDER SEED LOG`."""
    kind, folder, seed, log = sys.argv[1:]
    recording = record(kind, Path(folder), int(seed), sessions=2)
    Path(log).write_bytes(msgspec.msgpack.encode(recording.moments))


if __name__ == "__main__":
    main()
