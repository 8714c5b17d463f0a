"""The proof finds each planted bug by the instrument that is there for it, and none where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from keepstate.errors import KeepstateError
from keepstate.testing.simulation import Dials
from keepstate.testing.simulation.workloads.counting import Counting
from keepstate.testing.simulation.workloads.dropping import Dropping
from keepstate.testing.simulation.workloads.keeping import Keeping
from keepstate.testing.simulation.workloads.limiting import Limiting
from keepstate.testing.simulation.workloads.playing import Playing
from tests.crashes import seeded_bugs
from tests.crashes.instruments import (
    FAILING_SYNCS,
    FLIPPED_BITS,
    FLIPPED_TABLES,
    LOST_HISTORY,
    MOVED_VALUES,
    READ_DURING_SYNCS,
    Instrument,
    power_cuts,
    worlds,
)
from tests.crashes.seeded_bugs import Bug
from tests.tally import Tally

WORLDS = worlds("worlds", 50)
RANGES = worlds("worlds of ranges", 5, Dials(delayed=0.8), [Limiting])
CALM = worlds("calm worlds", 5, Dials(delayed=0.8), [Playing, Dropping])
IMPATIENT = worlds("worlds whose callers give up", 2, Dials(delayed=0.5, cancelled=0.3), [Counting])
LARGE = worlds("worlds of large values", 2, Dials(delayed=0.5), [Keeping])
FILE = power_cuts("file-msgpack", 25)
FULL = power_cuts("sqlite-full", 25)

BUGS: list[tuple[Bug, Instrument]] = [
    (seeded_bugs.check_dropped, WORLDS),
    (seeded_bugs.check_after_write, WORLDS),
    (seeded_bugs.scan_unguarded, RANGES),
    (seeded_bugs.token_ignored, WORLDS),
    (seeded_bugs.token_too_late, WORLDS),
    (seeded_bugs.refusal_forgotten, WORLDS),
    (seeded_bugs.revision_skipped, WORLDS),
    (seeded_bugs.change_not_logged, WORLDS),
    (seeded_bugs.lost_wake_up, CALM),
    (seeded_bugs.flush_dies_with_its_caller, IMPATIENT),
    (seeded_bugs.read_from_a_cache, WORLDS),
    (seeded_bugs.old_values_under_a_new_revision, WORLDS),
    (seeded_bugs.expiry_by_the_clients_clock, WORLDS),
    (seeded_bugs.time_that_goes_back, WORLDS),
    (seeded_bugs.sweep_without_check, WORLDS),
    (seeded_bugs.lease_not_fenced, WORLDS),
    (seeded_bugs.task_completed_by_a_former_holder, WORLDS),
    (seeded_bugs.completed_task_done_again, WORLDS),
    (seeded_bugs.drop_restarts_revisions, WORLDS),
    (seeded_bugs.collection_ignores_the_epoch, LARGE),
    (seeded_bugs.file_not_synced, FILE),
    (seeded_bugs.folder_not_synced, FILE),
    (seeded_bugs.read_before_durable, READ_DURING_SYNCS),
    (seeded_bugs.length_trusted, FLIPPED_BITS),
    (seeded_bugs.database_not_synced, FULL),
    (seeded_bugs.half_a_batch_committed, FULL),
    (seeded_bugs.failed_sync_tried_again, FAILING_SYNCS),
    (seeded_bugs.pages_not_checked, FLIPPED_TABLES),
    (seeded_bugs.sealed_for_any_place, MOVED_VALUES),
    (seeded_bugs.mark_not_verified, LOST_HISTORY),
]
INSTRUMENTS = [one for one in dict.fromkeys(instrument for _, instrument in BUGS) if one is not WORLDS]
"""Those to be tried without a bug; `test_simulation` looks at the same worlds."""


@pytest.mark.parametrize(("bug", "instrument"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_planted_bug_is_found(
    bug: Bug, instrument: Instrument, tmp_path: Path, tally: Tally, request: pytest.FixtureRequest
) -> None:
    with bug(), pytest.raises((AssertionError, KeepstateError)) as found:
        instrument.run(tmp_path, request)

    print(f"{bug.__name__}: {str(found.value)[:300]}")
    tally("Seeded bugs", bugs_seeded=1, bugs_caught=1)


@pytest.mark.parametrize("instrument", INSTRUMENTS, ids=repr)
def test_nothing_is_found_where_no_bug_is(
    instrument: Instrument, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    instrument.run(tmp_path, request)
