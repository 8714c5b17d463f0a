"""Where things of tools are kept: in 16 spaces, so that many can be used at once.

```
run/<execution>                      where it stands in the log, since when it runs and until when
open/<time>/<execution>              one that runs, by when its time is over; the earliest first
log/<tool>/<time, inverted>/<execution>   the execution; the newest first
stats/<tool>                         sums of what became of them
cache/<tool>/<parameters>            a kept result, by the hash of the parameters; keyed by encryption
retry/<execution>                    its retry state, and where it stands in `due`
due/<time>/<execution>               a retry with attempts left; the earliest first
effect/<execution>/<name>            something that must not be done twice
begun/<execution>/<name>             the same while its end is not told
```

An execution, its retries and effects are in the space that its id picks, a result in that of its parameters.
Only in `run` and `retry`, and the name of an effect, an id stands whole; elsewhere a long one is cut. Times
are the store's. What is read from several spaces is put in order by time, then id.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from hashlib import sha256
from typing import Any, ClassVar, Final, TypeVar

from keepstate._runner import Lock
from keepstate.engine.kernel.arguments import check_name
from keepstate.engine.space.joint_work import content_name, keyed_name
from keepstate.managers.binding import Folder
from keepstate.managers.manager import Manager
from keepstate.managers.names import segment
from keepstate.managers.tools.records import ToolStats, added

T = TypeVar("T")

SPACES: Final = 16
_LATEST_MS: Final = 1 << 53
_LOOKUPS_KEPT: Final = 64
_AUTHOR: Final = "tools"


class ToolPlaces(Manager):
    """The 16 spaces of tools, and the sums in them."""

    _kind: ClassVar[str] = "tools"
    _records: bool = False
    _lookups: Lookups

    def _of(self, what: str, id: str) -> Folder:
        """Return the space that an id picks."""
        return self._folder(str(sha256(check_name(what, id).encode()).digest()[0] % SPACES))

    async def _cached_in(self, tool_name: str, hash: str) -> Folder:
        """Return the space that parameters pick; in an encrypted store a guess does not find it."""
        content = f"{check_name('tool_name', tool_name)}\0{hash}".encode()
        picked = await content_name(self._folder("0").space, content)
        return self._folder(str(picked[0] % SPACES))

    def _folder(self, id: str) -> Folder:
        """Return one of the spaces; its number names nobody, so that `tools` is who writes in it."""
        found = super()._folder(id)
        return found.on(found.space.by(_AUTHOR)) if found.space.author == id else found

    async def _in_each(self, read: Callable[[Folder], Coroutine[Any, Any, T]]) -> list[T]:
        """Return what is read from all spaces, beside one another where that can be."""
        folders = [self._folder(str(number)) for number in range(SPACES)]
        if self._place.transaction is not None or self._runner.mode == "blocking":
            return [await read(folder) for folder in folders]  # threads would cost more than they save
        # mypy infers no type for it
        answers = await self._runner.gather([lambda folder=folder: read(folder) for folder in folders])  # type: ignore[misc]
        read_all: list[T] = []
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
            read_all.append(answer)
        return read_all

    async def get_tool_stats(self, tool_name: str) -> ToolStats:
        """Return what became of a tool's executions; costs the same however many there were.

        Lookups of other managers in the cache show here within 64 of them, or once they are closed.
        """
        name = segment(check_name("tool_name", tool_name))
        await self._note_lookups()

        async def read(folder: Folder) -> ToolStats | None:
            kept: ToolStats | None = await folder.space.documents.get(folder.name("stats", name))
            return kept

        return added(tool_name, *filter(None, await self._in_each(read)))

    async def _looked(self, folder: Folder, tool_name: str, *, is_hit: bool) -> None:
        """Count a lookup; in the store only now and then, for a lookup should not be a write."""
        lookup = ToolStats(tool_name, cache_hits=int(is_hit), cache_misses=int(not is_hit))
        if self._place.transaction is not None:
            await count(folder, lookup)
        elif self._lookups.add(folder.id, lookup) >= _LOOKUPS_KEPT:
            await self._note_lookups()

    async def _note_lookups(self) -> None:
        """Add the lookups that were counted here to the sums in the store."""
        waiting = self._lookups.take()
        try:
            while waiting:
                folder_id, lookups = waiting[-1]
                folder = self._folder(folder_id)
                name = folder.name("stats", segment(lookups.tool_name))

                def add(known: ToolStats, lookups: ToolStats = lookups) -> ToolStats:
                    return added(known.tool_name, known, lookups)

                await folder.space.documents.update(name, add, default=ToolStats(lookups.tool_name))
                waiting.pop()
        finally:
            for folder_id, lookups in waiting:  # none, unless the store failed
                self._lookups.add(folder_id, lookups)


class Lookups:
    """Lookups in the cache that are counted, and not stored yet."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counted: dict[tuple[str, str], ToolStats] = {}

    def add(self, folder_id: str, lookups: ToolStats) -> int:
        """Count some, and return how many are counted of the tool in the space."""
        with self._lock:
            place = folder_id, lookups.tool_name
            known = self._counted.get(place, ToolStats(lookups.tool_name))
            known = self._counted[place] = added(known.tool_name, known, lookups)
        return known.cache_hits + known.cache_misses

    def take(self) -> list[tuple[str, ToolStats]]:
        """Return all, each with its space, and count anew."""
        with self._lock:
            taken, self._counted = self._counted, {}
        return [(folder_id, lookups) for (folder_id, _), lookups in taken.items()]


async def parameters_name(folder: Folder, tool_name: str, hash: str) -> str:
    """Return the hash of parameters as it stands in names: keyed in an encrypted store."""
    keyed = await keyed_name(folder.space, f"{tool_name}\0{hash}".encode())
    return hash if keyed is None else keyed.hex()


async def cache_place(folder: Folder, tool_name: str, hash: str) -> str:
    """Return the name of the document that keeps the result of a tool for parameters.

    Raises:
        InvalidError: The hash is empty, or too long for a name.
    """
    tool = segment(tool_name)
    folder.name("cache", tool, hash)  # a keyed name would admit any hash
    return folder.name("cache", tool, await parameters_name(folder, tool_name, hash))


async def count(folder: Folder, change: ToolStats) -> None:
    """Add to the sums of a tool."""
    name = folder.name("stats", segment(change.tool_name))
    known: ToolStats = await folder.space.documents.get(name, ToolStats(change.tool_name))
    await folder.space.documents.put(name, added(change.tool_name, known, change))


def inverted(at_ms: int) -> str:
    """Return a time as text that stands before that of each earlier one."""
    return f"{_LATEST_MS - at_ms:016x}"


def ascending(at_ms: int) -> str:
    """Return a time as text that stands behind that of each earlier one."""
    return f"{at_ms:016x}"
