"""What a history must be, in plain Python: each moment a deep copy, each question answered by looking at all.

Merges are those of dicts, at every depth, with rules. Where both sides changed one list or tuple otherwise
than a rule covers, the model does not know: it leaves a hole, which every value fills.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.engine.history.states import unlike

State = dict[str, Any]


class Absent:
    """Nothing, where a side of a merge has nothing."""


class Hole:
    """A value that the model does not know."""


ABSENT, HOLE = Absent(), Hole()


def longest(base: Any, ours: Any, theirs: Any) -> Any:
    """Decide as a caller's own rule would."""
    return max((side for side in (ours, theirs) if isinstance(side, str)), key=len, default="none")


RULES: dict[str, str | Callable[[Any, Any, Any], Any]] = {
    "hits": "counter",
    "best": "maximum",
    "least": "minimum",
    "seen": "union",
    "log": "append",
    "who": "last_writer",
    "note": "ours",
    "memo": "theirs",
    "both": longest,
}
"""By key of the state: what all sides of a history change again and again."""


@dataclass(frozen=True)
class Moment:
    """One commit.

    Attributes:
        id: Its name.
        parents: Those that it was made on.
        state: What it holds.
        before: All that it descends from.
        number: How many lead to it by first parents, itself included.
        generation: One more than the highest of its parents'.
        message: What for.
        author: Who made it.
    """

    id: str
    parents: tuple[str, ...]
    state: State
    before: frozenset[str]
    number: int
    generation: int
    message: str
    author: str | None


@dataclass
class Model:
    """All commits there have ever been, what is left of them, and their names."""

    moments: dict[str, Moment] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    let_go: set[str] = field(default_factory=set)

    # ---- what happens

    def add(
        self, id: str, parents: tuple[str, ...], state: State, message: str, author: str | None
    ) -> Moment:
        """Add a commit."""
        above = [self.moments[parent] for parent in parents]
        self.moments[id] = Moment(
            id,
            parents,
            copy.deepcopy(state),
            frozenset(parents).union(*(moment.before for moment in above)),
            above[0].number + 1 if above else 1,
            1 + max((moment.generation for moment in above), default=0),
            message,
            author,
        )
        return self.moments[id]

    def prune(self, kept: set[str]) -> int:
        """Let go of all but these, and return how many that are."""
        dropped = self.reachable() - kept
        self.let_go |= dropped
        self.gone |= dropped
        self.collect()
        return len(dropped)

    def collect(self) -> None:
        """Lose what nothing leads to."""
        self.gone = self.moments.keys() - self.reachable()

    # ---- what is there

    def head(self, branch: str) -> Moment:
        """Return the commit that a branch is on."""
        return self.moments[self.branches[branch]]

    def reachable(self) -> set[str]:
        """Return all that a branch or tag leads to."""
        heads = {*self.branches.values(), *self.tags.values()}
        return heads.union(*(self.moments[id].before for id in heads)) - self.gone

    def line(self, id: str) -> Iterator[Moment]:
        """Yield a commit and its first parents, those too that are gone."""
        while True:
            yield self.moments[id]
            if not self.moments[id].parents:
                return
            id = self.moments[id].parents[0]

    def kept_line(self, id: str) -> list[Moment]:
        """Return a commit and its first parents, as far as they are there."""
        return [moment for moment in self.line(id) if moment.id not in self.gone]

    def bases(self, one: str, other: str) -> set[str]:
        """Return the best common ancestors."""
        sides = [({id} | self.moments[id].before) - self.gone for id in (one, other)]
        common = sides[0] & sides[1]
        return common.difference(*(self.moments[id].before for id in common))

    def giver(self, id: str, path: tuple[Any, ...]) -> Moment | None:
        """Return who gave the value at a path of dicts; None if that is hard to say."""
        value, giver = at(self.moments[id].state, path), self.moments[id]
        for moment in self.line(id):
            if moment.id not in self.gone:
                there = at(moment.state, path)
                if unlike(there, value) is not None:
                    return giver
                giver = moment
            if len(moment.parents) > 1:
                return None
        return giver


def at(state: Any, path: tuple[Any, ...]) -> Any:
    """Return what lies at a path of dicts, or `ABSENT`."""
    for step in path:
        if not isinstance(state, dict) or step not in state:
            return ABSENT
        state = state[step]
    return state


