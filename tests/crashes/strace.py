"""What strace saw a process do to the files of a folder, in the words of the recorder."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from keepstate_testing.faults.disk import Cut, Event, FolderSynced, Removed, Replaced, Synced, Wrote

_CALL = re.compile(r"(\d+)\s+(\w+)\((.*)\)\s+=\s+(-?\d+)")
_TEXT = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_FILE = re.compile(r"\d+<((?:\\x[0-9a-f]{2}|[^>\\])*)>")
_UNSEEN = ("-shm", ".lock")
"""Files that a power cut leaves to chance, and nobody records."""


def calls_of(trace: Path, folder: Path) -> list[Event]:
    """Return every change of a file in the folder, in the order in which the calls ended."""
    seen: list[Event] = []
    for name, given, result in _ended(trace):
        event = _event(name, given, result, folder)
        if event is not None and str(folder) in {event.path, os.path.dirname(event.path)}:
            seen.append(event)
    return seen


def _ended(trace: Path) -> Iterator[tuple[str, str, int]]:
    begun: dict[str, str] = {}
    for line in trace.read_text(errors="replace").splitlines():
        process, _, rest = line.partition(" ")
        if "<unfinished ...>" in rest:
            begun[process] = rest.partition("<unfinished ...>")[0]
            continue
        resumed = begun.pop(process) + rest.partition("resumed>")[2] if "resumed>" in rest else rest
        found = _CALL.match(f"{process} {resumed}")
        if found is not None and int(found[4]) >= 0:
            yield found[2], found[3], int(found[4])


def _event(name: str, given: str, result: int, folder: Path) -> Event | None:
    texts = [bytes.fromhex(text.replace("\\x", "")) for text in _TEXT.findall(given)]
    opened = _FILE.match(given)
    path = _unescaped(opened[1]) if opened else ""
    if path.endswith(_UNSEEN) or any(text.endswith(tuple(map(str.encode, _UNSEEN))) for text in texts):
        return None
    match name:
        case "pwrite64" | "write" if path:
            at = int(given.rpartition(",")[2]) if name == "pwrite64" else 0
            return Wrote(path, at, texts[0][:result])
        case "fsync" | "fdatasync":
            return FolderSynced(path) if path == str(folder) else Synced(path)
        case "ftruncate":
            return Cut(path, int(given.rpartition(",")[2]))
        case "unlink":
            return Removed(_absolute(texts[0]))
        case "rename":
            return Replaced(_absolute(texts[1]), _absolute(texts[0]))
        case _:
            return None


def _unescaped(path: str) -> str:
    return bytes.fromhex(path.replace("\\x", "")).decode() if path.startswith("\\x") else path


def _absolute(path: bytes) -> str:
    return os.path.abspath(path.decode())
