"""`import keepstate` costs nothing that its caller did not ask for."""

from __future__ import annotations

import subprocess
import sys

NOT_YET = {
    *("apsw", "psycopg", "psycopg_pool", "redis", "sqlite3"),
    *("attrs", "cryptography", "cyclopts", "numpy", "opentelemetry", "pydantic", "rich"),
    *("hypothesis", "psutil", "pytest"),
}
ASKED = "import sys, keepstate; print(*{name.partition('.')[0] for name in sys.modules})"


def test_importing_keepstate_imports_no_driver_and_no_framework() -> None:
    imported = subprocess.run([sys.executable, "-c", ASKED], check=True, capture_output=True, text=True)

    assert "keepstate" in imported.stdout.split()
    assert NOT_YET & set(imported.stdout.split()) == set()


def test_importing_keepstate_starts_no_thread_and_opens_no_file() -> None:
    asked = (
        "import os, threading; before = set(os.listdir('/dev/fd')); import keepstate; "
        "print(threading.active_count(), *set(os.listdir('/dev/fd')) - before)"
    )
    left = subprocess.run([sys.executable, "-c", asked], check=True, capture_output=True, text=True)

    assert left.stdout.split() == ["1"]
