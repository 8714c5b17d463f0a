"""Walks over commits and their ancestors, ordered by generation or number, never by time.

A walk along first parents jumps: a record names a commit far below, and tells what is between; see `lineage`.
No jump leads over the number of a graft, because the ground there may be pruned.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from heapq import heappop, heappush

import msgspec

from keepstate.engine.history.record import CommitRecord
from keepstate.engine.history.session import HistorySession
from keepstate.errors import CorruptError

_OURS, _THEIRS, _BELOW = 1, 2, 4


class At(msgspec.Struct, frozen=True):
    """A commit of a walk, and its record."""

    id: bytes
    record: CommitRecord

    @property
    def number(self) -> int:
        """Its number in its line of first parents."""
        return self.record.number


async def at(session: HistorySession, id: bytes, number: int | None = None) -> At:
    """Return a commit.

    Raises:
        CorruptError: It has not the number that the record that names it says.
    """
    record = await session.record(id)
    if number is not None and record.number != number:
        raise CorruptError(
            f"commit {id.hex()} has number {record.number}, and a later commit says {number}; "
            "run `keepstate doctor --verify`"
        )
    return At(id, record)


# ---- along first parents


async def first_parents(session: HistorySession, id: bytes) -> AsyncIterator[tuple[bytes, CommitRecord]]:
    """Yield a commit, its first parent, the first parent of that, and so on."""
    while True:
        yield id, await session.record(id)
        parent = await session.first_parent(id)
        if parent is None:
            return
        id = parent


async def parent_of(session: HistorySession, place: At) -> At | None:
    """Return the nearest kept first parent of a commit, or None if the line ends."""
    parent = await session.first_parent(place.id)
    return None if parent is None else await at(session, parent)


async def jump_from(session: HistorySession, place: At) -> tuple[bytes, int] | None:
    """Return the id and number of the commit that a commit jumps to, if nothing between may be pruned."""
    record = place.record
    low = record.skip_at
    if not 0 < low < record.number or await session.is_pruned_between(low, record.number):
        return None
    return record.skip or record.parents[0], low


async def down_to(session: HistorySession, place: At, wanted: int) -> At | None:
    """Return the first commit of a line whose number is not above the wanted one, or None if the line ends.

    Reads about twice as many records as the distance has binary digits.
    """
    while place.number > wanted:
        below = await _jump_down_to(session, place, wanted) or await parent_of(session, place)
        if below is None:
            return None
        place = below
    return place


async def up_from(session: HistorySession, place: At, wanted: int) -> At:
    """Return the last commit of a line whose number is not below the wanted one."""
    while place.number > wanted:
        below = await _jump_down_to(session, place, wanted) or await parent_of(session, place)
        if below is None or below.number < wanted:
            return place
        place = below
    return place


async def _jump_down_to(session: HistorySession, place: At, wanted: int) -> At | None:
    """Return the commit that a jump or graft leads to, if its number is not below the wanted one."""
    jump = await jump_from(session, place)
    if jump is None or jump[1] < wanted:
        jump = await _graft_down_to(session, place, wanted)
    return None if jump is None else await at(session, *jump)


async def _graft_down_to(session: HistorySession, place: At, wanted: int) -> tuple[bytes, int] | None:
    """Return the lowest known graft below a commit with a graft whose number is not below the wanted one."""
    grafts = await session.grafts()
    found: tuple[bytes, int] | None = None
    graft = grafts.get(place.id)
    above = place.number
    while graft is not None:
        id, graft = graft.below, grafts.get(graft.below)
        if graft is None or not wanted <= graft.number < above:  # damaged grafts may not lead down
            break
        found, above = (id, graft.number), graft.number
    return found


async def before(session: HistorySession, place: At, steps: int) -> At | None:
    """Return the commit so many kept commits before another one on its line, or None if the line ends."""
    numbers = await session.graft_numbers()
    while steps:
        graft = await _graft_within(session, place, place.number - steps, numbers)
        if graft is None:
            return await down_to(session, place, place.number - steps)
        steps -= place.number - graft.number + 1
        parent = await parent_of(session, graft)
        if parent is None:
            return None
        place = parent
    return place


async def _graft_within(session: HistorySession, place: At, low: int, numbers: list[int]) -> At | None:
    """Return the first commit with a graft on a line whose number is above `low`, or None."""
    for number in reversed(numbers):
        if number <= low:
            return None
        if number <= place.number:
            found = await down_to(session, place, number)
            if found is None:
                return None
            if found.number == number and await session.graft(found.id) is not None:
                return found
    return None


async def nearest_stop(session: HistorySession, place: At) -> At:
    """Return the first commit of a line that has not exactly one parent, or whose parents were pruned."""
    while True:
        if len(place.record.parents) != 1 or await session.graft(place.id) is not None:
            return place
        jump = None if place.record.merges else await jump_from(session, place)
        lower = await at(session, *jump) if jump is not None else await parent_of(session, place)
        if lower is None:
            return place
        place = lower


async def meeting(session: HistorySession, one: At, other: At, above: int) -> At | None:
    """Return the first commit that two lines share, or None if it would not be above a number."""
    while one.id != other.id:
        if one.number != other.number:
            one, other = sorted((one, other), key=lambda place: place.number)
            lower = await down_to(session, other, one.number)
        else:
            jumps = await jump_from(session, one), await jump_from(session, other)
            if jumps[0] is not None and jumps[1] is not None and jumps[0][1] == jumps[1][1]:
                if jumps[0][0] != jumps[1][0]:  # otherwise they may meet between
                    if jumps[0][1] <= above:
                        return None
                    one, other = await at(session, *jumps[0]), await at(session, *jumps[1])
                    continue
            lower = await parent_of(session, other)
        if lower is None or min(one.number, lower.number) <= above:
            return None
        other = lower
    return one if one.number > above else None


# ---- all ancestors


async def is_ancestor(session: HistorySession, id: bytes, head: bytes) -> bool:
    """Return whether a commit is the head or one of its ancestors."""
    wanted = await session.record(id)
    todo, seen = [head], {head}
    while todo:
        top = await at(session, todo.pop())
        if top.id == id:
            return True
        if top.record.generation <= wanted.generation:
            continue
        stop = await nearest_stop(session, top)
        if stop.number <= wanted.number <= top.number:
            found = await down_to(session, top, wanted.number)
            if found is not None and found.id == id:
                return True
        for parent in await session.parents(stop.id):
            if parent not in seen:
                seen.add(parent)
                todo.append(parent)
    return False


class _Stretch(msgspec.Struct):
    """Commits that were stepped over: those below `top` on its line, above `bottom`, which is pending."""

    top: At
    bottom: At
    marks: int


class _Painting:
    """Marks the ancestors of two commits, each commit after all its descendants.

    From a commit with one parent, it steps at once to the highest of these: the nearest merge on its line,
    and the commit where the line of another pending commit, or of a stretch that was stepped over, joins it.
    """

    def __init__(self, session: HistorySession) -> None:
        self.session = session
        self._pending: dict[bytes, tuple[At, int]] = {}
        self._heap: list[tuple[int, bytes]] = []
        self._stretches: list[_Stretch] = []

    async def add(self, place: At, marks: int) -> None:
        """Mark a commit, which is taken later."""
        known = self._pending.get(place.id)
        if known is not None:
            self._pending[place.id] = place, known[1] | marks
            return
        for stretch in self._stretches:
            if stretch.bottom.number < place.number < stretch.top.number:
                there = await down_to(self.session, stretch.top, place.number)
                if there is not None and there.id == place.id:
                    marks |= stretch.marks
                    stretch.bottom = place
        self._pending[place.id] = place, marks
        heappush(self._heap, (-place.record.generation, place.id))

    def is_done(self) -> bool:
        """Return whether all bases are found: of one side, only commits below bases are left."""
        marks = [marks for _, marks in self._pending.values()] + [each.marks for each in self._stretches]
        above = [each for each in marks if not each & _BELOW]
        return not any(marks & _OURS for marks in above) or not any(marks & _THEIRS for marks in above)

    def has_only(self, marks: int) -> bool:
        """Return whether a pending commit has these marks and no others."""
        return any(own == marks for _, own in self._pending.values())

    def take(self) -> tuple[At, int]:
        """Return the next commit, and its marks, which are complete."""
        _, id = heappop(self._heap)
        # What is pending now, and its ancestors, cannot be above this commit.
        self._stretches = [stretch for stretch in self._stretches if stretch.bottom.id != id]
        return self._pending.pop(id)

    async def step(self, place: At, marks: int) -> None:
        """Mark the next ancestors of a commit."""
        session = self.session
        parents = await session.parents(place.id)
        if len(place.record.parents) != 1 or await session.graft(place.id) is not None:
            for parent in parents:
                await self.add(await at(session, parent), marks)
            return
        next = await nearest_stop(session, await at(session, parents[0]))
        others = [pending for pending, _ in self._pending.values()]
        others += [stretch.top for stretch in self._stretches if stretch.bottom.number < place.number]
        for other in others:
            if other.number > next.number:
                joined = await meeting(session, place, other, next.number)
                if joined is not None and joined.id != place.id:
                    next = joined
        self._stretches.append(_Stretch(place, next, marks))
        await self.add(next, marks)


async def merge_bases(session: HistorySession, ours: bytes, theirs: bytes) -> list[bytes]:
    """Return the latest common ancestors; none of them is an ancestor of another."""
    painting = _Painting(session)
    await painting.add(await at(session, ours), _OURS)
    await painting.add(await at(session, theirs), _THEIRS)
    bases: list[bytes] = []
    while not painting.is_done():
        place, marks = painting.take()
        if marks == _OURS | _THEIRS:
            bases.append(place.id)
            marks |= _BELOW
        await painting.step(place, marks)
    return sorted(bases)


async def latest(session: HistorySession, heads: Iterable[bytes], limit: int) -> list[At]:
    """Return the latest commits among some commits and their ancestors, each before its parents.

    A commit is never older than its parents, so the order is that of times, and of generations at one time.
    """
    found: list[At] = []
    heap: list[tuple[int, int, bytes]] = []
    seen: set[bytes] = set()

    async def add(id: bytes) -> None:
        if id not in seen:
            seen.add(id)
            record = await session.record(id)
            heappush(heap, (-record.created_ms, -record.generation, id))

    for head in heads:
        await add(head)
    while heap and len(found) < limit:
        id = heappop(heap)[2]
        found.append(await at(session, id))
        for parent in await session.parents(id):
            await add(parent)
    return found


class MergedCommits:
    """The commits that a merge brought into the line of its first parent, the latest first.

    These are the ancestors of its other parents that are not ancestors of the first one. The walk can be
    continued in another session.
    """

    def __init__(self, painting: _Painting) -> None:
        self._painting = painting

    @classmethod
    async def of(cls, session: HistorySession, place: At) -> MergedCommits | None:
        """Return the commits that a commit merged, or None if it is not a merge."""
        if len(place.record.parents) < 2 and await session.graft(place.id) is None:
            return None
        first = await session.first_parent(place.id)
        painting = _Painting(session)
        for other in await session.parents(place.id):
            if other != first:
                await painting.add(await at(session, other), _THEIRS)
                for base in await merge_bases(session, first, other) if first is not None else ():
                    await painting.add(await at(session, base), _OURS)
        return cls(painting)

    async def next(
        self,
        session: HistorySession,
        jump: Callable[[HistorySession, At], Awaitable[tuple[bytes, int] | None]],
    ) -> At | None:
        """Return the next commit, or None after the last one.

        Args:
            session: The session.
            jump: Returns a first parent of a commit that comes after it, or None for its parents.
        """
        painting = self._painting
        painting.session = session
        while painting.has_only(_THEIRS):
            place, marks = painting.take()
            if marks & _OURS:
                await painting.step(place, marks)
                continue
            jumped = await jump(session, place)
            if jumped is not None:
                await painting.add(await at(session, *jumped), _THEIRS)
            else:
                for parent in await session.parents(place.id):
                    await painting.add(await at(session, parent), _THEIRS)
            return place
        return None
