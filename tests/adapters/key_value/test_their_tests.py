"""py-key-value's own tests of a store, with ours: of both lines of it, from a tree that the caller names.

Its source distribution has no tests. `THEIRS_TREES` is a folder with a checkout `py-key-value`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.adapters.conftest import url_of
from tests.adapters.langgraph.sdists import installed

PLUGINS = ("pytest-asyncio", "dirty-equals", "inline-snapshot", "asttokens", "executing")
SOURCE = Path(__file__).parents[3] / "src"
OURS = """
import os
import pytest
from keepstate.adapters.key_value import KeepstateKeyValue
from tests.stores.base import BaseStoreTests

class TestOurs(BaseStoreTests):
    @pytest.fixture
    async def store(self):
        async with KeepstateKeyValue(os.environ["KEEPSTATE_URL"]) as store:
            yield store
            for collection in await store.collections():
                await store.destroy_collection(collection)
"""
EVICTS = "test_not_unbounded"
"""Asks for a store that forgets values when it is full."""


_OPTIONS = ("-q", "-p", "no:randomly", "-o", "asyncio_mode=auto", "-o", "addopts=", "--import-mode=importlib")


@pytest.mark.theirs
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("line", ["0.4.6", "0.5.0"])
@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
def test_all_but_eviction_passes(
    line: str, kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    tree = Path(os.environ.get("THEIRS_TREES", "")) / "py-key-value"
    if not (tree / "tests" / "stores" / "base.py").exists():
        pytest.skip(f"NOT TESTED: {tree} is not a checkout of py-key-value; name its folder by THEIRS_TREES=")
    packages = installed(tmp_path / "packages", *PLUGINS, f"py-key-value-aio=={line}")
    (tmp_path / "test_ours.py").write_text(OURS)

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            *_OPTIONS,
            "--rootdir",
            str(tmp_path),
            str(tmp_path / "test_ours.py"),
        ],
        cwd=tmp_path,
        env={
            **os.environ,
            "KEEPSTATE_URL": url_of(kind, request, tmp_path),
            "PYTHONPATH": os.pathsep.join(map(str, (packages, tree, SOURCE))),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    failed = re.findall(r"^FAILED \S*::(\w+)", done.stdout, re.MULTILINE)
    passed = re.search(r"(\d+) passed", done.stdout)

    assert failed == [EVICTS], done.stdout[-4_000:] + done.stderr[-2_000:]
    assert passed is not None
    assert int(passed[1]) >= 66
