"""The framework's own tests of checkpoints and sessions, on our stores.

They are in no distribution, so a checkout is needed. In one that is older than the package, some fail on the
framework's own stores too.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.langgraph.sdists import installed

FILES = (
    "workflow/test_checkpoint.py",
    "workflow/test_checkpoint_validation.py",
    "workflow/test_agent_executor.py",
    "workflow/test_functional_workflow.py",
    "workflow/test_request_info_event_rehydrate.py",
    "workflow/test_runner.py",
    "workflow/test_sub_workflow.py",
    "workflow/test_workflow_agent.py",
    "workflow/test_workflow_observability.py",
    "core/test_sessions.py",
)
OLDEST = "1.20.0"
"""The oldest version that the extra accepts."""
LEAST = 45
"""How many tests that build one of our stores pass at least."""
NOT_OURS = "test_operations_mark_feature_usage"
"""The framework counts which of its own classes are used."""
NEEDED = ("opentelemetry-sdk", "opentelemetry-semantic-conventions", "pytest-asyncio")
"""What their tests need besides what is installed."""
PLUGIN = Path(__file__).parent
SOURCE = PLUGIN.parents[2] / "src"
_OPTIONS = ("-q", "-n", "0", "-c", os.devnull, "--rootdir", ".", "-o", "asyncio_mode=auto", "-W", "ignore")


@pytest.mark.theirs
@pytest.mark.timeout(900)
def test_the_framework_s_own_tests_pass_on_ours(tmp_path: Path) -> None:
    tree = Path(os.environ.get("THEIRS_TREES", "."), "agent-framework", "python", "packages", "core")
    if not (tree / "tests").is_dir():
        pytest.skip(f"{tree} is missing: name the folder of a checkout of agent-framework in THEIRS_TREES")
    needed = installed(tmp_path / "needed", *NEEDED)
    _, on_theirs = ran(tree, "theirs", tmp_path, needed)

    for kind in ("memory", "sqlite"):
        passed, failed = ran(tree, kind, tmp_path, needed)
        assert [test for test in sorted(failed - on_theirs) if NOT_OURS not in test] == []
        assert len(passed) >= LEAST
        in_the_main_file = {test for test in passed if FILES[0] in test}
        assert len(in_the_main_file) >= 21
        assert not [test for test in failed if FILES[0] in test]


@pytest.mark.theirs
@pytest.mark.timeout(300)
def test_the_stores_work_with_the_oldest_version(tmp_path: Path) -> None:
    oldest = installed(tmp_path / "oldest", f"agent-framework-core=={OLDEST}")
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
            str(PLUGIN / "test_stores.py"),
        ],
        cwd=SOURCE.parent,
        env={**os.environ, "PYTHONPATH": str(oldest)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8_000:] + done.stderr[-2_000:]


def ran(tree: Path, kind: str, folder: Path, needed: Path) -> tuple[set[str], set[str]]:
    """Return the tests that have built a store: those that passed, and the others."""
    tally = folder / f"tally-{kind}.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "lend_stores", "-p", "no:randomly", *_OPTIONS]
        + [f"tests/{file}" for file in FILES],
        cwd=tree,
        env={
            **os.environ,
            "KEEPSTATE_FOLDER": str(folder),
            "KEEPSTATE_KIND": kind,
            "KEEPSTATE_TALLY": str(tally),
            "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, SOURCE, needed))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-4_000:] + done.stderr[-2_000:]
    outcomes = [json.loads(line) for line in tally.read_text(encoding="utf-8").splitlines()]
    failed = {test for test, outcome in outcomes if outcome != "passed"}
    print(done.stdout[-6_000:])
    return {test for test, outcome in outcomes if outcome == "passed"}, failed
