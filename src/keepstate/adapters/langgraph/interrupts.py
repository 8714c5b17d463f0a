"""Interrupts of a graph as approvals: asked, and withdrawn, in the batches that store the thread.

An approval has the id `langgraph/<checkpoint>/<interrupt>`. The batch that stores an interrupt asks it, and
puts the task `langgraph.resume`, which waits for it. It is pending only as long as its checkpoint is the
latest one and its node has not finished: the batch that changes this withdraws it.

Only the root namespace asks, because an interrupt of a subgraph is stored there too.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeGuard, cast

from keepstate.errors import MissingExtraError

try:  # here, because the package imports this module first
    from langchain_core.runnables import RunnableConfig
    from langgraph.types import Interrupt
except ImportError as error:
    install = "pip install 'keepstate[langgraph]'"
    raise MissingExtraError(f"this needs langgraph: {install}", install=install) from error

from keepstate.adapters.langgraph.plain import plain
from keepstate.adapters.langgraph.records import Names, cut_name, line_prefix, short_names
from keepstate.engine.approvals.approvals import Approvals
from keepstate.engine.approvals.records import Approval, TaskSpec, id_in, list_prefix, log_prefix
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.store_abilities import content_name
from keepstate.engine.kernel.transaction_executor import TransactionExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.endings import Ends, cancel_task
from keepstate.engine.queue.queue import Queue
from keepstate.engine.queue.step_memory import NO_DEFAULT, check_default
from keepstate.values.key import unpack

RESUME: Final = "langgraph.resume"
"""The kind of the tasks that resume threads."""
LEASE: Final = "langgraph"
"""The name of the lease that a resumed run holds, in the space of its thread."""
ACTOR: Final = "langgraph"
"""The name that withdraws approvals."""
INTERRUPTED: Final = -3
"""The index of the write of interrupts."""
ELSEWHERE: Final = "answered elsewhere"
GONE_ON: Final = "the thread has gone on"
DELETED: Final = "its checkpoint was deleted"

_PREFIX: Final = "langgraph/"
_TASKS: Final = f"approval/{_PREFIX}"
_HEX: Final = frozenset("0123456789abcdef")
_ID_LETTERS: Final = 32
_SHOWN: Final = 200
_PAGE: Final = 100
_NAMES: Final = ("question", "message", "description")


@dataclass(frozen=True, slots=True)
class InterruptQuestion:
    """The approval that asks for the answer to an interrupt.

    Attributes:
        question: The question; 1 byte to 64 KiB of UTF-8.
        schema: A JSON Schema of the answer; None for yes or no.
        to: The people and groups who may answer; empty for everyone but the saver's author.
        need: The number of different people who have to say yes.
        expires_s: Seconds after which it takes no answer; None if it does not expire.
        default: The answer with which the thread is resumed if the approval expires. Without one, the thread
            stays interrupted then.
    """

    question: str
    schema: Mapping[str, Any] | None = None
    to: Sequence[str] = ()
    need: int = 1
    expires_s: float | None = None
    default: Any = NO_DEFAULT


Ask = Callable[["Interrupt[Any]", RunnableConfig], InterruptQuestion]
"""A function that makes the question of an interrupt, given the config of its checkpoint."""


def question_of(interrupt: Interrupt[Any], _config: RunnableConfig) -> InterruptQuestion:
    """Return the question of an interrupt by its value: a text, or the text in a dict under `question`."""
    value = cast("object", interrupt.value)
    schema = interrupt.response_schema
    text = value if isinstance(value, str) else None
    if isinstance(value, Mapping):
        named = cast("Mapping[str, object]", value)
        text = next((each for name in _NAMES if isinstance(each := named.get(name), str) and each), None)
    if not text:
        said = repr(plain(interrupt.value))
        text = f"The graph asks: {said if len(said) <= _SHOWN else f'{said[:_SHOWN]}…'}"
    return InterruptQuestion(text, schema if isinstance(schema, dict) else None)


class NewInterrupt(NamedTuple):
    """An interrupt to ask for.

    Attributes:
        interrupt: Its id.
        question: Its question.
        subject: Its value, in plain form.
    """

    interrupt: str
    question: InterruptQuestion
    subject: Any


class Interrupts:
    """Asks and withdraws the approvals of interrupts, as part of a saver's batches.

    Args:
        ask: Makes the question of an interrupt.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask

    def prepare(self, config: RunnableConfig, written: object) -> list[NewInterrupt]:
        """Return the interrupts to ask for.

        Args:
            config: The config of the checkpoint.
            written: The value that a task has written for its interrupts.

        Raises:
            InvalidError: The function of the caller does not return a question.
        """
        found: list[NewInterrupt] = []
        for interrupt in as_interrupts(written):
            question = self._ask(interrupt, config)
            require_instance("the question of an interrupt", question, InterruptQuestion)
            check_default(question.default, has_schema=question.schema is not None)
            found.append(NewInterrupt(interrupt.id, question, plain(interrupt.value)))
        return found

    async def ask(
        self, unit: Unit, executor: SpaceExecutor, names: Names, asking: Sequence[NewInterrupt]
    ) -> None:
        """Ask for the interrupts of a task, unless the thread has a later checkpoint.

        An approval that is pending or answered is not asked again. After one that expired or was withdrawn,
        the next one has a number in its id.
        """
        if await _has_later(unit, names):
            return
        approvals = Approvals(TransactionExecutor(executor, unit))
        for interrupt, question, subject in asking:
            id = approval_id(names.id, interrupt)
            latest = await latest_approval(approvals, id)
            if latest is not None and latest.state in ("pending", "answered"):
                continue
            if latest is not None:
                id = f"{id}/{_number(latest.id) + 1}"
            payload = {"thread": names.thread, "checkpoint": names.id, "interrupt": interrupt, "approval": id}
            if question.default is not NO_DEFAULT:
                payload["default"] = plain(question.default)
            await approvals.ask(
                question.question,
                id=id,
                subject=subject,
                schema=question.schema,
                to=question.to,
                need=question.need,
                expires_s=question.expires_s,
                then=TaskSpec(payload, kind=RESUME),
            )

    async def leave_task(
        self, unit: Unit, executor: SpaceExecutor, names: Names, interrupts: Iterable[str]
    ) -> None:
        """Withdraw the pending approvals of interrupts that a task has got over."""
        approvals = Approvals(TransactionExecutor(executor, unit))
        for interrupt in interrupts:
            latest = await latest_approval(approvals, approval_id(names.id, interrupt))
            if latest is not None:
                await _withdraw(approvals, executor, unit, latest, ELSEWHERE)

    async def leave_before(self, unit: Unit, executor: SpaceExecutor, checkpoint: str) -> None:
        """Withdraw the pending approvals of all checkpoints before a new one."""
        approvals = Approvals(TransactionExecutor(executor, unit))
        new = _segment(checkpoint)
        for id in await _listed(unit):
            if id.startswith(_PREFIX) and id.split("/")[1] < new:
                found = await approvals.get(id)
                if found is not None:
                    await _withdraw(approvals, executor, unit, found, GONE_ON)


