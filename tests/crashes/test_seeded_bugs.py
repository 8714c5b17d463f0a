"""The proof finds each planted bug by the instrument that is there for it, and none where there is none."""

from __future__ import annotations

import re
from pathlib import Path
from unittest.mock import patch

import pytest
from keepstate_testing.simulation import BrokenPromiseError, Dials, simulate
from keepstate_testing.simulation.workloads.booking import Booking
from keepstate_testing.simulation.workloads.counting import Counting
from keepstate_testing.simulation.workloads.dropping import Dropping
from keepstate_testing.simulation.workloads.keeping import Keeping
from keepstate_testing.simulation.workloads.limiting import Limiting
from keepstate_testing.simulation.workloads.playing import Playing

from keepstate.engine.kernel.unit import Unit
from keepstate.errors import KeepstateError
from tests.crashes import (
    instruments,
    seeded_bugs,
    seeded_file_bugs,
    seeded_history_bugs,
    seeded_store_bugs,
    seeded_task_bugs,
)
from tests.crashes.instruments import (
    ALTERED_ROWS,
    COLLECTORS,
    CUT_JOURNAL,
    CUT_LOG,
    FAILING_SYNCS,
    FLIPPED_BITS,
    FLIPPED_TABLES,
    HANDED_LEADS,
    KEPT_ROWS,
    LOST_HISTORY,
    MOMENTS,
    MOVED_VALUES,
    READ_DURING_SYNCS,
    RESTORED_JOURNALS,
    RESUMED_WATCHES,
    SCHEDULES,
    SEARCHED_NAMES,
    SECOND_NAME,
    SUPPOSED,
    Instrument,
    power_cuts,
    worlds,
)
from tests.crashes.seeded_bugs import Bug
from tests.tally import Tally

pytestmark = pytest.mark.searched

WORLDS = worlds("worlds", 50)
RANGES = worlds("worlds of ranges", 5, Dials(delayed=0.8), [Limiting])
BOOKED = worlds("worlds of bookings", 5, Dials(delayed=0.5), [Booking])
CALM = worlds("calm worlds", 20, Dials(delayed=0.8), [Playing, Dropping])
IMPATIENT = worlds("worlds whose callers give up", 2, Dials(delayed=0.5, cancelled=0.3), [Counting])
LARGE = worlds("worlds of large values", 2, Dials(delayed=0.5), [Keeping])
FILE = power_cuts("file-msgpack", 25)
FULL = power_cuts("sqlite-full", 25)

