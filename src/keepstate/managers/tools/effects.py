"""Effects: changes of the outside world by tools that must not happen twice.

Invariant: an effect is recorded as begun before it happens. An effect without a recorded end is unknown: it
may have happened, and it cannot begin again until the application has checked and settled it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from keepstate.engine.kernel.arguments import check_duration_ms, check_text
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    TransitionError,
)
from keepstate.managers.binding import Namespace
from keepstate.managers.names import new_id, to_segment
from keepstate.managers.records import check_record
from keepstate.managers.tools.records import EffectStatus, ToolEffect
from keepstate.managers.tools.shared_calls import record_failure, run_shielded
from keepstate.managers.tools.spaces import ToolSpaces

T = TypeVar("T")


class Effects:
    """The effects of one manager."""

    def __init__(self, spaces: ToolSpaces) -> None:
        self._spaces = spaces

    async def perform(
        self,
        execution_id: str,
        function: Callable[[], Awaitable[T] | T],
        name: str,
        *,
        lease_s: float,
        harmless: tuple[type[Exception], ...],
    ) -> T:
        """Cause an effect at most once, and return its result, from this call or an earlier one."""
        self._spaces.binding.require_outside_transaction("doing something to the world")
        known = await self.get(execution_id, name)
        if known is not None and known.status is EffectStatus.DONE:
            answer: T = _result_of(known)
            return answer
        try:
            effect = await self.begin(execution_id, name, lease_s=lease_s)
        except AlreadyExistsError as error:
            now = await self.get(execution_id, name)
            if now is not None and now.status is EffectStatus.DONE:  # done by another caller
                answer = _result_of(now)
                return answer
            if now is not None and now.status is EffectStatus.STARTED:
                raise ConflictError(error.message) from error
            raise TransitionError(
                error.message, current=EffectStatus.UNKNOWN.name, wanted=EffectStatus.STARTED.name
            ) from error
        return await self._cause(effect, function, harmless)

    async def _cause(
        self,
        effect: ToolEffect,
        function: Callable[[], Awaitable[T] | T],
        harmless: tuple[type[Exception], ...],
    ) -> T:
        what = f"effect {effect.name!r} of execution {effect.execution_id!r}"
        try:
            result: T = await call_function(function)
        except harmless as error:
            await record_failure(self._spaces.runner, what, partial(self.refute, effect, error))
            raise
        except BaseException as error:
            unknown = partial(self._end, effect, EffectStatus.UNKNOWN, error=format_error(error))
            await record_failure(self._spaces.runner, what, unknown)
            raise
        return await run_shielded(self._spaces.runner, lambda: self._record_done(effect, result))

    async def _record_done(self, effect: ToolEffect, result: T) -> T:
        """Record that an effect happened, with its result if that can be stored, and return the result."""
        try:
            await self.end(effect, result)
        except InvalidError as error:
            await self._end(effect, EffectStatus.DONE, error=format_error(error))
            raise
        return result

    async def begin(self, execution_id: str, name: str, *, lease_s: float) -> ToolEffect:
        """Record that an effect is about to happen, and return the record. Only its receiver may act."""
        check_text("name", name)
        lease_ms = check_duration_ms("lease_s", lease_s)

        async def work(namespace: Namespace) -> ToolEffect:
            now = await namespace.space.now()
            known = await _find(namespace, execution_id, name)
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
                token=new_id(self._spaces.clock),
            )
            until_ms = to_milliseconds(now) + lease_ms
            await namespace.put(
                {"value": effect, "until_ms": until_ms}, "effect", to_segment(execution_id), name
            )
            await namespace.put(execution_id, "begun", to_segment(execution_id), name)
            return effect

        return await self._spaces.change(self._spaces.of(execution_id), work)

    async def end(self, effect: ToolEffect, result: object = None) -> None:
        """Record that an effect happened, with its result. A late or repeated call is accepted."""
        await self._end(effect, EffectStatus.DONE, result=result)

    async def refute(self, effect: ToolEffect, error: object) -> None:
        """Record that an effect certainly did not happen, so that it can begin again."""
        await self._end(effect, EffectStatus.NOT_DONE, error=format_error(error))

    async def settle(self, execution_id: str, name: str, *, is_done: bool, result: object) -> ToolEffect:
        """Record whether an unknown effect happened, and return it."""
        status = EffectStatus.DONE if is_done else EffectStatus.NOT_DONE

        async def work(namespace: Namespace) -> ToolEffect:
            known = await _find(namespace, execution_id, name)
            if known is None:
                raise NotFoundError(f"effect {name!r} of execution {execution_id!r} was never begun")
            if known.status is not EffectStatus.UNKNOWN:
                raise TransitionError(
                    f"effect {name!r} of execution {execution_id!r} {_WHAT[known.status]}; only an unknown "
                    "effect can be settled",
                    current=known.status.name,
                    wanted=status.name,
                )
            return await _put_end(namespace, known, status, result=result)

        return await self._spaces.change(self._spaces.of(execution_id), work)

    async def get(self, execution_id: str, name: str) -> ToolEffect | None:
        """Return an effect, or None if it was never begun."""
        return await _find(self._spaces.of(execution_id), execution_id, name)

    async def get_unknown(self) -> list[ToolEffect]:
        """Return the effects for which it is unknown whether they happened, ordered by id."""

        async def read(namespace: Namespace) -> list[ToolEffect]:
            found: list[ToolEffect] = []
            async for key, execution_id in namespace.collection("begun").items():
                effect = await _find(namespace, execution_id, key.partition("/")[2])
                if effect is not None and effect.status is EffectStatus.UNKNOWN:
                    found.append(effect)
            return found

        found = [effect for page in await self._spaces.read_each(read) for effect in page]
        return sorted(found, key=lambda effect: (effect.execution_id, effect.name))

    async def _end(
        self, effect: ToolEffect, status: EffectStatus, *, result: object = None, error: str | None = None
    ) -> None:
        check_record("effect", effect, ToolEffect)

        async def work(namespace: Namespace) -> None:
            known = await _find(namespace, effect.execution_id, effect.name)
            what = f"effect {effect.name!r} of execution {effect.execution_id!r}"
            if known is None:
                raise NotFoundError(f"{what} was never begun")
            if known.token != effect.token:
                raise LeaseLostError(f"{what} was settled and begun again since. Read it with get_effect().")
            if known.status is EffectStatus.DONE:
                if status is EffectStatus.NOT_DONE:
                    raise TransitionError(f"{what} was done", current="DONE", wanted=status.name)
                return
            await _put_end(namespace, known, status, result=result, error=error)

        await self._spaces.change(self._spaces.of(effect.execution_id), work)


_WHAT = {
    EffectStatus.STARTED: "is in progress",
    EffectStatus.DONE: "was done; get_effect() returns its result",
    EffectStatus.NOT_DONE: "was not done",
    EffectStatus.UNKNOWN: "was begun and may have been done. Check, then call settle_effect()",
}


def _result_of(effect: ToolEffect) -> Any:
    if effect.error is not None:
        raise InvalidError(
            f"effect {effect.name!r} of execution {effect.execution_id!r} was done, but its result could "
            f"not be stored: {effect.error}"
        )
    return effect.result


async def _find(namespace: Namespace, execution_id: str, name: str) -> ToolEffect | None:
    kept: dict[str, Any] | None = await namespace.get("effect", to_segment(execution_id), name)
    if kept is None:
        return None
    effect: ToolEffect = kept["value"]
    if (
        effect.status is EffectStatus.STARTED
        and to_milliseconds(await namespace.space.now()) >= kept["until_ms"]
    ):
        return replace(effect, status=EffectStatus.UNKNOWN)
    return effect


async def _put_end(
    namespace: Namespace,
    effect: ToolEffect,
    status: EffectStatus,
    *,
    result: object = None,
    error: str | None = None,
) -> ToolEffect:
    ended = replace(effect, status=status, result=result, error=error, ended_at=await namespace.space.now())
    execution = to_segment(effect.execution_id)
    await namespace.put({"value": ended, "until_ms": 0}, "effect", execution, effect.name)
    if status is not EffectStatus.UNKNOWN:
        await namespace.delete("begun", execution, effect.name)
    return ended
