"""Blocking twins of `keepstate.managers.tools.effects`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from keepstate._finish import finish
from keepstate.managers.tools import effects as managers
from keepstate.managers.tools.effects import EFFECT
from keepstate.managers.tools.records import ToolEffect
from keepstate.sync.managers.tools_retries import ToolRetries

T = TypeVar("T")
Inner = TypeVar("Inner", bound=managers.ToolEffects)


class ToolEffects(ToolRetries[Inner]):
    """The effects of all tools."""

    def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], T],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T:
        """Do something to the world at most once, and return what came of it, now or before.

        Args:
            execution_id: Which execution does it; the same one when it is tried again.
            function: What does it.
            name: Which effect of the execution.
            lease_s: After so many seconds without an end it is unknown to others.
            harmless: What it raises when it certainly did nothing; then it can be tried again. After any
                other exception it is unknown.

        Raises:
            ConflictError: It is being done.
            InvalidError: It was done, and what came of it could not be kept; so it is also told next time.
            TransitionError: It is unknown whether it was done; look, then call `settle_effect`.
        """
        return finish(
            self._inner.perform_effect(execution_id, function, name=name, lease_s=lease_s, harmless=harmless)
        )

    def begin_effect(self, execution_id: str, name: str = EFFECT, *, lease_s: float = 60) -> ToolEffect:
        """Note that something is about to be done, and return the note; only who gets it may do it.

        Args:
            execution_id: Which execution does it; the same one when it is tried again.
            name: Which effect of the execution.
            lease_s: After so many seconds without an end it is unknown to others.

        Raises:
            AlreadyExistsError: It was done, is being done, or may have been done.
        """
        return finish(self._inner.begin_effect(execution_id, name, lease_s=lease_s))

    def end_effect(self, effect: ToolEffect, result: object = None) -> None:
        """Note that an effect was done, and what came of it; also if that came late. Again does nothing.

        Raises:
            LeaseLostError: It was settled and begun again since.
            NotFoundError: It was never begun.
        """
        finish(self._inner.end_effect(effect, result))

    def refute_effect(self, effect: ToolEffect, error: object) -> None:
        """Note that an effect certainly did not happen: it can be begun again.

        Raises:
            LeaseLostError: It was settled and begun again since.
            NotFoundError: It was never begun.
            TransitionError: It was done.
        """
        finish(self._inner.refute_effect(effect, error))

    def settle_effect(
        self, execution_id: str, name: str = EFFECT, *, is_done: bool, result: object = None
    ) -> ToolEffect:
        """Say of an effect of which it was unknown whether it was done, and return it.

        Raises:
            NotFoundError: It was never begun.
            TransitionError: It is known, or is being done.
        """
        return finish(self._inner.settle_effect(execution_id, name, is_done=is_done, result=result))

    def get_effect(self, execution_id: str, name: str = EFFECT) -> ToolEffect | None:
        """Return what is known of an effect, or None if it was never begun."""
        return finish(self._inner.get_effect(execution_id, name))

    def get_unknown_effects(self) -> list[ToolEffect]:
        """Return the effects that were begun, and of which it is unknown whether they were done, by id."""
        return finish(self._inner.get_unknown_effects())
