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
        """Cause an effect at most once, and return its result, from this call or an earlier one.

        Args:
            execution_id: The execution that causes it; use the same id in a retry.
            function: Causes the effect.
            name: Name of the effect in the execution.
            lease_s: Seconds without a recorded end after which the effect is unknown to other processes.
            harmless: Exceptions of the function that prove that nothing happened, so that the effect can be
                tried again. After any other exception it is unknown.

        Raises:
            ConflictError: The effect is in progress.
            InvalidError: The effect happened, but its result could not be stored. Later calls raise this
                again.
            TransitionError: It is unknown whether the effect happened. Check, then call `settle_effect`.
        """
        return finish(
            self._inner.perform_effect(execution_id, function, name=name, lease_s=lease_s, harmless=harmless)
        )

    def begin_effect(self, execution_id: str, name: str = EFFECT, *, lease_s: float = 60) -> ToolEffect:
        """Record that an effect is about to happen, and return the record. Only its receiver may act.

        Args:
            execution_id: The execution that causes it; use the same id in a retry.
            name: Name of the effect in the execution.
            lease_s: Seconds without a recorded end after which the effect is unknown to other processes.

        Raises:
            AlreadyExistsError: The effect happened, is in progress, or may have happened.
        """
        return finish(self._inner.begin_effect(execution_id, name, lease_s=lease_s))

    def end_effect(self, effect: ToolEffect, result: object = None) -> None:
        """Record that an effect happened, with its result. A late or repeated call is accepted.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
        """
        finish(self._inner.end_effect(effect, result))

    def refute_effect(self, effect: ToolEffect, error: object) -> None:
        """Record that an effect certainly did not happen, so that it can begin again.

        Raises:
            LeaseLostError: The effect was settled and begun again since.
            NotFoundError: The effect was never begun.
            TransitionError: The effect happened.
        """
        finish(self._inner.refute_effect(effect, error))

    def settle_effect(
        self, execution_id: str, name: str = EFFECT, *, is_done: bool, result: object = None
    ) -> ToolEffect:
        """Record whether an unknown effect happened, and return it.

        Raises:
            NotFoundError: The effect was never begun.
            TransitionError: The effect is not unknown.
        """
        return finish(self._inner.settle_effect(execution_id, name, is_done=is_done, result=result))

    def get_effect(self, execution_id: str, name: str = EFFECT) -> ToolEffect | None:
        """Return an effect, or None if it was never begun."""
        return finish(self._inner.get_effect(execution_id, name))

    def get_unknown_effects(self) -> list[ToolEffect]:
        """Return the effects for which it is unknown whether they happened, ordered by id."""
        return finish(self._inner.get_unknown_effects())
