"""The checker that trusts no revision: searches an order of operations that explains all answers.

The algorithm of Wing and Gong (1993) in Lowe's form (2017): of the calls that may come next, try each that
the state allows, backtrack if none is left, and never try the same calls with the same state twice. It can
take long if many calls overlap, so it gets samples of a few keys, and a limit.

Values are distinguished by their checksums, so a sample is useful only if no value is written twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, TypeAlias

import msgspec

from keepstate_testing.proof.operations import FOREVER, Attempt, History, Look, Took

State: TypeAlias = tuple[int | None, ...]
"""The values of a sample's keys."""

STEPS: Final = 200_000


class Call(msgspec.Struct, frozen=True):
    """One operation on the keys of a sample, which are given by their index.

    If its answer was heard, its expectations were met and its writes applied. Otherwise it applied at some
    time after it began, if its expectations were met then, or never.
    """

    began_ns: int
    ended_ns: int
    heard: bool
    expects: Sequence[tuple[int, int | None]] = ()
    writes: Sequence[tuple[int, int | None]] = ()

    def on(self, state: State) -> State | None:
        """Return the state behind it, None if it cannot be here."""
        for place, value in self.expects:
            if state[place] != value:
                return None
        if not self.writes:
            return state
        after = list(state)
        for place, value in self.writes:
            after[place] = value
        return tuple(after)


def is_linearizable(calls: Sequence[Call], keys: int, *, steps: int = STEPS) -> bool | None:
    """Return whether the calls have an order that begins with all keys absent; None after too many steps."""
    return _ClaimState(calls, keys).run(steps)


class _ClaimState:
    """A list of beginnings and ends in order of time, without the calls that are placed already.

    Node 0 is before all; the others are beginnings and ends, linked by `behind` and `before`.
    """

    def __init__(self, calls: Sequence[Call], keys: int) -> None:
        self._calls = calls
        self._state: State = (None,) * keys
        # At equal times beginnings come first: such calls overlap.
        events = sorted(
            [(call.began_ns, 0, number) for number, call in enumerate(calls)]
            + [(call.ended_ns, 1, number) for number, call in enumerate(calls)]
        )
        self._call_of = [-1, *(number for _, _, number in events)]
        self._is_end = [True, *(bool(end) for _, end, _ in events)]
        self._behind = [*range(1, len(events) + 1), 0]
        self._before = [len(events), *range(len(events))]
        self._nodes: list[list[int]] = [[0, 0] for _ in calls]
        for node, (_, end, number) in enumerate(events, 1):
            self._nodes[number][end] = node
        self._heard = sum(call.heard for call in calls)

    def run(self, steps: int) -> bool | None:
        """Return the answer, or None after the limit of steps."""
        placed, placed_heard = 0, 0
        known: set[tuple[int, State]] = set()
        path: list[tuple[int, State]] = []
        node = self._behind[0]
        for _ in range(steps):
            if placed_heard == self._heard:
                return True
            if self._is_end[node]:
                if not path:
                    return False
                number, self._state = path.pop()
                placed ^= 1 << number
                placed_heard -= self._calls[number].heard
                self._put_back(number)
                node = self._behind[self._nodes[number][0]]
                continue
            number = self._call_of[node]
            after = self._calls[number].on(self._state)
            if after is None or (placed | 1 << number, after) in known:
                node = self._behind[node]
                continue
            path.append((number, self._state))
            placed, self._state = placed | 1 << number, after
            known.add((placed, after))
            placed_heard += self._calls[number].heard
            self._take_out(number)
            node = self._behind[0]
        return None

    def _take_out(self, number: int) -> None:
        for node in self._nodes[number]:
            self._behind[self._before[node]] = self._behind[node]
            self._before[self._behind[node]] = self._before[node]

    def _put_back(self, number: int) -> None:
        for node in reversed(self._nodes[number]):
            self._behind[self._before[node]] = node
            self._before[self._behind[node]] = node


# ---- samples of a history


def sample(history: History, keys: Sequence[bytes], *, most: int) -> list[Call]:
    """Return the first calls of a space, as far as they concern some keys without expiry or stamps.

    A call that has not ended when the next call after the sample begins may have seen later writes. Such
    reads are left out, and such batches count as unanswered.
    """
    values, places = _values(history, keys), {key: place for place, key in enumerate(keys)}
    calls = [
        *(_of_look(look, places) for look in history.looks),
        *(_of_attempt(attempt, places, values) for attempt in history.attempts),
    ]
    ordered = sorted((call for call in calls if call is not None), key=lambda call: call.began_ns)
    next_ns = ordered[most].began_ns if len(ordered) > most else FOREVER
    return [call for call in (_cut(call, next_ns) for call in ordered[:most]) if call is not None]


def _cut(call: Call, next_ns: int) -> Call | None:
    if call.ended_ns < next_ns:
        return call
    return msgspec.structs.replace(call, heard=False, ended_ns=FOREVER) if call.writes else None


def _values(history: History, keys: Collection[bytes]) -> dict[tuple[bytes, int], int | None]:
    """Return the value of each version of a key, by the answers to clients."""
    found: dict[tuple[bytes, int], int | None] = {(key, 0): None for key in keys}
    for look in history.looks:
        for key in look.found.keys() & keys:
            entry = look.found[key]
            if entry is not None:
                found[key, entry.version] = entry.checksum
    for attempt in history.attempts:
        if isinstance(attempt.answer, Took):
            for write in attempt.writes:
                if write.key in keys and write.checksum is not None:
                    found[write.key, attempt.answer.revision] = write.checksum
    return found


def _of_look(look: Look, places: dict[bytes, int]) -> Call | None:
    expects = [
        (place, entry.checksum if (entry := look.found[key]) is not None else None)
        for key, place in places.items()
        if key in look.found
    ]
    return Call(look.began_ns, look.ended_ns, True, expects) if expects else None


def _of_attempt(
    attempt: Attempt, places: dict[bytes, int], values: dict[tuple[bytes, int], int | None]
) -> Call | None:
    span, answer = (attempt.began_ns, attempt.ended_ns), attempt.answer
    writes = [(places[write.key], write.checksum) for write in attempt.writes if write.key in places]
    expects = [
        (places[check.key], values[check.key, check.version])
        for check in attempt.checks
        if check.key in places and check.version is not None and (check.key, check.version) in values
    ]
    if answer is None or isinstance(answer, Took):
        heard = answer is not None and attempt.ended_ns != FOREVER
        return Call(*span, heard, expects, writes) if writes or expects else None
    # To its caller a refusal is the sight of another version than it had expected.
    failed = [check for check in attempt.checks if check.key == answer.key and check.version is not None]
    if answer.reason is not None or answer.key not in places or (answer.key, answer.actual) not in values:
        return None
    seen = [(places[answer.key], values[answer.key, answer.actual])]
    return Call(*span, True, seen) if failed else None
