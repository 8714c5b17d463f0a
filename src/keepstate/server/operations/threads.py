"""Operations on threads of LangGraph, without their graphs: their interrupts, answers, and forks with edits.

The first request loads the adapter outside of the event loop, because importing LangGraph takes a second.
"""

from __future__ import annotations

import asyncio
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import msgspec

from keepstate.errors import MissingExtraError
from keepstate.server.operations.branches import Edit, apply_edit, read_path
from keepstate.server.operations.values import Body, read_value, show
from keepstate.server.table import Call, InSpace, Label, Operation

_ADAPTER: Final = "keepstate.adapters.langgraph.thread_control"
_INSTALL: Final = "pip install 'keepstate[langgraph]'"
_Checkpoint = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]


class ThreadInterrupt(msgspec.Struct, frozen=True):
    """An interrupt that waits for an answer: by its approval, or by `answerInterrupt` without one.

    `task` carries an answer that no worker has finished.
    """

    id: str
    checkpoint: str
    value: Any
    schema: Any
    approval: str | None
    task: str | None


class InterruptList(msgspec.Struct, frozen=True):
    """The pending interrupts of the latest checkpoint of a thread."""

    items: list[ThreadInterrupt]


class InterruptAnswer(Body, frozen=True, kw_only=True):
    """An answer to an interrupt, which `interrupt()` returns in the graph."""

    checkpoint: _Checkpoint
    interrupt: Label
    value: msgspec.Raw


class ThreadTask(msgspec.Struct, frozen=True):
    """The task that resumes a thread, for a worker with `langgraph.resume`."""

    task: str


class NewThreadFork(Body, frozen=True, kw_only=True):
    """Edits of the channels at a checkpoint. With `runs`, a task continues the thread from there."""

    checkpoint: _Checkpoint
    edits: Annotated[list[Edit], msgspec.Meta(min_length=1, max_length=100)]
    runs: bool = False


class ThreadFork(msgspec.Struct, frozen=True):
    """The new checkpoint, which is the latest of its thread, its commit, and its task if there is one."""

    checkpoint: str
    commit: str
    task: str | None


async def list_interrupts(call: Call, query: InSpace) -> InterruptList:
    """Return the pending interrupts of a thread."""
    control = await _adapter()
    return InterruptList(
        [
            ThreadInterrupt(
                each.id, each.checkpoint, show(each.value), show(each.schema), each.approval, each.task
            )
            for each in await control.list_interrupts(call.space(query))
        ]
    )


async def answer_interrupt(call: Call, query: InSpace, body: InterruptAnswer) -> ThreadTask:
    """Put the task that resumes a thread with an answer."""
    control, value = await _adapter(), read_value(body.value)
    return ThreadTask(
        await control.answer_interrupt(
            call.space(query), body.checkpoint, body.interrupt, value, by=call.author
        )
    )


async def fork_thread(call: Call, query: InSpace, body: NewThreadFork) -> ThreadFork:
    """Store a checkpoint with an edited state."""
    control = await _adapter()
    paths = [read_path(edit.path) for edit in body.edits]

    def edit(state: dict[str, Any]) -> None:
        for each, path in zip(body.edits, paths, strict=True):
            apply_edit(state, path, each)

    names = list(dict.fromkeys(path[0] for path in paths))
    made = await control.fork(call.space(query), body.checkpoint, names, edit, runs=body.runs)
    return ThreadFork(made.checkpoint, made.commit, made.task)


async def _adapter() -> Any:
    """Return the adapter.

    Raises:
        MissingExtraError: LangGraph is not installed.
    """
    try:
        return sys.modules.get(_ADAPTER) or await asyncio.to_thread(import_module, _ADAPTER)
    except ModuleNotFoundError as error:
        message = f"the server needs LangGraph for this: {_INSTALL}"
        raise MissingExtraError(message, install=_INSTALL) from error


OPERATIONS = (
    Operation(
        method="GET", path="/v1/thread/interrupts", name="listInterrupts",
        summary="List the interrupts of a LangGraph thread that wait for an answer.", right="read",
        query=InSpace, run=list_interrupts, answer=InterruptList,
    ),
    Operation(
        method="POST", path="/v1/thread/answer", name="answerInterrupt",
        summary="Answer an interrupt of a LangGraph thread by a task.", right="answer", query=InSpace,
        run=answer_interrupt, answer=ThreadTask, body=InterruptAnswer,
    ),
    Operation(
        method="POST", path="/v1/thread/fork", name="forkThread",
        summary="Store a checkpoint of a LangGraph thread with an edited state.", right="write",
        query=InSpace, run=fork_thread, answer=ThreadFork, body=NewThreadFork,
    ),
)  # fmt: skip
