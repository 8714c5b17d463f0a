"""The tests of the adapter for Google's ADK, in a process that has its packages.

google-adk 2 needs an older google-genai, websockets and opentelemetry-api than other tests do. So its
packages are in a folder of `.venv`, from a lock of their own. Only this process and `make adk` have it on the
path.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1_500)
def test_the_adapter_keeps_its_promises_on_every_backend() -> None:
    subprocess.run(
        [sys.executable, str(ROOT / "tools" / "bootstrap.py"), "--venv", VENV.name, "--google-adk"],
        check=True,
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-n",
            "0",
            "-p",
            "no:cacheprovider",
            "tests/adapters/google_adk",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(VENV / "google-adk")},
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout[-2_000:])

    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]
    assert passed is not None
    assert int(passed[1]) > 300
