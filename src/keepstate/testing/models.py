"""A store against a plain dict: Hypothesis looks for a sequence of calls after which they differ.

`StoreMachine` drives one space of a store in blocking mode, next to a `ModelSpace`. For your backend,
subclass it, write `make_store` and collect its `TestCase`. If `persists` is set, the machine also closes and
reopens the store.
"""

from __future__ import annotations

from typing import ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import (
    ABSENT,
    Applied,
    Batch,
    Change,
    Check,
    Delete,
    Entry,
    Put,
    Write,
)
from keepstate.testing.clocks import ManualClock
from keepstate.testing.model_space import ModelSpace

SPACE = "model"
SECTIONS = (b"\x00", b"\x01", b"\x02")
KEYS = [section + name for section in SECTIONS for name in (b"", b"a", b"a\x00", b"b", b"\xff")]

keys = st.sampled_from(KEYS)
values = st.binary(max_size=3)
tokens = st.sampled_from([b"s", b"t", b"u"])
deletes = st.builds(Delete, keys)
puts = st.builds(
    Put,
    keys,
    values,
    ttl_ms=st.sampled_from([None, None, 5, 50]),
    stamp=st.sampled_from([False] * 4 + [True]),
)
writes = st.lists(
    st.one_of(puts, puts, deletes),
    max_size=4,
    unique_by=lambda write: (write.key, getattr(write, "stamp", False)),
)
wishes = st.lists(
    st.tuples(keys, st.sampled_from(["version", "created", "absent", "stale", "old life"])), max_size=2
)


class StoreMachine(RuleBasedStateMachine):
    """Applies the same operations to a store and to the model, and compares every answer."""

    persists: ClassVar[bool] = False

    def make_store(self, runner: ThreadRunner, clock: ManualClock) -> StoreBase:
        """Return the store, not yet opened; later calls return a handle on the same data."""
        raise NotImplementedError

    @initialize()
    def open(self) -> None:
        """Open the store and an empty model."""
        self.clock, self.model = ManualClock(), ModelSpace()
        self.store = finish(self.make_store(ThreadRunner(), self.clock).open())
        self.model.now_ms = self.clock.now_ms()

    def teardown(self) -> None:
        """Close the store."""
        if hasattr(self, "store"):
            finish(self.store.close())

    @rule(
        writes=writes,
        wishes=wishes,
        at=st.sampled_from([None, None, "now", "before"]),
        token=st.one_of(st.none(), st.none(), tokens),
    )
    def apply(
        self, writes: list[Write], wishes: list[tuple[bytes, str]], at: str | None, token: bytes | None
    ) -> None:
        """Apply one batch."""
        at_revision = {None: None, "now": self.model.revision, "before": max(self.model.revision - 1, 0)}[at]
        batch = Batch(SPACE, writes, [self._check(*wish) for wish in wishes], at=at_revision, token=token)

        [outcome] = finish(self.store.apply([batch]))

        expected = self.model.apply(batch)
        if isinstance(outcome, Applied):
            assert outcome.revision == expected
        else:
            assert outcome == expected
        self._follow()

    def _check(self, key: bytes, wish: str) -> Check:
        found = self.model.live(key)
        version, created = (found.version, found.created) if found else (ABSENT, ABSENT)
        return {
            "version": Check(key, version=version),
            "created": Check(key, created=created),
            "absent": Check(key, version=ABSENT),
            "stale": Check(key, version=version + 1),
            "old life": Check(key, created=created + 1),
        }[wish]

    def _follow(self) -> None:
        """Apply the store's sweeps to the model, because a store sweeps at its own pace."""
        changes = finish(self.store.changes(SPACE, self.model.revision))
        self.model.sweep_like(changes.items, changes.upto)

    @rule(ms=st.integers(1, 60))
    def pass_time(self, ms: int) -> None:
        """Advance the clock."""
        self.clock.advance(ms)
        self.model.now_ms = self.clock.now_ms()

    @rule()
    def sweep(self) -> None:
        """Remove expired entries."""
        finish(self.store.sweep())
        self._follow()

    @rule(sure=st.sampled_from([False, False, False, True]))
    def drop(self, *, sure: bool) -> None:
        """Empty the space."""
        if sure:
            finish(self.store.drop(SPACE))
            self.model.drop()

    @precondition(lambda self: self.persists)
    @rule()
    def reopen(self) -> None:
        """Close the store and open it again."""
        finish(self.store.close())
        self.store = finish(self.make_store(ThreadRunner(), self.clock).open())

    @rule(
        prefix=st.sampled_from([*SECTIONS, b"\x01a", b"\x02a\x00"]),
        limit=st.integers(1, 5),
        reverse=st.booleans(),
    )
    def scan(self, prefix: bytes, limit: int, *, reverse: bool) -> None:
        """Walk a range page by page."""
        found: list[Entry] = []
        after: bytes | None = None
        while True:
            page = finish(self.store.scan(SPACE, prefix, after=after, limit=limit, reverse=reverse))
            found += page.entries
            if page.next is None:
                break
            after = page.next

        live = [self.model.live(key) for key in sorted(self.model.entries, reverse=reverse)]
        assert found == [entry for entry in live if entry is not None and entry.key.startswith(prefix)]

    @rule(share=st.floats(0, 1), limit=st.integers(1, 4))
    def follow_the_log(self, share: float, limit: int) -> None:
        """Read the log from some revision to its end."""
        upto = start = self.model.floor + int(share * (self.model.revision - self.model.floor))
        items: list[Change] = []
        while (page := finish(self.store.changes(SPACE, upto, limit=limit))).upto > upto:
            items += page.items
            upto = page.upto

        expected = [change for change in self.model.log if change.revision > start]
        assert sorted(items, key=_place) == sorted(expected, key=_place)
        assert upto == self.model.revision

    @invariant()
    def every_key_reads_as_the_model_says(self) -> None:
        """Read all keys at once."""
        if not hasattr(self, "store"):
            return
        reading = finish(self.store.read(SPACE, KEYS))

        assert list(reading.entries) == [self.model.live(key) for key in KEYS]
        assert reading.revision == self.model.revision


def _place(change: Change) -> tuple[int, bytes]:
    return change.revision, change.key
