"""All interleavings of writers, carriers, drops and sweeps of one subject, with kills between any two calls.

The real carrier runs on a store in memory. Each call of the store is a step, and a schedule says whose step
comes next, or who is killed. Schedules that lead to the same store and the same answers of every actor are
followed once. After each step the invariant of the index must hold.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.engine.index.carrier import Carrier, NoIndexError
from keepstate.engine.index.rows import Row, decode_row, digest_of, places, row_key
from keepstate.engine.index.summaries import read_subject
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.subjects import Subject, owner_of
from keepstate.engine.kernel.unit import Unit
from keepstate.names import INDEX_SPACE, stored_name
from keepstate.sessions.machine_data import MachineRecord
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Store
from keepstate.testing.clocks import ManualClock
from keepstate.values import codec

TENANT = "acme"
SPACE = "machine/m"
SUBJECT = cast("Subject", owner_of(SPACE))
LOCATION = SPACE, SUBJECT
STORED = stored_name(TENANT, SPACE)
INDEX = stored_name(TENANT, INDEX_SPACE)
_HEAD = layout.named_key(layout.DOCUMENTS, "machine")


class _Step:
    """Gives way to the schedule."""

    def __await__(self) -> Generator[None]:
        yield


class SteppedStore:
    """A store each of whose calls is one step of its actor."""

    def __init__(self, store: Store, heard: list[str]) -> None:
        self._store, self._heard = store, heard

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._store, name)
        if name not in {"apply", "read", "scan", "spaces", "drop"}:
            return call

        async def stepped(*args: Any, **options: Any) -> Any:
            await _Step()
            answer = await call(*args, **options)
            self._heard.append(repr(answer))
            return answer

        return stepped


class _Random:
    """Names a carrier's marks, the same in every schedule."""

    def __init__(self, name: str) -> None:
        self._name = name.encode()

    def random_bytes(self, size: int) -> bytes:
        return self._name.ljust(size, b".")[:size]


Body = Callable[[Store, Carrier], Coroutine[Any, Any, None]]


@dataclass
class Actor:
    """A process: its name, what it does, and whether it may be killed."""

    name: str
    body: Body
    mortal: bool = True


@dataclass
class _Running:
    steps: Coroutine[Any, Any, None] | None
    heard: list[str] = field(default_factory=list)


def put(state: str) -> Body:
    """Return a writer that gives the machine a state."""

    async def body(store: Store, _: Carrier) -> None:
        unit = Unit(store, STORED, SPACE)
        unit.put(_HEAD, codec.encode(MachineRecord(state)))
        await unit.commit()

    return body


async def delete(store: Store, _: Carrier) -> None:
    """Delete the machine."""
    unit = Unit(store, STORED, SPACE)
    unit.delete(_HEAD)
    await unit.commit()


async def carry(_: Store, carrier: Carrier) -> None:
    """Carry the machine, as a writer does after its commit."""
    with suppress(NoIndexError):
        await carrier.carry([LOCATION])


async def sweep(_: Store, carrier: Carrier) -> None:
    """Carry all that waits, and reconcile what the dead have left."""
    with suppress(NoIndexError):
        await carrier.deliver()


async def drop(_: Store, carrier: Carrier) -> None:
    """Drop the space of the machine."""
    await carrier.drop(SPACE)


async def erase(store: Store, _: Carrier) -> None:
    """Erase the tenant: its spaces, and its index last."""
    await store.drop(STORED)
    await store.drop(INDEX)


def together(*bodies: Body) -> Body:
    """Return one process that does several things in a row."""

    async def body(store: Store, carrier: Carrier) -> None:
        for each in bodies:
            await each(store, carrier)

    return body


class Broken(AssertionError):  # noqa: N818 - a finding of the checker
    """The invariant does not hold."""


