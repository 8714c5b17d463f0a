"""Commands to one server or to a cluster, over whose nodes the slots are spread.

A cluster's map of slots is learnt from any node, and corrected where a node answers MOVED. An answer that
sends the client elsewhere means that nothing was done, so the commands go there at once; what only passes
with time is left to the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepstate._clock import Clock
from keepstate._runner import Runner
from keepstate.errors import StorageError, StoreUnavailableError
from keepstate.stores.redis import scripts
from keepstate.stores.redis.encoding import SLOTS
from keepstate.stores.redis.node import Node
from keepstate.stores.redis.wire import (
    ASK,
    MOVED,
    UNKNOWN_SCRIPT,
    Access,
    Address,
    Refusal,
    Reply,
    Words,
    pack,
)

PACKET_BYTES: Final = 8 << 20
"""About how much is sent before its answers are read."""

_ROUNDS = 5
_ELSEWHERE = {MOVED, ASK, UNKNOWN_SCRIPT}
_NOT_RUN = StoreUnavailableError("not run")
_MULTI, _EXEC, _ASKING = pack((b"MULTI",)), pack((b"EXEC",)), pack((b"ASKING",))


class Unit(NamedTuple):
    """Commands on keys of one slot that run with nothing between them: all, or, if refused, none."""

    slot: int
    commands: Sequence[Words]


Answer: TypeAlias = "list[Reply] | StorageError"
"""One reply for each of a unit's commands, or why there is none."""


