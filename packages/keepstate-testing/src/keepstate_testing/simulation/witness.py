"""The witness of a simulated world: checks that clients heard the store's answers, in a possible order.

It checks three things. At once: no answer has a revision below one that a client had before the question. At
the end: batches reported as applied did apply at that revision and once, and batches reported as not applied
never did. And for spaces that were not dropped, the check of `proof`: one order of all answers explains them
all. Time is counted in events, so that no two events have the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.protocol import Applied, Batch, Conflict, Entry, Outcome, Page, Reading, Store
from keepstate.values.key import successor
from keepstate_testing.proof.ending import read_end
from keepstate_testing.proof.findings import Findings
from keepstate_testing.proof.operations import (
    FOREVER,
    Attempt,
    Demand,
    History,
    Look,
    Refused,
    Saw,
    Span,
    Took,
    saw,
    wrote,
)
from keepstate_testing.proof.witness import witness
from keepstate_testing.simulation.oracle import Oracle


class Asked:
    """A request on its way: its time, and the highest revision that any client had seen then.

    A batch is also the future entry of the history.
    """

    __slots__ = ("at_least", "attempt", "batch", "began")

    def __init__(self, began: int, at_least: int, batch: Batch | None = None) -> None:
        self.began, self.at_least, self.batch = began, at_least, batch
        self.attempt: Attempt | None = None


class Witness:
    """Compares the answers that the clients of a world got with the events.

    Args:
        oracle: Knows the events.

    Attributes:
        findings: The final judgement.
    """

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self.findings = Findings()
        self._told: dict[str, int] = {}
        self._refused: list[tuple[Batch, Outcome]] = []
        self._sent: list[Asked] = []
        self._histories: dict[str, History] = {}
        self._dropped: set[str] = set()
        self._events = 0

    def _now(self) -> int:
        self._events += 1
        return self._events

    def _history(self, space: str) -> History:
        history = self._histories.get(space)
        if history is None:
            history = self._histories[space] = History(space)
        return history

    def forget(self, space: str) -> None:
        """Ask for no order of a space that is dropped: its log goes."""
        self._dropped.add(space)

    # ---- questions

    def asked(self, space: str) -> Asked:
        """Take note of a question."""
        return Asked(self._now(), self._told.get(space, 0))

    def told(
        self, space: str, asked: Asked, keys: Sequence[bytes], reading: Reading, at_ms: int | None
    ) -> None:
        """Record the answer to a read."""
        self._hear(space, reading.revision, asked.at_least)
        found = {key: _saw(entry) for key, entry in zip(keys, reading.entries, strict=True)}
        self._look(space, asked, reading.revision, reading.now_ms, found, None, at_ms)

    def told_page(
        self,
        space: str,
        asked: Asked,
        prefix: bytes,
        after: bytes | None,
        page: Page,
        at_ms: int | None,
    ) -> None:
        """Take note of what an upward scan was answered."""
        self._hear(space, page.revision, asked.at_least)
        low = prefix if after is None else after + b"\0"
        span = Span(low, successor(prefix) if page.next is None else page.next + b"\0")
        found = {entry.key: _saw(entry) for entry in page.entries}
        self._look(space, asked, page.revision, page.now_ms, found, span, at_ms)

    def _look(
        self,
        space: str,
        asked: Asked,
        revision: int,
        now_ms: int,
        found: dict[bytes, Saw | None],
        span: Span | None,
        at_ms: int | None,
    ) -> None:
        if revision == 0:
            return  # what is not there yet remembers no time, so that its clock may go back
        look = Look(space, asked.began, self._now(), revision, now_ms, found, span, at_ms)
        self._history(space).looks.append(look)

    def _hear(self, space: str, revision: int, at_least: int) -> None:
        assert revision >= at_least, f"{space!r}: an answer of revision {revision} after one of {at_least}"
        self._told[space] = max(revision, self._told.get(space, 0))

    # ---- batches

    def sent(self, batches: Sequence[Batch]) -> list[Asked]:
        """Take note of batches that are about to be sent."""
        asked = [Asked(self._now(), self._told.get(batch.space, 0), batch) for batch in batches]
        for one, batch in zip(asked, batches, strict=True):
            if batch.token is None:  # with one of its caller's it only asks what became of another
                one.attempt = _attempt(one.began, batch)
                self._history(batch.space).attempts.append(one.attempt)
        self._sent += asked
        return asked

    def answered(self, asked: Sequence[Asked], outcomes: Sequence[Outcome]) -> None:
        """Record the answer to the caller of `apply`."""
        for one, outcome in zip(asked, outcomes, strict=True):
            batch = one.batch
            assert batch is not None
            if type(outcome) is Applied:
                if batch.writes:
                    applied = self._oracle.applied_at(batch)
                    assert applied == outcome, f"{batch} is at {applied}, and was told to be {outcome}"
                own = batch.token is not None
                self._hear(batch.space, outcome.revision, 0 if own else one.at_least + bool(batch.writes))
            elif isinstance(outcome, OutcomeUnknownError):
                assert _can_be_settled(outcome), f"{outcome} came without a token to settle it by"
            else:
                self._refused.append((batch, outcome))
            self._end(one, outcome)

    def _end(self, asked: Asked, outcome: Outcome) -> None:
        attempt = asked.attempt
        if attempt is None or isinstance(outcome, OutcomeUnknownError):
            return
        attempt.ended_ns = self._now()
        if type(outcome) is Applied:
            attempt.answer = Took(outcome.revision, outcome.now_ms)
        else:
            wall_ms = self._oracle.model(attempt.space).now_ms
            attempt.answer = (
                Refused(outcome.key, outcome.actual, wall_ms)
                if type(outcome) is Conflict
                else Refused(None, 0, wall_ms, str(outcome))
            )

    # ---- the end

    async def judge(self, store: Store) -> None:
        """Raise `AssertionError` if no order explains the answers, or a rejection was wrong."""
        for batch, outcome in self._refused:
            if (applied := self._oracle.applied_at(batch)) is not None:
                raise AssertionError(f"{batch} is at {applied}, and its caller was told {outcome}")
        for asked in self._sent:
            self._settle(asked)
        histories, self._histories = self._histories, {}
        for space, history in histories.items():
            if space not in self._dropped:
                self.findings.extend(witness(history, await read_end(store, space)))
        assert not self.findings.found, str(self.findings)

    def _settle(self, asked: Asked) -> None:
        """Give a batch whose answer was lost the answer that it would have had."""
        if asked.attempt is None or asked.batch is None or asked.attempt.ended_ns < FOREVER:
            return
        if (applied := self._oracle.applied_at(asked.batch)) is not None:
            asked.attempt.answer = Took(applied.revision, applied.now_ms)


def _attempt(began: int, batch: Batch) -> Attempt:
    writes = [wrote(write) for write in batch.writes]
    checks = [Demand(check.key, check.version, check.created) for check in batch.checks]
    attempt = Attempt(batch.space, began, writes, checks, batch.at)
    attempt.alive_until_ms = batch.alive_until_ms
    return attempt


def _saw(entry: Entry | None) -> Saw | None:
    return None if entry is None else saw(entry)


def _can_be_settled(error: OutcomeUnknownError) -> bool:
    return error.token is not None
