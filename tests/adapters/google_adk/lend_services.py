"""A plugin for ADK's own tests: keepstate's services in place of those in memory, and only tests of these."""

from __future__ import annotations

import os
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from keepstate.adapters.google_adk import (
    KeepstateArtifactService,
    KeepstateMemoryService,
    KeepstateSessionService,
)

PRIVATE = ("test_add_session_to_memory", "test_add_session_with_no_events_to_memory")
"""Tests that look into a private dict of the memory service."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    lent = [item for item in items if lends(item) and item.name.partition("[")[0] not in PRIVATE]
    config.hook.pytest_deselected(items=[item for item in items if item not in lent])
    items[:] = lent


def lends(item: Any) -> bool:
    """Put our service into the module of a test of the service in memory; return whether it is one."""
    kind = item.callspec.id if hasattr(item, "callspec") else ""
    module = item.module if os.environ["KEEPSTATE_KIND"] != "theirs" else SimpleNamespace(**vars(item.module))
    if hasattr(module, "get_session_service") and "IN_MEMORY" in kind and "LIGHT_COPY" not in kind:
        module.get_session_service = lambda *_, **__: KeepstateSessionService(url())
    elif item.path.name == "test_artifact_service.py" and "IN_MEMORY" in kind:
        module.InMemoryArtifactService = lambda: KeepstateArtifactService(url())
    elif item.path.name == "test_in_memory_memory_service.py":
        module.InMemoryMemoryService = lambda: KeepstateMemoryService(url())
    else:
        return False
    return True


def url() -> str:
    """Return the URL of an empty store of the kind that is tried; `theirs` lends none."""
    name = uuid.uuid4().hex
    if os.environ["KEEPSTATE_KIND"] == "memory":
        return f"memory://{name}"
    return f"sqlite:///{Path(os.environ['KEEPSTATE_FOLDER'], name)}.db"
