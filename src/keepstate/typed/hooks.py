"""Notification of hooks after a commit was applied."""

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
    """An applied batch.

    Attributes:
        previous_revision: The revision before the batch.
        new_revision: The revision that the batch made.
        op_count: The number of updates.
        snapshot: The state after the batch.
    """

    previous_revision: int
    new_revision: int
    op_count: int
    snapshot: Snapshot


class CommitHook(Protocol):
    """A function of the commit event, awaited if it is a coroutine function."""

    def __call__(self, event: CommitEvent, /) -> Awaitable[None] | None:
        """Handle a commit that was applied."""
        ...


class Hooks:
    """The hooks of one state, or of all states of a run object, in the order in which they were added."""

    def __init__(self, mode: Mode) -> None:
        self._blocking = mode == "blocking"
        self._hooks: list[CommitHook] = []

    def add(self, hook: CommitHook) -> None:
        """Add a hook.

        Raises:
            InvalidError: The hook is not a function, or a coroutine function in blocking mode.
        """
        if self._blocking:
            reject_coroutine_function(hook)
        elif not callable(hook):  # pyright: ignore[reportUnnecessaryComparison]
            raise InvalidError(f"{hook!r} is not callable. Pass a function.")
        self._hooks.append(hook)

    async def notify(self, event: CommitEvent) -> None:
        """Call all hooks. Errors are logged, because the batch is already applied."""
        for hook in list(self._hooks):
            try:
                await call_function(hook, event)
            except Exception:  # noqa: BLE001 - the batch is applied, so a failing hook must not fail the commit
                _log.exception("Hook %r failed; revision %d is applied", hook, event.new_revision)
