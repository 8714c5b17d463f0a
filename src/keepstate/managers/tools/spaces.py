"""The 16 spaces of tools' data, so that many tools can be used concurrently: their keys, and the log.

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

A process that dies leaves its executions in `RUNNING`. They are stale after the end of their lease, which a
heartbeat extends. Until then they cannot be started again and are not removed.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final, TypeVar

from keepstate._clock import Clock
from keepstate._runner import Lock, Runner
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.space.joint_work import content_name, keyed_name
from keepstate.managers.binding import ApplyWork, Namespace, SubjectBinding
from keepstate.managers.names import to_last_segment, to_segment
from keepstate.managers.record_history import unwrap_all
from keepstate.managers.tools.records import ToolExecution, ToolExecutionStatus, ToolStats, add_stats

T = TypeVar("T")

SPACES: Final = 16
_LATEST_MS: Final = 1 << 53
_LOOKUPS_KEPT: Final = 64
_AUTHOR: Final = "tools"


class ToolSpaces:
    """The spaces of one manager, and the sums in them.

    Args:
        binding: The storage binding of the manager.
        apply: Applies work as one batch of the manager.
    """

    def __init__(self, binding: SubjectBinding, apply: ApplyWork) -> None:
        self.binding, self._apply, self._lookups = binding, apply, Lookups()

    @property
    def runner(self) -> Runner:
        """The runner of the mode."""
        return self.binding.runner

    @property
    def clock(self) -> Clock:
        """The source of time and randomness."""
        return self.binding.clock

    def of(self, execution_id: str) -> Namespace:
        """Return the namespace of the space that the id of an execution selects."""
        id = check_name("execution_id", execution_id)
        return self.numbered(str(sha256(id.encode()).digest()[0] % SPACES))

    async def of_result(self, tool_name: str, hash: str) -> Namespace:
        """Return the namespace that parameters select; in an encrypted store it cannot be guessed."""
        content = f"{check_name('tool_name', tool_name)}\0{hash}".encode()
        picked = await content_name(self.numbered("0").space, content)
        return self.numbered(str(picked[0] % SPACES))

    def numbered(self, id: str) -> Namespace:
        """Return the namespace of one of the spaces, with the author `tools` in place of its number."""
        found = self.binding.namespace(id)
        return found.with_space(found.space.by(_AUTHOR)) if found.space.author == id else found

    async def change(
        self, namespace: Namespace, work: Callable[[Namespace], Awaitable[T]], **options: Any
    ) -> T:
        """Apply all changes of a function as one batch, and return its result."""
        answer: T = await self._apply(namespace, work, **options)
        return answer

    async def read_each(self, read: Callable[[Namespace], Coroutine[Any, Any, T]]) -> list[T]:
        """Read from all spaces, concurrently if possible, and return the results."""
        namespaces = [self.numbered(str(number)) for number in range(SPACES)]
        if self.binding.transaction is not None or self.runner.mode == "blocking":
            # Threads would cost more than they save.
            return [await read(namespace) for namespace in namespaces]
        return unwrap_all(await self.runner.gather([partial(read, namespace) for namespace in namespaces]))

    # ---- sums

    async def read_stats(self, tool_name: str) -> ToolStats:
        """Return the sums over all spaces."""
        name = to_segment(check_name("tool_name", tool_name))
        await self.store_lookups()

        async def read(namespace: Namespace) -> ToolStats | None:
            kept: ToolStats | None = await namespace.get("stats", name)
            return kept

        return add_stats(tool_name, *filter(None, await self.read_each(read)))

    async def count_lookup(self, namespace: Namespace, tool_name: str, *, is_hit: bool) -> None:
        """Count a cache lookup. Stored only now and then, so that a lookup is not a write."""
        lookup = ToolStats(tool_name, cache_hits=int(is_hit), cache_misses=int(not is_hit))
        if self.binding.transaction is not None:
            await count(namespace, lookup)
        elif self._lookups.add(namespace.id, lookup) >= _LOOKUPS_KEPT:
            await self.store_lookups()

    async def store_lookups(self) -> None:
        """Add the lookups counted here to the stored sums."""
        waiting = self._lookups.take()
        try:
            while waiting:
                namespace_id, lookups = waiting[-1]
                stats = self.numbered(namespace_id).collection("stats")

                def add(known: ToolStats, lookups: ToolStats = lookups) -> ToolStats:
                    return add_stats(known.tool_name, known, lookups)

                default = ToolStats(lookups.tool_name)
                await stats.update(to_segment(lookups.tool_name), add, default=default)
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


# ---- the log of executions


@dataclass(frozen=True, slots=True)
class LoggedExecution:
    """An execution in the log.

    Attributes:
        execution: The execution.
        key: The name of its document in the log.
        since_ms: Start of its last attempt, by the store's clock.
        until_ms: End of its lease, by the store's clock; None without a lease.
    """

    execution: ToolExecution
    key: str
    since_ms: int
    until_ms: int | None = None

    def is_stale(self, now_ms: int) -> bool:
        """Return whether the execution is running and its lease has ended."""
        is_running = self.execution.status is ToolExecutionStatus.RUNNING
        return is_running and self.until_ms is not None and self.until_ms <= now_ms


def new_log_key(namespace: Namespace, execution: ToolExecution, now_ms: int) -> str:
    """Return the name in the log of an execution that starts now."""
    id = to_last_segment(execution.execution_id)
    return namespace.name("log", to_segment(execution.tool_name), to_inverted(now_ms), id)


async def find_execution(namespace: Namespace, execution_id: str) -> LoggedExecution | None:
    """Return an execution, or None if there is none with this id."""
    known: dict[str, Any] | None = await namespace.get("run", execution_id)
    if known is None:
        return None
    execution: ToolExecution | None = await namespace.space.documents.get(known["place"])
    if execution is None:
        return None
    return LoggedExecution(execution, known["place"], known["since_ms"], known.get("until_ms"))


async def put_execution(namespace: Namespace, before: LoggedExecution | None, now: LoggedExecution) -> None:
    """Replace an execution in the log."""
    documents, id = namespace.space.documents, now.execution.execution_id
    if before is not None and before.until_ms is not None:
        await documents.delete(_open_key(namespace, before))
    if now.until_ms is not None:
        await documents.put(_open_key(namespace, now), id)
    known = {"place": now.key, "since_ms": now.since_ms, "until_ms": now.until_ms}
    await documents.put(namespace.name("run", id), known)
    await documents.put(now.key, now.execution)


async def remove_execution(namespace: Namespace, logged: LoggedExecution) -> None:
    """Remove an execution."""
    await namespace.space.documents.delete(logged.key)
    await namespace.delete("run", logged.execution.execution_id)
    if logged.until_ms is not None:
        await namespace.space.documents.delete(_open_key(namespace, logged))


async def find_stale(namespace: Namespace, before_ms: int) -> AsyncIterator[tuple[str, str]]:
    """Yield executions whose leases ended by a time: the end of the lease as text, and the id."""
    async for name, execution_id in namespace.collection("open").items():
        until = name.partition("/")[0]
        if until > to_ascending(before_ms):  # the earliest come first
            return
        yield until, execution_id


def _open_key(namespace: Namespace, logged: LoggedExecution) -> str:
    return namespace.name(
        "open", to_ascending(logged.until_ms or 0), to_last_segment(logged.execution.execution_id)
    )
