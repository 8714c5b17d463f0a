"""A short-lived read cache, for managers that may return slightly old data.

Invariant: a cached read never hides a later write of the same manager.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any, Final, TypeVar

from keepstate._clock import Clock

T = TypeVar("T")

_SUBJECTS: Final = 256


class ReadCache:
    """A cache of reads by subject, each valid for `keep_s` seconds; 0 turns it off."""

    def __init__(self, clock: Clock, keep_s: float) -> None:
        self._clock, self._keep_s = clock, keep_s
        self._cached: OrderedDict[str, dict[str, tuple[float, Any]]] = OrderedDict()
        self._writes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}

    async def get(self, subject: str, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return a copy of a cached read, or of a new one."""
        if not self._keep_s:
            return await read()
        now_s, writes = self._clock.monotonic_s(), self._writes
        answers = self._cached.get(subject)
        if answers is not None and what in answers and now_s - answers[what][0] < self._keep_s:
            lately: T = deepcopy(answers[what][1])
            return lately
        answer = await read()
        if writes == self._writes:  # otherwise the answer may be older than a write of this manager
            self._cached.setdefault(subject, {})[what] = now_s, deepcopy(answer)
            if len(self._cached) > _SUBJECTS:
                self._cached.popitem(last=False)
        return answer

    def invalidate(self, subject: str) -> None:
        """Drop the cached reads of a subject that is being or has been written."""
        self._writes += 1
        self._cached.pop(subject, None)
