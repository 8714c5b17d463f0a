"""Subscriptions to the hints of other processes: one connection per server, for any number of spaces.

They run in an event loop in both modes: the caller's own in `async` mode, and a private loop of the waiter's
thread in `blocking` mode. So waiting for several servers and for new spaces at once is written only once.

Channels are sharded: in a cluster a hint goes only to the node of its space, and to the listeners there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import cast

from keepstate._runner import Mode
from keepstate.errors import StorageError, StoreUnavailableError
from keepstate.stores.redis.client import Client, Node
from keepstate.stores.redis.encoding import SpaceKeys
from keepstate.stores.redis.wire import Refusal, Reply, TaskWire, pack, refused

_ALL_EVERY_S = 10.0
"""Interval in which every space gets a hint, because a server may have lost some."""


class HintLines:
    """The subscriptions of one handle.

    Args:
        client: The servers.
        keys_of: Returns the keys of a space.
        mode: Decides the event loop to wait in.
    """

    def __init__(self, client: Client, keys_of: Callable[[str], SpaceKeys], mode: Mode) -> None:
        self._client, self._keys_of = client, keys_of
        self._mode = mode
        self._loop: asyncio.AbstractEventLoop | None = None
        self._lines: dict[Node, _Line] = {}
        self._woken = asyncio.Event()
        self._followed = frozenset[str]()
        self._changed = set[str]()
        self._all_at_s = 0.0
        self._is_ended = False

    async def wait(self, wanted: Callable[[], Collection[str]], timeout_s: float) -> Collection[str]:
        """Return the wanted spaces that may have changed, after at most `timeout_s`.

        `wanted` is called again after `want`, because more spaces may be wanted during the wait.

        Raises:
            StoreUnavailableError: A server is gone. The next call subscribes again.
        """
        if self._mode == "async":
            self._loop = asyncio.get_running_loop()
            return await self._next_changes(wanted, timeout_s)
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(self._next_changes(wanted, timeout_s))

    def want(self, spaces: Collection[str]) -> None:
        """Make `wait` look for new wanted spaces, unless these are followed already; from any thread."""
        if not self._followed.issuperset(spaces):
            self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._woken.set)

    def end(self) -> None:
        """Make this and every later `wait` return at once."""
        self._is_ended = True
        self._wake()

    async def close(self) -> None:
        """Close the connections."""
        if self._mode == "async":
            await self._drop_lines()
        elif self._loop is not None:
            self._loop.run_until_complete(self._drop_lines())
            self._loop.close()

    async def _next_changes(self, wanted: Callable[[], Collection[str]], timeout_s: float) -> Collection[str]:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s
        while not self._is_ended:
            self._woken.clear()
            await self._follow(frozenset(wanted()))
            if loop.time() >= self._all_at_s:
                self._all_at_s = loop.time() + _ALL_EVERY_S
                self._changed.update(wanted())
            if self._changed or loop.time() >= until_s:
                changed, self._changed = self._changed, set[str]()
                return changed
            with suppress(TimeoutError):
                async with asyncio.timeout_at(until_s):
                    await self._woken.wait()
        await asyncio.sleep(0.001)  # a caller that waits again before the handle is closed must not spin
        return []

    async def _follow(self, wanted: frozenset[str]) -> None:
        """Subscribe to exactly the wanted spaces, each at the node where it is now."""
        self._followed = wanted
        by_node: dict[Node, set[str]] = {node: set() for node in self._lines}
        for space in wanted:
            slot = self._keys_of(space).slot
            node = self._client.node_of(slot)
            if node is None:
                raise StoreUnavailableError(
                    f"The node that serves space {space!r} is unknown now.", url=self._client.access.url
                )
            by_node.setdefault(node, set()).add(space)
        for node, spaces in by_node.items():
            line = self._lines.get(node)
            if line is None:
                line = self._lines[node] = _Line(node, self._client, self._keys_of, self._accept)
            try:
                await line.follow(spaces)
            except StorageError:
                del self._lines[node]
                await line.close()
                raise

    def _accept(self, space: str | None) -> None:
        """Accept the hint of a space, or None if a line needs attention."""
        if space is not None:
            self._changed.add(space)
        self._woken.set()

    async def _drop_lines(self) -> None:
        lines, self._lines = self._lines, {}
        for line in lines.values():
            await line.close()


class _Line:
    """The connection to one server."""

    def __init__(
        self,
        node: Node,
        client: Client,
        keys_of: Callable[[str], SpaceKeys],
        report: Callable[[str | None], None],
    ) -> None:
        self._client, self._keys_of, self._report = client, keys_of, report
        self._wire = TaskWire(node.address, client.access)
        self._spaces: dict[bytes, str] = {}
        self._failure: StorageError | None = None
        self._reading: asyncio.Task[None] | None = None

    async def follow(self, spaces: Collection[str]) -> None:
        """Subscribe to these spaces and to no others."""
        if self._failure is not None:
            raise self._failure
        if self._reading is None:
            if not spaces:
                return
            await self._wire.connect()
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="keepstate hints")
        wanted = {self._keys_of(space).keys[0]: space for space in spaces}
        new, old = wanted.keys() - self._spaces.keys(), self._spaces.keys() - wanted.keys()
        # One channel per command, because the channels of one command must have one slot.
        packet = [pack((b"SSUBSCRIBE", channel)) for channel in new]
        packet += [pack((b"SUNSUBSCRIBE", channel)) for channel in old]
        self._spaces = wanted
        if packet:
            await self._wire.send(b"".join(packet))

    async def close(self) -> None:
        """Stop reading and disconnect."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.wait([self._reading])
        await self._wire.close()

    async def _read(self) -> None:
        try:
            while True:
                self._take(await self._wire.receive())
        except StorageError as error:
            self._failure = error
        self._report(None)

    def _take(self, reply: Reply) -> None:
        if isinstance(reply, Refusal):
            # A space of this line has moved. The client learns the map again, and each space gets a new
            # subscription.
            self._client.outdate()
            raise refused(reply, self._client.access.url)
        kind, channel, *_ = cast("list[bytes]", reply)
        if kind == b"sunsubscribe":
            if channel in self._spaces:  # the server unsubscribed it, because the slot has moved
                del self._spaces[channel]
                self._client.outdate()
                self._report(None)
            return
        # A new subscription is a hint too, because the space may have changed before it.
        space = self._spaces.get(channel)
        if space is not None:
            self._report(space)
