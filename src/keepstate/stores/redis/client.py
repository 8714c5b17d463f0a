"""Commands to one server, or to a cluster whose nodes share the slots.

The client learns a cluster's map of slots from any node, and corrects it if a node answers MOVED. Such an
answer means that nothing was done, so the commands are sent to the other node at once. Conditions that only
pass with time are left to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.errors import StorageError, StoreUnavailableError
from keepstate.stores.pool import Pool
from keepstate.stores.redis import scripts
from keepstate.stores.redis.encoding import SLOTS
from keepstate.stores.redis.wire import (
    ASK,
    MOVED,
    UNKNOWN_SCRIPT,
    Access,
    Address,
    Refusal,
    Reply,
    Wire,
    Words,
    open_wire,
    pack,
)

PACKET_BYTES: Final = 8 << 20
"""Approximate size of the commands that are sent before their replies are read."""

_TRUSTED_S = 1.0
"""Seconds for which an idle connection is assumed to be alive: servers and proxies close idle ones."""
_ROUNDS = 5
_ELSEWHERE = {MOVED, ASK, UNKNOWN_SCRIPT}
_NOT_RUN = StoreUnavailableError("not run")
_MULTI, _EXEC, _ASKING = pack((b"MULTI",)), pack((b"EXEC",)), pack((b"ASKING",))


class Unit(NamedTuple):
    """Commands on keys of one slot that run with nothing between them: all of them, or none if refused."""

    slot: int
    commands: Sequence[Words]


Answer: TypeAlias = "list[Reply] | StorageError"
"""One reply for each command of a unit, or the error that prevented them."""


class Node:
    """One server, with at most `max_connections` connections, each opened on first use."""

    def __init__(
        self, address: Address, access: Access, *, runner: Runner, clock: Clock, max_connections: int
    ) -> None:
        self.address = address
        self._access, self._runner = access, runner
        self._pool = Pool[Wire](
            self._connect, size=max_connections, trusted_s=_TRUSTED_S, runner=runner, clock=clock
        )
        self._is_closed = False

    @property
    def breaks(self) -> int:
        """Return the number of connections given up. Since each, the server may have lost data."""
        return self._pool.breaks

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}>"

    async def _connect(self) -> Wire:
        wire = open_wire(self._runner.mode, self.address, self._access)
        try:
            await wire.connect()
        except BaseException:
            await wire.drop()
            raise
        return wire

    async def exchange(
        self, packet: bytes, count: int, *, sent: Awaitable[None] | None = None
    ) -> list[Reply]:
        """Send packed commands over a free connection and return the replies, one for each command.

        Between sending and reading it awaits `sent`.

        Raises:
            StoreUnavailableError: The server was not reached. Nothing was sent.
            OutcomeUnknownError: The server did not answer, so it may or may not have run the commands.
        """
        wire = self._pool.take_free() or await self._pool.take()
        try:
            replies = await wire.exchange(packet, count, sent=sent)
        except BaseException as error:
            self._pool.discard(wire)
            await wire.drop()
            if isinstance(error, StorageError):
                for idle in self._pool.take_idle():  # they most likely fail as well
                    await idle.drop()
            raise
        self._pool.give_back(wire)
        if self._is_closed:
            await self.close()
        return replies

    async def close(self) -> None:
        """Close the idle connections now, and each other one after its reply."""
        self._is_closed = True
        for wire in self._pool.take_idle():
            await wire.close()


class Client:
    """Sends commands to the servers of one store.

    Args:
        addresses: The server, or some nodes of the cluster, which name the others.
        is_cluster: Whether the servers are a cluster.
    """

    def __init__(
        self,
        addresses: Sequence[Address],
        access: Access,
        *,
        is_cluster: bool,
        runner: Runner,
        clock: Clock,
        max_connections: int,
    ) -> None:
        self.is_cluster, self.access = is_cluster, access
        self._seeds, self._runner, self._clock = list(addresses), runner, clock
        self._max_connections = max_connections
        self._nodes: dict[Address, Node] = {}
        self._slots: list[Node | None] = [] if is_cluster else [self._node(addresses[0])] * SLOTS
        self._is_outdated = is_cluster

    async def close(self) -> None:
        """Close the connections."""
        for node in list(self._nodes.values()):
            await node.close()

    # ---- the map of slots

    def node_of(self, slot: int) -> Node | None:
        """Return the node that serves a slot, or None if that is unknown now."""
        return None if self._is_outdated else self._slots[slot]

    async def masters(self) -> list[Node]:
        """Return the nodes that serve slots.

        Raises:
            StoreUnavailableError: No node of the cluster answers.
        """
        if self._is_outdated:
            await self.learn()
        return list(dict.fromkeys(node for node in self._slots if node is not None))

    async def learn(self) -> None:
        """Ask the nodes in turn which node serves which slot."""
        failure: StorageError | None = None
        for address in dict.fromkeys([*self._nodes, *self._seeds]):
            try:
                (reply,) = await self._node(address).exchange(pack((b"CLUSTER", b"SLOTS")), 1)
            except StoreUnavailableError as error:
                failure = error
                continue
            if isinstance(reply, list):
                self._set_map(address, cast("list[list[Reply]]", reply))
                return
        raise StoreUnavailableError(
            f"No node of {self.access.url} reported which node serves which slot: {failure}",
            url=self.access.url,
        ) from failure

    def _set_map(self, source: Address, ranges: list[list[Reply]]) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for served in ranges:
            first, last = cast("list[int]", served[:2])
            host, port = cast("tuple[bytes | None, int]", cast("list[Reply]", served[2])[:2])
            node = self._node(Address(host.decode() if host else source.host, port))
            slots[first : last + 1] = [node] * (last + 1 - first)
        self._slots, self._is_outdated = slots, None in slots

    def outdate(self) -> None:
        """Make the next call learn the map again."""
        self._is_outdated = self.is_cluster

    def moved(self, slot: int, address: Address) -> None:
        """Record that another node serves a slot."""
        if self._slots:
            self._slots[slot] = self._node(address)

    def _suspect(self, node: Node) -> None:
        """Learn the map again, from the other nodes first, because this one may be gone."""
        self.outdate()
        if self._nodes.pop(node.address, None) is not None:
            self._nodes[node.address] = node

    def _node(self, address: Address) -> Node:
        node = self._nodes.get(address)
        if node is None:
            made = Node(
                address,
                self.access,
                runner=self._runner,
                clock=self._clock,
                max_connections=self._max_connections,
            )
            node = self._nodes.setdefault(address, made)
        return node

    # ---- running

    async def ask(self, slot: int, packet: bytes, count: int) -> list[Reply] | None:
        """Return the replies to packed commands that only read; None if the caller has to use `run`."""
        node = self.node_of(slot)
        if node is None:
            return None
        try:
            replies = await node.exchange(packet, count)
        except StoreUnavailableError:
            self._suspect(node)
            raise
        return None if any(type(reply) is Refusal for reply in replies) else replies

    async def run(self, units: Sequence[Unit]) -> list[Answer]:
        """Run each unit at the node of its slot, in any order, and return the answers in the order given."""
        if len(units) == 1 and len(units[0].commands) == 1:
            answer = await self._run_one(units[0])
            if answer is not None:
                return [answer]
        answers: list[Answer] = [_NOT_RUN] * len(units)
        left = list(range(len(units)))
        todo, asking = list(units), dict[int, Address]()
        for _ in range(_ROUNDS):
            if self._is_outdated:
                try:
                    await self.learn()
                except StoreUnavailableError as error:
                    for index in left:
                        answers[index] = error
                    return answers
            await self._run_each(left, todo, asking, answers)
            left = [index for index in left if self._redirect(index, todo, asking, answers)]
            if not left:
                return answers
        for index in left:
            answers[index] = self._unserved_error(answers[index])
        return answers

    async def _run_one(self, unit: Unit) -> Answer | None:
        """Run a single command, as most calls do; return None if it has to be redirected."""
        node = self.node_of(unit.slot)
        if node is None:
            return None
        try:
            replies = await node.exchange(pack(unit.commands[0]), 1)
        except StoreUnavailableError as error:
            self._suspect(node)
            return error
        reply = replies[0]
        return None if type(reply) is Refusal and reply.code in _ELSEWHERE else replies

    async def _run_each(
        self, indexes: list[int], units: list[Unit], asking: dict[int, Address], answers: list[Answer]
    ) -> None:
        """Run units at their nodes, at all of these at once."""
        by_node: dict[Node, list[int]] = {}
        for index in indexes:
            node = self._node(asking[index]) if index in asking else self._slots[units[index].slot]
            if node is not None:
                by_node.setdefault(node, []).append(index)
        # All callers use one order, so that two threads never wait for each other's connections.
        nodes = sorted(by_node, key=lambda node: node.address)
        pause = _Pause() if len(nodes) > 1 and self._runner.mode == "blocking" else None
        work = [self._run_at(node, by_node[node], units, asking, answers, pause) for node in nodes]
        if pause is not None:
            _run_in_step(work)
        elif len(work) > 1:
            await asyncio.gather(*work)
        else:
            for one in work:
                await one

    async def _run_at(
        self,
        node: Node,
        indexes: list[int],
        units: list[Unit],
        asking: dict[int, Address],
        answers: list[Answer],
        pause: Awaitable[None] | None,
    ) -> None:
        """Run units at one node, as many per packet as fit; pause after each sending and each reading."""
        at = 0
        while at < len(indexes):
            packed: list[bytes] = []
            counts: list[int] = []
            size = 0
            while at + len(counts) < len(indexes) and size < PACKET_BYTES:
                index = indexes[at + len(counts)]
                one, count = _pack_unit(units[index], asks=index in asking)
                packed.append(one)
                counts.append(count)
                size += len(one)
            try:
                replies = await node.exchange(b"".join(packed), sum(counts), sent=pause)
            except StoreUnavailableError as error:
                self._suspect(node)
                for index in indexes[at : at + len(counts)]:
                    answers[index] = error
                for index in indexes[at + len(counts) :]:
                    answers[index] = self._unserved_error(error)  # never sent
                return
            start = 0
            for index, count in zip(indexes[at : at + len(counts)], counts, strict=True):
                answers[index] = _unit_replies(replies[start : start + count], units[index])
                start += count
            at += len(counts)
            if pause is not None and at < len(indexes):
                await pause

    def _redirect(
        self, index: int, units: list[Unit], asking: dict[int, Address], answers: list[Answer]
    ) -> bool:
        """Return whether a unit was not run and has to be run again at once, and record where and how."""
        answer = answers[index]
        asking.pop(index, None)
        if not isinstance(answer, list):
            return False
        refusal = next((reply for reply in answer if isinstance(reply, Refusal)), None)
        if refusal is None:
            return False
        if refusal.code == UNKNOWN_SCRIPT:
            units[index] = Unit(units[index].slot, [with_text(words) for words in units[index].commands])
            return True
        if refusal.code not in (MOVED, ASK) or not self.is_cluster:
            return False
        address = self._address_in(refusal, units[index].slot)
        if refusal.code == MOVED:
            self.moved(units[index].slot, address)
        else:
            asking[index] = address
        return True

    def _address_in(self, refusal: Refusal, slot: int) -> Address:
        """Return the address in a MOVED or ASK: `1234 10.0.0.7:6379`, or `1234 :6379` for the same host."""
        host, _, port = refusal.text.split()[-1].rpartition(":")
        source = self._slots[slot]
        return Address(host or (source.address.host if source else self._seeds[0].host), int(port))

    def _unserved_error(self, cause: object) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"The nodes of {self.access.url} redirected a call, and none ran it: {cause}", url=self.access.url
        )


class _Pause:
    """A point at which a blocking coroutine lets the next one continue."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def _run_in_step(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines from pause to pause, so that each sends before any of them waits for its replies."""
    going = list(work)
    try:
        while going:
            going = [one for one in going if _continues(one)]
    finally:
        for one in work:
            one.close()


def _continues(one: Coroutine[Any, Any, None]) -> bool:
    try:
        one.send(None)
    except StopIteration:
        return False
    return True


def with_text(words: Words) -> Words:
    """Return the command that runs a script by its text, for a server that does not have it cached."""
    if words[0] != b"EVALSHA":
        return words
    return (b"EVAL", scripts.text_of(words[1]), *words[2:])


def _pack_unit(unit: Unit, *, asks: bool) -> tuple[bytes, int]:
    """Return a unit as it is sent, and its number of replies."""
    packed = [pack(words) for words in unit.commands]
    if len(packed) > 1:
        packed = [_MULTI, *packed, _EXEC]
    if asks:
        packed.insert(0, _ASKING)
    return b"".join(packed), len(packed)


def _unit_replies(replies: list[Reply], unit: Unit) -> list[Reply]:
    """Return the replies to the unit's own commands.

    If the server refuses to queue one command, it runs none, so the refusal counts for all of them.
    """
    if len(unit.commands) == 1:
        return replies[-1:]
    done = replies[-1]
    if isinstance(done, list):
        return done
    refusals = [reply for reply in replies if isinstance(reply, Refusal)]
    return [refusals[0]] * len(unit.commands)