# ---- ids


def as_interrupts(value: object) -> list[Interrupt[Any]]:
    """Return the interrupts of a write that can be resumed by id: not those of a breakpoint."""
    given = cast("Sequence[object]", value if isinstance(value, list | tuple) else [value])
    return [one for one in given if isinstance(one, Interrupt) and is_interrupt_id(one.id)]


def is_interrupt_id(id: object) -> TypeGuard[str]:
    """Return whether an id is one of an interrupt that can be resumed by it."""
    return type(id) is str and len(id) == _ID_LETTERS and _HEX.issuperset(id)


def approval_id(checkpoint: str, interrupt: str) -> str:
    """Return the id of the first approval of an interrupt."""
    return f"{_PREFIX}{_segment(checkpoint)}/{interrupt}"


def _segment(checkpoint: str) -> str:
    return cut_name(checkpoint).replace("/", "|")


def _number(id: str) -> int:
    """Return the number of an approval among those of its interrupt."""
    parts = id.split("/")
    return int(parts[3]) if len(parts) > 3 else 1


async def latest_approval(approvals: Approvals, id: str) -> Approval | None:
    """Return the latest approval of an interrupt, given the id of the first one; None without any."""
    found, number = await approvals.get(id), 1
    while found is not None and found.state in ("expired", "withdrawn"):
        number += 1
        following = await approvals.get(f"{id}/{number}")
        if following is None:
            break
        found = following
    return found


