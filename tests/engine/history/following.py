"""Follows one random history, on a store and in the plain model."""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from keepstate.engine.history.commits import Commit
from keepstate.engine.history.draft import Draft
from keepstate.engine.history.history import History
from keepstate.errors import ConflictError, MergeConflictError, PrunedError
from tests.engine.history.looking import Looker
from tests.engine.history.plain_model import ABSENT, RULES, Joined, Moment, State, at, fits, join
from tests.engine.history.states import a_value, edit, unlike

BRANCHES = ("main", "side", "a/b ü")
TAGS = ("v1", "before: the merge", "v3")
PATH_RULES: dict[Any, Any] = {(key,): rule for key, rule in RULES.items()}


@dataclass
class Held:
    """A draft that is held on to, with what it was made from."""

    draft: Draft
    base: str | None

    def shown(self) -> State:
        """Return a copy of what the draft shows, which is what it will commit."""
        return copy.deepcopy(dict(self.draft))


class Follower(Looker):
    """One history; see `Looker`."""

    def __init__(self, history: History, another: History, seed: int) -> None:
        super().__init__(history, another, seed)
        self._held: dict[str, Held] = {}
        self._turn = 0

    # ---- a history

    async def follow(self, turns: int) -> None:
        """Live through so many turns, and looks at all of it in the end."""
        await self._commit("main", {"log": ["begun"], "hits": 0, "deep": {"er": [{"x": 1}]}})
        ways: list[tuple[int, Callable[[], Awaitable[None]]]] = [
            (8, self._edit), (3, self._append), (2, self._replace), (2, self._merge), (2, self._race),
            (1, self._rollback), (1, self._revert), (1, self._squash), (2, self._branch), (1, self._tag),
            (1, self._drop_name), (1, self._patch), (1, self._prune), (2, self._look),
        ]  # fmt: skip
        weights = [weight for weight, _ in ways]
        for self._turn in range(1, turns + 1):
            (_, way), *_ = self._dice.choices(ways, weights)
            self.done[way.__name__.strip("_")] += 1
            await way()
        await self.look_at_all()

    def _text(self, what: str) -> dict[str, Any]:
        return {"message": f"{self._turn}: {what}", "author": self._dice.choice((None, "ada", "grace"))}

    def _took(self, commit: Commit, branch: str, parents: tuple[str, ...], state: State) -> Moment:
        """Add what was committed to a branch to the model."""
        moment = self.model.add(commit.id, parents, state, commit.message, commit.author)
        self.model.branches[branch] = commit.id
        assert commit.parents == parents
        assert (commit.number, commit.branch) == (moment.number, branch)
        return moment

    # ---- changing

    async def _commit(self, branch: str, state: State) -> None:
        parents = (self.model.branches[branch],) if branch in self.model.branches else ()
        commit = await self._history.commit(state, branch=branch, **self._text("commit"))
        self._took(commit, branch, parents, state)

    async def _replace(self) -> None:
        branch = self._some_branch()
        state = copy.deepcopy(self.model.head(branch).state)
        self._change(state)
        if self._dice.random() < 0.5:
            state[f"k{self._dice.randrange(9)}"] = a_value(self._dice, 3)
        await self._commit(branch, state)

    def _change(self, state: Any) -> None:
        """Change a state, in place wherever that can be done."""
        for _ in range(self._dice.choice((1, 1, 2, 3))):
            match self._dice.randrange(7):
                case 0:
                    state["hits"] = state.get("hits", 0) + self._dice.choice((1, 1, 5))
                case 1:
                    key = self._dice.choice(("best", "least"))
                    state[key] = self._dice.randrange(100)
                case 2:
                    key = self._dice.choice(("who", "note", "memo", "both"))
                    state[key] = f"{self._turn} " * self._dice.choice((1, 9))
                case 3:
                    state.setdefault("seen", set()).add(self._dice.randrange(30))
                case 4:
                    state.setdefault("log", []).append(self._line())
                case 5:
                    self._forget(state)
                case _:
                    own = [key for key in state if key not in RULES]
                    if own and self._dice.random() < 0.8:
                        edit(self._dice, {key: state[key] for key in [self._dice.choice(own)]})
                    else:
                        state[f"k{self._dice.randrange(9)}"] = a_value(self._dice, 3)

    def _line(self) -> str:
        return f"{self._turn}.{self._dice.randrange(10**9)} " * self._dice.choice((1, 1, 60))

    def _forget(self, state: Any) -> None:
        """Take something away: the first lines of a log, or a key."""
        log = state.get("log", [])
        match self._dice.randrange(4):
            case 0 if log:
                log.pop(0)
            case 1 if log:
                half = (len(log) + 1) // 2
                log[:half] = [f"{self._line()} summary of {half}"]
            case 2:
                state.pop(self._dice.choice(sorted(state, key=str)), None) if len(state) > 1 else None
            case _:
                state.setdefault("log", []).extend(self._line() for _ in range(20))

    async def _edit(self) -> None:
        """Edit a draft, perhaps one that was begun long ago, and commit it or holds on to it."""
        branch = self._some_branch()
        held = self._held.pop(branch, None) or await self._begin(branch)
        self._change(held.draft)
        if self._dice.random() < 0.2:
            self._held[branch] = held
            return
        if await self._finish(branch, held) and self._dice.random() < 0.6:
            self._held[branch] = held

    async def _begin(self, branch: str) -> Held:
        base = self.model.branches.get(branch)
        draft = await self._history.begin(branch, load=self._dice.choice((True, False)))
        assert (draft.base.id if draft.base else None) == base
        await draft.load()
        found = unlike(self.model.moments[base].state if base else {}, dict(draft), path="draft")
        assert found is None, f"begun on {base}: {found}"
        return Held(draft, base)

    async def _finish(self, branch: str, held: Held) -> bool:
        """Commit a draft, merging it if its branch has moved on; returns whether that went well."""
        now, state = self.model.branches.get(branch), held.shown()
        text = self._text("edit")
        if held.base == now:
            commit = await held.draft.commit(**text)
            self._took(commit, branch, (now,) if now else (), state)
            held.base = commit.id
            return True
        try:
            await held.draft.commit(**text)
        except ConflictError:
            pass
        except PrunedError:
            assert held.base in self.model.gone
        else:
            raise AssertionError(f"a draft of {held.base} was committed onto {now}")
        if now is None or held.base in self.model.gone:
            return False
        return await self._merge_draft(branch, held, text)

    async def _merge_draft(self, branch: str, held: Held, text: dict[str, Any]) -> bool:
        head = self.model.head(branch)
        bases = self.model.bases(head.id, held.base) if held.base else set()
        if held.base is not None and held.base not in self.model.reachable():
            return False
        state = held.shown()
        kept = {key: held.draft[key] for key in held.draft if isinstance(held.draft[key], list | dict)}
        rule = self._dice.choice(("refuse", "ours", "theirs", "last_writer"))
        try:
            rules: dict[Any, Any] = {**PATH_RULES, (): rule}
            commit = await held.draft.commit(**text, on_conflict="merge", rules=rules)
        except MergeConflictError as error:
            self._refused(error, self._joined(head, state, bases, rule, later=True))
            return False
        own = self.model.add(
            commit.parents[1], (held.base,) if held.base else (), state, commit.message, commit.author
        )
        later = (head.generation, head.id) > (own.generation, own.id)
        joined = self._joined(head, state, bases, rule, later=later)
        await self._merged(commit, branch, (head.id, own.id), joined)
        merged = self.model.head(branch).state
        found = unlike(dict(held.draft), merged, path="draft")
        assert found is None, f"a draft after a merge: {found}"
        for key, value in kept.items():
            if isinstance(merged.get(key, ABSENT), type(value)):
                assert held.draft[key] is value, f"{key!r} of the draft is another object after a merge"
        held.base = commit.id
        return True

    async def _append(self) -> None:
        branch = self._some_branch()
        state = copy.deepcopy(self.model.head(branch).state)
        path: tuple[Any, ...] = self._dice.choice((("log",), ("deep", "er"), ("fresh",)))
        holder = at(state, path[:-1])
        if not isinstance(holder, dict) or not isinstance(holder.get(path[-1], []), list):
            return
        items = [
            self._line() if path == ("log",) else a_value(self._dice, 2)
            for _ in range(self._dice.choice((1, 1, 9)))
        ]
        holder[path[-1]] = [*holder.get(path[-1], []), *items]
        shown = path[0] if len(path) == 1 else path
        commit = await self._history.append(shown, *items, branch=branch, **self._text("append"))
        self._took(commit, branch, commit.parents, state)

    async def _rollback(self) -> None:
        branch = self._some_branch()
        line = self.model.kept_line(self.model.branches[branch])
        steps = self._dice.randrange(len(line))
        to = line[steps] if steps and self._dice.random() < 0.5 else self._some_moment()
        ways: dict[str, Any] = {"steps": steps} if steps and to is line[steps] else {"to": to.id}
        commit = await self._history.rollback(branch, **ways, **self._text("rollback"))
        self._took(commit, branch, (line[0].id,), to.state)

    async def _revert(self) -> None:
        branch = self._some_branch()
        head = self.model.head(branch)
        near = [one for one in self.model.kept_line(head.id)[:6] if len(one.parents) < 2]
        if not near:
            return
        undone = self._dice.choice(near)
        before = self.model.moments[undone.parents[0]].state if undone.parents else {}
        joined = join(undone.state, head.state, before, rules={})
        try:
            commit = await self._history.revert(undone.id, branch=branch, **self._text("revert"))
        except MergeConflictError as error:
            self._refused(error, joined)
            return
        except PrunedError:
            assert set(undone.parents) & self.model.gone
            return
        assert not set(undone.parents) & self.model.gone
        await self._merged(commit, branch, (head.id,), joined)

    async def _squash(self) -> None:
        branch = self._some_branch()
        line = self.model.kept_line(self.model.branches[branch])
        since = self._dice.choice(line[:6])
        if since is line[0]:
            return
        commit = await self._history.squash(branch, since=since.id, **self._text("squash"))
        self._took(commit, branch, (since.id,), line[0].state)

    # ---- merging

    async def _merge(self) -> None:
        into, source = self._some_branch(), self._some_moment()
        head = self.model.head(into)
        if source.id == head.id or source.id in head.before:
            commit = await self._history.merge(source.id, into=into)
            assert commit.id == head.id
            return
        rule = self._dice.choice(("refuse", "ours", "theirs", "last_writer"))
        later = (head.generation, head.id) > (source.generation, source.id)
        joined = self._joined(head, source.state, self.model.bases(head.id, source.id), rule, later=later)
        rules: dict[Any, Any] = {**PATH_RULES, (): rule}
        try:
            commit = await self._history.merge(source.id, into=into, rules=rules, **self._text("merge"))
        except MergeConflictError as error:
            self._refused(error, joined)
            return
        await self._merged(commit, into, (head.id, source.id), joined)

    def _joined(
        self, head: Moment, theirs: State, bases: set[str], rule: str, *, later: bool
    ) -> Joined | None:
        """Return what a merge comes to; None where several bases are merged first."""
        if len(bases) > 1:
            return None
        base = self.model.moments[next(iter(bases))].state if bases else {}
        return join(base, head.state, theirs, other=rule, ours_is_later=later)

    def _refused(self, error: MergeConflictError, expected: Joined | None) -> None:
        self.done["conflicts"] += 1
        if expected is not None and not expected.has_holes:
            told = {conflict.path for conflict in error.conflicts}
            assert told == set(expected.conflicts), f"conflicts at {told}, expected {expected.conflicts}"

    async def _merged(
        self, commit: Commit, branch: str, parents: tuple[str, ...], joined: Joined | None
    ) -> None:
        actual = dict(await self._history.checkout(commit))
        if joined is not None:
            assert not joined.conflicts, f"merged in spite of conflicts at {joined.conflicts}"
            found = fits(joined.state, actual)
            assert found is None, f"expected and merged: {found}"
        self._took(commit, branch, parents, actual)

    async def _race(self) -> None:
        """Two drafts of one branch change at once, and both commit."""
        branch = self._some_branch()
        one, other = await self._begin(branch), await self._begin(branch)
        for held in (one, other):
            self._change(held.draft)
        await self._finish(branch, one)
        await self._finish(branch, other)

    # ---- names

    async def _branch(self) -> None:
        name = self._dice.choice(BRANCHES)
        if name in self.model.branches:
            return
        moment = self._some_moment()
        branch = await self._history.branch(name, moment.id)
        assert (branch.head, branch.number) == (moment.id, moment.number), f"{branch} of {moment.number}"
        self.model.branches[name] = moment.id

    async def _tag(self) -> None:
        name = self._dice.choice(TAGS)
        if name in self.model.tags:
            return
        moment = self._some_moment()
        await self._history.tag(name, moment.id)
        self.model.tags[name] = moment.id

    async def _drop_name(self) -> None:
        name = self._dice.choice((*BRANCHES[1:], *TAGS))
        if name in TAGS:
            assert await self._history.delete_tag(name) == (name in self.model.tags)
            self.model.tags.pop(name, None)
        else:
            assert await self._history.delete_branch(name) == (name in self.model.branches)
            self.model.branches.pop(name, None)
            self._held.pop(name, None)

    # ---- retention

    async def _prune(self) -> None:
        if self._dice.random() < 0.3:
            self.model.collect()
            await self._history.collect()
            return
        reachable = self.model.reachable()
        count, tagged = self._dice.choice((1, 2, 5, 9)), self._dice.random() < 0.7
        kept = {
            moment.id
            for head in self.model.branches.values()
            for moment in self.model.kept_line(head)[:count]
        }
        if tagged:
            kept |= set(self.model.tags.values())
        else:
            self.model.tags = {name: id for name, id in self.model.tags.items() if id in kept}
        pruned = await self._history.prune(keep_last=count, keep_tagged=tagged)
        self.model.let_go |= reachable - kept
        self.model.gone |= reachable - kept
        self.model.collect()
        assert pruned.commits == len(reachable - kept), f"pruned {pruned}, expected {len(reachable - kept)}"
        self.done["pruned"] += pruned.commits
