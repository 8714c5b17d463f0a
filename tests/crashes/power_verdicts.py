"""What a store made of a disk after a power cut: the verdict on an image, against what was answered."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal, TypeAlias

import apsw
from keepstate_testing.faults.power import Image

from keepstate._finish import finish
from keepstate.errors import KeepstateError
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.testing.clocks import ManualClock
from tests.crashes import power_workload as workload
from tests.crashes.power_workload import State

Verdict: TypeAlias = Literal["lost", "ghosts", "partial", "corrupt"]
VERDICTS: Final[tuple[Verdict, ...]] = ("lost", "ghosts", "partial", "corrupt")
Finding: TypeAlias = tuple[Verdict, str]


def judged(kind: str, place: Path, image: Image, states: list[State]) -> Finding | None:
    """Open what is left, writes on and open again; returns what is wrong with it, None if nothing is."""
    if kind.startswith("sqlite"):
        # It is made before the database, so whichever sync of the folder keeps one of them keeps both.
        (place / "keepstate.db.lock").touch()
    try:
        store = workload.opened(kind, place, ManualClock(0))
        try:
            found = _compared(workload.state_of(store), states, image, kind)
            if found is not None:
                return found
            [outcome] = finish(store.apply([Batch("plain", [Put(b"\x01after", b"written on")])]))
            after = workload.state_of(store)
        finally:
            finish(store.close())
        again = workload.opened(kind, place, ManualClock(0))
        try:
            kept = workload.state_of(again)
        finally:
            finish(again.close())
    except KeepstateError as error:
        return "lost", f"the store refuses it: {error}"
    if not isinstance(outcome, Applied):
        return "lost", f"it takes no more writes: {outcome}"
    if kept != after:
        return "lost", "what was written on was not kept"
    return _unsound(place) if kind.startswith("sqlite") else None


def _compared(state: State, states: list[State], image: Image, kind: str) -> Finding | None:
    steps = [number for number, known in enumerate(states) if known == state]
    if not steps:
        return _stranger(state, states)
    sure = image.closed if kind == "sqlite-normal" else image.acknowledged
    if steps[-1] < sure:
        return "lost", f"{sure} steps acknowledged, {steps[-1]} found"
    if steps[0] > image.acknowledged + 1:
        return "ghosts", f"{image.acknowledged} steps acknowledged, {steps[0]} found"
    return None


def _stranger(state: State, states: list[State]) -> Finding:
    """Tell apart what was written, but never stood so, from what nobody wrote."""
    for space, (_, entries, _) in state.items():
        for entry in entries:
            if not any(entry in known[space][1] for known in states):
                return "corrupt", f"{space} holds {entry.key!r} as nobody wrote it"
    return "partial", "a state that never was, of entries that were"


def _unsound(place: Path) -> Finding | None:
    connection = apsw.Connection(str(place / "keepstate.db"))
    try:
        said = connection.execute("PRAGMA integrity_check").get
    finally:
        connection.close()
    return None if said == "ok" else ("corrupt", str(said))