BUGS: list[tuple[Bug, Instrument, str]] = [
    (seeded_bugs.check_dropped, WORLDS, "answered Applied.* should be Conflict"),
    (seeded_bugs.check_after_write, WORLDS, r"has no writer|answered Conflict.* should be \d+"),
    (seeded_bugs.scan_unguarded, RANGES, "a transaction found .*, more than 3"),
    (seeded_bugs.expiry_unguarded, SCHEDULES, "which never was at"),
    (seeded_bugs.expiry_of_scanned_entries_forgotten, BOOKED, "renewed a booking that had ended"),
    (seeded_bugs.expiry_judged_at_each_reading, SCHEDULES, "which never was"),
    (seeded_bugs.end_of_life_not_judged, SCHEDULES, "which never was at"),
    (seeded_bugs.token_ignored, WORLDS, r"answered (Conflict|Applied).* should be \d+|and again at"),
    (seeded_bugs.token_too_late, WORLDS, r"answered (Conflict|Applied).* should be \d+"),
    (
        seeded_bugs.refusal_forgotten,
        WORLDS,
        "answered (Conflict|Applied).* should be (Conflict|None)|told .* and should tell|a page of",
    ),
    (seeded_bugs.revision_skipped, WORLDS, r"answered Applied.* should be \d+"),
    (seeded_bugs.change_not_logged, WORLDS, "told .* and should tell"),
    (seeded_bugs.star_stops_at_slash, WORLDS, "a watch has told .* too little|watches have heard up to"),
    (seeded_bugs.lost_wake_up, CALM, "a player heard of .* after .* without loss"),
    (seeded_store_bugs.stale_rows_believed, KEPT_ROWS, "a stale row was believed"),
    (seeded_store_bugs.rows_dated_after_the_commit, KEPT_ROWS, "a stale row was believed"),
    (seeded_store_bugs.rows_kept_over_a_rollback, KEPT_ROWS, "a stale row was believed"),
    (seeded_store_bugs.removed_key_remembered, KEPT_ROWS, "a stale row was believed"),
    (seeded_store_bugs.written_key_remembered, KEPT_ROWS, "a stale row was believed"),
    (seeded_store_bugs.wake_up_trusted, HANDED_LEADS, "still waits after an interrupt"),
    (seeded_store_bugs.lead_kept_by_an_interrupt, HANDED_LEADS, "still waits after an interrupt"),
    (seeded_store_bugs.lost_request_waits, HANDED_LEADS, "still waits after an interrupt"),
    (seeded_bugs.flush_dies_with_its_caller, IMPATIENT, "these still wait"),
    (seeded_bugs.read_from_a_cache, WORLDS, r"an answer of revision \d+ after one of \d+"),
    (
        seeded_bugs.old_values_under_a_new_revision,
        WORLDS,
        r"disordered: .* a reader saw|no longer held",
    ),
    (seeded_bugs.expiry_by_the_clients_clock, WORLDS, "disordered: .* the space's time had"),
    (seeded_bugs.time_that_goes_back, WORLDS, "read Reading.* and should have Reading|: a page of"),
    (seeded_bugs.sweep_without_check, WORLDS, "removes what has not expired"),
    (seeded_bugs.lease_not_fenced, WORLDS, "of holder .* came after one of"),
    (seeded_task_bugs.task_completed_by_a_former_holder, WORLDS, "was claimed twice under"),
    (seeded_task_bugs.completed_task_done_again, WORLDS, "was completed twice"),
    (seeded_task_bugs.stale_index_entry_wakes, WORLDS, "the queue still has|completed, and claimed again"),
    (seeded_bugs.supposed_key_unchecked, SUPPOSED, "made from a stale value"),
    (seeded_bugs.supposed_error_raised, SUPPOSED, "an error came from a supposition"),
    (seeded_bugs.supposed_refusal_believed, SUPPOSED, "to write nothing came from a supposition"),
    (seeded_bugs.supposed_before_a_scan, SUPPOSED, "a listing took over a stale value"),
    (seeded_bugs.supposed_beside_a_read, SUPPOSED, "was mixed with a read|a listing took over"),
    (seeded_bugs.drop_restarts_revisions, WORLDS, r"is at revision \d+, below"),
    (seeded_bugs.collection_ignores_the_epoch, LARGE, "a part of its value is missing"),
    (seeded_bugs.revision_complete_after_its_first_change, RESUMED_WATCHES, "was missed by a watch"),
    (seeded_bugs.position_of_any_history, RESTORED_JOURNALS, "another history was followed"),
    (seeded_bugs.event_of_any_history, RESTORED_JOURNALS, "another history was followed"),
    (seeded_bugs.file_not_synced, FILE, r"\d+ steps acknowledged, \d+ found"),
    (seeded_bugs.folder_not_synced, FILE, r"\d+ steps acknowledged, \d+ found"),
    (seeded_bugs.read_before_durable, READ_DURING_SYNCS, "seen before it was durable"),
    (seeded_file_bugs.length_trusted, FLIPPED_BITS, "took data with it, and nobody was told"),
    (seeded_bugs.database_not_synced, FULL, r"\d+ steps acknowledged, \d+ found"),
    (seeded_bugs.half_a_batch_committed, FULL, "a state that never was"),
    (seeded_file_bugs.failed_sync_tried_again, FAILING_SYNCS, r"Applied\(.*Applied\("),
    (seeded_file_bugs.journal_length_unread, CUT_JOURNAL, "acknowledged into a gap"),
    (seeded_file_bugs.log_read_too_late, CUT_LOG, "acknowledged into a gap"),
    (seeded_file_bugs.log_end_unread, CUT_LOG, "acknowledged into a gap"),
    (seeded_file_bugs.second_name_opened, SECOND_NAME, "acknowledged keys are left"),
    (seeded_bugs.pages_not_checked, FLIPPED_TABLES, r"rows of page \d+ went, nobody was told"),
    (seeded_bugs.sealed_for_any_place, MOVED_VALUES, "was opened at"),
    (seeded_bugs.altered_rows_believed, ALTERED_ROWS, "was believed"),
    (seeded_bugs.content_named_by_digests, SEARCHED_NAMES, "was found by a search"),
    (seeded_bugs.mark_not_verified, LOST_HISTORY, "another history was read"),
    (seeded_history_bugs.new_objects_collected, COLLECTORS, "is missing"),
    (seeded_history_bugs.garbage_deleted_unseen, MOMENTS, "is missing"),
    (seeded_history_bugs.present_objects_not_put, MOMENTS, "is missing"),
    (seeded_history_bugs.cached_objects_not_put, COLLECTORS, "is missing"),
    (seeded_history_bugs.objects_ahead_ignore_the_epoch, COLLECTORS, "is missing"),
    (seeded_history_bugs.built_on_what_nothing_holds, MOMENTS, "is missing"),
    (seeded_history_bugs.carried_roots_forgotten, COLLECTORS, "is missing"),
    (seeded_history_bugs.names_not_checked, COLLECTORS, r"main counts \d+ of|main has \d+ lines|is missing"),
    (seeded_history_bugs.moved_names_overlooked, MOMENTS, "is missing"),
    (seeded_history_bugs.grafts_read_late, MOMENTS, "is missing"),
    (seeded_history_bugs.grafts_dropped_early, MOMENTS, "is missing"),
]
"""Each bug, what must find it, and what that must say of it: another finding is none of this bug."""

