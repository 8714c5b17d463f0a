"""The stores that the adapters of frameworks are tried on."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.engine.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]

SHARED = ("sqlite", "redis", "redis_cluster", "postgres")
BACKENDS = ("memory", "file", *SHARED)


@pytest.fixture(params=BACKENDS)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind, with nothing in it."""
    return url_of(request.param, request, tmp_path)


@pytest.fixture(params=SHARED)
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of each kind that several processes may use."""
    return url_of(request.param, request, tmp_path)


def url_of(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Return the URL of a store of a kind, with nothing in it."""
    match kind:
        case "memory":
            return f"memory://{uuid.uuid4().hex}"
        case "file":
            return f"file:///{tmp_path}/state/"
        case "sqlite":
            return f"sqlite:///{tmp_path}/state.db?durability=normal"
        case server:
            url: str = request.getfixturevalue(f"{server}_url")
            return url
