"""The witness checker: treats the revisions in answers as claims, and tries to refute them.

If every claim holds, the revisions are an order of all operations: each batch made its changes under its
checks, each reader saw the present content, and no answer was older than an earlier answer. That is strict
serializability, checked in linear time. `linearizability` finds a store whose revisions and reads are wrong
in the same way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence

from keepstate.stores.protocol import ABSENT, Change
from keepstate_testing.proof.ending import End
from keepstate_testing.proof.findings import Findings, Kind
from keepstate_testing.proof.operations import (
    FOREVER,
    Attempt,
    Demand,
    History,
    Look,
    Refused,
    Saw,
    Took,
    checksum_of_log,
)
from keepstate_testing.proof.real_time import Placed, disorder
from keepstate_testing.proof.replay import Logged, Replay, holds, is_same, told


def witness(history: History, end: End) -> Findings:
    """Return each promise that this history and this end show broken.

    Batches without an answer must have been settled: one that has none counts as never applied.
    """
    return _Witness(history, end).findings()


class _Witness:
    def __init__(self, history: History, end: End) -> None:
        self._space, self._history, self._end = history.space, history, end
        self._found = Findings(operations=history.operations)
        self._claims: dict[int, tuple[Attempt, Took]] = {}
        self._judged: dict[int, list[tuple[Attempt, Took]]] = defaultdict(list)
        self._looks: dict[int, list[Look]] = defaultdict(list)
        self._log: dict[int, list[Change]] = defaultdict(list)
        self._replay = Replay(_keys_of_refusals(history.attempts))
        self._now_ms = self._swept_ms = 0

    def findings(self) -> Findings:
        """Check everything and return the findings."""
        for change in self._end.log:
            self._log[change.revision].append(change)
        for look in self._history.looks:
            self._looks[look.revision].append(look)
        self._take_claims()
        for revision in range(self._end.revision + 1):
            if revision:
                self._step(revision)
            self._look_at(revision)
        for revision, looks in self._looks.items():
            self._add(Kind.LOST, f"{len(looks)} reads saw revision {revision}, above the last one")
        self._compare_pages()
        self._compare_end()
        self._order()
        return self._found

    def _add(self, kind: Kind, text: str) -> None:
        self._found.add(kind, self._space, text)

    def _take_claims(self) -> None:
        for attempt in self._history.attempts:
            answer = attempt.answer
            if not isinstance(answer, Took):
                continue
            if answer.revision > self._end.revision:
                self._add(Kind.LOST, f"{_shown(attempt)} is above the last revision, {self._end.revision}")
            elif not attempt.writes:
                self._judged[answer.revision].append((attempt, answer))
            elif answer.revision in self._claims:
                other, _ = self._claims[answer.revision]
                self._add(Kind.LOST, f"{_shown(attempt)} was told the revision of {_shown(other)}")
            else:
                self._claims[answer.revision] = attempt, answer

    # ---- one revision after the other

    def _step(self, revision: int) -> None:
        changes = self._log.get(revision, [])
        if revision not in self._claims:
            self._unclaimed(revision, changes)
            return
        attempt, answer = self._claims[revision]
        self._pass_time(answer.now_ms, revision)
        self._judge(attempt, answer, revision - 1)
        expected = self._replay.apply(attempt, revision, answer.now_ms)
        self._compare_log(attempt, expected, [told(change) for change in changes])

    def _pass_time(self, now_ms: int, revision: int) -> None:
        if now_ms < self._now_ms:
            self._add(Kind.DISORDERED, f"time went back from {self._now_ms} to {now_ms} at {revision}")
        if self._swept_ms > now_ms:
            self._add(Kind.LOST, f"before revision {revision} an entry was removed, not yet expired")
        self._now_ms, self._swept_ms = now_ms, 0

    def _judge(self, attempt: Attempt, answer: Took, before: int) -> None:
        if attempt.at not in (None, before):
            self._add(Kind.DISORDERED, f"{_shown(attempt)} applied on {before}")
        if attempt.alive_until_ms is not None and attempt.alive_until_ms <= answer.now_ms:
            text = f"{_shown(attempt)} applied at {answer.now_ms}, after {attempt.alive_until_ms}"
            self._add(Kind.DISORDERED, text)
        if (failing := self._replay.failing(attempt.checks, answer.now_ms)) is not None:
            found = self._replay.live(failing.key, answer.now_ms)
            self._add(Kind.DISORDERED, f"{_shown(attempt)} applied, though {failing} found {found}")

    def _compare_log(self, attempt: Attempt, expected: Sequence[Logged], logged: Sequence[Logged]) -> None:
        missing, strange = set(expected) - set(logged), set(logged) - set(expected)
        if not missing and not strange and len(expected) == len(logged):
            return
        kind = Kind.LOST if len(missing) == len(expected) else Kind.PARTIAL
        self._add(
            kind, f"the log of {_shown(attempt)} lacks {missing or 'nothing'}, tells {strange or 'no more'}"
        )

    def _unclaimed(self, revision: int, changes: Sequence[Change]) -> None:
        """Take the store's removal of expired entries; other changes have no writer, or are made twice."""
        due: list[int] = []
        for change in changes:
            entry = self._replay.entries.get(change.key)
            if change.deleted and entry is not None and entry.expires_at_ms is not None:
                due.append(entry.expires_at_ms)
        if not changes or len(due) < len(changes):
            self._add(
                self._kind_of_unclaimed(changes), f"no client was told of revision {revision}: {changes[:3]}"
            )
        self._swept_ms = max(self._swept_ms, *due, 0)
        for change in changes:
            self._replay.follow(change)

    def _kind_of_unclaimed(self, changes: Sequence[Change]) -> Kind:
        """Say whether changes without a client are those of a batch that applied before."""
        values = {change.key: self._value_of(change) for change in changes}
        for attempt, _ in self._claims.values():
            written = {write.key: write.checksum for write in attempt.writes}
            if written.keys() == values.keys() and any(values.values()):
                if all(value in (None, written[key]) for key, value in values.items()):
                    return Kind.APPLIED_TWICE
        return Kind.GHOST

    def _value_of(self, change: Change) -> int | None:
        """Return the checksum of a written value, or None if neither the log nor the end has it."""
        left = self._end.entries.get(change.key)
        logged = told(change).checksum
        return left.checksum if logged is None and left and left.version == change.revision else logged

    def _look_at(self, revision: int) -> None:
        for look in self._looks.pop(revision, ()):
            if (wrong := self._replay.misseen(look)) is not None:
                self._add(Kind.DISORDERED, f"a reader saw at revision {revision} {wrong}")
        for attempt, answer in self._judged.pop(revision, ()):
            self._judge(attempt, answer, revision)

    # ---- what was told of the log

    def _compare_pages(self) -> None:
        log = self._end.log
        for page in self._history.pages:
            first = bisect_right(log, page.after, key=_revision)
            behind = bisect_right(log, page.upto, key=_revision)
            if page.upto > self._end.revision:
                self._add(Kind.LOST, f"the log told of revision {page.upto}, above the last one")
            elif checksum_of_log(log[first:behind]) != page.checksum:
                text = (
                    f"the log told of the revisions above {page.after} up to {page.upto} otherwise than now"
                )
                self._add(Kind.DISORDERED, text)

    # ---- the end

    def _compare_end(self) -> None:
        self._pass_time(self._end.now_ms, self._end.revision)
        for key, expected in self._replay.entries.items():
            seen = self._end.entries.get(key)
            if seen is None:
                if expected.expires_at_ms is None or expected.expires_at_ms > self._end.now_ms:
                    self._add(Kind.LOST, f"{key!r} is not there in the end; it was {expected}")
            elif not is_same(expected, seen):
                self._add(Kind.LOST, f"{key!r} is {seen} in the end; it was {expected}")
        for key, seen in self._end.entries.items():
            if key not in self._replay.entries:
                self._add(Kind.GHOST, f"{key!r} is there in the end, {seen}, and no client wrote it")

    # ---- real time

    def _order(self) -> None:
        began_of = {revision: attempt.began_ns for revision, (attempt, _) in self._claims.items()}
        for source, reason in disorder(self._placed(), began_of):
            what = _shown(source) if isinstance(source, Attempt) else f"a read of {list(source.found)[:3]}"
            self._add(Kind.DISORDERED, f"{what} {reason}")

    def _placed(self) -> list[Placed]:
        placed = [
            Placed(look.began_ns, look.ended_ns, look.revision, look.now_ms, look)
            for look in self._history.looks
        ]
        for attempt in self._history.attempts:
            answer = attempt.answer
            if isinstance(answer, Took):
                span = attempt.began_ns, attempt.ended_ns
                placed.append(Placed(*span, answer.revision, answer.now_ms, attempt, bool(attempt.writes)))
            elif answer is not None and answer.reason is None:
                placed.append(self._placed_refusal(attempt, answer))
        return placed

    def _placed_refusal(self, attempt: Attempt, answer: Refused) -> Placed:
        placed = Placed(attempt.began_ns, attempt.ended_ns, answer.actual, None, attempt)
        if answer.key is None:
            has_expired = (attempt.alive_until_ms or FOREVER) <= answer.wall_ms
            if attempt.at in (None, answer.actual) and not has_expired:
                self._add(Kind.DISORDERED, f"{_shown(attempt)} was refused without a reason")
            return placed
        key, checks = answer.key, [check for check in attempt.checks if check.key == answer.key]

        def find(floor: int) -> int | None:
            for revision, entry in self._replay.states_from(key, floor):
                if any(_explains(check, answer, entry) for check in checks):
                    return revision
            return None

        placed.find = find
        return placed


