"""Notes that are made also where their caller is cancelled: a tool has acted, and the store must learn it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final, TypeVar

from keepstate._runner import Promise, Runner
from keepstate.errors import KeepstateError

T = TypeVar("T")

_PATIENCE_S: Final = 5.0
"""So long a cancelled caller waits for its note; then that goes on without it."""
_log = logging.getLogger("keepstate.managers")


async def shielded(runner: Runner, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Return what short work returned, which goes on to its end also where its caller is cancelled.

    Who is cancelled waits for that, and is cancelled then.
    """
    promise: Promise[T] = runner.promise()
    over = runner.signal()

    async def whole() -> None:
        try:
            promise.give(await work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            promise.fail(error)
        finally:
            over.set()

    runner.detach(whole)
    try:
        return await promise.wait()
    except BaseException:
        await over.wait(_PATIENCE_S)
        raise


async def noted(runner: Runner, what: str, work: Callable[[], Coroutine[Any, Any, object]]) -> None:
    """Note what went wrong; a failure to do so is logged, for the caller is to hear of what went wrong."""
    try:
        await shielded(runner, work)
    except KeepstateError as error:
        _log.warning("how %s ended could not be noted: %s", what, error)
