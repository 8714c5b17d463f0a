"""The tests of the adapter for Google's ADK, whose packages are not those of `.venv`; see `make adk`.

A run without them collects nothing here. `tests/adapters/test_google_adk.py` starts one that has them.
"""

from __future__ import annotations

import warnings
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("google.adk") else ["test_*.py"]

if not collect_ignore_glob:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its own packages, when they are imported
        import keepstate.adapters.google_adk  # noqa: F401


@pytest.fixture
def who() -> dict[str, Any]:
    """The app and the user of a test."""
    return {"app_name": "shop", "user_id": "ann"}
