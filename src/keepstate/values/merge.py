"""Three-way merge: combines the changes of both sides since their base.

Dicts are merged key by key, at every depth. Lists are merged as by diff3: a change between items that the
other side left unchanged is applied. Items changed by both sides, and items that both sides inserted at one
index, are a conflict for the rule. A merge reads only what either side changed.

The order of a dict's keys is never a conflict. The side that alone changed the relative order of the keys
that all three dicts and the result have gives the order, otherwise `ours`. The other side's additions follow.

A rule applies to its path and everything below without a rule of its own. It is consulted at the deepest path
at which the sides have different changes. `counter` is also consulted for equal changes, because two steps of
one are a step of two.

Laws, for all values: merging a side with the base gives the side; merging a side with itself gives itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Number
from typing import Any, Final, Literal, Protocol, TypeAlias, get_args

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.contents import Contents, both, is_container, open_contents, read_order, whole
from keepstate.values.diff import Block, Path, Step, is_reordered, unlike, unlike_keys
from keepstate.values.merkle import MerkleValue, compose, gather
from keepstate.values.nodes import LIST_STYLE, MAP_STYLE, Entry
from keepstate.values.order import KeyOrder, find_places
from keepstate.values.patch import Edits, apply_edits, compare_orders
from keepstate.values.refs import Fetching, together
from keepstate.values.types import MISSING

_EMPTY: Final = {LIST_STYLE: Contents(LIST_STYLE, None), MAP_STYLE: Contents(MAP_STYLE, None)}


class Values(Protocol):
    """Converts encodings to values and back, for rules that look at values."""

    def to_merkle(self, value: object) -> MerkleValue:
        """Return a value in Merkle form."""
        ...

    def assemble(self, encoding: bytes, objects: dict[bytes, bytes]) -> Any:
        """Return the value of an encoding."""
        ...


class Merged(msgspec.Struct, frozen=True):
    """The result of a merge. At conflicts it has the value of `ours`.

    Attributes:
        encoding: The merged value.
        objects: The objects that are in neither side.
        conflicts: The conflicts that no rule decided.
    """

    encoding: bytes
    objects: dict[bytes, bytes]
    conflicts: Sequence[ValueConflict]


def merge(base: bytes, ours: bytes, theirs: bytes, rules: Rules, values: Values) -> Fetching[Merged]:
    """Apply the changes of `theirs` since the base to `ours`.

    Raises:
        CorruptError: An object is missing or damaged.
    """
    merging = _Merging(rules, values)
    verdict = yield from merging.value((), base, ours, theirs)
    if verdict is None:
        return Merged(ours, {}, merging.conflicts)
    if isinstance(verdict, Edits):
        verdict = yield from apply_edits(ours, verdict)
    if verdict.encoding == b"":
        raise InvalidError("a merge rule left nothing of the whole value")
    return Merged(verdict.encoding, verdict.objects, merging.conflicts)


_REMOVED: Final = MerkleValue(b"", {})
_Verdict = Edits | MerkleValue | None
"""The change to our value: edits, a replacement (`_REMOVED` removes it), or None to leave it."""


class _Merging:
    """A merge in progress."""

    def __init__(self, rules: Rules, values: Values) -> None:
        self._rules, self._values = rules, values
        self.conflicts: list[ValueConflict] = []

    def value(
        self, path: Path, base: bytes | None, ours: bytes | None, theirs: bytes | None
    ) -> Fetching[_Verdict]:
        """Return the decision about one value."""
        if theirs == base or (ours == theirs and not self._rules.count_below(path)):
            return None
        if ours == base:
            return _REMOVED if theirs is None else MerkleValue(theirs, {})
        if ours is not None and theirs is not None and is_container(ours) and is_container(theirs):
            mine, others = yield from both(open_contents(ours), open_contents(theirs))
            if mine.style is others.style:
                before = _EMPTY[mine.style]
                if base is not None and is_container(base):
                    before = yield from open_contents(base)
                if base is None or (is_container(base) and before.style is mine.style):
                    merge_inside = self._dict if mine.style.has_keys else self._list
                    return (yield from merge_inside(path, before, mine, others))
        return (yield from self._decided(path, base, ours, theirs))

    def _decided(
        self, path: Path, base: bytes | None, ours: bytes | None, theirs: bytes | None
    ) -> Fetching[_Verdict]:
        """Return the decision of the rule."""
        rule = self._rules.at(path)
        side = self._rules.side(rule)
        if side == "ours" or (ours == theirs and (rule != "counter" or ours is None)):
            return None
        if side == "theirs":
            return _REMOVED if theirs is None else MerkleValue(theirs, {})
        sides = base, ours, theirs
        objects = yield from gather([encoding for encoding in sides if encoding is not None])
        try:
            merged = decide(
                rule,
                *(MISSING if one is None else self._values.assemble(one, objects) for one in sides),
            )
            if merged is MISSING:
                return None if ours is None else _REMOVED
            return self._values.to_merkle(merged)
        except InvalidError as error:
            self.conflicts.append(ValueConflict(path, base, ours, theirs, str(error)))
            return None

    # ---- dicts

    def _dict(self, path: Path, base: Contents, ours: Contents, theirs: Contents) -> Fetching[_Verdict]:
        by_us, by_them = yield from both(unlike_keys(base, ours), unlike_keys(base, theirs))
        mine = {_key(pair): pair for pair in by_us}
        edits = Edits()
        for was, now in by_them:
            key = _key((was, now))
            if key not in mine:
                (theirs_now,) = yield from _encodings(now)
                _put(edits, key, _REMOVED if theirs_now is None else MerkleValue(theirs_now, {}))
                continue
            encodings = yield from _encodings(was, mine[key][1], now)
            _put(edits, key, (yield from self.value((*path, key), *encodings)))
        removed = [_only(by_us), _only(by_them)]
        if (yield from is_reordered(base, ours, *removed[0])) or (
            yield from is_reordered(base, theirs, *removed[1])
        ):
            edits.order = yield from _merge_orders(base, ours, theirs, edits)
        else:
            new = [*removed[1][1], *removed[0][0]]  # what we removed comes back if their change of it won
            edits.puts = yield from _in_their_order(theirs, new, edits.puts)
        return edits

    # ---- lists

    def _list(self, path: Path, base: Contents, ours: Contents, theirs: Contents) -> Fetching[_Verdict]:
        by_us, by_them = yield from both(unlike(base, ours), unlike(base, theirs))
        edits = Edits()
        for hunk in _hunks(by_us, by_them):
            if not hunk.theirs:
                continue
            if not hunk.ours:
                new = yield from whole([entry for block in hunk.theirs for entry in block.new])
                _replace(edits, hunk.ours_begin, hunk.end - hunk.begin, new)
                continue
            yield from self._against(path, hunk, edits)
        return edits

    def _against(self, path: Path, hunk: _Hunk, edits: Edits) -> Fetching[None]:
        """Decide about items that both sides changed, or inserted at one index."""
        olds = yield from whole(hunk.side(()))
        mine = yield from whole(hunk.side(hunk.ours))
        others = yield from whole(hunk.side(hunk.theirs))
        begin, is_paired = hunk.ours_begin, len(olds) == len(mine) == len(others)
        if mine == others and not (is_paired and self._rules.count_below(path)):
            return
        if is_paired:
            for index, sides in enumerate(zip(olds, mine, others, strict=True), begin):
                _put(edits, index, (yield from self.value((*path, index), *sides)))
            return
        rule = self._rules.at(path)
        side = self._rules.side(rule)
        if side == "theirs":
            _replace(edits, begin, len(mine), others)
        elif side is None and not olds and rule in ("append", "union"):
            known = frozenset[bytes]() if rule == "append" else frozenset(mine)
            new = [other for other in others if other not in known]
            _replace(edits, begin + len(mine), 0, new)
        elif side is None:
            self.conflicts.append(
                ValueConflict(
                    (*path, begin),
                    compose(olds),
                    compose(mine),
                    compose(others),
                    "both sides changed the same items",
                )
            )


class _Hunk(msgspec.Struct):
    """A range of the base that at least one side changed, extended to the changes of both."""

    begin: int
    end: int
    ours_begin: int
    ours: list[Block]
    theirs: list[Block]

    def side(self, blocks: Sequence[Block]) -> list[Entry]:
        """Return the items of a side for the range, given the blocks that it changed."""
        # Blocks that make a stretch overlap, so together they hold all of its items.
        base = {
            index: entry
            for block in (*self.ours, *self.theirs)
            for index, entry in enumerate(block.old, block.begin)
        }
        entries: list[Entry] = []
        at = self.begin
        for block in blocks:
            entries += [base[index] for index in range(at, block.begin)]
            entries += block.new
            at = block.begin + len(block.old)
        return entries + [base[index] for index in range(at, self.end)]


def _hunks(by_us: Sequence[Block], by_them: Sequence[Block]) -> Iterator[_Hunk]:
    """Yield ranges of the base, in order; blocks that touch only at their ends stay separate."""
    shift = 0  # of our places against those of the base
    sided = sorted(
        [(block, True) for block in by_us] + [(block, False) for block in by_them],
        key=lambda pair: (pair[0].begin, pair[0].begin + len(pair[0].old), pair[1]),
    )
    hunk: _Hunk | None = None
    for block, is_ours in sided:
        begin, end = block.begin, block.begin + len(block.old)
        if hunk is None or not (begin < hunk.end or begin == end == hunk.begin == hunk.end):
            if hunk is not None:
                yield hunk
                shift += sum(len(mine.new) - len(mine.old) for mine in hunk.ours)
            hunk = _Hunk(begin, end, begin + shift, [], [])
        hunk.end = max(hunk.end, end)
        (hunk.ours if is_ours else hunk.theirs).append(block)
    if hunk is not None:
        yield hunk


# ---- the order of a dict's keys


def _only(pairs: Sequence[tuple[Entry | None, Entry | None]]) -> tuple[list[bytes], list[bytes]]:
    """Return the removed and the added keys among the differences of two dicts."""
    removed = [was.key for was, now in pairs if was is not None and now is None]
    return removed, [now.key for was, now in pairs if was is None and now is not None]


def _merge_orders(
    base: Contents, ours: Contents, theirs: Contents, edits: Edits
) -> Fetching[KeyOrder | None]:
    """Return the order of the merged keys; None if it is ours."""
    before, mine, others = yield from together([base.keys(), ours.keys(), theirs.keys()])
    merged = {key for key in (*mine, *edits.puts) if isinstance(key, bytes)} - edits.removed
    common = merged.intersection(before, mine, others)
    was, by_us, by_them = ([key for key in keys if key in common] for keys in (before, mine, others))
    lead, other = (others, mine) if by_us == was != by_them else (mine, others)
    keys = [key for key in lead if key in merged]
    placed = set(keys)
    keys += [key for key in other if key in merged and key not in placed]
    return compare_orders(mine, keys)


def _in_their_order(
    theirs: Contents, new: Sequence[bytes], puts: dict[Step, MerkleValue]
) -> Fetching[dict[Step, MerkleValue]]:
    """Return the values to put: values of new keys come last, in the order of the keys of `theirs`."""
    keys = [key for key in new if key in puts]
    if len(keys) < 2:
        return puts
    if theirs.tree is not None and theirs.order is None:
        keys.sort()
    elif theirs.order is not None:
        places = yield from find_places((yield from read_order(theirs.order)), keys)
        keys.sort(key=places.__getitem__)
    else:
        wanted = set(keys)
        keys = [key for key in (yield from theirs.keys()) if key in wanted]
    last = {key: puts[key] for key in keys}
    return {step: value for step, value in puts.items() if step not in last} | last


# ---- small steps


def _put(edits: Edits, step: Step, verdict: _Verdict) -> None:
    if isinstance(verdict, Edits):
        edits.inside[step] = verdict
    elif verdict is _REMOVED:
        edits.removed.add(step)
    elif verdict is not None:
        edits.puts[step] = verdict


def _replace(edits: Edits, index: int, count: int, new: Sequence[bytes]) -> None:
    edits.removed.update(range(index, index + count))
    if new:
        edits.inserted.setdefault(index, []).extend(MerkleValue(encoding, {}) for encoding in new)


def _key(pair: tuple[Entry | None, Entry | None]) -> bytes:
    entry = pair[0] or pair[1]
    assert entry is not None
    return entry.key


def _encodings(*entries: Entry | None) -> Fetching[list[bytes | None]]:
    there = yield from whole([entry for entry in entries if entry is not None])
    rest = iter(there)
    return [None if entry is None else next(rest) for entry in entries]


RuleName: TypeAlias = Literal[
    "refuse", "ours", "theirs", "counter", "maximum", "minimum", "append", "union", "last_writer"
]
Rule: TypeAlias = RuleName | Callable[[Any, Any, Any], Any]
"""A name, or a function of base, ours and theirs to the merged value; `MISSING` is nothing, on either way."""
Pattern: TypeAlias = tuple[Step | None, ...]
"""A path; None matches any one step."""


class ValueConflict(msgspec.Struct, frozen=True):
    """A conflict that no rule decided: the encodings of the three sides, None for an absent value.

    In a list it has the index in `ours`, and the lists of the conflicting items.
    """

    path: Path
    base: bytes | None
    ours: bytes | None
    theirs: bytes | None
    reason: str


class Rules:
    """The rules of one merge.

    Args:
        rules: Rules by pattern; `()` is the default rule, `refuse` if not given.
        ours_is_later: Whether `last_writer` takes `ours`.

    Raises:
        InvalidError: A rule name is unknown.
    """

    def __init__(self, rules: Mapping[Pattern, Rule], *, ours_is_later: bool = True) -> None:
        for rule in rules.values():
            if not callable(rule) and rule not in _NAMES:
                names = ", ".join(_NAMES)
                raise InvalidError(f"the merge rule {rule!r} is none; give a function or one of {names}")
        self._rules = dict(rules)
        self._ours_is_later = ours_is_later
        self._counts = any(rule == "counter" for rule in rules.values())

    def at(self, path: Path) -> Rule:
        """Return the rule of the longest pattern that is a prefix of the path.

        Of equally long patterns, one with a given step wins over one with any step.
        """
        fitting = [pattern for pattern in self._rules if _fits(pattern, path)]
        if not fitting:
            return "refuse"
        return self._rules[max(fitting, key=lambda pattern: (len(pattern), [s is not None for s in pattern]))]

    def count_below(self, path: Path) -> bool:
        """Return whether a counter may be at a path or below, so that equal changes still add up."""
        return self._counts and (
            self.at(path) == "counter"
            or any(
                rule == "counter" and len(pattern) > len(path) and _fits(pattern[: len(path)], path)
                for pattern, rule in self._rules.items()
            )
        )

    def side(self, rule: Rule) -> Literal["ours", "theirs"] | None:
        """Return the side that a rule always takes, or None."""
        if rule == "last_writer":
            return "ours" if self._ours_is_later else "theirs"
        if callable(rule):
            return None
        return rule if rule == "ours" or rule == "theirs" else None


def decide(rule: Rule, base: Any, ours: Any, theirs: Any) -> Any:
    """Return the merged value.

    Raises:
        InvalidError: The rule does not apply to these values; the error says why.
    """
    if callable(rule):
        return rule(base, ours, theirs)
    if rule not in _DECIDED:
        raise InvalidError("both sides changed it")
    return _DECIDED[rule](base, ours, theirs)


def _counter(base: Any, ours: Any, theirs: Any) -> Any:
    # One side took the counter away: there is nothing left to count on.
    numbers = [0 if base is MISSING else base, ours, theirs]
    if any(isinstance(number, bool) or not isinstance(number, Number) for number in numbers):
        raise InvalidError("a counter must be a number on both sides")
    try:
        return ours + theirs - numbers[0]
    except TypeError as error:
        raise InvalidError(f"the sides count in different types: {error}") from error


def _most(choose: Callable[[Any, Any], Any]) -> Callable[[Any, Any, Any], Any]:
    def decided(base: Any, ours: Any, theirs: Any) -> Any:
        if ours is MISSING or theirs is MISSING:
            raise InvalidError("one side removed it")
        try:
            return choose(ours, theirs)
        except TypeError as error:
            raise InvalidError(f"the sides cannot be compared: {error}") from error

    return decided


def _union(base: Any, ours: Any, theirs: Any) -> Any:
    """Return the items of either side, without items that either side removed."""
    before: Any = frozenset[Any]() if base is MISSING else base
    if not all(isinstance(members, set | frozenset) for members in (before, ours, theirs)):
        raise InvalidError("a union needs sets or lists on both sides")
    return type(ours)((ours | theirs) - ((before - ours) | (before - theirs)))


_DECIDED: Final[dict[str, Callable[[Any, Any, Any], Any]]] = {
    "counter": _counter,
    "maximum": _most(max),
    "minimum": _most(min),
    "union": _union,
}
_NAMES: Final = get_args(RuleName)


def _fits(pattern: Pattern, path: Path) -> bool:
    return len(pattern) <= len(path) and all(
        wanted is None or wanted == step for wanted, step in zip(pattern, path, strict=False)
    )
