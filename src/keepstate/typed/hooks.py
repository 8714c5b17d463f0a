"""Who is told of commits, once they have been applied."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from keepstate._runner import Mode
from keepstate.engine.kernel.executor import call_function, reject_coroutine_function
from keepstate.errors import InvalidError
from keepstate.typed.state_map import Snapshot

_log = logging.getLogger("keepstate.typed")


@dataclass(frozen=True, slots=True)
class CommitEvent:
    """A batch was applied.

    Attributes:
        previous_revision: The revision that it was applied to.
        new_revision: The revision that it made.
        op_count: How many updates it had.
        snapshot: The state after it.
    """

    previous_revision: int
    new_revision: int
    op_count: int
    snapshot: Snapshot


class CommitHook(Protocol):
    """What is told of commits: a function of the event, awaited if it is a coroutine function."""

    def __call__(self, event: CommitEvent, /) -> Awaitable[None] | None:
        """Take note of a commit that was applied."""
        ...


class Hooks:
    """The hooks of one state, or of all states of one run after the other, in the order of adding."""

    def __init__(self, mode: Mode) -> None:
        self._blocking = mode == "blocking"
        self._hooks: list[CommitHook] = []

    def add(self, hook: CommitHook) -> None:
        """Add a hook.

        Raises:
            InvalidError: It is no function, or one that nobody here could await.
        """
        if self._blocking:
            reject_coroutine_function(hook)
        elif not callable(hook):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidError(f"{hook!r} cannot be called; give a function")
        self._hooks.append(hook)

    async def tell(self, event: CommitEvent) -> None:
        """Call all hooks; one that fails is logged, because the batch is applied already."""
        for hook in list(self._hooks):
            try:
                await call_function(hook, event)
            except Exception:  # noqa: BLE001 - the batch is applied, whatever becomes of who is told
                _log.exception("hook %r failed after revision %d was applied", hook, event.new_revision)
