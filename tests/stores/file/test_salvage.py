"""What is whole of a damaged journal is read, whatever stands beside it, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate.errors import CorruptError
from keepstate.stores.file.frames import Head
from keepstate.stores.protocol import Delete, Entry, Put
from keepstate.stores.recovery.file import JournalRemains
from tests.stores.file.disks import A, opened, put

Version = tuple[bytes, int, bytes]


@pytest.fixture(scope="module", params=["msgpack", "json", "msgpack-zstd", "json-zstd"])
def journal(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Thirty revisions, each a frame of its own, over nine keys of which two are deleted again."""
    path = tmp_path_factory.mktemp("whole") / "journal"
    store = opened(path, format=request.param)
    for number in range(28):
        put(store, Put(b"\x02key %d" % (number % 9), b"value %d " % number * 20))
    put(store, Delete(b"\x02key 3"))
    put(store, Delete(b"\x02key 4"))
    finish(store.close())
    return path.read_bytes()


def remains(folder: Path, data: bytes) -> tuple[JournalRemains, dict[bytes, Entry]]:
    path = folder / "damaged"
    path.write_bytes(data)
    found = JournalRemains(str(path))
    return found, {entry.key: entry for space in found.spaces() for entry in found.entries(space.name)}


def versions(entries: dict[bytes, Entry]) -> set[Version]:
    return {(entry.key, entry.version, entry.value) for entry in entries.values()}


def written() -> set[Version]:
    return {(b"\x02key %d" % (n % 9), n + 1, b"value %d " % n * 20) for n in range(28)}


def test_a_whole_journal_has_no_damage(journal: bytes, tmp_path: Path) -> None:
    found, entries = remains(tmp_path, journal)

    assert found.damages == []
    assert len(entries) == 7
    assert [(space.revision, space.exists) for space in found.spaces()] == [(30, True)]


