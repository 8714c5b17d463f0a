"""Functions of callers that are told something: what one raises is logged, and harms nobody else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from keepstate._runner import Cancelled, is_cancelled
from keepstate.engine.kernel.executor import call_function

_log = logging.getLogger("keepstate.managers")


async def tell(callback: Callable[..., Any], *told: Any, of: str) -> None:
    """Call a caller's function, and logs what it raises.

    Args:
        callback: The function.
        told: What it is told.
        of: What it belongs to, for the log.
    """
    try:
        await call_function(callback, *told)
    except Cancelled:  # what the callback waited for was, unless who tells it is
        if is_cancelled():
            raise
        _log.exception("the callback of a %s was cancelled", of)
    except Exception:  # noqa: BLE001 - the caller's own function, whose failure is logged
        _log.exception("the callback of a %s failed", of)
