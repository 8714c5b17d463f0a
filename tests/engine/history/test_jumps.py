"""Jumps along a line, and marks of what a stretch touched, answer as a look at every commit does.

`KEEPSTATE_SEED=n` begins with history n.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

import keepstate
from keepstate.engine.history import ancestry, lineage, log, search, session
from keepstate.engine.history.blame import blame
from keepstate.engine.history.history import History
from keepstate.engine.history.lineage import Lineage, skip_number_of
from keepstate.engine.history.paths import locate
from keepstate.engine.history.revisions import Found, find_commit
from keepstate.engine.history.session import HistorySession
from keepstate.engine.kernel.stored import to_datetime
from keepstate.errors import CorruptError, MergeConflictError, NotFoundError, PrunedError
from keepstate.values import touched
from keepstate.values.touched import NOTHING, MarkedPath
from tests.engine.history import plain_walks
from tests.engine.history.conftest import history_of
from tests.tally import first_seed

TURNS = 60
CHUNK = 250
DEEP = 1_500
"""Histories of one deep run. Each seed takes others: KEEPSTATE_SEED=1500 goes on after those of seed 0."""
KEYS = ("plan", "notes", "log", "deep", "n", "who")


class Wanderer:
    """Makes a random history with merges, squashes, prunes, returns to earlier states and shifted lists."""

    def __init__(self, history: History, seed: int) -> None:
        self.history, self.dice = history, random.Random(seed)
        self.done: Counter[str] = Counter()
        self._count = 0

    async def wander(self, turns: int) -> None:
        """Make so many changes."""
        state = {"plan": {"a": 1, "b": {"c": [1, 2]}}, "log": [self._item() for _ in range(9)], "n": 0}
        await self.history.commit(state)
        for _ in range(self.dice.choice((0, 10, 70))):
            await self._edit("main")
        ways: list[tuple[int, Callable[[str], Awaitable[None]]]] = [
            (9, self._edit), (4, self._append), (3, self._branch), (3, self._merge), (1, self._squash),
            (2, self._return), (1, self._prune), (1, self._tag),
        ]  # fmt: skip
        for _ in range(turns):
            (_, way), *_ = self.dice.choices(ways, [weight for weight, _ in ways])
            await way(self.dice.choice(await self.branches()))
            self.done[way.__name__.strip("_")] += 1

    async def branches(self) -> list[str]:
        return [one.name async for one in self.history.branches()]

    def _item(self) -> Any:
        self._count += 1
        text = f"{self._count if self.dice.random() < 0.7 else 1} " * self.dice.choice((1, 1, 30))
        return self.dice.choice((text, {"text": text, "meta": [self._count, {"n": 1}]}))

    async def _edit(self, branch: str) -> None:
        if self.dice.random() < 0.5:
            state: Any = copy.deepcopy(dict(await self.history.checkout(branch)))
            self._change(state)
            await self.history.commit(state, branch=branch, author=self.dice.choice(("ada", "bob")))
            return
        draft = await self.history.begin(branch)
        self._change(draft)
        await draft.commit(meta={"step": str(self._count)})

    def _change(self, state: Any) -> None:
        for _ in range(self.dice.choice((1, 1, 2))):
            key = self.dice.choice(KEYS)
            value = state.get(key)
            match self.dice.randrange(8):
                case 0 if isinstance(value, list) and value:
                    value.pop(self.dice.randrange(len(value)))
                case 1 if isinstance(value, list):
                    value.insert(self.dice.randint(0, len(value)), self._item())
                case 2 if isinstance(value, list) and value:
                    value[self.dice.randrange(len(value))] = self._item()
                case 3 if isinstance(value, list):
                    value.extend(self._item() for _ in range(self.dice.choice((1, 60))))
                case 4 if isinstance(value, dict):
                    value[self.dice.choice("abc")] = self._item()
                case 5 if isinstance(value, dict) and value:
                    moved = self.dice.choice(list(value))
                    value[moved] = value.pop(moved)
                case 6 if key in state and len(state) > 1:
                    del state[key]
                case _:
                    kinds = ([self._item()], {"a": self._item()}, self._count, "same")
                    state[key] = self.dice.choice(kinds)

    async def _append(self, branch: str) -> None:
        state = dict(await self.history.checkout(branch))
        if isinstance(state.get("log", []), list):
            await self.history.append("log", *(self._item() for _ in range(3)), branch=branch)

    async def _branch(self, branch: str) -> None:
        name = self.dice.choice(("side", "other"))
        moment = await self._moment(branch)
        await self.history.delete_branch(name)
        try:
            await self.history.branch(name, moment)
        except NotFoundError:  # only the deleted branch led to it
            await self.history.branch(name)

    async def _moment(self, branch: str) -> str:
        ids = [commit.id async for commit in self.history.log(branch)]
        return self.dice.choice(ids)

    async def _merge(self, branch: str) -> None:
        try:
            await self.history.merge(
                await self._moment(self.dice.choice(await self.branches())),
                into=branch,
                rules={(): self.dice.choice(("ours", "theirs", "last_writer"))},
            )
        except MergeConflictError:
            self.done["conflicts"] += 1

    async def _squash(self, branch: str) -> None:
        line = [one.number async for one in self.history.log(branch) if one.number is not None]
        await self.history.squash(branch, since=f"{branch}#{self.dice.choice(line[:9])}")

    async def _return(self, branch: str) -> None:
        await self.history.rollback(branch, to=await self._moment(branch))

    async def _prune(self, branch: str) -> None:
        if self.dice.random() < 0.3:
            await self.history.prune(keep_last=self.dice.choice((3, 12, 30)))

    async def _tag(self, branch: str) -> None:
        name = f"t{self.dice.randrange(4)}"
        await self.history.delete_tag(name)
        await self.history.tag(name, await self._moment(branch))


# ---- judging


async def judge(wanderer: Wanderer) -> Counter[str]:
    """Compare everything that jumps with a walk over all commits, and return how much was compared."""
    history, dice = wanderer.history, wanderer.dice
    judged = Counter[str]()
    for branch in await wanderer.branches():
        paths = [_a_path(dice, dict(await history.checkout(branch))) for _ in range(8)]

        async def work(session: HistorySession, branch: str = branch, paths: Any = paths) -> None:
            found = await find_commit(session, branch)
            await _judge_numbers(session, branch, judged)
            await _judge_marks(session, found, paths, judged)
            for path in paths:
                await _judge_blame(session, found, path, judged)
            others = [await find_commit(session, one) for one in await wanderer.branches()]
            ids = [found.id, *(one.id for one in others), *dice.choices(await _all(session, others), k=4)]
            for one in ids:
                for other in ids:
                    bases = await plain_walks.bases(session, one, other)
                    assert await ancestry.merge_bases(session, one, other) == bases
                    is_above = one in await plain_walks.ancestors(session, other)
                    assert await ancestry.is_ancestor(session, one, other) == is_above
                    judged["bases"] += 1

        await history._run(work)
        await _judge_lists(history, branch, paths, dice, judged)
    assert (await history.verify()).problems == ()
    return judged


async def _all(session: HistorySession, heads: list[Found]) -> list[bytes]:
    found = [await plain_walks.ancestors(session, head.id) for head in heads]
    return sorted(set[bytes]().union(*found))


def _a_path(dice: random.Random, value: Any) -> tuple[Any, ...]:
    path: list[Any] = []
    while isinstance(value, dict | list) and value and (not path or dice.random() < 0.7):
        step = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        path.append(step)
        value = value[step]
    return tuple(path)


async def _judge_numbers(session: HistorySession, branch: str, judged: Counter[str]) -> None:
    line = await plain_walks.line(session, (await find_commit(session, branch)).id)
    by_number = {record.number: id for id, record in line}
    for number in range(1, line[0][1].number + 1):
        if number in by_number:
            assert (await find_commit(session, f"{branch}#{number}")).id == by_number[number]
        else:
            with pytest.raises(PrunedError):
                await find_commit(session, f"{branch}#{number}")
    for steps, (id, record) in enumerate(line):
        assert (await find_commit(session, f"{branch}~{steps}")).id == id
        time = to_datetime(record.created_ms)
        last = next(id for id, one in line if one.created_ms <= record.created_ms)
        assert (await find_commit(session, f"{branch}@{time.isoformat()}")).id == last
    with pytest.raises((PrunedError, NotFoundError)):
        await find_commit(session, f"{branch}~{len(line)}")
    judged["numbers"] += line[0][1].number


async def _judge_marks(session: HistorySession, found: Found, paths: Any, judged: Counter[str]) -> None:
    """Compare what marks say of each commit, and of each stretch, with the states."""
    line = await plain_walks.line(session, found.id)
    places = {record.number: place for place, (_, record) in enumerate(line)}
    for path in paths:
        encoded = await session.serve(locate(found.record.root, path))
        changes = [id for id, _ in await plain_walks.changes(session, found.id, encoded)]
        changed = {(await session.record(id)).number for id in changes}
        for id, record in line:
            if await session.graft(id) is None:
                told = MarkedPath(encoded).is_in(record.own_touched())
                assert told or record.number not in changed, f"{path} of {record.number}"
                judged["yes" if told else "no"] += 1
            if not await session.is_pruned_between(record.skip_at, record.number):
                stretch = range(record.skip_at + 1, record.number + 1)
                told = MarkedPath(encoded).is_in(record.stretch_touched())
                assert told or changed.isdisjoint(stretch), f"{path} in {stretch}"
                records = [line[places[number]][1] for number in stretch]
                assert record.merges == any(len(one.parents) > 1 for one in records)
                assert record.low_ms == min(one.created_ms for one in records)


async def _judge_blame(session: HistorySession, found: Found, path: Any, judged: Counter[str]) -> None:
    giver, is_exact = await blame(session, found, path)
    assert (giver.id, is_exact) == await plain_walks.blame(session, found, path), path
    judged["blamed"] += 1


async def _judge_lists(
    history: History, branch: str, paths: Any, dice: random.Random, judged: Counter[str]
) -> None:
    async def plain(session: HistorySession) -> list[str]:
        found = await find_commit(session, branch)
        return [id.hex() for id in await plain_walks.log(session, found.id)]

    every = [commit async for commit in history.log(branch)]
    ids = [one.id for one in every]
    assert ids == await history._run(plain)
    assert len(set(ids)) == len(ids)
    places = {id: place for place, id in enumerate(ids)}
    assert all(places[p] > places[one.id] for one in every for p in one.parents if p in places)
    line = [one.number for one in every if one.number is not None]
    assert line == sorted(line, reverse=True)
    assert [one async for one in history.log(branch, reverse=True)] == every[::-1]
    await _judge_pages(history, branch, {}, ids, ids, dice)
    author = dice.choice(("ada", "bob"))
    await _judge_pages(
        history, branch, {"author": author}, ids, [o.id for o in every if o.author == author], dice
    )
    for path in paths:

        async def work(session: HistorySession, path: Any = path) -> Any:
            found = await find_commit(session, branch)
            encoded = await session.serve(locate(found.record.root, path))
            changed = {id for id in ids if await plain_walks.changed(session, bytes.fromhex(id), encoded)}
            return changed, await plain_walks.changes(session, found.id, encoded)

        changed, changes = await history._run(work)
        told = [
            (bytes.fromhex(one.commit.id), one.is_exact) async for one in history.changes_of(path, branch)
        ]
        assert told == changes, path
        await _judge_pages(history, branch, {"path": path}, ids, [id for id in ids if id in changed], dice)
        judged["listed"] += 1
    judged["merged"] += len(every) - len(line)


async def _judge_pages(
    history: History, branch: str, filters: Any, ids: list[str], listed: list[str], dice: random.Random
) -> None:
    """Compare a log, its pages, and its parts after any commit, in both directions, with what is listed."""
    for is_reverse in (False, True):
        wanted, order = (listed[::-1], ids[::-1]) if is_reverse else (listed, ids)
        given = {"reverse": is_reverse, **filters}
        assert [one.id async for one in history.log(branch, **given)] == wanted, given
        limit = dice.choice((1, 2, 5, 40))
        after = dice.choice(order)  # the log need not list it
        rest = order[order.index(after) + 1 :]
        left = [id for id in wanted if id in rest]
        for _ in range(4):
            page = [one.id async for one in history.log(branch, after=after, limit=limit, **given)]
            assert page == left[:limit], (given, after, limit)
            left = left[limit:]
            if not left:
                break
            after = page[-1]


async def wander_and_judge(seeds: range) -> Counter[str]:
    """Make histories, each in a store of its own, and judge them."""
    judged = Counter[str]()
    for seed in seeds:
        async with keepstate.open("memory://") as ks:
            wanderer = Wanderer(history_of(ks.space("a")), seed)
            try:
                await wanderer.wander(TURNS)
                judged += await judge(wanderer) + wanderer.done
            except BaseException as error:
                error.add_note(f"history {seed}, after {wanderer.done}")
                raise
    return judged


@pytest.mark.parametrize(
    ("first", "count"),
    [
        pytest.param(0, 3, id="few"),
        pytest.param(3, 25, id="some", marks=pytest.mark.slow),
        *(
            pytest.param(n, CHUNK, id=f"from-{n}", marks=[pytest.mark.deep, pytest.mark.timeout(1_800)])
            for n in range(0, DEEP, CHUNK)
        ),
    ],
)
def test_jumps_and_marks_answer_as_a_walk_over_all_commits(first: int, count: int) -> None:
    judged = asyncio.run(wander_and_judge(range(first_seed() + first, first_seed() + first + count)))

    print(dict(judged))
    # Marks that always say yes would be right, and of no use.
    assert judged["no"] > judged["yes"] > 0
    assert min(judged[what] for what in ("merge", "squash", "return", "blamed", "listed", "merged")) > 0


# ---- planted bugs


@contextmanager
def a_jump_to_the_neighbour() -> Generator[None]:
    """Jump to the commit after the right one."""
    right = lineage.lineage_of

    def wrong(*args: Any) -> Lineage:
        made = right(*args)
        return msgspec.structs.replace(made, skip_number=made.skip_number + 1) if made.skip else made

    with patch.object(session, "lineage_of", wrong), patch.object(lineage, "lineage_of", wrong):
        yield


@contextmanager
def jumps_over_grafts() -> Generator[None]:
    """Jump as if nothing was ever pruned."""

    async def never(_self: HistorySession, _low: int, _high: int) -> bool:
        return False

    with patch.object(HistorySession, "is_pruned_between", never):
        yield


@contextmanager
def times_of_one_commit() -> Generator[None]:
    """Take the time of a commit for the earliest of its stretch."""
    right = lineage.lineage_of

    def wrong(*args: Any) -> Lineage:
        return msgspec.structs.replace(right(*args), spread_ms=0)

    with patch.object(session, "lineage_of", wrong), patch.object(lineage, "lineage_of", wrong):
        yield


@contextmanager
def merges_that_touch_nothing() -> Generator[None]:
    """Forget what a merge brought into its line."""
    right = HistorySession.write

    async def wrong(self: HistorySession, *args: Any, **given: Any) -> Any:
        if len(given["parents"]) > 1:
            given["touched"] = NOTHING
        return await right(self, *args, **given)

    with patch.object(HistorySession, "write", wrong):
        yield


@contextmanager
def places_after_the_right_one() -> Generator[None]:
    """Mark a list from one index too late on."""
    right = touched.lowest_difference

    def wrong(old: bytes, new: bytes) -> Any:
        return (yield from right(old, new)) + 1

    with patch.object(touched, "lowest_difference", wrong):
        yield


@contextmanager
def pages_after_the_whole_merge() -> Generator[None]:
    """Continue a log after all that a merge brought, wherever the last page ended in it."""
    right = search.start_after

    async def wrong(*args: Any) -> Any:
        start = await right(*args)
        return start and msgspec.structs.replace(start, passed=(1, b""))

    with patch.object(search, "start_after", wrong):
        yield


@contextmanager
def pages_from_the_first_merge() -> Generator[None]:
    """Take the first commit above another one for the merge that brought it."""

    async def yes(*_: Any) -> bool:
        return True

    with patch.object(log, "is_ancestor", yes):
        yield


@pytest.mark.parametrize(
    "bug",
    [
        pages_after_the_whole_merge,
        pages_from_the_first_merge,
        a_jump_to_the_neighbour,
        jumps_over_grafts,
        times_of_one_commit,
        merges_that_touch_nothing,
        places_after_the_right_one,
    ],
)
def test_a_planted_bug_is_found(bug: Callable[[], AbstractContextManager[None]]) -> None:
    with bug(), pytest.raises((AssertionError, CorruptError, NotFoundError)):
        asyncio.run(wander_and_judge(range(40)))


# ---- numbers of jumps


def test_jumps_of_lines_are_skew_binary() -> None:
    jumps = [skip_number_of(number) for number in range(1, 17)]

    assert jumps == [0, 1, 2, 1, 4, 5, 4, 1, 8, 9, 8, 11, 12, 11, 8, 1]


def test_any_number_is_reached_in_few_jumps() -> None:
    last, most, total = 100_000, 0, 0
    wanted = range(1, last, 37)
    for number in wanted:
        at, steps = last, 0
        while at > number:
            at = skip_number_of(at) if skip_number_of(at) >= number else at - 1
            steps += 1
        most, total = max(most, steps), total + steps

    assert most <= 40
    assert total / len(wanted) <= 29
