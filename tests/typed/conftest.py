"""The stores that processes share, and a loop for tests that are coroutines."""

from __future__ import annotations

from tests.engine.conftest import opened, pytest_pyfunc_call, shared_url

__all__ = ["opened", "pytest_pyfunc_call", "shared_url"]