class Client:
    """Speaks to the servers of one store.

    Args:
        addresses: The server; or some nodes of the cluster, from which the others are learnt.
        is_cluster: Which of the two.
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

    # ---- who answers for what

    def node_of(self, slot: int) -> Node | None:
        """Return the node that answers for a slot, as far as is known now."""
        return None if self._is_outdated else self._slots[slot]

    async def masters(self) -> list[Node]:
        """Return the nodes that answer for slots.

        Raises:
            StoreUnavailableError: No node of the cluster tells.
        """
        if self._is_outdated:
            await self.learn()
        return list(dict.fromkeys(node for node in self._slots if node is not None))

    async def learn(self) -> None:
        """Ask the nodes, one after the other, which of them answers for which slot."""
        failure: StorageError | None = None
        for address in dict.fromkeys([*self._nodes, *self._seeds]):
            try:
                (reply,) = await self._node(address).exchange(pack((b"CLUSTER", b"SLOTS")), 1)
            except StoreUnavailableError as error:
                failure = error
                continue
            if isinstance(reply, list):
                self._take_map(address, cast("list[list[Reply]]", reply))
                return
        raise StoreUnavailableError(
            f"no node of {self.access.url} tells who answers for what: {failure}", url=self.access.url
        ) from failure

    def _take_map(self, teller: Address, ranges: list[list[Reply]]) -> None:
        slots: list[Node | None] = [None] * SLOTS
        for served in ranges:
            first, last = cast("list[int]", served[:2])
            host, port = cast("tuple[bytes | None, int]", cast("list[Reply]", served[2])[:2])
            node = self._node(Address(host.decode() if host else teller.host, port))
            slots[first : last + 1] = [node] * (last + 1 - first)
        self._slots, self._is_outdated = slots, None in slots

    def outdate(self) -> None:
        """Make the next call learn anew who answers for what."""
        self._is_outdated = self.is_cluster

    def moved(self, slot: int, address: Address) -> None:
        """Take note that another node answers for a slot."""
        if self._slots:
            self._slots[slot] = self._node(address)

    def _suspect(self, node: Node) -> None:
        """Ask the others first who answers for what: this one may be gone."""
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
        """Return the replies to packed commands that only read; None if only `run` knows the way."""
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
        """Run units, each where its slot is, and answer in their order. They have no order among them."""
        if len(units) == 1 and len(units[0].commands) == 1:
            answer = await self._run_one(units[0])
            if answer is not None:
                return [answer]
        answers: list[Answer] = [_NOT_RUN] * len(units)
        open_places = list(range(len(units)))
        todo, asking = list(units), dict[int, Address]()
        for _ in range(_ROUNDS):
            if self._is_outdated:
                try:
                    await self.learn()
                except StoreUnavailableError as error:
                    for place in open_places:
                        answers[place] = error
                    return answers
            by_node: dict[Node, list[int]] = {}
            for place in open_places:
                node = self._node(asking[place]) if place in asking else self._slots[todo[place].slot]
                if node is not None:
                    by_node.setdefault(node, []).append(place)
            # In one order everywhere, so that two threads never wait for one another's connections.
            nodes = sorted(by_node, key=lambda node: node.address)
            pause = _Pause() if len(nodes) > 1 and self._runner.mode == "blocking" else None
            work = [self._run_at(node, by_node[node], todo, asking, answers, pause) for node in nodes]
            if pause is not None:
                _in_step(work)
            elif len(work) > 1:
                await asyncio.gather(*work)
            else:
                for one in work:
                    await one
            open_places = [place for place in open_places if self._goes_on(place, todo, asking, answers)]
            if not open_places:
                return answers
        for place in open_places:
            answers[place] = self._lost_way(answers[place])
        return answers

    async def _run_one(self, unit: Unit) -> Answer | None:
        """Run a single command, what most calls are, the short way; None if it needs the long one."""
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

    async def _run_at(
        self,
        node: Node,
        places: list[int],
        units: list[Unit],
        asking: dict[int, Address],
        answers: list[Answer],
        pause: Awaitable[None] | None,
    ) -> None:
        """Run units at one node, as many in a packet as fit; pauses after each sending and each reading."""
        at = 0
        while at < len(places):
            packed: list[bytes] = []
            counts: list[int] = []
            size = 0
            while at + len(counts) < len(places) and size < PACKET_BYTES:
                place = places[at + len(counts)]
                one, count = _pack_unit(units[place], asks=place in asking)
                packed.append(one)
                counts.append(count)
                size += len(one)
            try:
                replies = await node.exchange(b"".join(packed), sum(counts), sent=pause)
            except StoreUnavailableError as error:
                self._suspect(node)
                for place in places[at : at + len(counts)]:
                    answers[place] = error
                for place in places[at + len(counts) :]:
                    answers[place] = self._lost_way(error)  # never sent
                return
            start = 0
            for place, count in zip(places[at : at + len(counts)], counts, strict=True):
                answers[place] = _unit_replies(replies[start : start + count], units[place])
                start += count
            at += len(counts)
            if pause is not None and at < len(places):
                await pause

    def _goes_on(
        self, place: int, units: list[Unit], asking: dict[int, Address], answers: list[Answer]
    ) -> bool:
        """Return whether a unit has to be run again at once, because it was not run; and where, and how."""
        answer = answers[place]
        asking.pop(place, None)
        if not isinstance(answer, list):
            return False
        refusal = next((reply for reply in answer if isinstance(reply, Refusal)), None)
        if refusal is None:
            return False
        if refusal.code == UNKNOWN_SCRIPT:
            units[place] = Unit(units[place].slot, [with_text(words) for words in units[place].commands])
            return True
        if refusal.code not in (MOVED, ASK) or not self.is_cluster:
            return False
        address = self._address_in(refusal, units[place].slot)
        if refusal.code == MOVED:
            self.moved(units[place].slot, address)
        else:
            asking[place] = address
        return True

    def _address_in(self, refusal: Refusal, slot: int) -> Address:
        """Return where a MOVED or ASK sends: `1234 10.0.0.7:6379`, or `1234 :6379` for the same host."""
        host, _, port = refusal.text.split()[-1].rpartition(":")
        teller = self._slots[slot]
        return Address(host or (teller.address.host if teller else self._seeds[0].host), int(port))

    def _lost_way(self, cause: object) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.access.url} sent a call from node to node and nobody took it: {cause}",
            url=self.access.url,
        )


class _Pause:
    """Where a coroutine that blocks lets the next one go on."""

    def __await__(self) -> Generator[None, None, None]:
        yield


def _in_step(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    """Run coroutines from pause to pause: each sends before any of them waits for its answers."""
    going = list(work)
    try:
        while going:
            going = [one for one in going if _goes_on(one)]
    finally:
        for one in work:
            one.close()


def _goes_on(one: Coroutine[Any, Any, None]) -> bool:
    try:
        one.send(None)
    except StopIteration:
        return False
    return True


def with_text(words: Words) -> Words:
    """Return the command that runs a script by its text, for a server that does not know it by its name."""
    if words[0] != b"EVALSHA":
        return words
    return (b"EVAL", scripts.text_of(words[1]), *words[2:])


def _pack_unit(unit: Unit, *, asks: bool) -> tuple[bytes, int]:
    """Return a unit as it is sent, and how many replies it gets."""
    packed = [pack(words) for words in unit.commands]
    if len(packed) > 1:
        packed = [_MULTI, *packed, _EXEC]
    if asks:
        packed.insert(0, _ASKING)
    return b"".join(packed), len(packed)


def _unit_replies(replies: list[Reply], unit: Unit) -> list[Reply]:
    """Return the replies to the unit's own commands.

    A refusal of any of them when it was queued is one of all: the server then runs none.
    """
    if len(unit.commands) == 1:
        return replies[-1:]
    done = replies[-1]
    if isinstance(done, list):
        return done
    refusals = [reply for reply in replies if isinstance(reply, Refusal)]
    return [refusals[0]] * len(unit.commands)
