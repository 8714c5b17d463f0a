"""The handles of the engine's tests, on every backend, and their clock."""

from tests.engine.conftest import ks, opened, pytest_pyfunc_call, shared_url, space, turned, url

__all__ = ["ks", "opened", "pytest_pyfunc_call", "shared_url", "space", "turned", "url"]
