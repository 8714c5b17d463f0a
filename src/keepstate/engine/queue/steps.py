"""Steps of a task: what its handler has done stays done, though the handler runs again from its beginning.

A step is named. Its result is recorded by a batch that checks the claim and that the step is absent, so that
a worker whose claim is lost records nothing. A later attempt gets the recorded result and does not run the
step again. A handler that waits ends its attempt by `Suspended`; no worker is held meanwhile.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from contextvars import ContextVar
from datetime import datetime
from hashlib import sha256
from typing import Any, Final, TypeAlias, TypeVar, overload

import msgspec

from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel.arguments import (
    check_delay_ms,
    check_duration_ms,
    check_flag,
    check_moment_ms,
    require_instance,
    require_type,
)
from keepstate.engine.kernel.executor import Executor, call_function
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.kernel.stored import corrupt_error, shorten, to_milliseconds
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import tasks
from keepstate.engine.queue.messages import message_prefix, unread
from keepstate.engine.queue.outcome import read_results
from keepstate.engine.queue.step_control import list_steps
from keepstate.engine.queue.step_memory import (
    NO_DEFAULT,
    StepMemory,
    Waits,
    answer_of,
    ask_once,
    check_default,
    encode_result,
    note_end,
    unknown_error,
)
from keepstate.engine.queue.step_records import (
    Answer,
    Step,
    StepKind,
    StepRecord,
    StepState,
    approval_marks,
    decode_step,
    name_in,
    step_key,
    steps_prefix,
    value_key,
    write_step,
)
from keepstate.engine.queue.tasks import TaskRecord
from keepstate.errors import (
    InvalidError,
    LeaseLostError,
    NotFoundError,
    Suspended,
)
from keepstate.stores.protocol import Entry
from keepstate.values import limits

T = TypeVar("T")

AnyTransaction: TypeAlias = Any
"""A `Transaction`. Its class is above this room, and gives its transactions to the queue as blocks."""
BeginTransaction: TypeAlias = Callable[[], AbstractAsyncContextManager[AnyTransaction]]


_AWAKE_S: Final = 5.0
"""Seconds up to which a sleep keeps its worker."""
_present: ContextVar[str | None] = ContextVar("keepstate_step", default=None)
"""The name of the step whose function runs."""


class TaskSteps:
    """The steps of a claimed task."""

    id: str
    attempt: int
    token: int
    _executor: Executor
    _steps: StepMemory
    _begin: BeginTransaction | None
    suspension: Suspended | None = None
    """The raised suspension, by which a worker notices a handler that catches it; None if there is none."""

    # ---- work

    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., Awaitable[T]],
        *args: Any,
        once: bool = False,
        timeout_s: float | None = None,
        type: Any = None,
    ) -> T: ...
    @overload
    async def step(
        self,
        name: str,
        fn: Callable[..., T],
        *args: Any,
        once: bool = False,
        timeout_s: float | None = None,
        type: Any = None,
    ) -> T: ...
    async def step(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        once: bool = False,
        timeout_s: float | None = None,
        type: Any = None,
    ) -> Any:
        """Call a function, and record its result. If an earlier attempt has recorded it, return that.

        The function runs at least once: a worker that is killed before the result is recorded leaves the step
        to the next attempt. With `once`, it runs at most once. Errors are not recorded. Where an event
        loop runs, a plain function gets a thread of its own.

        Args:
            name: The name of the step in its task; 1 to 200 bytes of UTF-8. Each name is used once in an
                attempt.
            fn: The function, or coroutine function. It may not use other steps.
            args: Its arguments.
            once: Record the intent first. If a crash or an error leaves it open, the next attempt raises
                `StepUnknownError` until `Queue.settle`.
            timeout_s: Seconds after which the step fails with `TimeoutError`. A plain function goes on in its
                thread.
            type: The type to validate the result against and convert it to.

        Returns:
            A copy of the recorded result.

        Raises:
            InvalidError: The name was used before in this attempt, the call is part of another step, the
                result cannot be stored, or the task has too many steps.
            LeaseLostError: This claim no longer holds the task. Nothing was recorded.
            StepUnknownError: The step was begun with `once`, and whether it was done is unknown.
            Suspended: The handler waits for something else already.
        """
        key = self._check_name(name)
        self._executor.reject_coroutine(fn)
        check_flag("once", once)
        if timeout_s is not None:
            check_duration_ms("timeout_s", timeout_s)
        if type is not None:
            require_type(type)
        async with self._running(name):
            row = await self._row(name)
            if row is not None and row.state == "done":
                return await self._value(key, row, type)
            if row is not None:
                raise unknown_error(self._executor, self.id, name)
            self._check_room()
            intent = None
            if once:
                intent = await self._record(key, name, "step", "open", None)
            marked = _present.set(name)
            try:
                value = await self._executor.runner.run_function(fn, args, timeout_s)
            finally:
                _present.reset(marked)
            stored = self._encode(key, name, value)
            answer = decode_value(self._executor, key, stored, type, name=name)
            await self._record(key, name, "step", "done", stored, former=intent)
            return answer

    async def transact(self, name: str, fn: Callable[[AnyTransaction], T]) -> T:
        """Call a function of a `Transaction`, and apply its writes together with its result, exactly once.

        Args:
            name: The name of the step; see `step`.
            fn: The function, or coroutine function. On conflict, also with a heartbeat, it is called again
                with a new transaction. It may not use other steps.

        Returns:
            A copy of the recorded result.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task. Nothing was applied.
        """
        key = self._check_name(name)
        self._executor.reject_coroutine(fn)
        async with self._running(name):
            row = await self._row(name)
            if row is None:
                self._check_room()
                row = await self._apply(key, name, "transact", fn)
            answer: T = await self._value(key, row)
            return answer

    async def spawn(self, name: str, payload: object, *, kind: str, **put: Any) -> str:
        """Put another task, once, and return its id: that of this task, `/` and the name, if no task has it.

        Args:
            name: The name of the step; see `step`.
            payload: The payload of the other task.
            kind: Its kind.
            put: Other arguments of `Queue.put`.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task. Nothing was put.
        """
        key = self._check_name(name)

        async def work(tx: AnyTransaction) -> str:
            given = dict(put)
            if "id" not in given:
                given["id"] = f"{self.id}/{name}"
                if await tx.queue.get(given["id"]) is not None:  # of an earlier run of this task
                    given["id"] += f"/{self.token}"
            done = await tx.queue.put(payload, kind=kind, **given)
            id: str = done.id
            return id

        async with self._running(name):
            row = await self._row(name)
            if row is None:
                self._check_room()
                row = await self._apply(key, name, "spawn", work)
            answer: str = await self._value(key, row)
            return answer

    # ---- waiting

    async def sleep(self, name: str, seconds: float | None = None, *, until: datetime | None = None) -> None:
        """Wait for a time. Above 5 seconds, the attempt ends and the task waits without a worker.

        The time counts from the first attempt that comes here.

        Args:
            name: The name of the step; see `step`.
            seconds: The duration.
            until: The time until which to wait; give this or `seconds`.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task.
            Suspended: The attempt ends here.
        """
        key = self._check_name(name)
        if (seconds is None) == (until is None):
            raise InvalidError(f"sleep {name!r} needs either `seconds` or `until`")
        wait_ms = None if seconds is None else check_delay_ms("seconds", seconds)
        until_ms = None if until is None else check_moment_ms("until", until)
        async with self._running(name):
            row = await self._row(name)
            now_ms = None
            if row is None:
                self._check_room()
                now_ms = await self._now_ms()
                due_ms = until_ms if wait_ms is None else now_ms + wait_ms
                row = await self._record(key, name, "sleep", "done", None, due_ms=due_ms)
            due_ms = row.due_ms or 0
            left_ms = due_ms - (await self._now_ms() if now_ms is None else now_ms)
            if left_ms <= 0:
                return
            if left_ms > _AWAKE_S * 1000:
                await self._wait(due_ms)
                raise self.suspended(left_ms / 1000)
        await self._executor.runner.sleep(left_ms / 1000)

    async def receive(self, name: str, *, timeout_s: float | None = None) -> Any:
        """Return the first message that `Queue.send` sent to this task by this name.

        Without one, the attempt ends and the task waits without a worker. The message is received once, and
        later attempts get it too.

        Args:
            name: The name of the step and of the message.
            timeout_s: Seconds to wait, from the first attempt that comes here.

        Raises:
            InvalidError: As for `step`.
            LeaseLostError: This claim no longer holds the task.
            Suspended: The attempt ends here.
            TimeoutError: No message came in time. Later attempts raise it too.
        """
        key = self._check_name(name)
        wait_ms = None if timeout_s is None else check_delay_ms("timeout_s", timeout_s)
        async with self._running(name):
            row = await self._row(name)
            if row is None or row.state == "waiting":
                self._check_room()
                row = await self._receive(key, name, row, wait_ms)
            if row is None or row.state == "waiting":
                waits = await self._wait(None if row is None else row.due_ms)
                waits.messages.append(name)
                raise self.suspended(timeout_s, messages=[name])
            if row.state == "timeout":
                raise TimeoutError(f"task {self.id!r} received no message {name!r} in time")
            return await self._value(key, row)

    async def results(self, *ids: str) -> list[Any]:
        """Return the results of other tasks of the space, in the order of their ids.

        If one has not ended, the attempt ends, and the task waits without a worker until all have. The
        results are recorded like that of a step.

        Args:
            ids: The ids of at most 100 tasks, such as those that `spawn` returned.

        Raises:
            InvalidError: There are none or too many ids, or as for `step`.
            LeaseLostError: This claim no longer holds the task.
            NotFoundError: A task does not exist.
            Suspended: The attempt ends here.
            TaskCancelledError: A task was cancelled.
            TaskFailedError: A task is dead.
        """
        keys = [tasks.task_key(id) for id in ids]
        if not 0 < len(ids) <= limits.AFTER_TASKS:
            raise InvalidError(f"results() takes 1 to {limits.AFTER_TASKS} ids; {len(ids)} were given")
        if self.id in ids:
            raise InvalidError(f"task {self.id!r} cannot wait for its own result")
        digest = sha256(msgspec.msgpack.encode(ids)).hexdigest()[:32]
        name = f"results/{digest}"
        key = step_key(self.id, name)
        async with self._running(name, is_named=False):
            row = await self._row(name)
            if row is not None:
                found: list[Any] = await self._value(key, row)
                return found
            self._check_room()
            left, values = await read_results(self._executor, ids, keys)
            if left:
                (await self._wait()).after.extend(left)
                raise self.suspended(None, after=left)
            row = await self._record(key, name, "results", "done", self._encode(key, name, values))
            found = await self._value(key, row)
            return found

    async def ask(
        self,
        name: str,
        question: str,
        *,
        default: Any = NO_DEFAULT,
        subject: object = None,
        schema: object = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
    ) -> Answer:
        """Ask people, once, and return the answer. Without one, the attempt ends and the task waits.

        The id of the approval is that of this task, `/` and the name. The author of the worker's handle
        asks. The first attempt that comes here decides about question, subject and times.

        Args:
            name: The name of the step; see `step`.
            question: The question.
            default: The answer if none comes in time. It has no `by`. Default: an error.
            subject: The thing that is decided about. Use that of the answer to go on.
            schema: The schema of the answer; see `Approvals.ask`.
            to: The people and groups who may answer.
            need: The number of different people who have to say yes.
            expires_s: Seconds for which people may answer.

        Raises:
            ApprovalClosedError: It was withdrawn, or has expired and there is no `default`. Later attempts
                raise it too.
            InvalidError: As for `step` and `Approvals.ask`.
            LeaseLostError: This claim no longer holds the task. Nothing was asked.
            Suspended: The attempt ends here.
        """
        key = self._check_name(name)
        check_default(default, has_schema=schema is not None)

        asked = {"subject": subject, "schema": schema, "to": to, "need": need, "expires_s": expires_s}

        async def ask(tx: AnyTransaction) -> str:
            return await ask_once(tx.approvals, self, name, question, asked)

        async with self._running(name):
            row = await self._row(name)
            if row is None:
                self._check_room()
                row = await self._apply(key, name, "ask", ask, state="waiting")
            id: str = await self._value(key, row)
            approval = await self._in_transaction(lambda tx: tx.approvals.get(id))
            if approval is None:
                raise NotFoundError(f"approval {id!r} of {self._executor.name!r} was deleted")
            if approval.state == "pending":
                expires_at = approval.expires_at
                waits = await self._wait(None if expires_at is None else to_milliseconds(expires_at))
                waits.marks |= approval_marks(id)
                raise self.suspended(None)
            if row.state == "waiting":
                await self._apply(key, name, "ask", lambda tx: note_end(tx.approvals, id), former=row)
        return answer_of(approval, default, self._executor.name, has_schema=schema is not None)

    async def suspend(self, suspension: Suspended) -> None:
        """Return the task to the queue until what its handler waits for, as if it had not been claimed.

        `Queue.run` calls it for a handler that raised `Suspended`. Running steps end first.

        Args:
            suspension: What the handler raised.

        Raises:
            LeaseLostError: This claim no longer holds the task.
        """
        require_instance("suspension", suspension, Suspended)
        await self._finish_running()
        waits, wait_s = self._steps.waits, suspension.wait_s
        messages, after = [*suspension.messages], [*suspension.after]
        marks: Mapping[str, bytes] = {}
        if waits is not None:  # of all steps that wait side by side
            messages, after = [*dict.fromkeys(waits.messages)], [*dict.fromkeys(waits.after)]
            marks = waits.marks
            wait_s = None
            if waits.due_ms is not None:
                wait_s = max(waits.due_ms - await self._now_ms(), 0) / 1000
        await self._suspend(wait_s, messages=messages, after=after, marks=marks)

    async def steps(self) -> list[Step]:
        """Return the steps that are recorded, in the order of recording."""
        return await list_steps(self._executor, self.id)

    def suspended(
        self, wait_s: float | None, *, messages: Sequence[str] = (), after: Sequence[str] = ()
    ) -> Suspended:
        """Return what a handler raises to wait; the worker then returns the task to the queue."""
        self.suspension = Suspended(wait_s, messages=tuple(messages), after=tuple(after))
        return self.suspension

    # ---- for Task

    async def _suspend(
        self,
        wait_s: float | None,
        *,
        messages: Sequence[str],
        after: Sequence[str],
        marks: Mapping[str, bytes],
    ) -> None:
        raise NotImplementedError

    async def _change_steps(
        self,
        work: Callable[[Unit, TaskRecord, int], Awaitable[T]],
        known: Mapping[bytes, Entry | None],
    ) -> T:
        """Run work in a batch that commits only while this claim holds the task."""
        raise NotImplementedError

    async def _fence(self, unit: Unit) -> tuple[TaskRecord, int]:
        """Return the task's record with its version. The unit commits only while this claim holds it."""
        raise NotImplementedError

    async def _prepare_end(self) -> None:
        """Wait for steps that still run, before the attempt ends.

        Raises:
            InvalidError: The handler has caught `Suspended`, or the call is part of a step.
        """
        if self.suspension is not None:
            raise InvalidError(
                f"the handler of task {self.id!r} waits for something, and has caught `Suspended`. Let it "
                "pass: catch `Exception`, not `BaseException`"
            )
        await self._finish_running()

    async def _finish_running(self) -> None:
        if (inside := _present.get()) is not None:
            raise InvalidError(f"the attempt at task {self.id!r} cannot end inside its step {inside!r}")
        memory = self._steps
        if memory.running:
            memory.idle = memory.idle or self._executor.runner.promise()
            await memory.idle.wait()

    # ---- parts

    def _check_name(self, name: str) -> bytes:
        key = step_key(self.id, name)
        if self._executor.gathers or self._begin is None:
            raise InvalidError(f"task {self.id!r} was taken in a transaction; use its steps outside")
        if name in self._steps.used:
            raise InvalidError(
                f"step {shorten(name)!r} of task {self.id!r} is used twice in one attempt. Give each step a "
                "name of its own, such as f'page/{number}'"
            )
        return key

    @asynccontextmanager
    async def _running(self, name: str, *, is_named: bool = True) -> AsyncGenerator[None]:
        if (inside := _present.get()) is not None:
            raise InvalidError(
                f"step {shorten(name)!r} of task {self.id!r} is used inside step {inside!r}; use steps one "
                "after the other, or side by side"
            )
        memory = self._steps
        if memory.waits is not None:
            raise self.suspension or Suspended()
        if is_named:
            memory.used.add(name)
        memory.running += 1
        try:
            yield
        finally:
            memory.running -= 1
            if not memory.running and memory.idle is not None:
                memory.idle.give(None)
                memory.idle = None

    async def _wait(self, due_ms: int | None = None) -> Waits:
        # Let steps side by side begin first: none may begin after this, and a store in memory never yields.
        await self._executor.runner.sleep(0)
        waits = self._steps.waits = self._steps.waits or Waits()
        if due_ms is not None:
            waits.add_due(due_ms)
        return waits

    async def _row(self, name: str) -> StepRecord | None:
        memory = self._steps
        if memory.rows is None:
            memory.lock = memory.lock or FifoLock(self._executor.runner)
            await memory.lock.run(self._load)
        assert memory.rows is not None
        return memory.rows.get(name)

    async def _load(self) -> None:
        if self._steps.rows is not None:
            return
        rows: dict[str, StepRecord] = {}
        async for _, entry in self._executor.scan(steps_prefix(self.id)):
            name = name_in(entry.key)[1]
            row = decode_step(entry.value, f"step {name!r} of task {self.id!r} of {self._executor.name!r}")
            if row.life_ms == self._steps.life_ms:
                rows[name] = row
        self._steps.rows = rows
        self._steps.numbers = 1 + max((row.number for row in rows.values()), default=-1)

    def _check_room(self) -> None:
        if len(self._steps.rows or ()) >= limits.STEPS:
            raise InvalidError(
                f"task {self.id!r} has {limits.STEPS:,} steps, and may have no more. Spawn other tasks"
            )

    def _encode(self, key: bytes, name: str, value: object) -> bytes:
        return encode_result(self._executor, self._steps, self.id, key, name, value)

    async def _value(self, key: bytes, row: StepRecord, type: Any = None) -> Any:
        stored = row.value
        if stored is None and row.is_apart:
            found = await self._executor.read_once(value_key(key))
            if found is None:
                what = f"step {name_in(key)[1]!r} of task {self.id!r} of {self._executor.name!r}"
                raise corrupt_error(what, "its result is lost")
            stored = found[1]
        if stored is None:
            return None
        return decode_value(self._executor, key, stored, type, name=name_in(key)[1])

    async def _now_ms(self) -> int:
        return (await self._executor.run(lambda unit: unit.now_ms()))[0]

    def _row_to_write(
        self, kind: StepKind, state: StepState, at_ms: int, due_ms: int | None, former: StepRecord | None
    ) -> StepRecord:
        if former is not None:
            return msgspec.structs.replace(
                former, state=state, token=self.token, attempt=self.attempt, at_ms=at_ms, due_ms=due_ms
            )
        number = self._steps.take_number()
        return StepRecord(
            kind, state, number, self._steps.life_ms, self.token, self.attempt, at_ms, due_ms=due_ms
        )

    async def _check_absent(self, unit: Unit, key: bytes, name: str, former: StepRecord | None) -> None:
        """Raise `LeaseLostError` if another claim has recorded the step."""
        entry = await unit.get(key)
        if entry is None:
            return
        row = decode_step(entry.value, f"step {name!r} of task {self.id!r} of {self._executor.name!r}")
        if row.life_ms != self._steps.life_ms:
            return
        if former is None or (row.state, row.token) != (former.state, former.token):
            raise LeaseLostError(
                f"step {name!r} of task {self.id!r} of {self._executor.name!r} was recorded by another "
                "worker. Stop working on it",
                space=self._executor.name,
                name=self.id,
                token=self.token,
            )

    async def _record(
        self,
        key: bytes,
        name: str,
        kind: StepKind,
        state: StepState,
        stored: bytes | None,
        *,
        due_ms: int | None = None,
        former: StepRecord | None = None,
    ) -> StepRecord:
        """Record a step in a batch of its own."""
        written: list[StepRecord] = []
        units: list[Unit] = []

        async def work(unit: Unit, record: TaskRecord, version: int) -> None:
            written.clear()
            units.append(unit)
            await self._check_absent(unit, key, name, former)
            row = self._row_to_write(kind, state, await unit.now_ms(), due_ms, former)
            written.append(write_step(unit, key, row, stored))
            if not record.has_steps:
                tasks.rewrite(unit, record, version, has_steps=True)

        await self._change_steps(work, {key: self._steps.intents.pop(name, None)})
        applied = units[-1].applied
        if state == "open" and applied is not None:
            self._steps.intents[name] = units[-1].as_applied(key, applied.revision)
        return self._remember(name, written[-1])

    def _remember(self, name: str, row: StepRecord) -> StepRecord:
        assert self._steps.rows is not None
        self._steps.rows[name] = row
        return row

    async def _apply(
        self,
        key: bytes,
        name: str,
        kind: StepKind,
        fn: Callable[[AnyTransaction], Any],
        *,
        state: StepState = "done",
        former: StepRecord | None = None,
    ) -> StepRecord:
        """Apply the function of a transaction together with its result."""
        assert self._begin is not None
        begin = self._begin

        async def once() -> StepRecord:
            async with begin() as tx:
                executor: Executor = tx.executor

                async def check(unit: Unit) -> None:
                    await unit.read(tasks.task_key(self.id), key)
                    await self._fence(unit)
                    await self._check_absent(unit, key, name, former)

                await executor.run(check)
                marked = _present.set(name)
                try:
                    value = await call_function(fn, tx)
                finally:
                    _present.reset(marked)
                stored = self._encode(key, name, value)

                async def write(unit: Unit) -> StepRecord:
                    record, version = await self._fence(unit)
                    row = self._row_to_write(kind, state, await unit.now_ms(), None, former)
                    if not record.has_steps:
                        tasks.rewrite(unit, record, version, has_steps=True)
                    return write_step(unit, key, row, stored)

                row, _ = await executor.run(write)
            return row

        return self._remember(name, await self._executor.retry(once, None))

    async def _in_transaction(self, fn: Callable[[AnyTransaction], Awaitable[T]]) -> T:
        """Return the result of a function that only reads."""
        assert self._begin is not None
        begin = self._begin

        async def once() -> T:
            async with begin() as tx:
                return await fn(tx)

        return await self._executor.retry(once, None)

    async def _receive(
        self, key: bytes, name: str, former: StepRecord | None, wait_ms: int | None
    ) -> StepRecord | None:
        """Record the first message of a name, or that none came in time, or until when to wait."""
        written: list[StepRecord | None] = []
        prefix = message_prefix(self.id, name)

        async def work(unit: Unit, record: TaskRecord, version: int) -> None:
            written.clear()
            await self._check_absent(unit, key, name, former)
            found = await unread(self._executor, unit, record, name)
            now_ms = await unit.now_ms()
            due_ms = former.due_ms if former is not None else None if wait_ms is None else now_ms + wait_ms
            if found:
                encoded = self._executor.rebind(await unit.value(found[0]), prefix, key)
                unit.delete(found[0].key)
                row = self._row_to_write("receive", "done", now_ms, due_ms, former)
                written.append(write_step(unit, key, row, encoded))
                tasks.rewrite(unit, record, version, has_steps=True, messages=record.messages - 1)
                return
            if due_ms is None or (former is not None and now_ms < due_ms):
                written.append(former)
                return
            state: StepState = "timeout" if now_ms >= due_ms else "waiting"
            row = self._row_to_write("receive", state, now_ms, due_ms, former)
            written.append(write_step(unit, key, row, None))
            if not record.has_steps:
                tasks.rewrite(unit, record, version, has_steps=True)

        await self._change_steps(work, {})
        row = written[-1]
        return None if row is None else self._remember(name, row)
