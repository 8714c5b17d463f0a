"""The stores that LangGraph's state is kept in."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

BACKENDS = ("memory", "file", "sqlite", "redis", "postgres")


@pytest.fixture(params=BACKENDS)
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns the URL of a store of each kind, with nothing in it."""
    match request.param:
        case "memory":
            return f"memory://{uuid.uuid4().hex}"
        case "file":
            return f"file:///{tmp_path}/state/"
        case "sqlite":
            return f"sqlite:///{tmp_path}/state.db?durability=normal"
        case server:
            url: str = request.getfixturevalue(f"{server}_url")
            return url
