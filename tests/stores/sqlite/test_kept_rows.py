"""What a writer keeps from one section to the next, and how much of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from keepstate_testing.faults.disk import FailingDisk

from keepstate._finish import finish
from keepstate.errors import StoreFullError
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Put
from keepstate.stores.sqlite.flush import _SPACES_LEFT
from keepstate.stores.sqlite.revision import _KNOWN_KEYS
from tests.crashes.kept_rows_stories import STORIES, Stage, tell
from tests.stores.sqlite.conftest import Opens

A = b"\x01a"

# Newer Pythons warn of every fork of a process with threads.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_batch_is_judged_by_what_the_file_holds(story: Callable[[Stage], None], tmp_path: Path) -> None:
    tell(story, tmp_path)


def test_after_a_full_disk_a_batch_is_judged_by_what_the_file_holds(disk: FailingDisk, opened: Opens) -> None:
    store = opened(durability="normal")
    [_] = finish(store.apply([Batch("s", [Put(A, b"1")], [Check(A, version=0)])]))
    disk.room_bytes = 0

    [full] = finish(store.apply([Batch("s", [Put(A, bytes(100_000))], [Check(A, version=1)])]))

    assert isinstance(full, StoreFullError)
    disk.room_bytes = None
    [refused] = finish(store.apply([Batch("s", [Put(A, b"2")], [Check(A, version=2)])]))
    assert refused == Conflict(A, 1)
    [applied] = finish(store.apply([Batch("s", [Put(A, b"2")], [Check(A, version=1)])]))
    assert isinstance(applied, Applied)
    assert applied.revision == 2


def test_rows_of_a_number_of_spaces_and_keys_are_kept(opened: Opens) -> None:
    store = opened(durability="normal")
    for number in range(_SPACES_LEFT + 10):
        finish(store.apply([Batch(f"{number}", [Put(A, b"")])]))
    for number in range(2 * _KNOWN_KEYS):
        finish(store.apply([Batch("s", [Put(A, b"")], [Check(b"\x01%d" % number, version=0)])]))

    kept = store._open_database._writer._left
    assert 1 < len(kept) <= _SPACES_LEFT
    assert 1 < len(kept["s"].known) <= _KNOWN_KEYS + 1
