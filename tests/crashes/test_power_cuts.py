"""The power goes at any moment: `full` and `file` lose nothing acknowledged, `normal` only what is newest.

A workload with checkpoints, compactions, drops, sweeps and reopenings is recorded once a backend; each image
is a folder as a disk may hold it after a cut, opened by the real store and compared with what was answered.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import msgspec
import pytest
from keepstate_testing.faults.disk import Cut, FolderSynced, Removed, Replaced, Synced, Wrote
from keepstate_testing.faults.power import Image, Marked, Moment, Recorder, images, places

from keepstate._finish import finish
from keepstate.stores.protocol import Batch, Put
from keepstate.testing.clocks import ManualClock
from tests.crashes import power_workload as workload
from tests.crashes.power_verdicts import VERDICTS, judged
from tests.crashes.power_workload import Recording
from tests.crashes.strace import calls_of
from tests.tally import Tally, first_seed


@dataclass(frozen=True)
class Size:
    """How much is tried.

    Args:
        images: How many images of one recording, no two alike.
        sessions: How often the recorded store is opened.
        firsts: How many images are cut a second time.
        seed: What is added to the seed: no two forms try the same images.
    """

    images: int
    sessions: int
    firsts: int
    seed: int


SIZES = [
    pytest.param(Size(40, 2, 2, 1), id="short"),
    pytest.param(Size(600, 12, 30, 2), id="long", marks=[pytest.mark.deep, pytest.mark.timeout(300)]),
]
SECONDS, LEAST_SECONDS = 6, 5
"""How many images are asked for of each one that is cut a second time, and how many it gives on average."""
UNANSWERED = 15
"""At most so many images may be of the making of the files, before anything was acknowledged."""
ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Findings:
    """What the images of one test showed, each counted once."""

    kind: str
    seen: set[bytes] = field(default_factory=set[bytes])
    counts: Counter[str] = field(default_factory=Counter[str])
    shown: list[str] = field(default_factory=list[str])

    def judge(self, place: Path, image: Image, states: list[workload.State]) -> None:
        found = judged(self.kind, place, image, states)
        if found is not None:
            verdict, says = found
            self.counts[verdict] += 1
            self.shown.append(f"{verdict}: {description(self.kind, image)}: {says}")

    def conclude(self, tally: Tally) -> None:
        verdicts = {verdict: self.counts[verdict] for verdict in VERDICTS}
        tally(f"{title(self.kind)}: power cuts", power_images=len(self.seen), **verdicts)

        assert not any(verdicts.values()), (f"seed {first_seed()}", verdicts, self.shown[:5])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", workload.KINDS)
def test_what_was_acknowledged_survives_a_power_cut(
    kind: str, size: Size, tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = first_seed() * 10 + size.seed
    recording = workload.record(kind, folder(tmp_path, "recorded"), seed, sessions=size.sessions)
    assert expected_places(kind) <= places(recording.moments).keys()
    chance, findings, answered = random.Random(seed), Findings(kind), 0
    restart(monkeypatch, 1)

    for image in images(recording.moments, size.images, chance, seen=findings.seen):
        place = folder(tmp_path, "image")
        leave(kind, place, image, recording.locks_until(image.cut), chance)
        findings.judge(place, image, recording.states)
        shutil.rmtree(place)
        answered += image.acknowledged > 0

    findings.conclude(tally)
    assert len(findings.seen) == size.images
    assert size.images - answered <= UNANSWERED


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", workload.KINDS)
def test_a_second_cut_while_the_first_is_repaired_loses_no_more(
    kind: str, size: Size, tmp_path: Path, tally: Tally, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = first_seed() * 10 + size.seed + 5
    recording = workload.record(kind, folder(tmp_path, "recorded"), seed, sessions=1)
    chance, findings, starts = random.Random(seed), Findings(kind), count(1)

    for number, first in enumerate(images(recording.moments, size.firsts, chance)):
        place = folder(tmp_path, f"first {number}")
        leave(kind, place, first, recording.locks_until(first.cut), chance)
        restart(monkeypatch, next(starts))
        repaired = repair(kind, place)
        restart(monkeypatch, next(starts))
        begun = repaired.moments.index(Marked(0, is_closed=True))
        for second in images(repaired.moments, SECONDS, chance, after=begun, seen=findings.seen):
            place = folder(tmp_path, "image")
            leave(kind, place, second, repaired.locks_until(second.cut), chance)
            findings.judge(place, second, repaired.states)
            shutil.rmtree(place)

    findings.conclude(tally)
    assert len(findings.seen) >= size.firsts * LEAST_SECONDS


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
    # The name of the lock file, which is not written by way of SQLite.
    before = [FolderSynced(str(place))] if kind.startswith("sqlite") else []
    assert seen == [*before, *changes]


def refuse(kind: str, place: Path, image: Image, states: list[workload.State], name: str) -> None:
    """Fail unless the image opens to what was acknowledged, takes another write, and keep it."""
    found = judged(kind, place, image, states)
    assert found is None, f"{name}: {description(kind, image)}: {found}"


def repair(kind: str, place: Path) -> Recording:
    """Open an image and write on, recorded, with the states after each step."""
    copy = place.with_name(f"{place.name}, copied")
    shutil.copytree(place, copy)
    reader = workload.opened(kind, copy, ManualClock(0))
    states = [workload.state_of(reader)]
    finish(reader.close())

    watcher = workload.Watcher.above(Recorder.upon(place), workload.lock_of(kind, place))
    watcher.mark(0, is_closed=True)
    with workload.soon(), workload.beneath(kind, watcher):
        store = workload.opened(kind, place, ManualClock(0), watcher)
        for number in range(1, 4):
            finish(store.apply([Batch("plain", [Put(b"\x01%d" % number, bytes(3_000))])]))
            watcher.mark(number)
            states.append(workload.state_of(store))
        finish(store.close())
        watcher.mark(3, is_closed=True)
    return Recording(watcher.moments, states, watcher.locks)


def restart(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Give the machine another start, wherever a store asks for its name."""
    name = b"%036x" % number
    for module in [one for path, one in sys.modules.items() if path.startswith("keepstate.stores.")]:
        if hasattr(module, "machine_start"):
            monkeypatch.setattr(module, "machine_start", lambda: name)


def expected_places(kind: str) -> set[str]:
    """Return places that must be tried: in the making of the files, a rewrite, a checkpoint, a close."""
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


def leave(kind: str, place: Path, image: Image, locks: list[bytes], chance: random.Random) -> None:
    """Write an image, and the files beside it whose content a cut leaves to chance.

    Nobody syncs the lock file, so any of its contents may be there, or none. Only its name is synced, before
    there is a database of SQLite. The memory that processes shared may hold anything. Neither makes an image
    another one.
    """
    image.write(place)
    lock = workload.lock_of(kind, place)
    left = chance.choice([None, b"", b"\xff" * 700, chance.choice(locks), locks[-1], locks[-1]])
    if left is None and (place / "keepstate.db").exists():
        left = b""
    lock.unlink(missing_ok=True)
    if left is not None:
        lock.write_bytes(left)
    if kind.startswith("sqlite") and chance.random() < 0.5:
        (place / "keepstate.db-shm").write_bytes(chance.choice([b"", b"\xff" * 700, bytes(32 << 10)]))


def description(kind: str, image: Image) -> str:
    return f"{kind}, cut after {image.cut} ({image.place}), unsynced: {image.tearing}"


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
