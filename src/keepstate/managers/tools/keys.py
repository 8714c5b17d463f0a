"""Keys of tools' data, in 16 spaces, so that many tools can be used concurrently.

```
run/<execution>                      key in the log, start of the last attempt and end of the lease
open/<time>/<execution>              a running execution, by the end of its lease; the earliest first
log/<tool>/<time, inverted>/<execution>   the execution; the newest first
stats/<tool>                         sums over the executions of the tool
cache/<tool>/<parameters>            a cached result, by the hash of its parameters; keyed by encryption
retry/<execution>                    its retry state, and its key in `due`
due/<time>/<execution>               a retry with attempts left; the earliest first
effect/<execution>/<name>            an effect that must not happen twice
begun/<execution>/<name>             an effect whose end is not recorded
```

The id of an execution selects the space of the execution, its retries and effects. The parameters select the
space of a result. Ids are stored whole in `run` and `retry`, and in the name of an effect; in other keys long
ids are truncated. Times are the store's. Data from several spaces is ordered by time, then id.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeVar

from keepstate._runner import Lock
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.space.joint_work import content_name, keyed_name
from keepstate.managers.binding import Namespace
from keepstate.managers.manager import Manager
from keepstate.managers.names import to_segment
from keepstate.managers.tools.records import ToolStats, add_stats

T = TypeVar("T")

SPACES: Final = 16
_LATEST_MS: Final = 1 << 53
_LOOKUPS_KEPT: Final = 64
_AUTHOR: Final = "tools"


class ToolSpaces(Manager):
    """The 16 spaces of tools, and the sums in them."""

    _kind: ClassVar[str] = "tools"
    _records: bool = False
    _lookups: Lookups

    def _namespace_for(self, what: str, id: str) -> Namespace:
        """Return the namespace of the space that an id selects."""
        return self._namespace(str(sha256(check_name(what, id).encode()).digest()[0] % SPACES))

    async def _cache_namespace(self, tool_name: str, hash: str) -> Namespace:
        """Return the namespace that parameters select; in an encrypted store it cannot be guessed."""
        content = f"{check_name('tool_name', tool_name)}\0{hash}".encode()
        picked = await content_name(self._namespace("0").space, content)
        return self._namespace(str(picked[0] % SPACES))

    def _namespace(self, id: str) -> Namespace:
        """Return the namespace of one of the spaces, with the author `tools` in place of its number."""
        found = super()._namespace(id)
        return found.with_space(found.space.by(_AUTHOR)) if found.space.author == id else found

    async def _read_each(self, read: Callable[[Namespace], Coroutine[Any, Any, T]]) -> list[T]:
        """Read from all spaces, concurrently if possible, and return the results."""
        namespaces = [self._namespace(str(number)) for number in range(SPACES)]
        if self._binding.transaction is not None or self._runner.mode == "blocking":
            return [
                await read(namespace) for namespace in namespaces
            ]  # threads would cost more than they save
        # mypy cannot infer the type of this call.
        reads = [lambda namespace=namespace: read(namespace) for namespace in namespaces]
        answers = await self._runner.gather(reads)
        read_all: list[T] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            read_all.append(answer)
        return read_all

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return the statistics of a tool. The cost does not depend on the number of executions.

        Cache lookups of other managers appear in blocks of up to 64, or when those managers are closed.
        """
        name = to_segment(check_name("tool_name", tool_name))
        await self._store_lookups()

        async def read(namespace: Namespace) -> ToolStats | None:
            kept: ToolStats | None = await namespace.get("stats", name)
            return kept

        return add_stats(tool_name, *filter(None, await self._read_each(read)))

    async def _count_lookup(self, namespace: Namespace, tool_name: str, *, is_hit: bool) -> None:
        """Count a cache lookup. Stored only now and then, so that a lookup is not a write."""
        lookup = ToolStats(tool_name, cache_hits=int(is_hit), cache_misses=int(not is_hit))
        if self._binding.transaction is not None:
            await count(namespace, lookup)
        elif self._lookups.add(namespace.id, lookup) >= _LOOKUPS_KEPT:
            await self._store_lookups()

    async def _store_lookups(self) -> None:
        """Add the lookups counted here to the stored sums."""
        waiting = self._lookups.take()
        try:
            while waiting:
                namespace_id, lookups = waiting[-1]
                namespace = self._namespace(namespace_id)
                name = namespace.name("stats", to_segment(lookups.tool_name))

                def add(known: ToolStats, lookups: ToolStats = lookups) -> ToolStats:
                    return add_stats(known.tool_name, known, lookups)

                await namespace.space.documents.update(name, add, default=ToolStats(lookups.tool_name))
                waiting.pop()
        finally:
            for namespace_id, lookups in waiting:  # empty, unless the store failed
                self._lookups.add(namespace_id, lookups)


class Lookups:
    """Cache lookups that are counted but not stored yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counted: dict[tuple[str, str], ToolStats] = {}

    def add(self, namespace_id: str, lookups: ToolStats) -> int:
        """Add lookups, and return the number counted for the tool in the space."""
        with self._lock:
            key = namespace_id, lookups.tool_name
            known = self._counted.get(key, ToolStats(lookups.tool_name))
            known = self._counted[key] = add_stats(known.tool_name, known, lookups)
        return known.cache_hits + known.cache_misses

    def take(self) -> list[tuple[str, ToolStats]]:
        """Return all counts, each with its space, and reset them."""
        with self._lock:
            taken, self._counted = self._counted, {}
        return [(namespace_id, lookups) for (namespace_id, _), lookups in taken.items()]


async def hash_name(namespace: Namespace, tool_name: str, hash: str) -> str:
    """Return the hash of parameters for use in names: keyed in an encrypted store."""
    keyed = await keyed_name(namespace.space, f"{tool_name}\0{hash}".encode())
    return hash if keyed is None else keyed.hex()


async def cache_key(namespace: Namespace, tool_name: str, hash: str) -> str:
    """Return the name of the document with a tool's cached result for parameters.

    Raises:
        InvalidError: The hash is empty, or too long for a name.
    """
    tool = to_segment(tool_name)
    namespace.name("cache", tool, hash)  # checks the hash, because a keyed name accepts any
    return namespace.name("cache", tool, await hash_name(namespace, tool_name, hash))


async def count(namespace: Namespace, change: ToolStats) -> None:
    """Add to the sums of a tool."""
    name = namespace.name("stats", to_segment(change.tool_name))
    known: ToolStats = await namespace.space.documents.get(name, ToolStats(change.tool_name))
    await namespace.space.documents.put(name, add_stats(change.tool_name, known, change))


def to_inverted(at_ms: int) -> str:
    """Return a time as text that sorts before the text of each earlier time."""
    return f"{_LATEST_MS - at_ms:016x}"


def to_ascending(at_ms: int) -> str:
    """Return a time as text that sorts after the text of each earlier time."""
    return f"{at_ms:016x}"
