"""A loop of its own for each test that is a coroutine, and the handles of the engine's tests."""

from tests.engine.conftest import (
    ks,
    opened,
    pytest_pyfunc_call,
    turned,
    url,
)

__all__ = ["ks", "opened", "pytest_pyfunc_call", "turned", "url"]