BROKEN_PLANTS = (TypeError, AttributeError, NameError, ImportError)
"""What a plant raises that no longer fits the code that it is planted in: it has shown no bug."""

INSTRUMENTS = [one for one in dict.fromkeys(instrument for _, instrument, _ in BUGS) if one is not WORLDS]
"""Those to be tried without a bug; `test_simulation` looks at the same worlds."""


@pytest.mark.parametrize(("bug", "instrument", "says"), BUGS, ids=[bug.__name__ for bug, _, _ in BUGS])
def test_a_planted_bug_is_found(
    bug: Bug, instrument: Instrument, says: str, tmp_path: Path, tally: Tally, request: pytest.FixtureRequest
) -> None:
    short = patch.object(instruments, "LEADS_END_WITHIN_S", 5.0)
    with short, bug(), pytest.raises((AssertionError, KeepstateError)) as found:
        instrument.run(tmp_path, request)

    print(f"{bug.__name__}: {str(found.value)[:300]}")
    caught = is_caught(found.value, says)
    tally("Seeded bugs", bugs_seeded=1, bugs_caught=int(caught))
    assert caught, f"expected a finding that says {says!r}, got {found.value}"


def test_a_plant_that_does_not_fit_is_no_catch() -> None:
    def check(self: Unit, key: bytes) -> None: ...

    with patch.object(Unit, "check", check), pytest.raises(BrokenPromiseError) as found:
        simulate(0, steps=300)

    assert not is_caught(found.value, "")
    assert not is_caught(AssertionError("something else"), "was completed twice")


def is_caught(found: BaseException, says: str) -> bool:
    """Whether a finding is of what the code did, not of a plant that breaks it, and says what it should."""
    said, error = str(found), found.__cause__
    if isinstance(found, BrokenPromiseError) and error is not None:
        said = str(error)  # without what happened last
    while error is not None:
        if isinstance(error, BROKEN_PLANTS):
            return False
        error = error.__cause__
    return not isinstance(found, BROKEN_PLANTS) and re.search(says, said, re.DOTALL) is not None


@pytest.mark.parametrize(
    "instrument",
    [pytest.param(one, id=repr(one), marks=[pytest.mark.deep] * (one is COLLECTORS)) for one in INSTRUMENTS],
)
def test_nothing_is_found_where_no_bug_is(
    instrument: Instrument, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    instrument.run(tmp_path, request)
