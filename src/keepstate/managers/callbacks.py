"""Invokes callbacks of callers. Exceptions are logged and do not affect other callbacks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from keepstate._runner import Cancelled, is_cancelled
from keepstate.engine.kernel.executor import call_function

_log = logging.getLogger("keepstate.managers")


async def invoke_callback(callback: Callable[..., Any], *told: Any, of: str) -> None:
    """Call a caller's function, and log its exception.

    Args:
        callback: The function.
        told: Its arguments.
        of: Owner of the callback, for the log.
    """
    try:
        await call_function(callback, *told)
    except Cancelled:  # raised by the callback's own wait, unless this task was cancelled
        if is_cancelled():
            raise
        _log.exception("The callback of a %s was cancelled", of)
    except Exception:  # noqa: BLE001 - the caller's own function, whose failure is logged
        _log.exception("The callback of a %s failed", of)
