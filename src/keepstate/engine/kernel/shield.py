"""What is done beside the caller, so that one who is cancelled midway leaves nothing held.

A batch that is on its way applies whether or not somebody still waits for it. So what takes something runs as
work of its own: if its caller has gone by the time it has it, it lets go of it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from keepstate._runner import Cancelled, Promise, Runner
from keepstate.errors import KeepstateError

T = TypeVar("T")

_LONGEST_WAIT_S = 1.0
"""So long a cancelled caller waits until it holds nothing; then that goes on without it."""


async def acquire_shielded(
    runner: Runner, take: Callable[[], Awaitable[T]], let_go: Callable[[T], Awaitable[None]]
) -> T:
    """Return what `take` returns; where the caller is cancelled, that is given to `let_go` instead."""
    promise: Promise[T] = runner.promise()
    taken, is_cancelled, is_free = list[T](), False, runner.signal()

    async def attempt() -> None:
        try:
            answer = await take()
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            promise.fail(error)
            is_free.set()
            return
        taken.append(answer)
        promise.give(answer)
        if is_cancelled:
            await undo()

    async def undo() -> None:
        try:
            for answer in taken:
                await let_go(answer)
        finally:
            is_free.set()

    try:
        runner.detach(attempt)
        return await promise.wait()
    except BaseException:
        is_cancelled = True
        if taken:
            runner.detach(undo)
        await is_free.wait(_LONGEST_WAIT_S)
        raise


async def finish_despite_cancel(runner: Runner, work: Callable[[], Awaitable[T]]) -> T:
    """Return what `work` returns; if the caller is cancelled, does it again beside the caller.

    A cancelled caller does not know whether its batch was sent. So `work` must be safe to repeat: a second
    run after one that applied changes nothing. The caller's cancellation goes on when that run has ended, or
    after a second.
    """
    try:
        return await work()
    except Cancelled:
        await run_shielded(runner, partial(_repeat, work))
        raise


async def _repeat(work: Callable[[], Awaitable[T]]) -> None:
    with suppress(KeepstateError):  # the first run has applied, or the lease ends with its time
        await work()


async def run_shielded(runner: Runner, work: Callable[[], Awaitable[None]]) -> None:
    """Do what must be done although the caller is cancelled, and wait a moment for it."""
    is_done = runner.signal()

    async def whole() -> None:
        try:
            await work()
        finally:
            is_done.set()

    runner.detach(whole)
    await is_done.wait(_LONGEST_WAIT_S)
