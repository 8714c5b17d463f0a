"""Where processes of managers work that are started, and killed, by tests."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def url_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the URL of a store of this kind in which there is nothing yet."""
    if kind in ("redis", "postgres"):
        server: str = request.getfixturevalue(f"{kind}_url")
        return server
    return {
        "memory": f"memory://{uuid.uuid4().hex}",
        "file": f"file:///{folder}/store/",
        "sqlite": f"sqlite:///{folder}/store.db?durability=normal",
    }[kind]
