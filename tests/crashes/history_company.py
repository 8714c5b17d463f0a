"""Writers and collectors that work on one history at once, and a judge of what is left of it."""

from __future__ import annotations

import copy
import hashlib
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from keepstate.engine.history.commits import Commit
from keepstate.engine.history.history import History
from keepstate.errors import (
    AlreadyExistsError,
    CompactedError,
    ConflictError,
    CorruptError,
    NotFoundError,
    PrunedError,
)
from keepstate.values import limits

KEEP_LAST = 5
BLOCKS = [[f"block {n} line {line} " * 12 for line in range(40)] for n in range(10)]
"""What states have in common: it is written, let go of and written again by all of them."""


def fingerprint(value: Any) -> str:
    """Return the digest of a value, in whatever order its dicts are."""
    return hashlib.sha256(repr(_ordered(value)).encode()).hexdigest()[:32]


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return sorted((repr(key), _ordered(item)) for key, item in value.items())
    return [_ordered(item) for item in value] if isinstance(value, list) else value


@dataclass
class Told:
    """What a writer knows of its work.

    Attributes:
        states: The digest of each commit's state.
        branches: The branches that nobody else moves, and their commits.
        tags: The tags that nobody else has made, and theirs.
        appended: What it appended to `main`, in order.
        counted: How often it counted on `main`.
        forks: Spaces that it forked to.
        done: How often it did what.
        faults: What it read that was not what it had written.
    """

    states: dict[str, str] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    appended: list[str] = field(default_factory=list)
    counted: int = 0
    forks: list[str] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)


class Writer:
    """Commits to a branch of its own and to `main`, makes and deletes branches and tags, and reads back.

    Args:
        history: A handle of its own.
        name: Its own branch, too.
        others: The names of those who write as well.
        dice: What it does next.
        fork_to: Gives the history of another space, by name.
        large: How many objects are more than one batch takes.
        large_every: Of so many turns, one commits as many, or forks.
    """

    def __init__(
        self,
        history: History,
        name: str,
        others: list[str],
        dice: random.Random,
        fork_to: Callable[[str], History],
        *,
        large: int = limits.BATCH_WRITES + 50,
        large_every: int = 40,
    ) -> None:
        self._history, self._name, self._others = history, name, others
        self._dice, self._fork_to = dice, fork_to
        self._objects, self._large_every = large, large_every
        self.told = Told()
        self._turn = 0

    async def turn(self) -> None:
        """Do one thing."""
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (6, self._edit), (2, self._append), (2, self._count), (2, self._append_to_main), (2, self._side),
            (2, self._branch), (2, self._tag), (3, self._move), (3, self._drop_name), (1, self._rollback),
            (1, self._squash), (2, self._read_back),
        ]  # fmt: skip
        (_, way), *_ = self._dice.choices(ways, [weight for weight, _ in ways])
        if not self.told.branches:
            way = self._edit
        elif self._turn % self._large_every == self._large_every // 2:
            way = self._large if self._dice.random() < 0.7 else self._fork
        self._turn += 1
        try:
            await way()
        except (ConflictError, PrunedError, NotFoundError, AlreadyExistsError):
            self._did("refused")
        except CorruptError as error:
            self.told.faults.append(f"{way.__name__}: {error}")
        else:
            self._did(way.__name__.strip("_"))

    def _did(self, what: str) -> None:
        self.told.done[what] = self.told.done.get(what, 0) + 1

    def _took(self, commit: Commit, state: Any) -> None:
        self.told.states[commit.id] = fingerprint(state)
        self.told.branches[self._name] = commit.id

    # ---- committing

    async def _edit(self) -> None:
        draft = await self._history.begin(self._name)
        draft["turn"] = self._turn
        draft["blocks"] = {f"b{n}": [*BLOCKS[n]] for n in self._dice.sample(range(len(BLOCKS)), 4)}
        draft.setdefault("log", []).append(f"{self._name} {self._turn} " * 20)
        if self._dice.random() < 0.6:
            draft.pop("large", None)
        self._took(await draft.commit(f"edit {self._turn}"), dict(draft))

    async def _append(self) -> None:
        draft = await self._history.begin(self._name)
        state = {**draft, "items": [*draft.get("items", []), *BLOCKS[self._dice.randrange(len(BLOCKS))][:7]]}
        new = state["items"][-7:]
        self._took(await self._history.append("items", *new, branch=self._name), state)

    async def _large(self) -> None:
        """Commit more objects than one batch takes: some go ahead."""
        draft = await self._history.begin(self._name)
        salt = self._dice.randrange(2)
        draft["large"] = {f"{n}": [f"{salt} {n} " + "x" * 4_200] for n in range(self._objects)}
        self._took(await draft.commit("large"), dict(draft))

    async def _rollback(self) -> None:
        commit = await self._history.rollback(self._name, steps=self._dice.randrange(1, 5))
        self._took(commit, dict(await self._history.checkout(commit)))

    async def _squash(self) -> None:
        state = self.told.states[self.told.branches[self._name]]
        commit = await self._history.squash(self._name, since=f"{self._name}~3")
        self.told.states[commit.id] = state
        self.told.branches[self._name] = commit.id

    async def _count(self) -> None:
        draft = await self._history.begin()
        draft["n"] = draft.get("n", 0) + 1
        draft["b"] = [*BLOCKS[self._dice.randrange(len(BLOCKS))]]  # a merge may change it in place
        own = copy.deepcopy(dict(draft))
        commit = await draft.commit(
            on_conflict="merge", rules={"n": "counter", "b": "last_writer", "log": "append"}
        )
        self.told.counted += 1
        self.told.states[commit.id] = fingerprint(dict(draft))
        if len(commit.parents) > 1:
            self.told.states[commit.parents[1]] = fingerprint(own)

    async def _append_to_main(self) -> None:
        line = f"{self._name} {self._turn}"
        await self._history.append("log", line)
        self.told.appended.append(line)

    async def _fork(self) -> None:
        name = f"fork/{self._name}/{self._turn}"
        await self._history.fork(self._fork_to(name))
        self.told.forks.append(name)

    # ---- names

    def _place(self) -> str:
        whose = self._dice.choice((self._name, self._name, *self._others, "main"))
        return f"{whose}~{self._dice.randrange(KEEP_LAST + 2)}"

    async def _branch(self) -> None:
        name = f"{self._name}/{self._turn}"
        self.told.branches[name] = (await self._history.branch(name, await self._somewhere())).head

    async def _tag(self) -> None:
        name = f"{self._name}/{self._turn}"
        self.told.tags[name] = (await self._history.tag(name, await self._somewhere())).commit

    async def _somewhere(self) -> str:
        """Return a commit by the branch that leads there, or by an id that may soon be nobody's."""
        place = self._place()
        return place if self._dice.random() < 0.5 else (await self._history.find(place)).id

    async def _side(self) -> None:
        """Make a branch whose commit nothing else leads to."""
        name = f"{self._letter()}{self._name}/{self._turn}"
        state = {"side": self._turn, "blocks": self._dice.sample(BLOCKS, 2)}
        commit = await self._history.commit(state, branch=name, expected_head="")
        self.told.states[commit.id], self.told.branches[name] = fingerprint(state), commit.id

    async def _move(self) -> None:
        """Give a commit another name, and take the one that it had."""
        names = {False: self.told.tags, True: self.told.branches}
        was_branch = self._dice.choice((False, True))
        old = self._dice.choice(sorted(names[was_branch].keys() - {self._name}) or [self._name])
        if old == self._name:
            return
        is_branch, new = self._dice.choice((False, True)), f"{self._letter()}{self._name}/{self._turn}"
        make, forget = (
            (self._history.branch if is_branch else self._history.tag),
            (self._history.delete_branch if was_branch else self._history.delete_tag),
        )
        await make(new, old)
        names[is_branch][new] = names[was_branch].pop(old)
        await forget(old)

    def _letter(self) -> str:
        """Return what lets a name stand anywhere among the others."""
        return self._dice.choice("amz")

    async def _drop_name(self) -> None:
        own = [name for name in self.told.branches if name != self._name]
        names = [(True, name) for name in own] + [(False, name) for name in self.told.tags]
        for is_branch, name in self._dice.sample(names, max(len(names) - 2, 0)):
            if is_branch:
                await self._history.delete_branch(name)
                del self.told.branches[name]
            else:
                await self._history.delete_tag(name)
                del self.told.tags[name]

    async def _read_back(self) -> None:
        names = {**self.told.branches, **self.told.tags}
        name = self._dice.choice(sorted(names))
        checkout = await self._history.checkout(name)
        expected = self.told.states.get(names[name])
        if expected not in (None, fingerprint(dict(checkout))):
            self.told.faults.append(f"{name} was read otherwise than it was written")


