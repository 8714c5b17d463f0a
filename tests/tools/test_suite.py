"""The suite keeps its own rules: a skip fails CI, a warning fails its test, a hang ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

SKIPS = "import pytest\ndef test_it():\n    pytest.skip('no server')\n"
SKIPS_ALL = "import pytest\npytest.skip('no driver', allow_module_level=True)\n"
READS_WHAT_IS_ABSENT = """
import pytest
@pytest.mark.shared("data/absent.json")
def test_it(shared_data):
    shared_data.read_text()
"""
WARNS = "import warnings\ndef test_it():\n    warnings.warn('old')\n"
HANGS = "import pytest, signal\n@pytest.mark.timeout(0.2)\ndef test_it():\n    signal.pause()\n"


@pytest.mark.parametrize(
    ("test", "reason"), [(SKIPS, "no server"), (SKIPS_ALL, "no driver")], ids=["a test", "a module"]
)
def test_a_skip_fails_in_ci_and_says_why(tmp_path: Path, test: str, reason: str) -> None:
    done = suite(tmp_path, test, CI="true")

    assert done.returncode != 0
    assert "skipped in CI, where every test must run: " in done.stdout
    assert reason in done.stdout


def test_a_skip_elsewhere_is_a_skip(tmp_path: Path) -> None:
    done = suite(tmp_path, SKIPS, CI="")

    assert (done.returncode, "1 skipped" in done.stdout) == (0, True)


def test_a_test_whose_file_is_absent_is_no_part_of_the_suite(tmp_path: Path) -> None:
    done = suite(tmp_path, READS_WHAT_IS_ABSENT + "def test_other():\n    pass\n", CI="true")

    assert (done.returncode, "1 passed, 1 deselected" in done.stdout) == (0, True)


def test_a_warning_fails_its_test(tmp_path: Path) -> None:
    assert "UserWarning: old" in suite(tmp_path, WARNS).stdout


def test_a_hanging_test_times_out_and_the_next_one_runs(tmp_path: Path) -> None:
    done = suite(tmp_path, HANGS + "def test_other():\n    pass\n")

    assert "Timeout" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_a_run_without_any_test_fails(tmp_path: Path) -> None:
    assert suite(tmp_path, "").returncode == pytest.ExitCode.NO_TESTS_COLLECTED


def suite(folder: Path, test: str, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run one small file under the suite's configuration and conftest."""
    (folder / "test_small.py").write_text(test, encoding="utf-8")
    words = [
        "-m",
        "pytest",
        "-q",
        "-c",
        str(ROOT / "pyproject.toml"),
        "-p",
        "tests.conftest",
        "-p",
        "no:cacheprovider",
    ]
    # A run inside a worker of the suite must not take itself for that worker.
    outer = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return subprocess.run(
        [
            sys.executable,
            *words,
            "--rootdir",
            str(folder),
            f"--basetemp={folder / 'made'}",
            *options,
            str(folder),
        ],
        cwd=ROOT,
        env={**outer, **environment},
        check=False,
        capture_output=True,
        text=True,
    )
