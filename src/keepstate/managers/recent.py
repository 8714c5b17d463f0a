"""What was read a moment ago, for managers that may show it once more.

Invariant: what this manager has itself written since is never hidden by what it read before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from copy import deepcopy
from typing import Any, Final, TypeVar

from keepstate._clock import Clock

T = TypeVar("T")

_SUBJECTS: Final = 256


class Recent:
    """Answers by subject, each kept for so many seconds; 0 keeps none."""

    def __init__(self, clock: Clock, keep_s: float) -> None:
        self._clock, self._keep_s = clock, keep_s
        self._kept: OrderedDict[str, dict[str, tuple[float, Any]]] = OrderedDict()
        self._writes = 0

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_kept": OrderedDict()}

    async def get(self, subject: str, what: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return what was read of it lately, or read it; a copy in either case."""
        if not self._keep_s:
            return await read()
        now_s, writes = self._clock.monotonic_s(), self._writes
        answers = self._kept.get(subject)
        if answers is not None and what in answers and now_s - answers[what][0] < self._keep_s:
            lately: T = deepcopy(answers[what][1])
            return lately
        answer = await read()
        if writes == self._writes:  # else it may be older than a write that its caller knows of
            self._kept.setdefault(subject, {})[what] = now_s, deepcopy(answer)
            if len(self._kept) > _SUBJECTS:
                self._kept.popitem(last=False)
        return answer

    def forget(self, subject: str) -> None:
        """Let the subject be read anew: something of it is being or has been written."""
        self._writes += 1
        self._kept.pop(subject, None)