@dataclass
class Collected:
    """What a collector did."""

    rounds: int = 0
    removed: int = 0
    given_up: int = 0
    faults: list[str] = field(default_factory=list)


async def collect_once(history: History, dice: random.Random, collected: Collected) -> None:
    """Prune or collects once."""
    try:
        if dice.random() < 0.5:
            collected.removed += (await history.prune(keep_last=KEEP_LAST)).removed
        else:
            collected.removed += await history.collect()
        collected.rounds += 1
    except (CompactedError, ConflictError):
        collected.given_up += 1
    except CorruptError as error:
        collected.faults.append(f"a collector: {error}")


async def judge(history: History, told: Iterable[Told], forks: Callable[[str], History]) -> list[str]:
    """Return what is not as its writer has it, of all that a branch or tag leads to."""
    told = list(told)
    findings = [fault for one in told for fault in one.faults]
    states = {id: state for one in told for id, state in one.states.items()}
    names = {"branch": {one.name: one.head async for one in history.branches()}}
    names["tag"] = {one.name: one.commit async for one in history.tags()}
    for one in told:
        for kind, own in (("branch", one.branches), ("tag", one.tags)):
            findings += [
                f"{kind} {name!r} is on {names[kind].get(name)}, not {id}"
                for name, id in own.items()
                if names[kind].get(name) != id
            ]
    findings += (await history.verify()).problems
    seen = set[str]()
    for name in [*names["branch"], *names["tag"]]:
        findings += await _judge_line(history, name, states, seen)
    findings += _judge_main(dict(await history.checkout()), told)
    for name in (name for one in told for name in one.forks):
        findings += (await forks(name).verify()).problems
    return findings


async def _judge_line(history: History, name: str, states: dict[str, str], seen: set[str]) -> list[str]:
    findings: list[str] = []
    try:
        async for commit in history.log(name):
            if commit.id not in seen:
                seen.add(commit.id)
                state = fingerprint(dict(await history.checkout(commit)))
                if states.get(commit.id, state) != state:
                    findings.append(f"commit {commit.id} of {name!r} is not what was written")
    except (CorruptError, PrunedError, NotFoundError) as error:
        findings.append(f"{name!r}: {error}")
    return findings


def _judge_main(state: dict[str, Any], told: list[Told]) -> list[str]:
    log = Counter[str](state.get("log", []))
    appended = Counter(line for one in told for line in one.appended)
    counted = sum(one.counted for one in told)
    findings = [] if log == appended else [f"main has {log.total()} lines of {appended.total()}"]
    return (
        findings
        if state.get("n", 0) == counted
        else [*findings, f"main counts {state.get('n')} of {counted}"]
    )
