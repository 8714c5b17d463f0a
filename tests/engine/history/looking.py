"""Looks at a history through all that it tells, and compares that with the plain model."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import pytest

from keepstate.engine.history.commits import Difference
from keepstate.engine.history.history import History
from keepstate.errors import NotFoundError, PrunedError
from tests.engine.history.plain_model import Model, Moment, State
from tests.engine.history.states import unlike


class Looker:
    """Somebody who knows what should be there.

    Args:
        history: Where it is kept; empty.
        another: The same by another handle, which remembers nothing of what the first has read.
        seed: Names the history.
    """

    def __init__(self, history: History, another: History, seed: int) -> None:
        self._dice = random.Random(seed)
        self._handles = history, another
        self.model = Model()
        self.done: Counter[str] = Counter()

    @property
    def _history(self) -> History:
        return self._dice.choice(self._handles)

    def _some_branch(self) -> str:
        return self._dice.choice(sorted(self.model.branches))

    def _some_moment(self) -> Moment:
        reachable = self.model.reachable()  # in the order of their making: ids depend on time
        return self._dice.choice([one for id, one in self.model.moments.items() if id in reachable])

    async def _patch(self) -> None:
        """What a diff tells leads from one state to the other; it tells nothing only of equal ones."""
        one, other = self._some_moment(), self._some_moment()
        changes = await self._history.diff(one.id, other.id)
        found = unlike(patched(one.state, changes), other.state, ordered=False)
        assert found is None, f"patched and meant: {found}"
        assert changes or unlike(one.state, other.state) is None
        assert not changes or unlike(one.state, other.state) is not None

    async def _look(self) -> None:
        branch = self._some_branch()
        await self._look_at(self._some_moment())
        await self._look_at_line(branch)
        await self._look_at_log(branch)
        await self._look_for_givers(branch)

    async def look_at_all(self) -> None:
        """Compare every commit that is left, every name, and every line."""
        history = self._history
        assert {one.name: one.head async for one in history.branches()} == self.model.branches
        assert {one.name: one.commit async for one in history.tags()} == self.model.tags
        for id in sorted(self.model.reachable()):
            await self._look_at(self.model.moments[id])
        for branch in self.model.branches:
            await self._look_at_line(branch)
            await self._look_at_log(branch)
            await self._look_for_givers(branch)
        verified = await history.verify()
        assert verified.problems == ()
        assert verified.commits == len(self.model.reachable())
        self.model.collect()
        await history.collect()
        assert (await history.stats()).commits == len(self.model.reachable())
        for id in sorted(self.model.gone)[:3]:
            await self._is_not_found(id, NotFoundError)

    async def _look_at(self, moment: Moment) -> None:
        checkout = await self._history.checkout(moment.id)
        found = unlike(moment.state, dict(checkout))
        assert found is None, f"commit {moment.number}, {moment.message!r}: {found}"
        told = checkout.commit
        assert (told.parents, told.message, told.author) == (moment.parents, moment.message, moment.author)
        assert told.generation == moment.generation
        if moment.state:
            key = self._dice.choice(sorted(moment.state))
            part = await self._history.checkout(moment.id, load=[key])
            assert unlike(part[key], moment.state[key]) is None

    async def _look_at_line(self, branch: str) -> None:
        line = [*self.model.line(self.model.branches[branch])]
        numbers = [1, len(line), self._dice.randint(1, len(line))]
        for moment in {id(one): one for n in numbers for one in [line[-n]]}.values():
            ref = f"{branch}#{moment.number}"
            if moment.id in self.model.gone:
                await self._is_not_found(ref, PrunedError)
            else:
                assert (await self._history.find(ref)).id == moment.id
        kept = [one for one in line if one.id not in self.model.gone]
        steps = self._dice.randrange(len(kept))
        assert (await self._history.find(f"{branch}~{steps}")).id == kept[steps].id
        await self._is_not_found(
            f"{branch}~{len(kept)}", PrunedError if len(kept) < len(line) else NotFoundError
        )

    async def _is_not_found(self, ref: str, error: type[Exception]) -> None:
        with pytest.raises(error):
            await self._history.find(ref)

    async def _look_at_log(self, branch: str) -> None:
        head = self.model.head(branch)
        told = [commit async for commit in self._history.log(branch)]
        places = {commit.id: place for place, commit in enumerate(told)}
        assert places.keys() == ({head.id} | head.before) - self.model.gone
        assert len(told) == len(places)
        first = {moment.id: moment.number for moment in self.model.kept_line(head.id)}
        for commit in told:
            assert commit.number == first.get(commit.id), f"{commit} is number {first.get(commit.id)}"
            before = self.model.moments[commit.id].before & places.keys()
            assert all(places[commit.id] < places[id] for id in before)

    async def _look_for_givers(self, branch: str) -> None:
        head = self.model.head(branch)
        for path in (self._a_path(head.state) for _ in range(3)):
            giver = self.model.giver(head.id, path) if path else None
            if giver is None:
                continue
            blame = await self._history.blame(path, branch)
            assert blame.commit.id == giver.id, (
                f"{path} of {branch} is blamed on {blame.commit}, not {giver.message}"
            )
            assert blame.is_exact == (not set(giver.parents) & self.model.gone)
            self.done["blamed"] += 1

    def _a_path(self, state: Any) -> tuple[Any, ...]:
        path: tuple[Any, ...] = ()
        while isinstance(state, dict) and state and (not path or self._dice.random() < 0.5):
            path = (*path, self._dice.choice(list(state)))
            state = state[path[-1]]
        return path


def patched(state: State, changes: list[Difference]) -> Any:
    """Return a state with differences applied: what goes, by old places; then what comes, by new ones."""
    whole: Any = {"": copy.deepcopy(state)}
    for change in reversed(changes):
        if change.kind == "removed":
            holder, step = _holder(whole, change.old_path)
            del holder[step]
    for change in changes:
        if change.kind == "added":
            holder, step = _holder(whole, change.path)
            if isinstance(holder, list):
                holder.insert(step, copy.deepcopy(change.new))
            else:
                holder[step] = copy.deepcopy(change.new)
    for change in changes:
        if change.kind == "changed":
            holder, step = _holder(whole, change.path)
            holder[step] = copy.deepcopy(change.new)
    return whole[""]


def _holder(whole: Any, path: tuple[Any, ...]) -> tuple[Any, Any]:
    *above, step = ("", *path)
    for one in above:
        whole = whole[one]
    return whole, step
