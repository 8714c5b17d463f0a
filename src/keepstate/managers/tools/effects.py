"""Effects: what tools do to the world and must not do twice.

Invariant: an effect is begun in the store before it is done. One that was begun and whose end nobody told is
unknown: it may have happened, and nobody begins it again until somebody has looked and settled it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, overload

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.times import check_duration_ms, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.binding import Folder
from keepstate.managers.names import new_id, segment
from keepstate.managers.records import admit_record
from keepstate.managers.shield import noted, shielded
from keepstate.managers.tools.records import EffectStatus, ToolEffect
from keepstate.managers.tools.retries import ToolRetries

T = TypeVar("T")

EFFECT = "effect"
"""The name of the only effect of an execution."""


class ToolEffects(ToolRetries):
    """The effects of all tools."""

    @overload
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], Awaitable[T]],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T: ...
    @overload
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], T],
        *,
        name: str = EFFECT,
        lease_s: float = 60,
        harmless: tuple[type[Exception], ...] = (),
    ) -> T: ...
    async def perform_effect(
        self,
        execution_id: str,
        function: Callable[[], Awaitable[T] | T],
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
        self._place.require_outside_transaction("doing something to the world")
        self._refuse_coroutine(function)
        known = await self.get_effect(execution_id, name)
        if known is not None and known.status is EffectStatus.DONE:
            answer: T = _came_of(known)
            return answer
        try:
            effect = await self.begin_effect(execution_id, name, lease_s=lease_s)
        except AlreadyExistsError as error:
            now = await self.get_effect(execution_id, name)
            if now is not None and now.status is EffectStatus.DONE:  # done meanwhile
                answer = _came_of(now)
                return answer
            if now is not None and now.status is EffectStatus.STARTED:
                raise ConflictError(error.message) from error
            raise TransitionError(
                error.message, current=EffectStatus.UNKNOWN.name, wanted=EffectStatus.STARTED.name
            ) from error
        return await self._done(effect, function, harmless)

    async def _done(
        self,
        effect: ToolEffect,
        function: Callable[[], Awaitable[T] | T],
        harmless: tuple[type[Exception], ...],
    ) -> T:
        what = f"effect {effect.name!r} of execution {effect.execution_id!r}"
        try:
            result: T = await call_function(function)
        except harmless as error:
            await noted(self._runner, what, partial(self.refute_effect, effect, error))
            raise
        except BaseException as error:
            unknown = partial(self._end_effect, effect, EffectStatus.UNKNOWN, error=format_error(error))
            await noted(self._runner, what, unknown)
            raise
        return await shielded(self._runner, lambda: self._noted(effect, result))

    async def _noted(self, effect: ToolEffect, result: T) -> T:
        """Note that an effect was done, and what came of it if that can be kept, and return it."""
        try:
            await self.end_effect(effect, result)
        except InvalidError as error:
            await self._end_effect(effect, EffectStatus.DONE, error=format_error(error))
            raise
        return result

    async def begin_effect(self, execution_id: str, name: str = EFFECT, *, lease_s: float = 60) -> ToolEffect:
        """Note that something is about to be done, and return the note; only who gets it may do it.

        Args:
            execution_id: Which execution does it; the same one when it is tried again.
            name: Which effect of the execution.
            lease_s: After so many seconds without an end it is unknown to others.

        Raises:
            AlreadyExistsError: It was done, is being done, or may have been done.
        """
        check_text("name", name)
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(folder: Folder) -> ToolEffect:
            now = await folder.space.now()
            known = await _find(folder, execution_id, name)
            if known is not None and known.status is not EffectStatus.NOT_DONE:
                raise AlreadyExistsError(
                    f"effect {name!r} of execution {execution_id!r} {_WHAT[known.status]}"
                )
            effect = ToolEffect(
                execution_id,
                name,
                EffectStatus.STARTED,
                started_at=now,
                attempt=known.attempt + 1 if known else 1,
                token=new_id(self._clock),
            )
            until_ms = to_milliseconds(now) + lease_ms
            await folder.space.documents.put(
                folder.name("effect", segment(execution_id), name), {"value": effect, "until_ms": until_ms}
            )
            await folder.space.documents.put(folder.name("begun", segment(execution_id), name), execution_id)
            return effect

        return await self._together(self._of("execution_id", execution_id), work)

    async def end_effect(self, effect: ToolEffect, result: object = None) -> None:
        """Note that an effect was done, and what came of it; also if that came late. Again does nothing.

        Raises:
            LeaseLostError: It was settled and begun again since.
            NotFoundError: It was never begun.
        """
        await self._end_effect(effect, EffectStatus.DONE, result=result)

    async def refute_effect(self, effect: ToolEffect, error: object) -> None:
        """Note that an effect certainly did not happen: it can be begun again.

        Raises:
            LeaseLostError: It was settled and begun again since.
            NotFoundError: It was never begun.
            TransitionError: It was done.
        """
        await self._end_effect(effect, EffectStatus.NOT_DONE, error=format_error(error))

    async def settle_effect(
        self, execution_id: str, name: str = EFFECT, *, is_done: bool, result: object = None
    ) -> ToolEffect:
        """Say of an effect of which it was unknown whether it was done, and return it.

        Raises:
            NotFoundError: It was never begun.
            TransitionError: It is known, or is being done.
        """
        status = EffectStatus.DONE if is_done else EffectStatus.NOT_DONE

        async def work(folder: Folder) -> ToolEffect:
            known = await _find(folder, execution_id, name)
            if known is None:
                raise NotFoundError(f"effect {name!r} of execution {execution_id!r} was never begun")
            if known.status is not EffectStatus.UNKNOWN:
                raise TransitionError(
                    f"effect {name!r} of execution {execution_id!r} {_WHAT[known.status]}; only an unknown "
                    "one is settled",
                    current=known.status.name,
                    wanted=status.name,
                )
            return await _put_end(folder, known, status, result=result)

        return await self._together(self._of("execution_id", execution_id), work)

    async def get_effect(self, execution_id: str, name: str = EFFECT) -> ToolEffect | None:
        """Return what is known of an effect, or None if it was never begun."""
        return await _find(self._of("execution_id", execution_id), execution_id, name)

    async def get_unknown_effects(self) -> list[ToolEffect]:
        """Return the effects that were begun, and of which it is unknown whether they were done, by id."""

        async def read(folder: Folder) -> list[ToolEffect]:
            found: list[ToolEffect] = []
            async for place, execution_id in folder.values("begun"):
                effect = await _find(folder, execution_id, place.partition("/")[2])
                if effect is not None and effect.status is EffectStatus.UNKNOWN:
                    found.append(effect)
            return found

        found = [effect for page in await self._in_each(read) for effect in page]
        return sorted(found, key=lambda effect: (effect.execution_id, effect.name))

    async def _end_effect(
        self, effect: ToolEffect, status: EffectStatus, *, result: object = None, error: str | None = None
    ) -> None:
        admit_record("effect", effect, ToolEffect)

        async def work(folder: Folder) -> None:
            known = await _find(folder, effect.execution_id, effect.name)
            what = f"effect {effect.name!r} of execution {effect.execution_id!r}"
            if known is None:
                raise NotFoundError(f"{what} was never begun")
            if known.token != effect.token:
                raise LeaseLostError(f"{what} was settled and begun again since; look at get_effect")
            if known.status is EffectStatus.DONE:
                if status is EffectStatus.NOT_DONE:
                    raise TransitionError(f"{what} was done", current="DONE", wanted=status.name)
                return
            await _put_end(folder, known, status, result=result, error=error)

        await self._together(self._of("execution_id", effect.execution_id), work)


_WHAT = {
    EffectStatus.STARTED: "is being done",
    EffectStatus.DONE: "was done; get_effect has its result",
    EffectStatus.NOT_DONE: "was not done",
    EffectStatus.UNKNOWN: "was begun and may have been done; look, then call settle_effect",
}


def _came_of(effect: ToolEffect) -> Any:
    if effect.error is not None:
        raise InvalidError(
            f"effect {effect.name!r} of execution {effect.execution_id!r} was done, and what came of it could"
            f" not be kept: {effect.error}"
        )
    return effect.result


async def _find(folder: Folder, execution_id: str, name: str) -> ToolEffect | None:
    kept: dict[str, Any] | None = await folder.space.documents.get(
        folder.name("effect", segment(execution_id), name)
    )
    if kept is None:
        return None
    effect: ToolEffect = kept["value"]
    if (
        effect.status is EffectStatus.STARTED
        and to_milliseconds(await folder.space.now()) >= kept["until_ms"]
    ):
        return replace(effect, status=EffectStatus.UNKNOWN)
    return effect


async def _put_end(
    folder: Folder,
    effect: ToolEffect,
    status: EffectStatus,
    *,
    result: object = None,
    error: str | None = None,
) -> ToolEffect:
    ended = replace(effect, status=status, result=result, error=error, ended_at=await folder.space.now())
    execution = segment(effect.execution_id)
    await folder.space.documents.put(
        folder.name("effect", execution, effect.name), {"value": ended, "until_ms": 0}
    )
    if status is not EffectStatus.UNKNOWN:
        await folder.space.documents.delete(folder.name("begun", execution, effect.name))
    return ended
