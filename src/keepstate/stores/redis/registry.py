"""The names of all spaces, in sorted sets that are spread over a cluster.

A space is listed before its first batch, so that no name is ever missing. A dropped space stays listed,
because its revisions continue if it is created again; a listing checks each space's state.

A handle remembers the names that it has listed, until there is a sign that a server may have lost them: a
broken connection to it, another server at its address, or lost history anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias, cast

from keepstate.errors import CorruptError, StorageError
from keepstate.stores.redis.client import Answer, Client, Node, Unit
from keepstate.stores.redis.encoding import (
    REGISTRY_SHARDS,
    STATE_FIELD,
    SpaceKeys,
    State,
    decode_state,
    lex_range,
    registry_key,
    slot_of_tag,
)
from keepstate.stores.redis.wire import Refusal, Reply, refused

_PAGE_NAMES = 512
_REMEMBERED = (1 << 16) // REGISTRY_SHARDS

_Holder: TypeAlias = "tuple[Node, int, int]"
"""A server, the number of connections to it that were given up, and the number of losses of history."""


class Registry:
    """The sorted sets of names.

    Args:
        client: The servers.
        prefix: The prefix of all keys of the store.
        keys_of: Returns the keys of a space.
    """

    def __init__(self, client: Client, prefix: str, keys_of: Callable[[str], SpaceKeys]) -> None:
        self._client, self._keys_of = client, keys_of
        self._keys = [registry_key(prefix, shard) for shard in range(REGISTRY_SHARDS)]
        self._slots = [slot_of_tag(b"%d" % shard) for shard in range(REGISTRY_SHARDS)]
        self._lock = threading.Lock()
        self._losses = 0
        self._holders: list[_Holder | None] = [None] * REGISTRY_SHARDS
        """The holder of each set at the time when the names in `_listed` were added."""
        self._listed: list[set[str]] = [set() for _ in self._keys]

    def is_listed(self, space: str) -> bool:
        """Return whether this handle knows that the space is listed."""
        shard = self._keys_of(space).registry_shard
        return space in self._listed[shard] and self._holders[shard] == self._holder(shard)

    def doubt(self) -> None:
        """Forget the listed names: history was lost, and names may have been lost with it."""
        with self._lock:
            self._losses += 1

    def _holder(self, shard: int) -> _Holder | None:
        node = self._client.node_of(self._slots[shard])
        return None if node is None else (node, node.breaks, self._losses)

    async def enlist(self, spaces: Iterable[str]) -> dict[str, StorageError]:
        """List spaces, and return the error for each space that could not be listed.

        A server without room refuses to list. That is ignored here: a batch that writes gets the same error
        itself, and a batch that only deletes must not get it.
        """
        names = [space for space in dict.fromkeys(spaces) if not self.is_listed(space)]
        if not names:
            return {}
        places = [self._keys_of(space) for space in names]
        holders = {place.registry_shard: self._holder(place.registry_shard) for place in places}
        answers = await self._client.run([self._listing(place) for place in places])
        failed: dict[str, StorageError] = {}
        listed: list[str] = []
        for space, answer in zip(names, answers, strict=True):
            reply = answer if isinstance(answer, StorageError) else answer[0]
            if isinstance(reply, StorageError):
                failed[space] = reply
            elif not isinstance(reply, Refusal):
                listed.append(space)
            elif reply.code != "OOM":
                failed[space] = refused(reply, self._client.access.url, space)
        self._remember(listed, holders)
        return failed

    def _remember(self, spaces: Iterable[str], holders: Mapping[int, _Holder | None]) -> None:
        with self._lock:
            for space in spaces:
                shard = self._keys_of(space).registry_shard
                listed, holder = self._listed[shard], holders[shard]
                if holder is None:
                    continue
                if self._holders[shard] != holder or len(listed) > _REMEMBERED:
                    listed.clear()  # listing a space twice costs a round trip and changes nothing
                self._holders[shard] = holder
                listed.add(space)

    def _listing(self, keys: SpaceKeys) -> Unit:
        shard = keys.registry_shard
        return Unit(self._slots[shard], [(b"ZADD", self._keys[shard], b"0", keys.name)])

    async def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, State]]:
        """Return the next names in order, dropped spaces included, each with its state."""
        start, end = lex_range(prefix.encode(), None if after is None else after.encode())
        count = b"%d" % min(limit, _PAGE_NAMES)
        asked = [
            Unit(slot, [(b"ZRANGEBYLEX", key, start, end, b"LIMIT", b"0", count)])
            for slot, key in zip(self._slots, self._keys, strict=True)
        ]
        found: list[bytes] = []
        for answer in await self._client.run(asked):
            found += cast("list[bytes]", self._reply(answer))
        names = [_text(name) for name in sorted(found)[: int(count)]]
        return list(zip(names, await self.states(names), strict=True))

    async def states(self, names: Sequence[str]) -> list[State]:
        """Return the states of spaces."""
        places = [self._keys_of(name) for name in names]
        answers = await self._client.run(
            [Unit(place.slot, [(b"HGET", place.keys[0], STATE_FIELD)]) for place in places]
        )
        return [
            decode_state(cast("bytes | None", self._reply(answer, name)), name)
            for name, answer in zip(names, answers, strict=True)
        ]

    def _reply(self, answer: Answer, space: str | None = None) -> Reply:
        if isinstance(answer, StorageError):
            raise answer
        reply = answer[0]
        if isinstance(reply, Refusal):
            raise refused(reply, self._client.access.url, space)
        return reply


def _text(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        place = f"the name {name!r} in the list of spaces"
        raise CorruptError(
            f"{place} is damaged: it is not UTF-8. Remove it from the list.", place=place
        ) from error
