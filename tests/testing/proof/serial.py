"""Histories of a space that really were, one operation after the other; to be judged, or to be falsified."""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec
from keepstate_testing.proof import Attempt, End, History, Look, Refused, Took, read_end
from keepstate_testing.proof.operations import Demand, LogPage, Span, checksum_of_log, saw, wrote

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Outcome, Put, Write
from keepstate.testing.clocks import ManualClock
from keepstate.values.key import successor

SPACE = "space"
KEYS = tuple(bytes((1 + number % 2,)) + b"k%d" % number for number in range(4))


class Serial:
    """Operations on a store in memory, each at one moment of an invented time that they may spread around.

    Args:
        spread_ns: How much earlier an operation may begin, and later end, than the moment at which it is.
        seed: What these spans, and `act`, come from.
        expiring: Whether `act` writes entries that expire.
    """

    def __init__(self, *, spread_ns: int = 4, seed: int = 0, expiring: bool = True) -> None:
        self._ttl_ms = 9 if expiring else None
        self.clock, self.random, self._spread_ns = ManualClock(), random.Random(seed), spread_ns
        self.store = finish(MemoryStore(runner=ThreadRunner(), clock=self.clock).open())
        self.history = History(SPACE, [], [], [], [])
        self._moment_ns = 1_000

    def _span(self) -> tuple[int, int]:
        self._moment_ns += 10
        before, after = (self.random.randint(0, self._spread_ns) for _ in range(2))
        return self._moment_ns - before, self._moment_ns + after

    def apply(
        self, *writes: Write, checks: Sequence[Check] = (), at: int | None = None, unheard: bool = False
    ) -> Outcome:
        """Apply a batch; its answer may get lost, and is then what a store would tell later."""
        began_ns, ended_ns = self._span()
        [outcome] = finish(self.store.apply([Batch(SPACE, writes, checks, at)]))
        demands = [Demand(check.key, check.version, check.created) for check in checks]
        attempt = Attempt(SPACE, began_ns, [wrote(write) for write in writes], demands, at)
        if not unheard:
            attempt.ended_ns = ended_ns
        if isinstance(outcome, Applied):
            attempt.answer = Took(outcome.revision, outcome.now_ms)
        elif isinstance(outcome, Conflict):
            attempt.answer = Refused(outcome.key, outcome.actual, self.clock.now_ms())
        self.history.attempts.append(attempt)
        return outcome

    def read(self, *keys: bytes) -> Look:
        """Read entries by key."""
        span = self._span()
        reading = finish(self.store.read(SPACE, keys))
        found = {key: saw(entry) if entry else None for key, entry in zip(keys, reading.entries, strict=True)}
        return self._looked(Look(SPACE, *span, reading.revision, reading.now_ms, found))

    def scan(self, prefix: bytes) -> Look:
        """Read all entries under a prefix."""
        span = self._span()
        page = finish(self.store.scan(SPACE, prefix))
        found = {entry.key: saw(entry) for entry in page.entries}
        whole = Span(prefix, successor(prefix))
        return self._looked(Look(SPACE, *span, page.revision, page.now_ms, {**found}, whole))

    def _looked(self, look: Look) -> Look:
        self.history.looks.append(look)
        return look

    def follow(self, after: int, limit: int) -> None:
        """Read a page of the log."""
        changes = finish(self.store.changes(SPACE, after, limit=limit))
        self.history.pages.append(LogPage(SPACE, after, changes.upto, checksum_of_log(changes.items)))

    def sweep(self) -> None:
        """Remove what has expired."""
        finish(self.store.sweep())

    def act(self) -> None:
        """Do something by chance."""
        dice = self.random
        chance = dice.random()
        if chance < 0.3:
            self.read(*dice.sample(KEYS, dice.randint(1, 3)))
        elif chance < 0.4:
            self.scan(dice.choice((b"\x01", b"\x02", KEYS[0])))
        elif chance < 0.45:
            self.clock.advance(dice.randint(1, 20))
        elif chance < 0.5:
            self.sweep()
        elif chance < 0.55:
            self.follow(dice.randint(0, self.revision()), dice.randint(1, 5))
        else:
            self._change()

    def _change(self) -> None:
        dice = self.random
        writes: list[Write] = []
        for key in dice.sample(KEYS, dice.randint(1, 3)):
            value = dice.randbytes(6)
            writes.append(
                dice.choice(
                    (Put(key, value), Put(key, value), Put(key, value, ttl_ms=self._ttl_ms), Delete(key))
                )
            )
        if dice.random() < 0.2:
            writes.append(Put(b"\x01stamped", dice.randbytes(6), stamp=True))
        checks: list[Check] = []
        for key in dice.sample(KEYS, dice.randint(0, 2)):
            entry = finish(self.store.read(SPACE, [key])).entries[0]
            version = entry.version if entry else 0
            checks.append(Check(key, version=version if dice.random() < 0.7 else version + 1))
        revision = self.revision()
        at = dice.choice((revision, revision + 1)) if dice.random() < 0.2 else None
        self.apply(*writes, checks=checks, at=at, unheard=dice.random() < 0.1)

    def revision(self) -> int:
        """Return how many batches there were."""
        return finish(self.store.read(SPACE, [])).revision

    def end(self) -> End:
        """Return the space as it is."""
        return finish(read_end(self.store, SPACE))

    def close(self) -> None:
        """Close the store."""
        finish(self.store.close())


def without_revision(end: End, revision: int) -> End:
    """Return the end with a revision's changes gone from the log."""
    return msgspec.structs.replace(end, log=[item for item in end.log if item.revision != revision])