class World:
    """One run of a schedule.

    Args:
        actors: The processes.
        kind: The class of the carriers.
        begun: The spaces as they are at first.
    """

    def __init__(self, actors: Sequence[Actor], kind: type[Carrier], begun: MemoryHeap) -> None:
        heap = MemoryHeap()
        heap.spaces = deepcopy(begun.spaces)
        self.store = _open(heap)
        self._kind = kind
        self._running: dict[str, _Running] = {}
        self._before: Row | None = None
        for actor in actors:
            running = _Running(None)
            stepped = cast("Store", SteppedStore(self.store, running.heard))
            carrier = kind(stepped, TENANT, cast("Any", _Random(actor.name)))
            running.steps = actor.body(stepped, carrier)
            self._running[actor.name] = running
            self.step(actor.name)  # up to its first call

    def _carrier(self, name: str) -> Carrier:
        return self._kind(self.store, TENANT, cast("Any", _Random(name)))

    def runs(self, name: str) -> bool:
        """Return whether an actor is still at work."""
        return self._running[name].steps is not None

    def step(self, name: str) -> None:
        """Let an actor make its next call."""
        running = self._running[name]
        assert running.steps is not None
        try:
            running.steps.send(None)
        except StopIteration:
            running.steps = None

    def kill(self, name: str) -> None:
        """Kill an actor between two calls."""
        running = self._running[name]
        assert running.steps is not None
        running.steps.close()
        running.steps = None
        running.heard.append("killed")

    def state(self) -> tuple[Any, ...]:
        """Return what everything that may still happen depends on."""
        spaces = [self._dump(STORED), self._dump(INDEX)]
        actors = [
            (name, running.steps is None, hash(tuple(running.heard)))
            for name, running in self._running.items()
        ]
        return tuple(map(repr, (spaces, actors)))

    def _dump(self, space: str) -> list[Any]:
        reading = finish(self.store.read(space, []))
        sections = [finish(self.store.scan(space, bytes([section]))).entries for section in range(3)]
        return [reading.revision, sections]

    def row(self) -> Row | None:
        """Return the row of the machine."""
        key = row_key(digest_of(self._carrier("look").name_of, *LOCATION))
        entry = finish(self.store.read(INDEX, [key])).entries[0]
        return None if entry is None else decode_row(entry.value, key)

    def remember_row(self) -> None:
        """Remember the row as it is before the next step."""
        self._before = self.row()

    def check(self) -> None:
        """Raise `Broken` if the row is wrong without an outbox or a mark, or if the last step set it back."""
        row, before = self.row(), self._before
        if row is not None and before is not None and row.version < before.version:
            raise Broken(f"the row went back from {before} to {row}")
        self._check_places(row)
        marks = [
            entry
            for part in (layout.CARRYING, layout.DROPPING)
            for entry in finish(self.store.scan(INDEX, part)).entries
        ]
        outbox = finish(self.store.read(STORED, [SUBJECT.outbox_key()])).entries[0]
        has_index = finish(self.store.read(INDEX, [layout.INDEX_META])).entries[0] is not None
        if not marks and outbox is None and has_index and not self.is_right(row):
            raise Broken(f"{row} is wrong, and nothing says so")

    def is_right(self, row: Row | None) -> bool:
        """Return whether the row shows the machine as it is."""
        summary = finish(read_subject(self.store, STORED, *LOCATION)).summary
        return (row and row.state) == (summary and summary.state)

    def _check_places(self, row: Row | None) -> None:
        found = {entry.key for entry in finish(self.store.scan(INDEX, layout.LISTS)).entries}
        name_of = self._carrier("look").name_of
        wanted = set[bytes]() if row is None else places(name_of, digest_of(name_of, *LOCATION), row)
        if found != wanted:
            raise Broken(f"the lists have {found}, and the row {row} belongs into {wanted}")

    def close(self) -> None:
        """End the run."""
        for running in self._running.values():
            if running.steps is not None:
                running.steps.close()
        finish(self.store.close())


def explore(
    actors: Sequence[Actor],
    *,
    kind: type[Carrier] = Carrier,
    before: Body | None = None,
    at_end: Callable[[World], None] | None = None,
    most: int | None = None,
    kills: int = 1,
    only_at_end: bool = False,
) -> int:
    """Follow all schedules, and return the number of states that were met.

    Args:
        actors: The processes.
        kind: The class of the carriers.
        before: What happened before, once the index was there; by default the machine was carried.
        at_end: Checks a world in which nobody is at work any more.
        most: The largest number of states.
        kills: The largest number of processes that are killed.
        only_at_end: Whether the invariant is checked by `at_end` only.

    Raises:
        Broken: The invariant does not hold in some state. The message has the schedule.
    """

    begun = MemoryHeap()
    store = _open(begun)
    first = Carrier(store, TENANT, cast("Any", _Random("first")))
    finish(put("first")(store, first))
    finish(first.ensure())
    finish((before or together(put("old"), sweep))(store, first))
    finish(store.close())
    mortal = {actor.name for actor in actors if actor.mortal}
    seen, waiting = set[Any](), [()]
    while waiting:
        schedule = waiting.pop()
        world = World(actors, kind, begun)
        try:
            for name, is_kill in schedule:
                world.remember_row()
                (world.kill if is_kill else world.step)(name)
            try:
                if not only_at_end:
                    world.check()
            except Broken as error:
                raise Broken(f"{error}; after {_format(schedule)}") from None
            state = world.state()
            if state in seen:
                continue
            seen.add(state)
            if most is not None and len(seen) >= most:
                break
            alive = [actor.name for actor in actors if world.runs(actor.name)]
            killed = sum(is_kill for _, is_kill in schedule)
            waiting += [(*schedule, (name, False)) for name in alive]
            if killed < kills:
                waiting += [(*schedule, (name, True)) for name in alive if name in mortal]
            if not alive:
                _finish(world, schedule, at_end)
        finally:
            world.close()
    return len(seen)


def _open(heap: MemoryHeap) -> MemoryStore:
    store = MemoryStore(clock=ManualClock(), runner=ThreadRunner(), heap=heap)
    finish(store.open())
    return store


def _finish(
    world: World, schedule: Sequence[tuple[str, bool]], at_end: Callable[[World], None] | None
) -> None:
    """Sweep once more: everything is right, and nothing is left over."""
    if at_end is not None:
        at_end(world)
        return
    finish(sweep(world.store, Carrier(world.store, TENANT, cast("Any", _Random("last")))))
    left = [
        *finish(world.store.scan(INDEX, layout.CARRYING)).entries,
        *finish(world.store.scan(STORED, layout.OUTBOX)).entries,
    ]
    if left or not world.is_right(world.row()):
        raise Broken(f"after the sweep: {left}, {world.row()}; after {_format(schedule)}")


def _format(schedule: Sequence[tuple[str, bool]]) -> str:
    return " ".join(f"{'kill ' * is_kill}{name}" for name, is_kill in schedule)
