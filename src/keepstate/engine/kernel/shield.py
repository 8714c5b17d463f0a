"""Work in a task of its own, so that cancelling the caller never leaks a lease or a claim.

A batch that was sent is applied even if no caller waits for it. Acquisitions therefore run detached from
their caller: if the caller is cancelled before the acquisition completes, its result is released again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from keepstate._runner import Promise, Runner, cancelled_error
from keepstate.errors import KeepstateError

T = TypeVar("T")

_LONGEST_WAIT_S = 1.0
"""Longest time that a cancelled caller waits for the release, which then continues in the background."""


async def acquire_shielded(
    runner: Runner, acquire: Callable[[], Awaitable[T]], release: Callable[[T], Awaitable[None]]
) -> T:
    """Return the result of `acquire`. If the caller is cancelled, pass the result to `release` instead."""
    promise: Promise[T] = runner.promise()
    acquired, is_cancelled, is_settled = list[T](), False, runner.signal()

    async def attempt() -> None:
        try:
            answer = await acquire()
        except BaseException as error:  # noqa: BLE001 - raised again by `promise.wait`
            promise.fail(error)
            is_settled.set()
            return
        acquired.append(answer)
        promise.give(answer)
        if is_cancelled:
            await undo()

    async def undo() -> None:
        try:
            for answer in acquired:
                await release(answer)
        finally:
            is_settled.set()

    try:
        runner.detach(attempt)
        return await promise.wait()
    except BaseException:  # also a cancellation; raised again
        is_cancelled = True
        if acquired:
            runner.detach(undo)
        await is_settled.wait(_LONGEST_WAIT_S)
        raise


async def finish_despite_cancel(runner: Runner, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`. If the caller is cancelled, run `work` again, detached from the caller.

    A cancelled caller does not know whether its batch was sent. `work` must therefore be idempotent: a second
    run after an applied one changes nothing. The cancellation continues when the second run has ended, or
    after 1 second.
    """
    try:
        return await work()
    except cancelled_error():
        await run_shielded(runner, partial(_repeat, work))
        raise


async def _repeat(work: Callable[[], Awaitable[T]]) -> None:
    with suppress(KeepstateError):  # the first run was applied, or the lease expires
        await work()


async def run_shielded(runner: Runner, work: Callable[[], Awaitable[None]]) -> None:
    """Run work that must be done although the caller is cancelled, and wait at most 1 second for it."""
    is_done = runner.signal()

    async def whole() -> None:
        try:
            await work()
        finally:
            is_done.set()

    runner.detach(whole)
    await is_done.wait(_LONGEST_WAIT_S)
