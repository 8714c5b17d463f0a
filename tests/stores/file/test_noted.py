"""A journal that was cut off or replaced is damage, and a crash at any moment is none."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstate._finish import finish
from keepstate.errors import CorruptError, StoreFullError
from keepstate.stores.file import durable_mark
from keepstate.stores.file import journal as journals
from keepstate.stores.file.io import Files
from keepstate.stores.protocol import Put
from keepstate.stores.recovery.file import JournalRemains
from tests.stores.file.disks import A, filled, opened, put, revision

FORMATS = ["json", "msgpack"]


def lock_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def after_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable_mark, "machine_start", lambda: b"another-start".ljust(36, b"-"))


def refused(path: Path, said: str = "was cut off") -> CorruptError:
    """Open what must not open, and look that nothing was touched."""
    before = path.read_bytes()
    with pytest.raises(CorruptError, match=f"{re.escape(str(path))} {said}") as caught:
        opened(path)
    assert path.read_bytes() == before
    return caught.value


@pytest.fixture(scope="module", params=FORMATS)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("whole") / "journal"
    filled(path, 20, request.param)
    return path


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_journal_cut_anywhere_is_refused_with_its_place(
    whole: Path, tmp_path: Path, data: st.DataObject
) -> None:
    path, written = tmp_path / "journal", whole.read_bytes()
    first = written.index(b"\n") + 1
    ends = [found.start() + 1 for found in re.finditer(b"\nframe ", written)]
    size = data.draw(st.sampled_from(ends) | st.integers(first, len(written) - 1))
    path.write_bytes(written[:size])
    shutil.copyfile(lock_of(whole), lock_of(path))

    error = refused(path)

    at = max(end for end in ends if end <= size)
    assert error.place == f"{path} at byte {at}"
    assert f"notes {len(written)} bytes" in str(error)


@pytest.mark.parametrize("size", [0, 1, 30])
def test_a_journal_cut_in_its_first_line_is_refused(tmp_path: Path, size: int) -> None:
    path = tmp_path / "journal"
    path.write_bytes(filled(path)[:size])

    refused(path, "was cut off at byte 0" if size == 0 else "does not start")


def test_a_cut_is_refused_after_a_restart_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "journal"
    path.write_bytes(filled(path)[:-1])
    after_a_restart(monkeypatch)

    refused(path)


def test_a_cut_is_refused_again_and_again(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    path.write_bytes(journal[:-1])

    refused(path)
    refused(path)

    path.write_bytes(journal)
    store = opened(path)
    assert put(store, Put(A, b"goes on")) == 6
    finish(store.close())


def test_an_older_copy_in_place_of_the_journal_is_refused_until_the_lock_file_is_removed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "journal"
    copy = filled(path)
    store = opened(path)
    put(store, Put(A, b"acknowledged"))
    finish(store.close())
    path.write_bytes(copy)

    assert str(lock_of(path)) in str(refused(path))
    lock_of(path).unlink()
    store = opened(path)

    assert revision(store) == 5
    finish(store.close())


def test_a_copy_from_before_the_journal_was_written_anew_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    copy = filled(path, format="json")
    finish(opened(path, format="msgpack").close())
    path.write_bytes(copy)

    refused(path, "was replaced")


def test_a_note_of_a_journal_long_gone_does_not_count_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock file is not synced: it may be from before the journal was written anew."""
    path = tmp_path / "journal"
    filled(path, format="json")
    old = lock_of(path).read_bytes()
    finish(opened(path, format="msgpack").close())
    lock_of(path).write_bytes(old)
    after_a_restart(monkeypatch)

    store = opened(path)

    assert revision(store) == 5
    finish(store.close())


def test_another_frame_at_the_noted_place_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    copy = filled(path)
    put_and_close(path, b"one way")
    note = lock_of(path).read_bytes()
    path.write_bytes(copy)
    lock_of(path).unlink()
    put_and_close(path, b"another")
    lock_of(path).write_bytes(note)

    refused(path, "was replaced")
    assert [damage.what for damage in JournalRemains(str(path)).damages] == [
        "another frame stood here and was replaced"
    ]


def put_and_close(path: Path, value: bytes) -> None:
    store = opened(path)
    put(store, Put(A, value))
    finish(store.close())


def test_what_follows_the_noted_end_is_torn_and_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    note = lock_of(path).read_bytes()
    put_and_close(path, b"in flight")
    path.write_bytes(path.read_bytes()[:-1])
    lock_of(path).write_bytes(note)

    store = opened(path)

    assert revision(store) == 5
    finish(store.close())
    assert path.read_bytes() == journal


