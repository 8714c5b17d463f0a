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

from tests.adapters.langgraph.sdists import installed

ROOT = Path(__file__).resolve().parents[2]
VENV = Path(sys.prefix)


@pytest.mark.server
@pytest.mark.slow
@pytest.mark.timeout(1_500)
@pytest.mark.parametrize(
    ("left_out", "least"),
    [
        pytest.param("file or redis or cluster or postgres", 150, id="embedded"),
        pytest.param("a_word_of_no_test", 400, id="every backend", marks=pytest.mark.deep),
    ],
)
def test_the_adapter_keeps_its_promises(left_out: str, least: int) -> None:
    """`make adk` runs all of it too."""
    fetch_packages()
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
            "-k",
            f"not ({left_out})",
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
    assert int(passed[1]) > least


@pytest.mark.theirs
@pytest.mark.timeout(600)
def test_adk_s_own_tests_of_services_pass_on_ours(tmp_path: Path) -> None:
    """They are in no distribution, so a checkout is needed. In an old one, some fail on ADK's own service."""
    tree = Path(os.environ.get("THEIRS_TREES", "."), "adk-python")
    if not (tree / "tests" / "unittests").is_dir():
        pytest.skip(f"{tree} is missing: name the folder of a checkout of adk-python in THEIRS_TREES")
    fetch_packages()
    needed = installed(tmp_path / "needed", "sqlalchemy", "greenlet", "pytest-asyncio")
    failed, passed = {}, {}
    for kind in ("theirs", "memory", "sqlite"):
        failed[kind], passed[kind] = ran(tree, kind, tmp_path, needed)

    for kind in ("memory", "sqlite"):
        assert failed[kind] - failed["theirs"] == set()
        assert passed[kind] >= passed["theirs"] > 25


def ran(tree: Path, kind: str, folder: Path, needed: Path) -> tuple[set[str], int]:
    """Return which of ADK's tests of services have failed, and how many have passed."""
    whose = (
        "sessions/test_session_service",
        "artifacts/test_artifact_service",
        "memory/test_in_memory_memory_service",
    )
    options = ("-q", "-o", "asyncio_mode=auto", "-p", "lend_services", "-p", "no:randomly", "-W", "ignore")
    path = (ROOT / "tests" / "adapters" / "google_adk", tree, needed, VENV / "google-adk")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *(f"tests/unittests/{each}.py" for each in whose)],
        cwd=tree,
        env={
            **os.environ,
            "KEEPSTATE_KIND": kind,
            "KEEPSTATE_FOLDER": str(folder),
            "PYTHONPATH": os.pathsep.join(map(str, path)),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    passed = re.search(r"(\d+) passed", done.stdout[-2_000:])
    assert passed is not None, done.stdout[-8_000:] + done.stderr[-2_000:]
    print(done.stdout[-8_000:])
    return set(re.findall(r"^FAILED (\S+)", done.stdout, re.MULTILINE)), int(passed[1])


def fetch_packages() -> None:
    """Put the packages of ADK into their folder, if they are not there."""
    command = [sys.executable, str(ROOT / "tools" / "bootstrap.py"), "--venv", VENV.name, "--google-adk"]
    subprocess.run(command, check=True)
