"""Changes to a thread without its graph: answers to its interrupts, and forks with an edited state.

A fork is the checkpoint that `graph.update_state` would store, but written by no node: the nodes that come
next are those of the checkpoint that it follows. Values keep the form in which the handle reads them, so a
handle with `values="builtin"` keeps objects of classes that this process does not know. A thread that a
serializer stored is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple, cast

from langgraph.checkpoint.base.id import uuid6

from keepstate.adapters.langgraph.interrupts import (
    INTERRUPTED,
    RESUME,
    Interrupts,
    approval_id,
    is_interrupt_id,
    latest_approval,
    question_of,
)
from keepstate.adapters.langgraph.put import Found, move_branches
from keepstate.adapters.langgraph.records import (
    CheckpointRecord,
    Names,
    PendingRecord,
    checkpoint_key,
    cut_names,
    decode,
    encode,
    line_prefix,
    names_of,
    pending_prefix,
    thread_of,
)
from keepstate.adapters.langgraph.serde import kind_of
from keepstate.engine.approvals.approvals import Approvals
from keepstate.engine.documents.write_rules import read_rules
from keepstate.engine.history.history import History
from keepstate.engine.history.objects import pack_object, unpack_object
from keepstate.engine.history.record import read_head, scan_entries
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.transaction_executor import TransactionExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.queue import Queue
from keepstate.engine.space.space import Space
from keepstate.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    UnsupportedError,
)

_EDITED: Final = "langgraph-edit"
"""The branch of a fork while it is made. It exists only in its transaction."""
_RECORDED_MAIN: Final = "langgraph"
_OWN: Final = ("branch:to:", "__")
"""The beginnings of the names of channels that LangGraph itself writes."""
_TASKS: Final = "langgraph/"
"""The prefix of the ids of tasks that people put."""

Edit = Callable[[dict[str, Any]], None]
"""A function that edits the values of channels in place."""


class PendingInterrupt(NamedTuple):
    """An interrupt of the latest checkpoint that no answer has resumed.

    Attributes:
        id: Its id.
        checkpoint: The checkpoint that it waits at.
        value: Its value.
        schema: The JSON Schema of the answer, or None.
        approval: The id of the approval that asks for the answer, or None.
        task: The id of the task that carries an answer, or None.
    """

    id: str
    checkpoint: str
    value: Any
    schema: Any
    approval: str | None
    task: str | None


class Fork(NamedTuple):
    """A fork of a thread.

    Attributes:
        checkpoint: The id of the new checkpoint, which is the latest of its thread.
        commit: Its commit.
        task: The id of the task that continues the thread, or None.
    """

    checkpoint: str
    commit: str
    task: str | None


class _Checkpoint(NamedTuple):
    names: Names
    record: CheckpointRecord


# ---- interrupts


async def list_interrupts(space: Space) -> list[PendingInterrupt]:
    """Return the pending interrupts of a thread, also those that the saver did not ask people for.

    Raises:
        UnsupportedError: A serializer stored the thread.
    """

    async def work(unit: Unit) -> list[PendingInterrupt]:
        return await _pending(space.executor, unit)

    return (await space.executor.run(work))[0]


async def _pending(executor: Executor, unit: Unit) -> list[PendingInterrupt]:
    latest = await _latest(executor, unit)
    if latest is None:
        return []
    names = latest.names
    inner = TransactionExecutor(executor, unit)
    approvals, queue = Approvals(inner), Queue(inner)
    found: list[PendingInterrupt] = []
    async for entry in scan_entries(unit.store, unit.space, pending_prefix(names.line, names.id)):
        record = decode(await unit.value(entry), PendingRecord, entry.key)
        writes = dict(record.writes)
        if INTERRUPTED not in writes or any(index >= 0 for index in writes):
            continue  # the node did not interrupt, or has finished
        _, given = _read(executor, writes[INTERRUPTED], 2, names.thread)
        for fields in map(_fields, given):
            id = fields.get("id")
            if not is_interrupt_id(id):
                continue  # of a breakpoint, which takes no answer
            asked = await latest_approval(approvals, approval_id(names.id, id))
            put = await queue.get(answer_task(names.id, id))
            found.append(
                PendingInterrupt(
                    id,
                    names.id,
                    fields.get("value"),
                    fields.get("response_schema"),
                    asked.id if asked is not None and asked.state in ("pending", "answered") else None,
                    put.id if put is not None and put.state in ("ready", "waiting", "claimed") else None,
                )
            )
    return found


async def answer_interrupt(space: Space, checkpoint: str, interrupt: str, value: Any, *, by: str) -> str:
    """Put the task that resumes a thread with the answer to an interrupt, and return the id of the task.

    A worker with `resume(graph)` runs it. Until one has begun it, cancel the task to take the answer back.

    Args:
        space: The space of the thread.
        checkpoint: The checkpoint that the interrupt waits at.
        interrupt: The id of the interrupt.
        value: The answer, which `interrupt()` returns.
        by: The person who answers.

    Raises:
        NotFoundError: The interrupt is not pending.
        ConflictError: An approval asks for the answer: answer the approval.
        AlreadyExistsError: The interrupt was answered, and no worker has finished the thread's run yet.
    """
    id = answer_task(checkpoint, interrupt)

    async def work(unit: Unit) -> Exception | None:
        waiting = await _pending(space.executor, unit)
        found = next(
            (each for each in waiting if (each.checkpoint, each.id) == (checkpoint, interrupt)), None
        )
        if found is None:
            return NotFoundError(
                f"interrupt {interrupt} of checkpoint {checkpoint} is not pending; read again"
            )
        if found.approval is not None:
            return ConflictError(f"approval {found.approval!r} asks for this answer; answer the approval")
        if found.task is not None:
            return AlreadyExistsError(
                f"the interrupt was answered, and task {found.task!r} waits for a worker; "
                "cancel the task to answer again"
            )
        thread = (
            thread_of(space.name)
            if (latest := await _latest(space.executor, unit)) is None
            else latest.names.thread
        )
        payload = {
            "thread": thread, "checkpoint": checkpoint, "interrupt": interrupt, "answer": value, "by": by
        }  # fmt: skip
        queue = Queue(TransactionExecutor(space.executor, unit))
        await queue.put(payload, id=id, kind=RESUME, if_present="replace")
        return None

    error = (await space.executor.run(work))[0]
    if error is not None:
        raise error
    return id


def answer_task(checkpoint: str, interrupt: str) -> str:
    """Return the id of the task that carries the answer to an interrupt."""
    return f"{_TASKS}answer/{checkpoint}/{interrupt}"


# ---- forks


async def fork(space: Space, checkpoint: str, names: list[str], edit: Edit, *, runs: bool) -> Fork:
    """Store a checkpoint that follows another one with an edited state, and is the latest of the thread.

    Args:
        space: The space of the thread.
        checkpoint: The id of a checkpoint of the root namespace.
        names: The channels to edit.
        edit: A function that edits them, given their values.
        runs: Whether to put a task that continues the thread there, for a worker with `resume(graph)`.

    Raises:
        NotFoundError: The checkpoint does not exist.
        InvalidError: A channel is one that only LangGraph writes, or nothing is edited.
        UnsupportedError: A serializer stored the thread, or it has delta channels.
    """
    _check_channels(names)
    executor = space.executor

    async def work(unit: Unit) -> Fork:
        base = await _require(executor, unit, checkpoint)
        fields, metadata, channels = _read(executor, base.record.body, 3, base.names.thread)
        step = metadata.get("step")
        step = step + 1 if type(step) is int else 1
        id, now_ms = str(uuid6(clock_seq=step)), await unit.now_ms()
        tx = TransactionExecutor(executor, unit)
        state = await _commit_edits(tx, base, names, edit, f"update, step {step}, {id}")
        head = await read_head(unit, layout.BRANCHES, _EDITED)
        assert head is not None
        unit.delete(layout.named_key(layout.BRANCHES, _EDITED))
        new = base.names._replace(id=id)
        body = [_bumped(fields, names, now_ms), _updated(metadata, step), _present(channels, names, state)]
        stored = CheckpointRecord(
            *(head.commit, head.number, checkpoint, now_ms),
            pack_object(executor.home.states.canonical(body)),
            names=cut_names(new),
        )
        await move_branches(unit, await _heads(unit, base), new, checkpoint, head)
        unit.put(checkpoint_key(new.line, id), encode(stored))
        await Interrupts(question_of).leave_before(unit, executor, id)
        task = await _put_run(tx, new) if runs else None
        return Fork(id, head.commit.hex(), task)

    return (await executor.run(work))[0]


def _check_channels(names: list[str]) -> None:
    if not names:
        raise InvalidError("nothing is edited; give at least one edit")
    for name in names:
        if name.startswith(_OWN):
            raise InvalidError(
                f"channel {name!r} is written by LangGraph itself; edit a channel of the graph"
            )


async def _commit_edits(
    tx: TransactionExecutor, base: _Checkpoint, names: list[str], edit: Edit, message: str
) -> set[str]:
    """Commit edited channels to a branch of the transaction, and return the edited ones that have a value."""
    history, commit = History(tx), base.record.commit.hex()
    await history.branch(_EDITED, commit)
    checkout = await history.checkout(commit, load=False)
    present = await checkout._load_present(names)  # pyright: ignore[reportPrivateUsage]
    draft = await history.begin(_EDITED, load=present)
    state = {name: draft[name] for name in present}
    edit(state)
    draft.update(state)
    for name in present:
        if name not in state:
            del draft[name]
    await draft.commit(message=message)
    return set(state)


def _bumped(fields: dict[str, Any], names: list[str], now_ms: int) -> dict[str, Any]:
    """Return the fields of a checkpoint with new versions of the edited channels."""
    versions = dict(fields.get("channel_versions") or {})
    following = _next_version(list(versions.values()))
    bumped = {**fields, "ts": datetime.fromtimestamp(now_ms / 1000, UTC).isoformat()}
    bumped["channel_versions"] = versions | dict.fromkeys(names, following)
    if fields.get("updated_channels") is not None:
        bumped["updated_channels"] = sorted({*fields["updated_channels"], *names})
    return bumped


def _next_version(versions: list[Any]) -> Any:
    """Return the version after all versions, in the form that their saver gives."""
    if not versions:
        return 1
    newest = max(versions)
    if isinstance(newest, str):
        return f"{int(newest.split('.')[0]) + 1:032}.{0:017.14f}"
    return int(newest) + 1


def _updated(metadata: dict[str, Any], step: int) -> dict[str, Any]:
    return {**metadata, "source": "update", "step": step, "parents": metadata.get("parents") or {}}


def _present(channels: list[str], names: list[str], state: set[str]) -> list[str]:
    """Return the channels that have a value after the edits."""
    kept = [name for name in channels if name not in names or name in state]
    return [*kept, *sorted(state.difference(kept))]


async def _put_run(tx: TransactionExecutor, names: Names) -> str:
    payload = {"thread": names.thread, "checkpoint": names.id}
    return (await Queue(tx).put(payload, id=f"{_TASKS}fork/{names.id}", kind=RESUME)).id


# ---- reads


async def _latest(executor: Executor, unit: Unit) -> _Checkpoint | None:
    page = await unit.store.scan(unit.space, line_prefix(layout.CHECKPOINTS, ""), limit=1, reverse=True)
    for entry in page.entries:
        record = decode(await unit.value(entry), CheckpointRecord, entry.key)
        return _Checkpoint(names_of(thread_of(executor.name), entry.key, record), record)
    return None


async def _require(executor: Executor, unit: Unit, id: str) -> _Checkpoint:
    key = checkpoint_key("", id)
    entry = await unit.get(key)
    if entry is None:
        raise NotFoundError(f"checkpoint {id!r} does not exist in space {executor.name!r}")
    record = decode(await unit.value(entry), CheckpointRecord, key)
    if record.lacks or record.snapshots:
        raise UnsupportedError(
            f"checkpoint {id!r} has delta channels, whose values are in earlier checkpoints; "
            "fork it in a program, with graph.update_state(config, values)"
        )
    return _Checkpoint(names_of(thread_of(executor.name), key, record), record)


async def _heads(unit: Unit, base: _Checkpoint) -> Found:
    """Return the entries that the branches of a fork depend on."""
    branch = layout.MAIN
    if read_rules(await unit.get(layout.RULES)).is_recorded:
        branch = _RECORDED_MAIN
    return Found(branch, await read_head(unit, layout.BRANCHES, branch), None, base.record, None)


def _read(executor: Executor, stored: bytes, count: Literal[2, 3], thread: str) -> Any:
    """Return the parts of a stored value."""
    parts: Any = executor.home.states.assemble(unpack_object(stored, f"thread {thread!r}"), {})
    if kind_of(parts) is not list or len(parts) != count:
        raise UnsupportedError(
            f"a serializer stored thread {thread!r}, which only its saver reads; "
            "use graph.get_state and graph.update_state in a program that has the serializer"
        )
    return parts


def _fields(interrupt: object) -> dict[str, Any]:
    """Return the fields of an interrupt in any form that a handle reads."""
    if isinstance(interrupt, dict):
        return cast("dict[str, Any]", interrupt)
    return {name: getattr(interrupt, name, None) for name in ("id", "value", "response_schema")}
