"""Frames are found again where the first line is lost, or bytes before them."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from zlib import crc32

import pytest

from keepstate._finish import finish
from keepstate.stores.file.frames import Head
from keepstate.stores.protocol import Put
from keepstate.stores.recovery.file import Moved, head_from_frames, realign
from tests.stores.file.disks import opened, put


@pytest.fixture(params=["msgpack", "json", "msgpack-zstd", "json-zstd"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> bytes:
    path = tmp_path / "journal"
    store = opened(path, format=request.param)
    for number in range(30):
        unlike = b"".join(sha256(b"%d %d" % (number, part)).hexdigest().encode() for part in range(3))
        put(store, Put(b"\x02key %d" % number, unlike))  # compressed, the journal is still long
    finish(store.close())
    return path.read_bytes()


def test_the_frames_tell_the_checksum_of_the_seed_and_the_format(journal: bytes) -> None:
    head = Head.of(journal, "journal")

    found = head_from_frames(bytes(40) + journal[40:])

    assert found is not None
    assert (found.format, crc32(found.seed)) == (head.format, crc32(head.seed))
    assert found.body(journal, len(bytes(head))) == head.body(journal, len(bytes(head)))


def test_a_frame_of_another_place_tells_no_head(journal: bytes) -> None:
    assert head_from_frames(b"frame that never was\n" * 40) is None
    assert head_from_frames(b"") is None


@pytest.mark.parametrize("by", [1, 7, 500, 3_000, -1, -300])
def test_frames_that_moved_are_put_in_their_place(journal: bytes, by: int) -> None:
    head = Head.of(journal, "journal")
    at = len(journal) // 3
    damaged = journal[:at] + journal[at + by :] if by > 0 else journal[:at] + b"#" * -by + journal[at:]

    found, (move,) = realign(damaged, head)

    assert move.by == by
    assert len(found) == len(journal)
    whole = move.at + move.by
    assert found[whole:] == journal[whole:]
    assert found[: at - 700] == journal[: at - 700]


def test_whole_torn_and_holed_journals_stay_as_they_are(journal: bytes) -> None:
    head = Head.of(journal, "journal")
    for kept in (journal, journal[:-7], journal[:900] + b"#" * 40 + journal[940:]):
        assert realign(kept, head) == (kept, list[Moved]())


def test_a_copy_of_the_journal_in_a_damaged_value_is_no_part_of_it(journal: bytes) -> None:
    head = Head.of(journal, "journal")
    holder = bytearray(head.frame(b"a value that holds " + journal, len(journal)))
    holder[40] ^= 1

    data = journal + bytes(holder)

    assert realign(data, head) == (data, [])
