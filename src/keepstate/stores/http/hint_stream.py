"""The stream of hints from the server: one for all spaces of a handle that have listeners.

It runs in an event loop in both modes: the caller's own in `async` mode, and a private loop of the waiter's
thread in `blocking` mode. A stream names its spaces when it is opened. If more are wanted, a second stream
with all of them is opened, and the first one ends when the second delivers; so no hint falls between the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import aclosing, suppress
from typing import Final

from keepstate._clock import Clock
from keepstate._runner import Mode
from keepstate.errors import KeepstateError, StorageError, StoreUnavailableError
from keepstate.stores.http.client import Client
from keepstate.stores.http.wire import HintsCall

_STREAMED: Final = 16_384
"""Number of spaces in a stream. Further ones get a hint in each round of the waiter."""

_SOONEST_S: Final = 0.01
"""Seconds between two streams that are opened because more spaces are wanted."""

_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 2.0
_UNWANTED: Final = 64


class HintStream:
    """The stream of one handle, opened again when it fails.

    Args:
        client: The server.
        mode: Decides the event loop to wait in.
        clock: Spreads the reconnections of many clients.
    """

    def __init__(self, client: Client, mode: Mode, clock: Clock) -> None:
        self._client, self._mode, self._clock = client, mode, clock
        self._loop: asyncio.AbstractEventLoop | None = None
        self._line: _Line | None = None
        self._woken = asyncio.Event()
        self._changed = set[str]()
        self._failures = 0
        self._earliest_s = 0.0
        self._is_ended = False

    async def wait(self, wanted: Callable[[], Collection[str]], timeout_s: float) -> Collection[str]:
        """Return the wanted spaces that may have changed, after at most about `timeout_s`.

        `wanted` is called again after `want`, because more spaces may be wanted during the wait.

        Raises:
            StorageError: The stream ended. The next call opens another one.
        """
        if self._mode == "async":
            self._loop = asyncio.get_running_loop()
            return await self._next_changes(wanted, timeout_s)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._next_changes(wanted, timeout_s))

    def want(self, spaces: Collection[str]) -> None:
        """Make `wait` look for new wanted spaces, unless these are streamed already; from any thread."""
        line = self._line
        if line is None or not line.spaces.issuperset(spaces):
            self._wake()

    def end(self) -> None:
        """Make this and every later `wait` return at once; from any thread."""
        self._is_ended = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    async def close(self) -> None:
        """Close the connection."""
        if self._mode == "async":
            await self._drop_line()
        elif self._loop is not None:
            self._loop.run_until_complete(self._drop_line())
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.close()

    async def _next_changes(self, wanted: Callable[[], Collection[str]], timeout_s: float) -> Collection[str]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not self._is_ended:
            self._woken.clear()
            spaces = list(wanted())
            streamed, others = frozenset(spaces[:_STREAMED]), spaces[_STREAMED:]
            if self._is_outdated(streamed) and not await self._is_too_soon(until_s):
                await self._follow(streamed)
            if self._changed or loop.time() >= until_s:
                changed, self._changed = self._changed, set[str]()
                return changed.union(others)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._woken.wait()
            if (line := self._line) is not None and line.failure is not None:
                await self._record_failure(line.failure)
                raise line.failure
        await asyncio.sleep(0.001)  # a caller that waits again before the handle is closed must not spin
        return []

    def _is_outdated(self, wanted: frozenset[str]) -> bool:
        if self._line is None:
            return True
        return not self._line.spaces >= wanted or len(self._line.spaces) > 2 * len(wanted) + _UNWANTED

    async def _is_too_soon(self, until_s: float) -> bool:
        """Wait until a stream may be opened again; return True if that is not within this wait."""
        loop = asyncio.get_running_loop()
        while not self._is_ended and (wait_s := min(self._earliest_s, until_s) - loop.time()) > 0:
            await asyncio.sleep(min(wait_s, 0.05))  # short, because `end` does not interrupt it
        return self._is_ended or loop.time() < self._earliest_s

    async def _follow(self, spaces: frozenset[str]) -> None:
        """Open a stream of these spaces, and end the present one when it delivers."""
        line = _Line(self._client, spaces, self._accept)
        try:
            await line.open()
        except BaseException as error:  # also a cancellation; raised again
            await line.close()
            if isinstance(error, KeepstateError):
                await self._record_failure(error)
            raise
        known = self._line.spaces if self._line is not None else frozenset[str]()
        await self._drop_line()
        self._line, self._failures = line, 0
        self._earliest_s = asyncio.get_running_loop().time() + _SOONEST_S
        self._changed |= spaces - known  # they may have changed before the stream began

    async def _record_failure(self, error: KeepstateError) -> None:
        """Drop the stream, and let the next one be opened after a pause that differs between clients."""
        await self._drop_line()
        longest_s = min(_FIRST_PAUSE_S * 2**self._failures, _LONGEST_PAUSE_S)
        self._failures = min(self._failures + 1, 16)
        self._earliest_s = asyncio.get_running_loop().time() + longest_s * self._clock.spread()

    def _accept(self, names: Collection[str]) -> None:
        """Accept hints; without names, a line needs attention."""
        self._changed.update(names)
        self._woken.set()

    async def _drop_line(self) -> None:
        line, self._line = self._line, None
        if line is not None:
            await line.close()


class _Line:
    """One stream, from its request to its end."""

    def __init__(
        self, client: Client, spaces: frozenset[str], report: Callable[[Collection[str]], None]
    ) -> None:
        self._client, self.spaces, self._report = client, spaces, report
        self._settled = asyncio.Event()
        self._reading: asyncio.Task[None] | None = None
        self.failure: KeepstateError | None = None

    async def open(self) -> None:
        """Return when the server listens for the spaces."""
        self._reading = asyncio.get_running_loop().create_task(self._read(), name="keepstate hints")
        await self._settled.wait()
        if self.failure is not None:
            raise self.failure

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])

    async def _read(self) -> None:
        try:
            async with aclosing(self._client.hints(HintsCall(spaces=list(self.spaces)))) as hints:
                async for names in hints:
                    self._settled.set()
                    if names:
                        self._report(names)
        except KeepstateError as error:
            self.failure = error if isinstance(error, StorageError) else _as_unavailable(error, self._client)
        self._settled.set()
        self._report(())


def _as_unavailable(error: KeepstateError, client: Client) -> StoreUnavailableError:
    made = StoreUnavailableError(f"{client.url} sends no hints: {error}", url=client.url)
    made.__cause__ = error
    return made
