"""The power goes at any moment: `full` and `file` lose nothing acknowledged, `normal` only what is newest.

A workload with checkpoints, compactions, drops, sweeps and reopenings is recorded once a backend; each image
is a folder as a disk may hold it after a cut, opened by the real store and compared with what was answered.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import apsw
import msgspec
import pytest

from keepstate._finish import finish
from keepstate.stores.file import noted
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.sqlite import newest
from keepstate.testing.clocks import ManualClock
from keepstate.testing.faults.disk import Cut, FolderSynced, Removed, Replaced, Synced, Wrote
from keepstate.testing.faults.power import Image, Marked, Moment, Recorder, images, places
from tests.crashes import power_workload as workload
from tests.crashes.strace import calls_of
from tests.tally import Tally, first_seed

SIZES = [
    pytest.param(40, id="short"),
    pytest.param(600, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(300)]),
]
ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", workload.KINDS)
def test_what_was_acknowledged_survives_a_power_cut(
    kind: str, count: int, tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = first_seed()
    recording = workload.record(kind, folder(tmp_path, "recorded"), seed)
    assert expected_places(kind) <= places(recording.moments).keys()
    chance = random.Random(seed)
    for module in (newest, noted):
        monkeypatch.setattr(module, "machine_start", lambda: b"after-the-cut".ljust(36, b"-"))

    for number, image in enumerate(images(recording.moments, count, chance)):
        place = folder(tmp_path, "image")
        image.write(place)
        left = [b"", b"\xff" * 700, chance.choice(recording.locks[: image.acknowledged + 1])]
        leave_behind(kind, place, left, chance)
        refuse(kind, place, image, recording.states, f"image {number} of seed {seed}")
        shutil.rmtree(place)

    tally(f"{title(kind)}: power cuts", power_images=count, lost=0, partial=0, corrupt=0)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize("kind", workload.KINDS)
def test_a_second_cut_while_the_first_is_repaired_loses_no_more(
    kind: str, count: int, tmp_path: Path, tally: Tally
) -> None:
    seed = first_seed()
    recording = workload.record(kind, folder(tmp_path, "recorded"), seed, sessions=1)
    chance = random.Random(seed)
    firsts, seconds = max(count // 20, 2), 6

    for number, first in enumerate(images(recording.moments, firsts, chance)):
        moments, states = repaired(kind, folder(tmp_path, f"first {number}"), first)
        repair = moments.index(Marked(0, is_closed=True))
        for second in images(moments, seconds, chance, after=repair):
            place = folder(tmp_path, "image")
            second.write(place)
            refuse(kind, place, second, states, f"image {number} of seed {seed}, cut twice")
            shutil.rmtree(place)

    tally(f"{title(kind)}: power cuts", power_images=firsts * seconds, lost=0, partial=0, corrupt=0)


@pytest.mark.deep
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.parametrize("kind", workload.KINDS)
def test_what_is_recorded_is_what_the_system_was_asked(kind: str, tmp_path: Path) -> None:
    place, trace, log = folder(tmp_path, "recorded"), tmp_path / "trace", tmp_path / "log"
    module = ["-m", "tests.crashes.power_workload", kind, str(place), str(first_seed()), str(log)]

    traced = ["strace", "-f", "-y", "-xx", "-s", "2000000", "-e", "trace=file,desc", "-o", str(trace)]
    subprocess.run([*traced, sys.executable, *module], check=True, cwd=ROOT, timeout=120)

    recorded = msgspec.msgpack.decode(log.read_bytes(), type=list[Moment])
    changes = [
        moment
        for moment in recorded
        if isinstance(moment, Wrote | Cut | Synced | Replaced | Removed | FolderSynced)
    ]
    seen = calls_of(trace, place)
    assert len(seen) > 100
    assert seen == changes


def refuse(kind: str, place: Path, image: Image, states: list[workload.State], name: str) -> None:
    """Fails unless the image opens to what was acknowledged, takes another write, and keeps it."""
    shown = f"{name}: {kind}, cut after {image.cut} ({image.place}), unsynced: {image.tearing}"
    store = workload.opened(kind, place, ManualClock(0))
    state = workload.state_of(store)
    steps = [number for number, known in enumerate(states) if known == state]
    assert steps, f"{shown}: a state that never was"
    sure = image.closed if kind == "sqlite-normal" else image.acknowledged
    assert steps[-1] >= sure, f"{shown}: {sure} steps acknowledged, {steps[-1]} found"
    assert steps[0] <= image.acknowledged + 1, f"{shown}: what nobody wrote yet"

    [outcome] = finish(store.apply([Batch("plain", [Put(b"\x01after", b"written on")])]))
    assert isinstance(outcome, Applied), shown
    after = workload.state_of(store)
    finish(store.close())
    again = workload.opened(kind, place, ManualClock(0))
    assert workload.state_of(again) == after, shown
    finish(again.close())
    if kind.startswith("sqlite"):
        assert integrity(place) == "ok", shown


def repaired(kind: str, place: Path, image: Image) -> tuple[list[Moment], list[workload.State]]:
    """Opens an image and writes on, recorded; returns the record and the states after each step."""
    copy = folder(place, "copy")
    image.write(copy)
    reader = workload.opened(kind, copy, ManualClock(0))
    states = [workload.state_of(reader)]
    finish(reader.close())

    first = folder(place, "first")
    image.write(first)
    recorder = Recorder.upon(first)
    recorder.mark(0, is_closed=True)
    with workload.soon(), workload.beneath(kind, recorder):
        store = workload.opened(kind, first, ManualClock(0), recorder)
        for number in range(1, 4):
            finish(store.apply([Batch("plain", [Put(b"\x01%d" % number, bytes(3_000))])]))
            recorder.mark(number)
            states.append(workload.state_of(store))
        finish(store.close())
        recorder.mark(3, is_closed=True)
    return recorder.moments, states


def expected_places(kind: str) -> set[str]:
    """Returns places that must be tried: in the making of the files, a rewrite, a checkpoint, a close."""
    if kind.startswith("file"):
        return {
            "Opened journal.new",
            "Wrote journal.new",
            "Replaced journal",
            "Wrote journal",
            "Synced journal",
        }
    return {
        "Wrote keepstate.db-journal",
        "Wrote keepstate.db",
        "Synced keepstate.db",
        "Wrote keepstate.db-wal",
        "Synced keepstate.db-wal",
        "Cut keepstate.db-wal",
    }


def leave_behind(kind: str, place: Path, left: list[bytes], chance: random.Random) -> None:
    """Puts files there whose content a cut leaves to chance: the lock, and memory that processes shared."""
    names = ["journal.lock"] if kind.startswith("file") else ["keepstate.db.lock", "keepstate.db-shm"]
    for name in names:
        if chance.random() < 0.5:
            (place / name).write_bytes(chance.choice(left))


def integrity(place: Path) -> object:
    connection = apsw.Connection(str(place / "keepstate.db"))
    try:
        return connection.execute("PRAGMA integrity_check").get
    finally:
        connection.close()


def title(kind: str) -> str:
    backend, _, form = kind.partition("-")
    return f"{'SQLite' if backend == 'sqlite' else backend}, {form}"


def folder(parent: Path, name: str) -> Path:
    made = parent / name
    made.mkdir()
    return made


def test_the_workload_marks_every_step_and_close(tmp_path: Path) -> None:
    recording = workload.record("file-msgpack", tmp_path, 1, sessions=2)

    marks = [moment for moment in recording.moments if isinstance(moment, Marked)]

    assert [mark.steps for mark in marks if not mark.is_closed] == list(range(1, len(recording.states)))
    assert sum(mark.is_closed for mark in marks) == 2
