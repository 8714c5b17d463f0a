"""What every test lives by: how much Hypothesis tries and that a skip is loud."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("keepstate.testing", "keepstate_testing", "tests.contracts")
pytest_plugins = [
    *("tests.selection", "tests.repeats", "tests.server_fixtures", "tests.browser_fixtures", "tests.tally"),
]

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
IN_MEMORY, IN_MEMORY_BYTES = Path("/dev/shm"), 4 << 30
IN_CI = os.environ.get("CI", "") not in {"", "0", "false"}

# A machine shared by servers and workers is slow at times: time proves nothing about an example.
settings.register_profile("dev", max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), derandomize=True, print_blob=True)
settings.register_profile("quick", settings.get_profile("dev"), max_examples=12, stateful_step_count=20)
settings.register_profile(
    "deep", settings.get_profile("dev"), max_examples=1_000, stateful_step_count=100, print_blob=True
)
settings.load_profile("ci" if IN_CI else "dev")


# Half of the time of a short process is compiling: what it compiles is kept, in a folder of the tests' own.
sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(ROOT / ".pytest_cache" / "bytecode")
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure(config: pytest.Config) -> None:
    """Choose how much is tried, and hear what ends a process, which a shell's background jobs do not.

    Tests send these signals to their processes.
    """
    if config.getoption("--quick") and not config.getoption("--hypothesis-profile"):
        settings.load_profile("quick")
    if config.option.markexpr.startswith("not deep"):
        keep_files_in_memory()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def keep_files_in_memory() -> None:
    """Keep the files of tests in memory where it has room for them, because a sync costs nothing there.

    A killed process loses as little there as on a disk. Power cuts are simulated, and the long proof and the
    tests that judge by the clock stay on the disk.
    """
    if IN_MEMORY.is_dir() and shutil.disk_usage(IN_MEMORY).free >= IN_MEMORY_BYTES:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(IN_MEMORY))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out a test whose file beside the checkout is missing: it is no part of such a checkout."""
    absent = [item for item in items if (path := path_in_shared(item)) and not path.exists()]
    if absent:
        items[:] = [item for item in items if item not in absent]
        config.hook.pytest_deselected(items=absent)


def pytest_collection() -> None:
    """Stop the garbage collector, which finds nothing in collected tests and takes a sixth of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Hide what was collected from the garbage collector: a test that calls it waits less."""
    gc.enable()
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure in CI: what was not run has not passed."""
    report = yield
    refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Turn the skip of a whole module into a failure in CI."""
    report = yield
    refuse_skip(report)
    return report


@pytest.fixture
def shared_data(request: pytest.FixtureRequest) -> Path:
    """The file that the test's mark names: `@pytest.mark.shared("data/NAME")`."""
    path = path_in_shared(request.node)
    assert path, (
        f"{request.node.nodeid} asks for shared_data: mark it with the file, pytest.mark.shared(PATH)"
    )
    return path


def path_in_shared(item: pytest.Item) -> Path | None:
    """Return the file beside the checkout that a test reads, if it says so."""
    mark = item.get_closest_marker("shared")
    return SHARED / mark.args[0] if mark else None


def refuse_skip(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Make a report of a skip one of a failure, in CI."""
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where every test must run: {report.longrepr}"