# ---- merging


@dataclass
class Joined:
    """What a merge comes to: a state, with holes perhaps, and what must be told as a conflict."""

    state: Any
    conflicts: list[tuple[Any, ...]]
    has_holes: bool = False


def join(
    base: State, ours: State, theirs: State, *, other: str = "refuse", ours_is_later: bool = True,
    rules: Mapping[str, Any] = RULES,
) -> Joined:  # fmt: skip
    """Merge two states; `other` is the rule of what has none."""
    joined = Joined(None, [])
    joined.state = _value(joined, (), (base, ours, theirs), {**rules, "": other}, ours_is_later)
    return joined


def _value(
    joined: Joined, path: tuple[Any, ...], sides: tuple[Any, Any, Any], rules: Mapping[str, Any], later: bool
) -> Any:
    base, ours, theirs = sides
    rule = rules.get(path[0], rules[""]) if path else rules[""]
    # Equal steps of a counter are two; one may stand below the whole state.
    if _same(theirs, base) or (path and rule != "counter" and _same(ours, theirs)):
        return ours
    if _same(ours, base):
        return theirs
    if isinstance(ours, dict) and isinstance(theirs, dict) and (base is ABSENT or isinstance(base, dict)):
        before: dict[Any, Any] = {} if isinstance(base, Absent) else base
        keys = [*ours, *(key for key in theirs if key not in ours)]
        merged: dict[Any, Any] = {}
        for key in keys:
            inner = before.get(key, ABSENT), ours.get(key, ABSENT), theirs.get(key, ABSENT)
            merged[key] = _value(joined, (*path, key), inner, rules, later)
        return _in_order(before, ours, theirs, {k: v for k, v in merged.items() if v is not ABSENT})
    return _decided(joined, path, sides, rule, later)


def _in_order(base: State, ours: State, theirs: State, merged: State) -> State:
    """Return a merged dict in the order of the side that alone moved keys which all have; else of ours."""
    common = [key for key in base if key in ours and key in theirs and key in merged]
    by_us, by_them = ([key for key in side if key in set(common)] for side in (ours, theirs))
    lead, other = (theirs, ours) if by_us == common != by_them else (ours, theirs)
    return {key: merged[key] for key in dict.fromkeys((*lead, *other)) if key in merged}


def _decided(
    joined: Joined, path: tuple[Any, ...], sides: tuple[Any, Any, Any], rule: Any, later: bool
) -> Any:
    base, ours, theirs = sides
    if rule == "append" and all(isinstance(side, list) for side in (ours, theirs)):
        before = [] if base is ABSENT else base
        new = ours[len(before) :], theirs[len(before) :]
        if ours == before + new[0] and theirs == before + new[1] and not set(new[0]) & set(new[1]):
            return before + new[0] + new[1]
    if rule == "union" and all(isinstance(side, set) for side in (ours, theirs)):
        before = set() if base is ABSENT else base
        return (ours | theirs) - (before - ours) - (before - theirs)
    if isinstance(ours, list | tuple) and type(ours) is type(theirs):
        joined.has_holes = True
        return HOLE
    if rule == "last_writer":
        rule = "ours" if later else "theirs"
    if rule in ("ours", "theirs"):
        return ours if rule == "ours" else theirs
    if callable(rule):
        return rule(base, ours, theirs)
    if rule == "counter" and ABSENT not in (ours, theirs):
        return ours + theirs - (0 if base is ABSENT else base)
    if rule in ("maximum", "minimum") and ABSENT not in (ours, theirs):
        return (max if rule == "maximum" else min)(ours, theirs)
    if _same(ours, theirs):
        return ours
    joined.conflicts.append(path)
    return ours


def _same(one: Any, other: Any) -> bool:
    return one is other or unlike(one, other) is None


def fits(expected: Any, actual: Any, path: str = "state") -> str | None:
    """Return where an actual value is not the expected one, whose holes anything fills."""
    if expected is HOLE:
        return None
    if isinstance(expected, dict) and isinstance(actual, dict) and list(expected) == list(actual):
        pairs = ((f"{path}[{key!r}]", expected[key], actual[key]) for key in expected)
        return next((found for at, one, other in pairs if (found := fits(one, other, at))), None)
    return unlike(expected, actual, path=path)
