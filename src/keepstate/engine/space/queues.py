"""The queues of all spaces under a name: one worker for them, and what is told or changed in all of them.

Each call decides space by space. There is no record of the whole: a space that comes later has what it is
given itself.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

import msgspec

from keepstate._deferral import defer_imports
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_choice, check_moment_ms, check_text
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable, check_unreadable
from keepstate.engine.queue import tasks
from keepstate.engine.queue.listings import count_tasks
from keepstate.engine.queue.retry import Retry
from keepstate.engine.queue.tasks import STATES, TaskInfo, TaskState
from keepstate.errors import InvalidError, NotAllowedError
from keepstate.names import ALL, OWN, TenantScope, stored_name
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate.engine.queue import worker as _worker
    from keepstate.engine.queue.queue import Queue
    from keepstate.engine.space import space_turns as _space_turns
else:
    defer_imports(
        globals(),
        _space_turns="keepstate.engine.space.space_turns",
        _worker="keepstate.engine.queue.worker",
    )

_KEPT: tuple[bytes, ...] = (*layout.INDEXES.values(), layout.SCHEDULES)
"""The parts of a space that has a queue."""


@dataclass(frozen=True, slots=True)
class SpaceTask:
    """A task in a listing of several spaces.

    Attributes:
        tenant: The tenant that the space belongs to, or None.
        space: The name of the space, without its tenant.
        task: The task.
    """

    tenant: str | None
    space: str
    task: TaskInfo


class _Cursor(msgspec.Struct, array_like=True, frozen=True):
    """The content of a cursor: the query, and the last task."""

    under: str
    scope: str
    tenant: str | None
    space: str
    task: str


class Queues:
    """The queues of all spaces under a name, of the handle's tenant or of all tenants."""

    def __init__(self, ks: _space_turns.SpacesHome, under: str, tenant: TenantScope) -> None:
        self._ks, self._under = ks, check_text("under", under)
        check_choice("tenant", tenant, OWN, ALL)
        self._scope = tenant
        if self._scope is ALL and ks.tenant_id is not None:
            raise NotAllowedError(
                f"tenant=ALL covers the queues of all tenants, and {ks!r} belongs to one; use a handle "
                "without `tenant`"
            )

    def __repr__(self) -> str:
        return f"<Queues under {self._under!r} of {self._ks!r}>"

    async def run(
        self,
        handlers: _worker.Handler | Mapping[str, _worker.Handler],
        *,
        concurrency: int = 10,
        lease_s: float = 60,
        timeout_s: float | None = None,
        drain_s: float = 30,
        retry: Retry | None = None,
        worker: str | None = None,
        stop: _worker.StopEvent | None = None,
        idle_s: float | None = None,
    ) -> _worker.RunReport:
        """Claim tasks of all spaces and call their handlers, until SIGTERM or SIGINT; see `Queue.run`.

        Spaces with tasks take turns, and each keeps its own limits and pauses. Spaces that come later belong
        to it. The worker follows the index of `find` and makes it if there is none, which reads each space
        once. A task that a killed process has put is found after 10 seconds, or later in a store of very many
        spaces.

        Args:
            handlers, concurrency, lease_s, timeout_s, drain_s, retry, worker, stop, idle_s: As for
                `Queue.run`.

        Raises:
            ClosedError: The handle was closed.
        """
        options = _worker.check_options(
            handlers, concurrency=concurrency, lease_s=lease_s, timeout_s=timeout_s, drain_s=drain_s,
            retry=retry, worker=worker, stop=stop, idle_s=idle_s,
        )  # fmt: skip
        if self._ks.runner.mode == "blocking":
            return _worker.run_in_loop(self._ks, self._run_in, options)
        return await self._run_in(self._ks, options)

    async def _run_in(self, ks: object, options: _worker.WorkerOptions) -> _worker.RunReport:
        handle = cast("_space_turns.SpacesHome", ks)
        turns = _space_turns.SpaceTurns(handle, self._under, self._scope, options.kinds)
        async with turns.entered():
            return await _worker.Worker(handle, turns.claim, options).run()

    # ---- what is told of all

    async def counts(self) -> dict[TaskState, int]:
        """Return the number of tasks in each state, each space at a revision of its own.

        Costs one call of the store for each space.
        """
        store, total = await self._ks.opened(), Counter[TaskState]()
        async with aclosing(self._pairs()) as pairs:
            async for pair in pairs:
                total.update(await count_tasks(store, stored_name(*pair)))
        return {state: total[state] for state in STATES}

    async def dead(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Page[SpaceTask]:
        """Return one page of the dead tasks, space by space, in each space those first that died first.

        The spaces are those with a queue in the index of `find`, so what a process that was killed has left
        is late by one delivery, and the first call of a tenant makes the index.

        Costs the calls of a `find`, and two for each space with a task that is ready, waiting, claimed or
        dead.

        Args:
            after: The `next` of a page of the same queues: continue after that page.
            limit: The largest number of tasks in the page.
            unreadable: With `skip`, a task whose result or progress cannot be read is left out. With `raw`,
                the value is an `Unreadable`.

        Raises:
            InvalidError: The cursor belongs to other queues.
        """
        limits.admit_count("limit", limit)
        check_unreadable(unreadable)
        found: list[SpaceTask] = []
        start = None if after is None else self._cursor_in(after)
        async with aclosing(self._listed(start)) as pairs:
            async for tenant, name in pairs:
                is_first = start is not None and (start.tenant, start.space) == (tenant, name)
                page = await self._queue(tenant, name).dead(
                    after=start.task if is_first and start is not None else None,
                    limit=limit + 1 - len(found),
                    unreadable=unreadable,
                )
                found += [SpaceTask(tenant, name, task) for task in page]
                if len(found) > limit:
                    last = found[limit - 1]
                    return Page(found[:limit], next=self._cursor_of(last))
        return Page(found)

    def _cursor_of(self, last: SpaceTask) -> str:
        assert last.task.cursor is not None
        cursor = _Cursor(self._under, self._scope.name, last.tenant, last.space, last.task.cursor)
        return urlsafe_b64encode(msgspec.msgpack.encode(cursor)).decode().rstrip("=")

    def _cursor_in(self, after: str) -> _Cursor:
        text = check_text("after", after)
        try:
            packed = urlsafe_b64decode(text + "=" * (-len(text) % 4))
            cursor = msgspec.msgpack.decode(packed, type=_Cursor)
        except (ValueError, msgspec.MsgspecError) as error:
            raise InvalidError(f"`after` is {after!a:.100}; give `next` of a page of dead tasks") from error
        # A cursor comes from outside: what it names is judged like what a caller names.
        is_foreign = self._scope is OWN and cursor.tenant != self._ks.tenant_id
        is_beyond = self._under and not f"{cursor.space}/".startswith(f"{self._under.rstrip('/')}/")
        if (cursor.under, cursor.scope) != (self._under, self._scope.name) or is_foreign or is_beyond:
            raise InvalidError("`after` belongs to a listing of other queues; give `next` of a page of these")
        return cursor

    # ---- what is changed in all

    async def pause(self, kind: str | None = None) -> int:
        """Pause each queue that has a task or a schedule now, and return their number; see `Queue.pause`.

        A space whose first task comes later is not paused.

        Args:
            kind: Pause only tasks of this kind.
        """
        name = _check_kind(kind)

        async def pause(queue: Queue) -> int:
            await queue.pause(name)
            return 1

        return await self._change(pause, _KEPT)

    async def resume(self, kind: str | None = None) -> int:
        """Undo `pause` in each space, and return the number of queues that have a task or a schedule.

        Args:
            kind: Resume only this kind.
        """
        name = _check_kind(kind)

        async def resume(queue: Queue) -> int:
            await queue.resume(name)
            return 1

        return await self._change(resume, _KEPT)

    async def requeue(
        self, *, kind: str | None = None, since: datetime | None = None, limit: int = 1000
    ) -> int:
        """Make dead tasks ready again, space by space, and return their number; see `Queue.requeue`.

        Args:
            kind: Only tasks of this kind. Without `kind` and `since`, all dead tasks.
            since: Only tasks that died at this time or later.
            limit: The largest number of tasks.
        """
        limits.admit_count("limit", limit)
        name, number = _check_kind(kind), 0
        if since is None:
            since = datetime.fromtimestamp(0, tz=UTC)
        check_moment_ms("since", since)

        async def requeue(queue: Queue) -> int:
            return await queue.requeue(kind=name, since=since, limit=limit - number)

        async with aclosing(self._pairs()) as pairs:
            async for tenant, space in pairs:
                if await self._has(tenant, space, (layout.INDEXES["dead"],)):
                    number += await requeue(self._queue(tenant, space))
                if number >= limit:
                    break
        return number

    async def _change(self, change: Callable[[Queue], Awaitable[int]], parts: tuple[bytes, ...]) -> int:
        number = 0
        async with aclosing(self._pairs()) as pairs:
            async for tenant, space in pairs:
                if await self._has(tenant, space, parts):
                    number += await change(self._queue(tenant, space))
        return number

    async def _has(self, tenant: str | None, space: str, parts: tuple[bytes, ...]) -> bool:
        """Return whether a space has entries in one of its parts: a space without is left as it is."""
        sizes = (await (await self._ks.opened()).sizes(stored_name(tenant, space))).parts
        return any(part in sizes and sizes[part].entries for part in parts)

    def _queue(self, tenant: str | None, space: str) -> Queue:
        ks = self._ks if tenant == self._ks.tenant_id else self._ks.tenant(cast("str", tenant))
        queue: Queue = ks.space(space).queue
        return queue

    async def _pairs(self) -> AsyncGenerator[tuple[str | None, str]]:
        """Yield the tenant and the name of each space."""
        async with aclosing(self._ks.space_names(self._under, self._scope, None)) as pairs:
            async for pair in pairs:
                yield pair

    async def _listed(self, start: _Cursor | None) -> AsyncGenerator[tuple[str | None, str]]:
        """Yield the tenant and the name of each space with a queue in the index, from that of a cursor on."""
        async with aclosing(self._tenants(start)) as tenants:
            async for tenant in tenants:
                name = None if start is None or tenant != start.tenant else start.space
                async with aclosing(self._ks.index.queue_spaces(tenant, self._under, name)) as spaces:
                    async for space in spaces:
                        yield tenant, space

    async def _tenants(self, start: _Cursor | None) -> AsyncGenerator[str | None]:
        """Yield the tenants of the queues, from that of a cursor on."""
        first = self._ks.tenant_id if start is None else start.tenant
        yield first
        if self._scope is ALL:
            async with aclosing(self._ks.tenant_ids(first)) as ids:
                async for id in ids:
                    yield id


def _check_kind(kind: str | None) -> str | None:
    return kind if kind is None or kind == "" else tasks.check_kind("kind", kind)
