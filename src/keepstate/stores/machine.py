"""The identity of the machine's last start, for notes that are written without waiting for the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

UNKNOWN_START: Final = b"-" * 36


def machine_start() -> bytes:
    """Return an id of the machine's last start, or dashes if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return UNKNOWN_START
