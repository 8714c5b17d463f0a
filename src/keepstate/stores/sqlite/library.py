"""The SQLite library in use, and whether it can lose commits when two checkpoints race."""

from __future__ import annotations

from typing import Final

import apsw

_MENDED: Final = (3, 51, 3)
"""The first release without the fault. 3.7.0 and later have it, except 3.44.6 and 3.50.7."""
_MENDED_EARLIER: Final = ((3, 44, 6), (3, 50, 7))


def library_version() -> str:
    """Return the version of the SQLite library that the stores use."""
    return apsw.sqlite_lib_version()


def is_safe() -> bool:
    """Return whether that version is free of the fault; stores checkpoint around it otherwise."""
    found = tuple(int(part) for part in library_version().split("."))
    return found >= _MENDED or any(found[:2] == line[:2] and found >= line for line in _MENDED_EARLIER)
