"""One at a time: a lease that is renewed as long as a block lasts, and that harms nothing when that fails.

What the lease guards is fenced by it. So neither a renewal nor a release that could not be sent is an error
of the block: the lease's own time decides.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from keepstate._runner import Signal, process_name
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space
from keepstate.errors import KeepstateError, LeaseLostError

_log = logging.getLogger("keepstate.sessions")


@asynccontextmanager
async def holding(space: Space, name: str, *, lease_s: float, turn_s: float) -> AsyncGenerator[Lease]:
    """Yield a lease in the name of this process, if nobody else is named, and renew it meanwhile.

    Args:
        space: Where it is.
        name: What is held.
        lease_s: For how long, unless it is renewed.
        turn_s: How long to wait for who holds it.

    Raises:
        ConflictError: Somebody else held it all that time.
    """
    own = space if space.author is not None else space.by(process_name())
    lease = await own.leases.acquire(name, lease_s, wait_s=turn_s)
    runner = space.executor.runner
    renewing = runner.start(_renewal(lease, lease_s / 3), f"renewals of {name}")
    try:
        yield lease
    finally:
        await renewing.stop()
        await _let_go(lease)


def _renewal(lease: Lease, every_s: float) -> Callable[[Signal], Coroutine[Any, Any, None]]:
    async def renew(signal: Signal) -> None:
        while not await signal.wait(every_s):
            try:
                await lease.renew()
            except LeaseLostError:
                return  # the next write says so
            except KeepstateError as error:
                _log.warning("%r could not be renewed, and is tried again: %s", lease, error)

    return renew


async def _let_go(lease: Lease) -> None:
    try:
        await lease.release()
    except KeepstateError as error:
        _log.warning("%r could not be released, and ends with its time: %s", lease, error)
