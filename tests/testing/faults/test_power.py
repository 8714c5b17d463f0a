"""What a power cut leaves of a record, by the model's own rules, and that a missing sync shows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest
from keepstate_testing.faults.disk import Cut, FolderSynced, Opened, Removed, Replaced, Synced, Wrote
from keepstate_testing.faults.power import (
    PAGE_BYTES,
    SECTOR_BYTES,
    Image,
    Marked,
    Moment,
    Recorder,
    image,
    images,
    places,
)

from tests.crashes import power_workload as workload

MADE: list[Moment] = [Opened("/d/a", True), Wrote("/d/a", 0, b"old"), Synced("/d/a"), FolderSynced("/d")]


def saved(name: str, data: bytes) -> list[Moment]:
    return [Wrote(f"/d/{name}", 0, data), Synced(f"/d/{name}")]


def possible(moments: Sequence[Moment], tries: int = 300) -> list[Image]:
    """Return images of a cut after all moments."""
    return [image(moments, len(moments), "", random.Random(seed)) for seed in range(tries)]


def contents(moments: Sequence[Moment], name: str = "a") -> set[bytes | None]:
    return {found.files.get(name) for found in possible(moments)}


def test_what_was_synced_stays() -> None:
    assert contents(MADE) == {b"old"}


def test_what_was_not_synced_is_there_or_not() -> None:
    assert contents([*MADE, Wrote("/d/a", 0, b"new")]) == {b"old", b"new"}


def test_a_file_whose_folder_was_not_synced_may_be_missing() -> None:
    moments: list[Moment] = [Opened("/d/a", True), Wrote("/d/a", 0, b"old"), Synced("/d/a")]

    assert contents(moments) == {None, b"old"}


def test_a_file_replaced_is_one_or_the_other_and_never_a_mixture() -> None:
    moments = [
        *MADE,
        Opened("/d/b", True),
        Wrote("/d/b", 0, b"new"),
        Synced("/d/b"),
        Replaced("/d/a", "/d/b"),
    ]

    assert contents(moments) == {b"old", b"new"}
    assert contents([*moments, FolderSynced("/d")]) == {b"new"}


def test_a_file_replaced_before_it_was_synced_may_be_empty() -> None:
    moments = [*MADE, Opened("/d/b", True), Wrote("/d/b", 0, b"new"), Replaced("/d/a", "/d/b")]

    assert b"" in contents(moments)


def test_a_removed_file_may_still_be_there() -> None:
    assert contents([*MADE, Removed("/d/a")]) == {None, b"old"}
    assert contents([*MADE, Removed("/d/a"), FolderSynced("/d")]) == {None}


def test_pages_and_sectors_reach_the_disk_each_by_itself() -> None:
    write: Moment = Wrote("/d/a", 0, b"n" * 2 * PAGE_BYTES)

    found = contents([*MADE, write])

    assert b"n" * PAGE_BYTES in {
        data[:PAGE_BYTES] for data in found if data and data.endswith(bytes(PAGE_BYTES))
    }
    sectors = {data[:SECTOR_BYTES] for data in found if data and len(data) == 2 * PAGE_BYTES}
    assert sectors == {b"n" * SECTOR_BYTES, b"old".ljust(SECTOR_BYTES, b"\0")}


def test_a_sector_is_never_torn() -> None:
    before, half, whole = b"old".ljust(150, b"\0"), b"1" * 100 + bytes(50), b"1" * 50 + b"2" * 100
    moments = [*MADE, Wrote("/d/a", 0, b"1" * 100), Wrote("/d/a", 50, b"2" * 100)]

    for data in contents(moments):
        assert data is not None
        assert data in {state[: len(data)] for state in (before, half, whole)}


def test_what_was_cut_off_is_there_as_a_whole_or_not_at_all() -> None:
    whole = b"x" * 3 * PAGE_BYTES
    moments: list[Moment] = [
        Opened("/d/a", True),
        Wrote("/d/a", 0, whole),
        Synced("/d/a"),
        FolderSynced("/d"),
        Cut("/d/a", 0),
    ]

    assert contents(moments) == {whole, b""}


def test_marks_say_what_was_acknowledged_at_the_cut() -> None:
    moments = [*MADE, Marked(1), Marked(1, is_closed=True), Wrote("/d/a", 0, b"x"), Marked(2)]

    assert [(found.acknowledged, found.closed) for found in possible(moments, 1)] == [(2, 1)]
    assert image(moments, 5, "", random.Random(0)).acknowledged == 1


def test_every_kind_of_place_is_tried() -> None:
    written = [one for number in range(9) for name in "ab" for one in saved(name, b"%d" % number)]

    found = {one.place for one in images([*MADE, Opened("/d/b", True), *written], 20, random.Random(0))}

    assert {"Wrote a", "Synced a", "Wrote b", "Synced b"} <= found


def test_no_two_images_are_alike_and_a_record_that_has_no_more_gives_no_more() -> None:
    found = list(images(MADE, 50, random.Random(0)))

    assert sorted(tuple(one.files.items()) for one in found) == [(), (("a", b""),), (("a", b"old"),)]
    assert len({one.digest for one in found}) == 3


def test_images_that_were_seen_before_do_not_count_again() -> None:
    seen = {one.digest for one in images(MADE, 2, random.Random(0))}

    more = list(images(MADE, 50, random.Random(1), seen=seen))

    assert len(more) == 1
    assert len(seen) == 3


def test_the_power_goes_after_what_was_acknowledged_without_another_change() -> None:
    moments: list[Moment] = [*MADE, Marked(1), Marked(1, is_closed=True), Wrote("/d/a", 0, b"x")]

    assert places(moments) == {"Opened a": [1], "Wrote a": [2, 7], "Synced a": [3], "FolderSynced d": [6]}


def test_moments_with_something_acknowledged_come_first() -> None:
    early = [one for number in range(9) for one in saved("a", b"early %d" % number)]
    later = [one for number in range(9) for one in saved("a", b"later %d" % number)]

    found = images([*MADE, *early, Marked(1), *later], 6, random.Random(0))

    assert sum(one.acknowledged for one in found) >= 4


def test_a_record_upon_files_begins_with_them(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")

    assert contents(Recorder.upon(tmp_path).moments) == {b"old"}


@pytest.mark.parametrize("kind", ["file-msgpack", "sqlite-full"])
def test_a_store_that_does_not_sync_is_found_out(kind: str, tmp_path: Path) -> None:
    recording = workload.record(kind, tmp_path, 0, sessions=1)
    log = "journal" if kind.startswith("file") else "keepstate.db-wal"
    forgetful = [one for one in recording.moments if not (isinstance(one, Synced) and one.path.endswith(log))]

    newest = [one.files.get(log, b"") for one in images(forgetful, 60, random.Random(0))]
    whole = [one.files.get(log, b"") for one in images(recording.moments, 60, random.Random(0))]

    assert sum(map(len, newest)) < sum(map(len, whole))
