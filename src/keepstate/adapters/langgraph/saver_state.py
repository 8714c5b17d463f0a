"""Caches of a saver between its calls, blocking and asynchronous."""

from __future__ import annotations

from typing import Final

from keepstate._runner import Lock
from keepstate.adapters.langgraph.channel_diff import StateSummary
from keepstate.adapters.langgraph.interrupts import Interrupts
from keepstate.adapters.langgraph.records import space_of
from keepstate.adapters.langgraph.serde import Values
from keepstate.engine.history.objects import ObjectCache
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel.arguments import check_space_name
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.keepstate import Keepstate

_CACHED_BYTES: Final = 64 << 20
_CACHED_EXECUTORS: Final = 256
_TOLD_THREADS: Final = 4_096


class Summaries:
    """Cache of the latest stored checkpoint of each namespace; the least recently stored is evicted first."""

    def __init__(self) -> None:
        self._summaries: dict[tuple[str, str], StateSummary] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        self._size_bytes = 0
        self._lock = Lock()

    def get(self, thread: str, line: str) -> StateSummary | None:
        """Return the summary of a namespace, if it is cached."""
        return self._summaries.get((thread, line))

    def put(self, thread: str, line: str, summary: StateSummary) -> None:
        """Replace the summary of a namespace."""
        with self._lock:
            self._pop((thread, line))
            self._summaries[thread, line] = summary
            self._sizes[thread, line] = size_bytes = summary.size_bytes
            self._size_bytes += size_bytes
            while self._size_bytes > _CACHED_BYTES and len(self._summaries) > 1:
                self._pop(next(iter(self._summaries)))

    def forget(self, thread: str) -> None:
        """Remove the summaries of a thread."""
        with self._lock:
            for key in [key for key in self._summaries if key[0] == thread]:
                self._pop(key)

    def _pop(self, key: tuple[str, str]) -> None:
        if self._summaries.pop(key, None) is not None:
            self._size_bytes -= self._sizes.pop(key)


class OncePerThread:
    """The threads of which something was said; the earliest is forgotten first."""

    def __init__(self) -> None:
        self._threads: dict[str, None] = {}
        self._lock = Lock()

    def has(self, thread: str) -> bool:
        """Return whether a thread was noted."""
        return thread in self._threads

    def is_first(self, thread: str) -> bool:
        """Note a thread, and return whether it was not noted before."""
        with self._lock:
            if thread in self._threads:
                return False
            self._threads[thread] = None
            if len(self._threads) > _TOLD_THREADS:
                del self._threads[next(iter(self._threads))]
            return True


class SaverState:
    """The values of a saver, and its caches of what was read and stored lately.

    Attributes:
        values: The encoder and decoder of values.
        interrupts: Asks for interrupts by approvals; None if the saver does not.
        summaries: The latest stored checkpoint of each namespace.
        overtaken: The threads of which a warning was logged.
    """

    def __init__(self, values: Values, interrupts: Interrupts | None = None) -> None:
        self.values, self.interrupts = values, interrupts
        self.overtaken = OncePerThread()
        self.summaries = Summaries()
        self._records, self._objects = Records(), ObjectCache()
        self._executors: dict[str, SpaceExecutor] = {}

    def with_values(self, values: Values) -> SaverState:
        """Return a state with other values and the same caches."""
        other = SaverState(values, self.interrupts)
        other.summaries, other.overtaken = self.summaries, self.overtaken
        other._records, other._objects = self._records, self._objects
        return other

    def executor(self, handle: Keepstate, thread: str) -> SpaceExecutor:
        """Return the executor of a thread's space."""
        found = self._executors.get(thread)
        if found is None or found.home is not handle:
            name = check_space_name("name", space_of(thread), handle.tenant_id)
            if len(self._executors) >= _CACHED_EXECUTORS:
                self._executors = {}
            found = self._executors[thread] = SpaceExecutor(handle, name, handle.author)
        return found

    def session(self, executor: SpaceExecutor, unit: Unit) -> HistorySession:
        """Return the history of a thread, as one unit of work sees it."""
        return HistorySession(unit, self._records, self._objects, self.values.codec)