# ---- reads and withdrawals


async def _has_later(unit: Unit, names: Names) -> bool:
    prefix = line_prefix(layout.CHECKPOINTS, names.line)
    page = await unit.store.scan(unit.space, prefix, limit=1, reverse=True)
    return bool(page.entries) and short_names(page.entries[0].key)[1] > cut_name(names.id)


async def _listed(unit: Unit) -> list[str]:
    """Return the ids of the pending approvals of a space."""
    # Not a scan of the unit, which would conflict with every other write of the thread. An approval that is
    # asked meanwhile for an earlier checkpoint is withdrawn by the next checkpoint.
    prefix = list_prefix(partial(content_name, unit.store, unit.space), None)
    found: list[str] = []
    after: bytes | None = None
    while True:
        page = await unit.store.scan(unit.space, prefix, after=after, limit=_PAGE)
        found += [id_in(entry.key) for entry in page.entries]
        after = page.next
        if after is None:
            return found


async def _withdraw(
    approvals: Approvals, executor: SpaceExecutor, unit: Unit, found: Approval, reason: str
) -> None:
    if found.state != "pending":
        return
    if found.task is not None:  # before the approval wakes it: no worker has anything to do
        await cancel_task(executor, Ends(executor), unit, found.task, ACTOR, reason)
    await approvals.withdraw(found.id, by=ACTOR, reason=reason)


# ---- deletions


def is_own(key: bytes) -> bool:
    """Return whether a lease, a task or an approval of a thread's space belongs to its interrupts."""
    if key.startswith(layout.LEASES):
        return layout.name_of(layout.LEASES, key) == LEASE
    if key.startswith(layout.TASKS):
        return _id_of(layout.TASKS, key).startswith((_TASKS, _PREFIX))
    return _id_of(layout.APPROVALS, key).startswith(_PREFIX)


def _id_of(part: bytes, key: bytes) -> str:
    id = unpack(key[len(part) :])[0]
    return id if isinstance(id, str) else ""


async def withdraw_deleted(executor: SpaceExecutor, gone: Collection[str]) -> None:
    """Withdraw the pending approvals of checkpoints that were deleted from the root namespace."""
    deleted = {_segment(id) for id in gone}

    async def work(unit: Unit) -> None:
        approvals = Approvals(TransactionExecutor(executor, unit))
        for id in await _listed(unit):
            if id.startswith(_PREFIX) and id.split("/")[1] in deleted:
                found = await approvals.get(id)
                if found is not None:
                    await _withdraw(approvals, executor, unit, found, DELETED)

    await executor.run(work)


async def erase(executor: SpaceExecutor) -> None:
    """Delete all approvals of interrupts of a thread, their logs, and the tasks of its runs."""
    approvals, queue = Approvals(executor), Queue(executor)
    async for _, entry in executor.scan(layout.TASKS):
        if (task := _id_of(layout.TASKS, entry.key)).startswith(_PREFIX):
            await queue.discard(task)
    async for _, entry in executor.scan(layout.APPROVALS):
        id = _id_of(layout.APPROVALS, entry.key)
        if not id.startswith(_PREFIX):
            continue
        await approvals.discard(id)
        await queue.discard(f"approval/{id}")
        lines = [line.key async for _, line in executor.scan(log_prefix(id))]

        async def work(unit: Unit, lines: Sequence[bytes] = lines) -> None:
            for key in lines:
                unit.delete(key)

        await executor.run(work)
