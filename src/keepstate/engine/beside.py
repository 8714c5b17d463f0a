"""What is done beside the caller, so that one who is cancelled midway leaves nothing held.

A batch that is on its way applies whether or not somebody still waits for it. So what takes something runs as
work of its own: if its caller has gone by the time it has it, it lets go of it again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from keepstate._runner import Promise, Runner

T = TypeVar("T")

_LONGEST_WAIT_S = 1.0
"""So long a cancelled caller waits until it holds nothing; then that goes on without it."""


async def taken_beside(
    runner: Runner, take: Callable[[], Awaitable[T]], let_go: Callable[[T], Awaitable[None]]
) -> T:
    """Returns what `take` returns; where the caller is cancelled, that is given to `let_go` instead."""
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


async def done_beside(runner: Runner, work: Callable[[], Awaitable[None]]) -> None:
    """Does what must be done although the caller is cancelled, and waits a moment for it."""
    is_done = runner.signal()

    async def whole() -> None:
        try:
            await work()
        finally:
            is_done.set()

    runner.detach(whole)
    await is_done.wait(_LONGEST_WAIT_S)
