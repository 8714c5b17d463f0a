"""Runs coroutine functions, as the tests of the engine do."""

from tests.engine.conftest import pytest_pyfunc_call

__all__ = ["pytest_pyfunc_call"]
