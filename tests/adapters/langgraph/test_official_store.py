"""LangGraph's own tests of its SQLite store pass on `KeepstateStore`, but for those told here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.adapters.langgraph.sdists import installed, unpacked

HERE = Path(__file__).resolve().parent

DIFFERENT = {
    "test_vector_store_initialization": "looks for a table of vectors in the connection",
    "test_nonnull_migrations": "looks at SQL that makes tables",
    "test_sql_injection_vulnerability": "wants filter keys refused that are no words; ours are never in SQL",
    "test_no_running_loop": "wants blocking calls refused in an event loop; ours work there",
    "test_ttl_override_default": "wants no refresh on read where nothing is said; the interface says refresh",
}
"""Whoever adds a row adds it to the table of docs/how-to/langgraph.md."""


@pytest.mark.deep
@pytest.mark.timeout(300)
def test_langgraphs_tests_of_its_store_pass(tmp_path: Path) -> None:
    sources = unpacked("langgraph-checkpoint-sqlite", tmp_path)
    plugged = installed(tmp_path / "plugged", "pytest-asyncio", "pytest-retry")
    report = tmp_path / "report.xml"
    files = ["tests/test_store.py", "tests/test_async_store.py", "tests/test_ttl.py"]
    options = ["-p", "no:randomly", "-p", "no:cacheprovider", "-o", "addopts=", "-o", "asyncio_mode=auto"]
    plugins = ["-p", "official_store"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, *options, f"--junitxml={report}", *files],
        cwd=sources,
        env={**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{plugged}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert report.exists(), done.stdout + done.stderr
    cases = list(ElementTree.parse(report).iter("testcase"))
    failed = {case.attrib["name"].partition("[")[0] for case in cases if case.find("failure") is not None}

    assert failed == set(DIFFERENT), done.stdout[-3000:]
    assert len(cases) > 140
