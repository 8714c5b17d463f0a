"""The stores that processes share."""

from __future__ import annotations

from tests.engine.conftest import shared_url

__all__ = ["shared_url"]