@settings(max_examples=150)
@given(data=st.data())
def test_any_turned_bit_is_found_and_costs_one_frame_at_the_most(
    journal: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = versions(remains(tmp_path_factory.mktemp("whole"), journal)[1])
    bit = data.draw(st.integers(0, 8 * len(journal) - 1))
    damaged = bytearray(journal)
    damaged[bit // 8] ^= 1 << bit % 8

    found, entries = remains(tmp_path_factory.mktemp("damaged"), bytes(damaged))

    assert found.damages
    assert len(whole - versions(entries)) <= 1
    assert versions(entries) <= written()


@settings(max_examples=100)
@given(data=st.data())
def test_what_stands_behind_a_hole_is_read(
    journal: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = versions(remains(tmp_path_factory.mktemp("whole"), journal)[1])
    start = data.draw(st.integers(journal.index(b"\n") + 1, len(journal) - 1_000))
    size = data.draw(st.integers(1, 300))  # less than two frames
    hole = b"\xa5" * size
    assume(journal[start : start + size] != hole)

    found, entries = remains(
        tmp_path_factory.mktemp("damaged"), journal[:start] + hole + journal[start + size :]
    )

    assert found.damages
    assert len(whole - versions(entries)) <= 3
    assert versions(entries) <= written()
    assert found.spaces()[0].revision == 30


@settings(max_examples=100)
@given(data=st.data())
def test_a_torn_end_is_no_damage(
    journal: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    size = data.draw(st.integers(journal.index(b"\n") + 1, len(journal)))

    found, entries = remains(tmp_path_factory.mktemp("torn"), journal[:size])

    assert found.damages == []
    assert versions(entries) <= written()


def test_the_place_of_a_damaged_frame_and_the_lost_revision_are_named(journal: bytes, tmp_path: Path) -> None:
    at = journal.index(b"\nframe ", len(journal) // 2) + 1
    damaged = journal[: at + 60] + b"#" + journal[at + 61 :]

    found, _ = remains(tmp_path, damaged)

    assert found.damages[0].place == f"{tmp_path / 'damaged'} at byte {at}"
    assert "are lost" in found.damages[1].what
    assert found.damages[1].space is not None


@pytest.mark.parametrize("share", [0.1, 0.4, 0.7])
def test_a_place_of_a_rewritten_journal_costs_no_more_than_its_frame(tmp_path: Path, share: float) -> None:
    path = tmp_path / "journal"
    store = opened(path)
    for number in range(200):
        put(store, Put(b"\x01key %03d" % number, b"%03d " % number * 1_000))
    finish(store.close())
    finish(opened(path, format="json").close())
    journal = path.read_bytes()
    at = int(len(journal) * share)

    whole = versions(remains(tmp_path, journal)[1])
    found, entries = remains(tmp_path, journal[:at] + b"\xa5" + journal[at + 1 :])

    assert len(whole) == 200
    assert len(found.damages) == 1
    assert 0 < len(whole - versions(entries)) <= (64 << 10) // 4_000 + 2
    assert versions(entries) <= whole
    assert [space.revision for space in found.spaces()] == [200]


def test_a_lost_first_line_costs_no_frame(journal: bytes, tmp_path: Path) -> None:
    found, entries = remains(tmp_path, bytes(40) + journal[40:])

    assert versions(entries) == versions(remains(tmp_path, journal)[1])
    assert [damage.what for damage in found.damages] == [
        "the first line is damaged; the frames tell what it said"
    ]
    assert found.spaces()[0].revision == 30


@pytest.mark.parametrize("size", [1, 40, 400])
def test_bytes_that_were_removed_cost_the_frames_that_they_were_in(
    journal: bytes, tmp_path: Path, size: int
) -> None:
    whole = versions(remains(tmp_path, journal)[1])
    start = len(journal) // 2

    found, entries = remains(tmp_path, journal[:start] + journal[start + size :])

    assert f"were written {size} bytes farther on" in found.damages[0].what
    assert len(whole - versions(entries)) <= 4
    assert versions(entries) <= written()
    assert found.spaces()[0].revision == 30


def test_what_never_was_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptError, match="does not start like a journal"):
        remains(tmp_path, b"a letter to nobody\n" * 40)


def test_the_source_is_not_touched(journal: bytes, tmp_path: Path) -> None:
    remains(tmp_path, journal[:-7])

    assert (tmp_path / "damaged").read_bytes() == journal[:-7]
    assert [path.name for path in tmp_path.iterdir()] == ["damaged"]


def test_reading_a_journal_with_a_gap_costs_in_proportion_to_its_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[int] = []
    right = Head.body_under

    def body_under(self: Head, frame_head: bytes, data: bytes, at: int) -> memoryview | None:
        looked.append(at)
        return right(self, frame_head, data, at)

    monkeypatch.setattr(Head, "body_under", body_under)
    counts: list[int] = []
    for number in (50, 100, 200):
        path = tmp_path / str(number)
        store = opened(path)
        for turn in range(number):
            put(store, Put(A, b"%d " % turn * 20))
        finish(store.close())
        data = bytearray(path.read_bytes())
        data[200 : len(data) // 2] = bytes(len(data) // 2 - 200)
        path.write_bytes(data)
        looked.clear()

        found = JournalRemains(str(path))

        counts.append(len(looked))
        assert [entry.value for entry in found.entries("space")] == [b"%d " % (number - 1) * 20]
    assert counts[1] < 2.5 * counts[0]
    assert counts[2] < 2.5 * counts[1]


@pytest.mark.parametrize("kind", ["pipe", "link"])
def test_a_lock_that_is_no_file_holds_up_no_salvage(journal: bytes, kind: str, tmp_path: Path) -> None:
    lock = tmp_path / "damaged.lock"
    os.mkfifo(lock) if kind == "pipe" else lock.symlink_to("/dev/zero")

    found, _ = remains(tmp_path, journal)

    assert found.damages == []
