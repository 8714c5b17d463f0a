"""What tells one start of the machine from the next, for notes that nobody waits to see on the disk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

UNKNOWN_START: Final = b"-" * 36


def machine_start() -> bytes:
    """Return what names the machine's last start; dashes where the system does not tell."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip()
    except OSError:
        return UNKNOWN_START