@pytest.mark.parametrize("content", [None, b"", b"4711\n", b"\xff" * 700, bytes(300)])
def test_without_a_note_a_journal_opens_as_far_as_it_is_whole(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "journal"
    path.write_bytes(filled(path)[:-1])
    lock_of(path).unlink()
    if content is not None:
        lock_of(path).write_bytes(content)

    store = opened(path)

    assert put(store, Put(A, b"goes on")) == 5
    finish(store.close())
    put_and_close(path, b"and on")


@pytest.mark.parametrize("bit", range(0, 8 * 150, 7))
def test_a_turned_bit_in_the_note_costs_the_note_alone(
    tmp_path_factory: pytest.TempPathFactory, bit: int
) -> None:
    path = tmp_path_factory.mktemp("turned") / "journal"
    filled(path)
    note = bytearray(lock_of(path).read_bytes())
    note[min(32 + bit // 8, len(note) - 1)] ^= 1 << bit % 8
    lock_of(path).write_bytes(note)

    store = opened(path)

    assert revision(store) == 5
    finish(store.close())


@pytest.mark.parametrize("restarts", [False, True])
def test_a_journal_that_was_removed_is_refused_until_its_lock_file_is_removed_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    path = tmp_path / "journal"
    written = filled(path)
    path.unlink()
    if restarts:
        after_a_restart(monkeypatch)

    for _ in range(2):
        with pytest.raises(CorruptError, match=f"{re.escape(str(path))} was removed") as caught:
            opened(path)
    assert f"notes {len(written)} bytes" in str(caught.value)
    assert caught.value.place == str(path)
    assert [file.name for file in tmp_path.iterdir()] == [lock_of(path).name]

    path.write_bytes(written)
    store = opened(path)
    assert revision(store) == 5
    finish(store.close())
    path.unlink()
    lock_of(path).unlink()
    put_and_close(path, b"begins anew")


def test_a_lock_file_without_a_note_tells_of_no_journal(tmp_path: Path) -> None:
    """A process that was killed before its journal had a name leaves one."""
    path = tmp_path / "journal"
    lock_of(path).write_bytes(b"4711".ljust(31) + b"\n")

    put_and_close(path, b"1")


@dataclass
class Watched(Files):
    """Keeps what a process killed before any of its calls, or right after one, would leave."""

    folder: Path
    images: list[tuple[dict[str, bytes], int]] = field(default_factory=list)
    acknowledged: int = 0

    def look(self) -> None:
        files = {path.name: path.read_bytes() for path in self.folder.iterdir()}
        self.images.append((files, self.acknowledged))

    def write(self, descriptor: int, data: memoryview, at: int) -> int:
        self.look()
        half = super().write(descriptor, data[: len(data) // 2 or 1], at)
        self.look()
        return half

    def sync(self, descriptor: int) -> None:
        self.look()
        super().sync(descriptor)
        self.look()

    def replace(self, path: str, by: str) -> None:
        self.look()
        super().replace(path, by)
        self.look()

    def sync_folder(self, path: str) -> None:
        self.look()
        super().sync_folder(path)
        self.look()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_process_killed_at_any_call_leaves_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_restarted: bool
) -> None:
    """Also where the journal is made, written anew, and written in the other format."""
    recorded, image = tmp_path / "recorded", tmp_path / "image"
    recorded.mkdir()
    image.mkdir()
    watched = Watched(recorded)
    monkeypatch.setattr(journals, "_LEAST_GROWTH_BYTES", 4_000)
    for form in ("msgpack", "json"):
        store = opened(recorded / "journal", watched, form)
        for _ in range(12):
            watched.acknowledged = put(store, Put(A, os.urandom(700)))
        finish(store.close())
        watched.look()
    assert len({files.get("journal", b"")[:60] for files, _ in watched.images}) >= 5
    if is_restarted:
        after_a_restart(monkeypatch)

    for files, acknowledged in watched.images:
        for name in ("journal", "journal.new", "journal.lock"):
            (image / name).unlink(missing_ok=True)
        for name, content in files.items():
            (image / name).write_bytes(content)
        store = opened(image / "journal")
        assert revision(store) in (acknowledged, acknowledged + 1)
        finish(store.close())


def test_a_note_that_cannot_be_written_stays_an_older_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    store = opened(path)
    put(store, Put(A, b"noted"))

    with monkeypatch.context() as patched:
        patched.setattr(durable_mark.MarkFile, "_write", failing)
        assert put(store, Put(A, b"not noted")) == 2
    finish(store.close())

    store = opened(path)
    assert revision(store) == 2
    finish(store.close())


def test_a_journal_is_not_replaced_before_that_is_noted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "journal"
    journal = filled(path, format="json")
    write = durable_mark.MarkFile._write

    def fail_to_announce(note: Any, end: durable_mark.End, following: durable_mark.End) -> None:
        if end != following:
            raise OSError(28, "No space left on device")
        write(note, end, following)

    with monkeypatch.context() as patched:
        patched.setattr(durable_mark.MarkFile, "_write", fail_to_announce)
        with pytest.raises(StoreFullError):
            opened(path, format="msgpack")

    assert path.read_bytes() == journal
    finish(opened(path, format="msgpack").close())


def failing(*_: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("is_between_frames", [True, False])
def test_what_was_cut_off_is_named_in_what_remains(tmp_path: Path, is_between_frames: bool) -> None:
    path = tmp_path / "journal"
    journal = filled(path)
    at = journal.rindex(b"\nframe ") + 1
    path.write_bytes(journal[:at] if is_between_frames else journal[: at + 9])

    (damage,) = JournalRemains(str(path)).damages

    assert damage.place == f"{path} at byte {at}"
    assert damage.what == (
        f"{len(journal) - at} bytes that were durable were cut off; what they wrote is lost"
    )


def test_an_emptied_journal_and_a_replaced_one_are_named_in_what_remains(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = filled(path, format="json")
    path.write_bytes(b"")
    (emptied,) = JournalRemains(str(path)).damages
    path.write_bytes(journal)
    finish(opened(path, format="msgpack").close())
    path.write_bytes(journal)
    (replaced,) = JournalRemains(str(path)).damages

    assert emptied.what.startswith(f"{len(journal)} bytes that were durable were cut off")
    assert replaced.what == "another journal stood here and was replaced"


def test_a_whole_journal_in_use_has_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    store = opened(path)
    put(store, Put(A, b"1"))

    assert JournalRemains(str(path)).damages == []
    finish(store.close())
    assert JournalRemains(str(path)).damages == []
