"""A backup that is put back, writes of strangers after it, and positions that other processes have kept."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from keepstate import sync
from keepstate.errors import HistoryLostError

_SPACE = "space"


def go_on(kind: str, folder: Path, dice: Random) -> int:
    """Go on behind each position that was lost, and return how many there were.

    Args:
        kind: `file` or `sqlite`.
        folder: The folder of the store, which is made.
        dice: How much each author writes.

    Raises:
        AssertionError: A position of the lost history was followed.
    """
    folder.mkdir()
    url, copy = f"{kind}:///{folder}/store", folder / "copy"
    _fill(url, dice.randint(1, 3), "kept")
    copy.mkdir()
    for path in folder.glob("store*"):
        shutil.copy(path, copy)
    lost = _fill(url, dice.randint(1, 3), "lost")
    for path in folder.glob("store*"):
        path.unlink()
    for path in copy.iterdir():
        if path.suffix != ".lock":  # what is noted there would tell by itself
            shutil.copy(path, folder)
    _fill(url, dice.randint(3, 6), "strangers")
    with sync.open(url) as ks:
        space = ks.space(_SPACE)
        for position in lost[0]:
            with pytest.raises(HistoryLostError), space.documents.watch(after=position, timeout_s=0) as watch:
                raise AssertionError(f"another history was followed: {list(watch)} came after {position}")
        for position in lost[1]:
            with pytest.raises(HistoryLostError):
                found = space.events.read(after=position)
                raise AssertionError(f"another history was followed: {found} came after {position}")
    return len(lost[0]) + len(lost[1])


def _fill(url: str, count: int, author: str) -> tuple[list[str], list[str]]:
    """Write documents and events, and return the positions behind them, those of a watch first."""
    with sync.open(url) as ks:
        space = ks.space(_SPACE)
        with space.documents.watch(timeout_s=0) as watch:
            for number in range(count):
                with space.transaction() as tx:
                    tx.documents.put("plan", f"{author} {number}")
                    tx.events.append({"by": author})
            watched = [change.position for change in watch]
        return watched, [event.position or "" for event in space.events.read()[-count:]]
