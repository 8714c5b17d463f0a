"""What a crash tore is cut off; what was damaged is named and not touched.

Whoever tears a journal here takes its note back to what it was before the write, as a crash would.
"""

from __future__ import annotations

import logging
from pathlib import Path
from zlib import crc32

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate.errors import CorruptError, UnsupportedError
from keepstate.stores.file.frames import Head
from keepstate.stores.protocol import Put
from tests.stores.file.disks import A, B, filled, opened, put, revision, values

FORMATS = ["json", "msgpack"]


def head_bytes(journal: bytes) -> int:
    return journal.index(b"\n") + 1


def noted(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def last_frame(journal: bytes) -> int:
    return journal.rindex(b"\nframe ") + 1


@pytest.mark.parametrize("format", FORMATS)
def test_a_journal_cut_anywhere_opens_to_a_prefix_of_its_revisions(tmp_path: Path, format: str) -> None:
    path = tmp_path / "journal"
    journal = filled(path, format=format)
    seen: list[int] = []

    for size in range(head_bytes(journal), len(journal) + 1):
        path.write_bytes(journal[:size])
        noted(path).unlink()
        store = opened(path)
        seen.append(revision(store))
        assert values(store) == (
            [None, None] if not seen[-1] else [b"%d" % (seen[-1] - 1), b"value %d" % (seen[-1] - 1)]
        )
        if size % 50 == 0:
            assert put(store, Put(A, b"goes on")) == seen[-1] + 1
        finish(store.close())

    assert seen == sorted(seen)
    assert set(seen) == {0, 1, 2, 3, 4, 5}


def test_what_is_cut_off_is_told_with_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    torn = last_frame(journal)
    path.write_bytes(journal[:-3])
    noted(path).unlink()

    with caplog.at_level(logging.WARNING, "keepstate.stores"):
        finish(opened(path).close())
        finish(opened(path).close())

    (said,) = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"{path} ended at byte {torn} with {len(journal) - 3 - torn} bytes")


