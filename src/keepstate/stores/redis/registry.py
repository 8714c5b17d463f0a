"""The names of all spaces, in sorted sets that are spread over a cluster.

A space is listed before its first batch, so that none is ever missing. One that was dropped stays listed, for
its revisions go on if it is made again; who asks for names looks at each space's state.

A handle remembers what it has listed, for as long as nothing tells that a server may have lost it: broken
connections to it, another in its place, or lost history anywhere.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias, cast

from keepstate.errors import CorruptError, StorageError
from keepstate.stores.redis.client import Answer, Client, Unit
from keepstate.stores.redis.encoding import (
    REGISTRY_SHARDS,
    STATE_FIELD,
    Place,
    State,
    decode_state,
    lex_range,
    registry_key,
    slot_of_tag,
)
from keepstate.stores.redis.node import Node
from keepstate.stores.redis.wire import Refusal, Reply, refused

_PAGE_NAMES = 512
_REMEMBERED = (1 << 16) // REGISTRY_SHARDS

_Keeper: TypeAlias = "tuple[Node, int, int]"
"""A server, how often a connection to it was given up, and how often history was found lost."""


class Registry:
    """Lists spaces.

    Args:
        client: Who is asked.
        prefix: What all keys of the store begin with.
        place: Where a space is kept.
    """

    def __init__(self, client: Client, prefix: str, place: Callable[[str], Place]) -> None:
        self._client, self._place = client, place
        self._keys = [registry_key(prefix, shard) for shard in range(REGISTRY_SHARDS)]
        self._slots = [slot_of_tag(b"%d" % shard) for shard in range(REGISTRY_SHARDS)]
        self._lock = threading.Lock()
        self._losses = 0
        self._keepers: list[_Keeper | None] = [None] * REGISTRY_SHARDS
        """What keeps each set, as it was when the names in `_listed` were added."""
        self._listed: list[set[str]] = [set() for _ in self._keys]

    def is_listed(self, space: str) -> bool:
        """Return whether this handle knows that the space is listed."""
        shard = self._place(space).registry_shard
        return space in self._listed[shard] and self._keepers[shard] == self._keeper(shard)

    def doubt(self) -> None:
        """Forget what is listed: history was lost, and names may have been lost with it."""
        with self._lock:
            self._losses += 1

    def _keeper(self, shard: int) -> _Keeper | None:
        node = self._client.node_of(self._slots[shard])
        return None if node is None else (node, node.breaks, self._losses)

    async def enlist(self, spaces: Iterable[str]) -> dict[str, StorageError]:
        """List spaces, and return for which it could not.

        A server without room refuses to list; whoever writes meets that itself, and who only deletes must
        not.
        """
        names = [space for space in dict.fromkeys(spaces) if not self.is_listed(space)]
        if not names:
            return {}
        places = [self._place(space) for space in names]
        keepers = {place.registry_shard: self._keeper(place.registry_shard) for place in places}
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
        self._remember(listed, keepers)
        return failed

    def _remember(self, spaces: Iterable[str], keepers: Mapping[int, _Keeper | None]) -> None:
        with self._lock:
            for space in spaces:
                shard = self._place(space).registry_shard
                listed, keeper = self._listed[shard], keepers[shard]
                if keeper is None:
                    continue
                if self._keepers[shard] != keeper or len(listed) > _REMEMBERED:
                    listed.clear()  # to list a space twice costs a round trip and changes nothing
                self._keepers[shard] = keeper
                listed.add(space)

    def _listing(self, place: Place) -> Unit:
        shard = place.registry_shard
        return Unit(self._slots[shard], [(b"ZADD", self._keys[shard], b"0", place.name)])

    async def page(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, State]]:
        """Return the next names in order, those of dropped spaces too, each with its state."""
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
        places = [self._place(name) for name in names]
        states = await self._client.run(
            [Unit(place.slot, [(b"HGET", place.keys[0], STATE_FIELD)]) for place in places]
        )
        return [
            (name, decode_state(cast("bytes | None", self._reply(answer, name)), name))
            for name, answer in zip(names, states, strict=True)
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
        raise CorruptError(f"{place} is damaged: it is no UTF-8", place=place) from error