def _revision(change: Change) -> int:
    return change.revision


def _explains(check: Demand, answer: Refused, entry: Saw | None) -> bool:
    """Return whether a refusal names the entry that was there, and the check did not hold for it."""
    for state in (entry, None) if _may_be_gone(entry, answer.wall_ms) else (entry,):
        version, created = (ABSENT, ABSENT) if state is None else (state.version, state.created)
        actual = version if check.version is not None else created
        if actual == answer.actual and not holds(check, state):
            return True
    return False


def _may_be_gone(entry: Saw | None, wall_ms: int) -> bool:
    return entry is not None and entry.expires_at_ms is not None and entry.expires_at_ms <= wall_ms


def _keys_of_refusals(attempts: Iterable[Attempt]) -> set[bytes]:
    answers = (attempt.answer for attempt in attempts)
    return {answer.key for answer in answers if isinstance(answer, Refused) and answer.key is not None}


def _shown(attempt: Attempt) -> str:
    """Return a batch in one line."""
    keys = [write.key for write in attempt.writes][:4]
    checks = [(check.key, check.version, check.created) for check in attempt.checks][:4]
    at = "" if attempt.at is None else f" at {attempt.at}"
    token = attempt.token[-8:].hex()
    return f"the batch that writes {keys}{at} (checks {checks}, token …{token}, {attempt.answer})"