def test_what_was_cut_off_stays_away(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    path.write_bytes(journal[:-3])
    noted(path).unlink()
    store = opened(path)

    put(store, Put(A, b"new"))
    finish(store.close())

    again = opened(path)
    assert (revision(again), values(again)) == (5, [b"new", b"value 3"])
    finish(again.close())


@pytest.mark.parametrize("format", FORMATS)
def test_a_flipped_bit_anywhere_is_damage_and_the_file_is_not_touched(tmp_path: Path, format: str) -> None:
    path = tmp_path / "journal"
    journal = filled(path, format=format)

    for place in range(len(journal)):
        damaged = bytearray(journal)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        with pytest.raises((CorruptError, UnsupportedError)) as caught:
            opened(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == damaged


def test_damage_is_named_by_its_place(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = bytearray(filled(path))
    place = last_frame(bytes(journal))
    journal[place + 40] ^= 1
    path.write_bytes(journal)

    with pytest.raises(CorruptError, match=f"at byte {place}") as caught:
        opened(path)

    assert caught.value.place == f"{path} at byte {place}"


def test_a_last_frame_with_an_empty_sector_is_torn(tmp_path: Path) -> None:
    """The file grew, and its last sectors did not reach the disk."""
    path = tmp_path / "journal"
    store = opened(path)
    put(store, Put(A, b"kept"))
    finish(store.close())
    kept, note = path.stat().st_size, noted(path).read_bytes()
    store = opened(path)
    put(store, Put(B, b"x" * 5000))
    finish(store.close())
    journal = bytearray(path.read_bytes())

    sector = (kept // 512 + 3) * 512
    journal[sector : sector + 512] = bytes(512)
    path.write_bytes(journal)
    noted(path).write_bytes(note)

    store = opened(path)
    assert values(store) == [b"kept", None]
    finish(store.close())
    assert path.stat().st_size == kept


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), before=st.integers(0, 1200), form=st.sampled_from(FORMATS))
def test_a_power_cut_in_a_write_keeps_all_before_it(
    tmp_path: Path, data: st.DataObject, before: int, form: str
) -> None:
    """Any of the write's sectors may be missing, and the file may have grown for them or not."""
    path = tmp_path / "journal"
    path.unlink(missing_ok=True)
    noted(path).unlink(missing_ok=True)
    store = opened(path, format=form)
    put(store, Put(A, b"k" * before))
    start, note = path.stat().st_size, noted(path).read_bytes()
    value = data.draw(st.binary(max_size=40)) * data.draw(st.integers(1, 60))
    put(store, Put(B, value), Put(b"\x01more", bytes(data.draw(st.integers(0, 700)))))
    finish(store.close())
    whole = path.read_bytes()
    image = bytearray(whole[: data.draw(st.integers(start, len(whole)))])
    for sector in range(start - start % 512, len(image), 512):
        if data.draw(st.booleans()):
            low, high = max(sector, start), min(sector + 512, len(image))
            image[low:high] = bytes(high - low)

    path.write_bytes(image)
    noted(path).write_bytes(note)
    store = opened(path)

    assert values(store) in ([b"k" * before, None], [b"k" * before, value])
    assert revision(store) == (2 if bytes(image) == whole else 1)
    finish(store.close())


def test_zeros_are_no_frame(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    path.write_bytes(journal + bytes(9000))

    store = opened(path)

    assert revision(store) == 5
    finish(store.close())
    assert path.read_bytes() == journal


def test_an_empty_sector_before_a_good_frame_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    store = opened(path)
    put(store, Put(A, b"x" * 5000))
    put(store, Put(B, b"after"))
    finish(store.close())
    journal = bytearray(path.read_bytes())
    journal[1024:1536] = bytes(512)
    path.write_bytes(journal)

    with pytest.raises(CorruptError):
        opened(path)


def test_a_journal_inside_a_value_is_no_frame(tmp_path: Path) -> None:
    """A backup kept in the store itself does not make a torn end look damaged."""
    path = tmp_path / "journal"
    backup = filled(path)
    note = noted(path).read_bytes()
    store = opened(path)
    put(store, Put(B, backup))
    finish(store.close())
    journal = path.read_bytes()

    path.write_bytes(journal[:-1])
    noted(path).write_bytes(note)

    store = opened(path)
    assert revision(store) == 5
    finish(store.close())


def test_a_frame_of_another_journal_is_no_frame(tmp_path: Path) -> None:
    first, second = filled(tmp_path / "first"), filled(tmp_path / "second")
    assert len(first) == len(second)
    path = tmp_path / "first"
    path.write_bytes(first[: last_frame(first)] + second[last_frame(second) :])

    with pytest.raises(CorruptError):
        opened(path)


@pytest.mark.parametrize("content", [b"SQLite format 3\x00", b"{}", b"keepstate journal", b"\x00" * 100])
def test_a_file_that_is_no_journal_is_named_and_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "journal"
    path.write_bytes(content)

    with pytest.raises(CorruptError, match="does not start like a journal"):
        opened(path)

    assert path.read_bytes() == content


def test_an_empty_file_is_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.touch()

    store = opened(path)

    assert put(store, Put(A, b"1")) == 1
    finish(store.close())


def test_a_journal_of_a_later_version_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    line = journal[: head_bytes(journal) - 9].replace(b"journal 1", b"journal 2")
    path.write_bytes(line + b"%08x\n" % crc32(line) + journal[head_bytes(journal) :])

    with pytest.raises(UnsupportedError, match=r"version 2.*Upgrade"):
        opened(path)


def test_a_turned_bit_in_the_version_is_damage_and_no_later_version(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(filled(path).replace(b"journal 1", b"journal 3", 1))

    with pytest.raises(CorruptError, match="does not start like a journal"):
        opened(path)


def test_a_frame_that_makes_no_sense_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    head = Head.of(journal, str(path))
    path.write_bytes(journal + head.frame(b"whole, but nothing that a journal holds", len(journal)))

    with pytest.raises(CorruptError, match="invalid items"):
        opened(path)


def test_a_frame_that_stands_twice_is_damage(tmp_path: Path) -> None:
    """Its revision does not follow."""
    path = tmp_path / "journal"
    journal = filled(path)
    head = Head.of(journal, str(path))
    body = head.body(journal, last_frame(journal))
    assert body is not None
    path.write_bytes(journal + head.frame(bytes(body[:-1]), len(journal)))

    with pytest.raises(CorruptError, match="revision 5 follows revision 5"):
        opened(path)
