"""The contract fails on stores that are broken, each in one way that real stores have been."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
from keepstate_testing.store_abilities import ConfirmsLeaps, KeepsLeaps

from keepstate._finish import finish
from keepstate._runner import Runner
from keepstate.errors import KeepstateError
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Applied, Batch, Changes, Entry, Outcome, Page, Put, Reading
from keepstate.stores.sqlite import SqliteStore
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract import Clocked, KeepsTime, StoreContract
from tests.crashes import seeded_store_bugs
from tests.crashes.seeded_bugs import Bug

SPACE = "space"


class IgnoresChecks(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await super().apply([msgspec.structs.replace(batch, checks=()) for batch in batches])


class IgnoresAt(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await super().apply([msgspec.structs.replace(batch, at=None) for batch in batches])


class IgnoresTokens(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await super().apply([msgspec.structs.replace(b, token=None, retry_of=None) for b in batches])


class AnswersATokenOfAnotherSpace(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        answers: dict[bytes, Outcome] = self.__dict__.setdefault("answers", {})
        outcomes: list[Outcome] = []
        for batch in batches:
            outcome = answers.get(batch.token or b"") or (await super().apply([batch]))[0]
            outcomes.append(outcome if batch.token is None else answers.setdefault(batch.token, outcome))
        return outcomes


class TellsTheTimeOfTheLastRead(MemoryStore):
    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        return [self._heap.state_of(space).clock_ms or None for space in spaces]


class DropsTheFirstRowBackwards(MemoryStore):
    async def scan(self, space: str, prefix: bytes, **options: Any) -> Page:
        page = await super().scan(space, prefix, **options)
        is_later = options.get("reverse") and options.get("after") is not None
        return msgspec.structs.replace(page, entries=page.entries[1:]) if is_later else page


class TakesARevisionForAConflict(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        outcomes = await super().apply(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is not Applied:
                await super().apply([Batch(batch.space, [Put(b"\x00spent", b"")])])
        return outcomes


class AppliesAConflictByHalf(MemoryStore):
    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        outcomes = await super().apply(batches)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is not Applied and batch.writes:
                self._heap.state_of(batch.space).entries.pop(batch.writes[0].key, None)
        return outcomes


class ReadsAStaleCopy(MemoryStore):
    before: ClassVar[dict[str, dict[bytes, Entry]]] = {}

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        for batch in batches:
            self.before[batch.space] = dict(self._heap.state_of(batch.space).entries)
        return await super().apply(batches)

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        reading = await super().read(space, keys, at_ms=at_ms)
        return Reading([self.before[space].get(key) for key in keys], reading.revision, reading.now_ms)


class SeesTheExpired(MemoryStore):
    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        reading = await super().read(space, keys, at_ms=at_ms)
        entries: list[Entry | None] = [self._heap.state_of(space).entries.get(key) for key in keys]
        return Reading(entries, reading.revision, reading.now_ms)


class ForgetsCreated(MemoryStore):
    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        reading = await super().read(space, keys, at_ms=at_ms)
        entries = [
            entry and msgspec.structs.replace(entry, created=entry.version) for entry in reading.entries
        ]
        return Reading(entries, reading.revision, reading.now_ms)


class EndsAScanWithItsFirstPage(MemoryStore):
    async def _scan(self, *arguments: Any) -> Page:
        return msgspec.structs.replace(await super()._scan(*arguments), next=None)


class CutsARevisionInTheLog(MemoryStore):
    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        changes = await super()._changes(space, after, limit)
        return Changes(changes.items[:limit], changes.upto, changes.floor, changes.nonces)


class ListsSpacesUnsorted(MemoryStore):
    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        names = await super()._spaces(prefix, after, limit)
        return sorted(names, key=str.casefold)


class StartsAgainAfterADrop(MemoryStore):
    async def _drop(self, space: str, at: int | None) -> None:
        self._heap.spaces.pop(space, None)


class Contract(Clocked, KeepsTime, StoreContract):
    """The contract with its tests called by hand, in the blocking colour."""

    mode_name = "blocking"

    def __init__(self, kind: type[MemoryStore], name: str) -> None:
        self.kind, self.name, self.clock = kind, name, ManualClock()

    def make_store(self, tmp_path: Path) -> StoreBase:
        runner: Runner = self.runner()
        return self.kind(name=self.name, runner=runner, clock=self.clock)

    def run(self, test: str, **given: Any) -> None:
        store = finish(self.make_store(Path()).open())
        try:
            getattr(self, test)(store=store, space=SPACE, **given)
        finally:
            finish(store.close())


class SqliteContract(ConfirmsLeaps, KeepsLeaps, Contract):
    """The same on a SQLite file, in the asynchronous colour: there callers surely share a flush."""

    mode_name = "async"

    def __init__(self, folder: Path) -> None:
        super().__init__(MemoryStore, "")
        self.path = folder / "keepstate.db"
        self.made: list[StoreBase] = []

    def make_store(self, tmp_path: Path) -> StoreBase:
        store = SqliteStore(self.path, durability="normal", runner=self.runner(), clock=self.clock)
        self.made.append(store)
        return store

    def run(self, test: str, **given: Any) -> None:
        with asyncio.Runner() as self._loop:
            try:
                store = self.drive(self.make_store(Path()).open())
                getattr(self, test)(store=store, space=SPACE, **given)
            finally:
                for one in self.made:  # also what a failing test has left open
                    self.drive(one.close())


FAULTS: list[tuple[type[MemoryStore], str, dict[str, Any]]] = [
    (IgnoresChecks, "test_another_version_refuses_and_names_key_and_version", {}),
    (IgnoresChecks, "test_write_skew_is_refused", {}),
    (IgnoresAt, "test_a_phantom_is_refused_by_at", {}),
    (IgnoresTokens, "test_a_token_found_gives_the_first_answer", {}),
    (AnswersATokenOfAnotherSpace, "test_a_token_names_one_batch_of_its_own_space", {}),
    (TellsTheTimeOfTheLastRead, "test_the_time_of_the_last_change_is_told_or_unknown", {}),
    (DropsTheFirstRowBackwards, "test_pages_together_are_the_whole_range", {"reverse": True}),
    (IgnoresTokens, "test_a_late_original_stays_refused_when_its_retry_was", {}),
    (
        TakesARevisionForAConflict,
        "test_a_refused_batch_changes_nothing_and_takes_no_revision",
        {},
    ),
    (AppliesAConflictByHalf, "test_a_refused_batch_changes_nothing_and_takes_no_revision", {}),
    (ReadsAStaleCopy, "test_a_put_is_read_back_with_its_facts", {}),
    (SeesTheExpired, "test_an_expired_entry_is_absent_for_reads_at_once", {}),
    (ForgetsCreated, "test_version_is_the_last_write_and_created_the_first", {}),
    (EndsAScanWithItsFirstPage, "test_pages_together_are_the_whole_range", {"reverse": False}),
    (CutsARevisionInTheLog, "test_an_answer_holds_whole_revisions", {}),
    (ListsSpacesUnsorted, "test_any_text_names_a_space_of_its_own", {}),
    (StartsAgainAfterADrop, "test_a_space_made_again_continues_its_revisions", {}),
]


@pytest.mark.parametrize(("kind", "test", "given"), FAULTS)
def test_the_contract_catches(
    kind: type[MemoryStore], test: str, given: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, KeepstateError)):
        Contract(kind, str(tmp_path / kind.__name__)).run(test, **given)


PLANTED: list[tuple[Bug, str, dict[str, Any]]] = [
    (
        seeded_store_bugs.stored_time_ignored,
        "test_a_clock_behind_revives_nothing_that_had_expired",
        {"tmp_path": Path()},
    ),
    (seeded_store_bugs.leap_unconfirmed, "test_a_wrong_clock_moves_no_space_on", {}),
    (
        seeded_store_bugs.small_steps_unconfirmed,
        "test_small_steps_carry_a_space_no_further_than_one",
        {},
    ),
    (seeded_store_bugs.leap_dropped, "test_a_drop_keeps_the_last_leap", {}),
    (seeded_store_bugs.leap_by_remembered_time, "test_the_first_write_and_each_later_leap_are_kept", {}),
    (seeded_store_bugs.answers_dropped, "test_a_drop_keeps_the_answers_of_retries", {}),
    (
        seeded_store_bugs.floor_taken_one_low,
        "test_a_retry_of_the_log_s_floor_applies_and_one_of_the_revision_below_does_not",
        {},
    ),
    (seeded_store_bugs.row_subtracted_twice, "test_the_log_keeps_64_mib", {}),
    (
        seeded_store_bugs.expired_row_counted,
        "test_an_expired_entry_is_not_counted_before_it_is_swept",
        {},
    ),
    (seeded_store_bugs.removed_row_counted, "test_sweeping_is_counted", {}),
    (seeded_store_bugs.removed_key_remembered, "test_each_check_of_a_key_sees_its_last_change", {}),
    (seeded_store_bugs.written_key_remembered, "test_each_check_of_a_key_sees_its_last_change", {}),
    (
        seeded_store_bugs.guessed_stamp_counted_twice,
        "test_stamped_entries_are_counted_over_a_guessed_one_too",
        {},
    ),
    (
        seeded_store_bugs.answers_by_request,
        "test_each_caller_of_several_batches_gets_the_answers_of_its_own",
        {},
    ),
]
"""Bugs that no instrument of the proof can see: each with the test of the contract that fails with it."""


@pytest.mark.parametrize(("bug", "test", "given"), PLANTED, ids=[bug.__name__ for bug, _, _ in PLANTED])
def test_the_contract_catches_a_planted_bug(
    bug: Bug, test: str, given: dict[str, Any], tmp_path: Path
) -> None:
    with bug(), pytest.raises((AssertionError, pytest.fail.Exception)):
        SqliteContract(tmp_path).run(test, **given)


@pytest.mark.parametrize("test", sorted({test for _, test, given in FAULTS if not given}))
def test_a_sound_store_passes_where_broken_ones_fail(test: str, tmp_path: Path) -> None:
    Contract(MemoryStore, str(tmp_path)).run(test)
