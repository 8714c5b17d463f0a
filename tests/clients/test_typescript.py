"""The TypeScript client in Node, against a real server: its own tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.conftest import Backend, node
from tools.client import CLIENT

TESTS = sorted(path.stem for path in (CLIENT / "tests").glob("*.test.ts"))


@pytest.mark.parametrize("name", TESTS)
def test_the_clients_own_tests_pass(name: str, client: Path, backend: Backend) -> None:
    told = node(f"{name}.js", backend)

    assert "\n# fail 0\n" in told and "\n# skipped 0\n" in told and "\n# pass 0\n" not in told, told
