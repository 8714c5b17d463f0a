"""A lease that is renewed while a block runs. A failed renewal or release does not fail the block.

Writes inside the block are fenced by the lease, so a renewal or release that could not be sent is harmless:
the lease expires by itself.
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
async def hold_lease(space: Space, name: str, *, lease_s: float, turn_s: float) -> AsyncGenerator[Lease]:
    """Yield a lease, and renew it until the block ends.

    The holder is the author of the space, or else this process.

    Args:
        space: The space of the lease.
        name: The name of the lease.
        lease_s: Seconds until the lease expires without renewal. It is renewed three times in that time.
        turn_s: Maximum seconds to wait for the current holder.

    Raises:
        ConflictError: Another holder had the lease for all of `turn_s`.
    """
    own = space if space.author is not None else space.by(process_name())
    lease = await own.leases.acquire(name, lease_s, wait_s=turn_s)
    runner = space.executor.runner
    renewing = runner.start(_renewal(lease, lease_s / 3), f"renewals of {name}")
    try:
        yield lease
    finally:
        await renewing.stop()
        await _release(lease)


def _renewal(lease: Lease, every_s: float) -> Callable[[Signal], Coroutine[Any, Any, None]]:
    async def renew(signal: Signal) -> None:
        while not await signal.wait(every_s):
            try:
                await lease.renew()
            except LeaseLostError:
                return  # the next write raises it
            except KeepstateError as error:
                _log.warning("Renewing %r failed and will be retried: %s", lease, error)

    return renew


async def _release(lease: Lease) -> None:
    try:
        await lease.release()
    except KeepstateError as error:
        _log.warning("Releasing %r failed; it will expire by itself: %s", lease, error)
