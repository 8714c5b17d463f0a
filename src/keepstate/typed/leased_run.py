"""A run of this process: its lease, its record, and the commits of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.locks import FifoLock
from keepstate.engine.queue.lease import Heartbeat, Lease, release_logged
from keepstate.engine.space.joint_work import read_ahead, run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.layout import RUN_SLOTS, Names
from keepstate.typed.records import Head, RunRecord, read_record, to_document
from keepstate.typed.state import KeyedState

_DELETES_BY_BATCH: Final = 500
_MESSAGES_BY_APPEND: Final = 900
_INTERRUPTED_RUNS: Final = 16
"""Number of interrupted runs whose values are retained, so that they can be resumed."""


@dataclass(slots=True)
class HeldRun:
    """A run that this process holds.

    Attributes:
        space: The space of the thread.
        names: The document names of the thread.
        state: The state of the thread, with the values of the run.
        record: The record of the run.
        lease: Excludes other processes from the run.
        commit_lock: Serialises commits, because each one increments counters of the record.
        heartbeat: Renews the lease, and releases it, so that the run can begin or resume elsewhere.
        is_unsure: Whether the last commit was interrupted, so that it may be applied but not counted here.
    """

    space: Space
    names: Names
    state: KeyedState
    record: RunRecord
    lease: Lease
    commit_lock: FifoLock
    heartbeat: Heartbeat
    is_unsure: bool = field(default=False)

    async def commit(
        self,
        batch: MutationBatch,
        *,
        messages: Sequence[object] = (),
        begins: bool = True,
        pending: Sequence[str] = (),
        status: Literal["running", "finished", "failed"] = "running",
    ) -> None:
        """Commit a batch, messages and the record together under the lease; concurrent calls run in order.

        Args:
            batch: The updates.
            messages: Messages for the thread's stream.
            begins: Whether this is the first commit of a step.
            pending: The names of the step's tools that are not applied yet.
            status: The status of the run from now on.
        """
        await self.commit_lock.run(lambda: self._commit(batch, messages, begins, pending, status))

    async def _commit(
        self,
        batch: MutationBatch,
        messages: Sequence[object],
        begins: bool,  # noqa: FBT001
        pending: Sequence[str],
        status: Literal["running", "finished", "failed"],
    ) -> None:
        def count_step(before: RunRecord) -> RunRecord:
            return replace(
                before,
                status=status,
                steps=before.steps + begins,
                pending=list(pending),
                messages=before.messages + len(messages),
            )

        record, name = count_step(self.record), self.names.run(self.record.run_id)
        was_unsure, self.is_unsure = self.is_unsure, True

        async def extra_writes(tx: Transaction, head: Head) -> None:
            nonlocal record
            if was_unsure and (stored := await tx.documents.entry(name)) is not None:
                record = count_step(read_record(RunRecord, name, stored.value))
            for begin in range(0, len(messages), _MESSAGES_BY_APPEND):
                await tx.events.append(
                    *messages[begin : begin + _MESSAGES_BY_APPEND], stream=self.names.messages
                )
            record = replace(record, revision=head.revision)
            await tx.documents.put(name, to_document(record))

        def applied() -> None:
            self.record, self.is_unsure = record, False

        message = f"run {record.run_id}: " + (f"step {record.steps}" if status == "running" else status)
        await self.state._commit(batch, extra_writes=extra_writes, applied=applied, message=message)  # pyright: ignore[reportPrivateUsage]


async def begin_run(
    space: Space,
    names: Names,
    state: KeyedState,
    *,
    run: tuple[str, str],
    before: KeyedState | None,
    resume: bool,
    wait_s: float,
    lease_ttl_s: float,
) -> HeldRun:
    """Begin or resume a run and return it, held by a lease.

    Args:
        space: The space of the thread.
        names: The document names of the thread.
        state: The state of the thread.
        run: The ids of the thread and the run.
        before: The state of the thread's previous run in this process.
        resume: Whether the run continues with its earlier values.
        wait_s: Maximum seconds to wait for the current holder.
        lease_ttl_s: Seconds until the lease expires without renewal.

    Raises:
        ConflictError: Another process holds the run.
    """
    thread_id, run_id = run
    lease = await space.leases.acquire(names.run(run_id), lease_ttl_s, wait_s=wait_s)
    try:
        start = _RunStart(space, names, thread_id, run_id, lease, resume)
        record = await start.write_record()
        state._fence(lease, before)  # pyright: ignore[reportPrivateUsage]
        await state.refresh()
    except BaseException:  # also a cancellation; raised again
        await release_logged(lease)
        raise
    return HeldRun(space, names, state, record, lease, FifoLock(space.runner), lease.kept_alive())


@dataclass(frozen=True, slots=True)
class _RunStart:
    """The start of a run: writes its record, and removes the values of ended runs."""

    space: Space
    names: Names
    thread_id: str
    run_id: str
    lease: Lease
    resume: bool

    async def write_record(self) -> RunRecord:
        """Begin the run in the store and return its record."""
        message = f"run {self.run_id}: {'resume' if self.resume else 'begin'}"
        record = None
        while record is None:  # each batch deletes a limited number of values
            record = await run_in_transaction(self.space, self._try_begin, lease=self.lease, message=message)
        return record

    async def _try_begin(self, tx: Transaction) -> RunRecord | None:
        name = self.names.run(self.run_id)
        found = await tx.documents.entries(self.names.head, name)
        head = (
            read_record(Head, self.names.head, found[self.names.head].value)
            if self.names.head in found
            else Head()
        )
        if self.resume and name in found and self.run_id not in head.runs:
            raise StateError(
                f"Run {self.run_id!r} of thread {self.thread_id!r} cannot be resumed. It had ended, or "
                f"{_INTERRUPTED_RUNS} other runs were interrupted after it, so its run-scoped values were "
                "removed. Start it without resume=True."
            )
        over = await self._ended_runs(tx, head)
        cleared, is_all = await self._clear(tx, over)
        head = head.after_clearing(cleared, self.run_id)
        if not is_all:
            await tx.documents.put(self.names.head, to_document(head))
            return None
        new_record = RunRecord(self.run_id, self.thread_id, revision=head.revision)
        old = read_record(RunRecord, name, found[name].value) if self.resume and name in found else new_record
        record = replace(old, status="running", fence=self.lease.token, author=self.space.author)
        await tx.documents.put(name, to_document(record))
        runs = {run: revision for run, revision in head.runs.items() if run not in over}
        changed = head.runs.get(self.run_id, 0)
        runs.pop(self.run_id, None)
        await tx.documents.put(
            self.names.head, to_document(replace(head, runs={**runs, self.run_id: changed}))
        )
        return record

    async def _ended_runs(self, tx: Transaction, head: Head) -> list[str]:
        """Return the runs whose values are removed: ended runs, and this one unless it is resumed.

        Values without a run are removed as well. Of interrupted runs, which have no holder and have not
        ended, only the latest are retained, to be resumed.
        """
        over = [] if self.resume else [run for run in (self.run_id, "") if run in head.runs]
        others = [run for run in head.runs if run not in (self.run_id, "")]
        records = await tx.documents.entries(*(self.names.run(run) for run in others))
        interrupted: list[str] = []
        for run in others:
            name = self.names.run(run)
            record = read_record(RunRecord, name, records[name].value) if name in records else None
            if record is not None and record.status != "running":
                over.append(run)
            elif await tx.leases.holder(name) is None:
                interrupted.append(run)
        return over + interrupted[:-_INTERRUPTED_RUNS]

    async def _clear(self, tx: Transaction, runs: Sequence[str]) -> tuple[dict[str, list[str]], bool]:
        """Delete the values of runs, and return the deleted slots by run and whether all were deleted."""
        cleared: dict[str, list[str]] = {run: [] for run in runs}
        for run in runs:
            left = _DELETES_BY_BATCH - sum(map(len, cleared.values()))
            prefix = self.names.run_prefix(run)
            names: list[str] = []
            async for name in tx.documents.keys(f"{escape_pattern(prefix)}*"):
                names.append(name)
                if len(names) > left:
                    break
            await read_ahead(tx, documents=names[:left])
            for name in names[:left]:
                await tx.documents.delete(name)
                cleared[run].append(RUN_SLOTS + name.removeprefix(prefix))
            if len(names) > left:
                return cleared, False
        return cleared, True
