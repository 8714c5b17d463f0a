"""The SDK's own tests of sessions and of runs with sessions, on our session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.adapters.langgraph.sdists import installed, unpacked

COUNTS = {"0.24.0": 324}
LEAST = 319
"""How many tests that build our session pass: in the locked version, and at least in those near it."""
SESSIONS = ("tests/memory", "tests/extensions/memory/test_encrypt_session.py")
RUNS = (
    "tests/test_max_turns.py",
    "tests/test_native_tool_failure_history.py",
    "tests/test_soft_cancel.py",
    "tests/test_tool_batch_failure_history.py",
    "tests/test_tool_failure_boundaries.py",
)
PLUGINS = (
    "aiosqlite", "asttokens", "dnspython", "executing", "fakeredis", "greenlet", "inline-snapshot", "pymongo",
    "pytest-asyncio", "sortedcontainers", "sqlalchemy",
)  # fmt: skip
"""What their tests need besides what is installed."""
_POP = "test_encrypted_pop_"
_SQLITE = "test_sqlite_session_"
NOT_OURS = {
    "tests/memory/test_session.py": (  # connections, locks, tables and rows of SQLite
        f"{_SQLITE}close_closes_worker_thread_connections",
        f"{_SQLITE}close_retries_quarantined_connection",
        f"{_SQLITE}closes_retired_connections_before_the_next_allocation",
        f"{_SQLITE}failed_add_items_releases_write_lock",
        f"{_SQLITE}failed_clear_session_rolls_back",
        f"{_SQLITE}failed_pop_item_releases_write_lock",
        f"{_SQLITE}file_lock_is_shared_across_instances",
        f"{_SQLITE}get_items_limit_skips_corrupt_newest_rows",
        f"{_SQLITE}get_items_session_settings_limit_skips_corrupt_rows",
        f"{_SQLITE}keeps_connections_of_live_worker_threads",
        f"{_SQLITE}pop_item_returns_none_after_dropping_only_corrupt_rows",
        f"{_SQLITE}pop_item_skips_corrupt_most_recent",
        f"{_SQLITE}post_commit_cancellation_propagates_after_known_outcome",
        f"{_SQLITE}reaps_connections_from_exited_worker_threads",
        f"{_SQLITE}rollback_failure_evicts_connection",
    ),
    "tests/memory/test_compaction_suffix.py": (  # the file, and the method that inserts rows
        "test_cancelled_suffix_transaction_settles_before_newer_append",
        "test_failed_encrypted_suffix_transaction_preserves_original_tokens",
        "test_suffix_transaction_rolls_back_failed_insert",
    ),
    "tests/memory/test_openai_responses_compaction_session.py": (  # a connection that pauses its commit
        "test_settled_clear_failure_invalidates_response_chain",
        "test_settled_pop_failure_invalidates_response_chain",
    ),
    "tests/extensions/memory/test_encrypt_session.py": (  # rows, or a check that only SQLiteSession gets
        f"{_POP}authentication_is_atomic_with_concurrent_mutations",
        f"{_POP}cancellation_waits_for_authentication_rollback",
        f"{_POP}rechecks_authentication_after_expired_tail",
        f"{_POP}wrong_key_preserves_recoverable_history",
        f"{_POP}wrong_key_preserves_row_identity",
    ),
}
"""Tests that look into SQLite, or that the SDK lets only its own class pass."""
PLUGIN = Path(__file__).parent
SOURCE = PLUGIN.parents[2] / "src"
_OPTIONS = ("-p", "lend_session", "-p", "no:randomly", "-q", "-n", "0", "-o", "addopts=", "--timeout=60")


@pytest.fixture(scope="module")
def their_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpacked("openai-agents", tmp_path_factory.mktemp("openai-agents"))


@pytest.fixture(scope="module")
def plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return installed(tmp_path_factory.mktemp("plugins"), *PLUGINS)


@pytest.mark.slow
def test_limits_pass(their_folder: Path, plugins: Path) -> None:
    passed, failed = ran(their_folder, plugins, "tests/memory/test_session_limit.py")

    assert failed == []
    assert len(passed) >= 15


@pytest.mark.theirs
@pytest.mark.timeout(1_200)
def test_all_that_build_a_session_pass_but_those_that_look_into_sqlite(
    their_folder: Path, plugins: Path
) -> None:
    passed, failed = ran(their_folder, plugins, *SESSIONS, *RUNS)

    assert [test for test in failed if not is_of_sqlite(test)] == []
    assert len(passed) >= LEAST
    assert len(passed) == COUNTS.get(version("openai-agents"), len(passed))


def is_of_sqlite(test: str) -> bool:
    """Return whether a test looks into SQLite."""
    file, *_, name = test.split("::")
    return name.partition("[")[0] in NOT_OURS.get(file, ())


def ran(folder: Path, plugins: Path, *what: str) -> tuple[list[str], list[str]]:
    """Return the tests that have built our session: those that passed, and the others."""
    tally = folder / "tally.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *_OPTIONS, *what],
        cwd=folder,
        env={
            **os.environ,
            "KEEPSTATE_TALLY": str(tally),
            "PYTHONPATH": os.pathsep.join(map(str, (PLUGIN, SOURCE, plugins))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode in (0, 1), done.stdout[-4_000:] + done.stderr[-2_000:]
    outcomes = [json.loads(line) for line in tally.read_text(encoding="utf-8").splitlines()]
    failed = [test for test, outcome in outcomes if outcome != "passed"]
    print(done.stdout[-6_000:] if failed else f"{len(outcomes)} passed")
    return [test for test, outcome in outcomes if outcome == "passed"], failed
