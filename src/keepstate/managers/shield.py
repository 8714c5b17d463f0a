"""Writes that finish even if their caller is cancelled, so that the effect of a tool is recorded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from keepstate._runner import Promise, Runner
from keepstate.errors import KeepstateError

T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""Seconds that a cancelled caller waits for the write; after that, the write continues in the background."""
_log = logging.getLogger("keepstate.managers")


async def run_shielded(runner: Runner, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run short work to its end, even if the caller is cancelled, and return its result.

    A cancelled caller waits for the work first.
    """
    promise: Promise[T] = runner.promise()
    over = runner.signal()

    async def whole() -> None:
        try:
            promise.give(await work())
        except BaseException as error:  # noqa: BLE001 - raised by `promise.wait`
            promise.fail(error)
        finally:
            over.set()

    runner.detach(whole)
    try:
        return await promise.wait()
    except BaseException:  # also a cancellation; raised again
        await over.wait(_PATIENCE_S)
        raise


async def record_failure(runner: Runner, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Record a failure. If that fails, log it, because the caller needs the first failure."""
    try:
        await run_shielded(runner, work)
    except KeepstateError as error:
        _log.warning("Could not record how %s ended: %s", what, error)
