"""A run that this process does: the lease that it is done under, its record, and how its steps commit."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Literal

from msgspec.structs import replace

from keepstate._runner import Signal, Work
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.joint_work import read_ahead, together
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import KeepstateError, LeaseLostError, StateError
from keepstate.typed.batch import MutationBatch
from keepstate.typed.layout import RUN_SLOTS, Names
from keepstate.typed.records import Head, RunRecord, plain, read_record
from keepstate.typed.state import KeyedState

_DELETES_BY_BATCH: Final = 500
_MESSAGES_BY_APPEND: Final = 900
_INTERRUPTED_RUNS: Final = 16
"""So many runs that were interrupted keep their values, to be resumed."""


@dataclass(slots=True)
class HeldRun:
    """A run in this process.

    Attributes:
        place: The space of its thread.
        names: What is called what there.
        state: The state of its thread, with the values of the run.
        record: What is known of it.
        lease: Keeps other processes from doing it.
        turns: Lets commits in one by one, for each counts on in the record.
        renewing: What renews the lease beside the caller.
        is_unsure: Whether the last commit was interrupted, so that it may be applied and not counted here.
    """

    place: Space
    names: Names
    state: KeyedState
    record: RunRecord
    lease: Lease
    turns: FifoLock
    renewing: Work | None = field(default=None)
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
        """Commit a batch, messages and the record together, while the lease is held; one after the other.

        Args:
            batch: The updates.
            messages: For the thread's stream.
            begins: Whether this is the first commit of a step.
            pending: The tools of the step that are still to be applied.
            status: Of the run, from now on.
        """
        await self.turns.run(lambda: self._commit(batch, messages, begins, pending, status))

    async def _commit(
        self,
        batch: MutationBatch,
        messages: Sequence[object],
        begins: bool,  # noqa: FBT001
        pending: Sequence[str],
        status: Literal["running", "finished", "failed"],
    ) -> None:
        def counted(before: RunRecord) -> RunRecord:
            return replace(
                before,
                status=status,
                steps=before.steps + begins,
                pending=list(pending),
                messages=before.messages + len(messages),
            )

        record, name = counted(self.record), self.names.run(self.record.run_id)
        was_unsure, self.is_unsure = self.is_unsure, True

        async def beside(tx: Transaction, head: Head) -> None:
            nonlocal record
            if was_unsure and (stored := await tx.documents.entry(name)) is not None:
                record = counted(read_record(RunRecord, name, stored.value))
            for begin in range(0, len(messages), _MESSAGES_BY_APPEND):
                await tx.events.append(
                    *messages[begin : begin + _MESSAGES_BY_APPEND], stream=self.names.messages
                )
            record = replace(record, revision=head.revision)
            await tx.documents.put(name, plain(record))

        def applied() -> None:
            self.record, self.is_unsure = record, False

        message = f"run {record.run_id}: " + (f"step {record.steps}" if status == "running" else status)
        await self.state._commit(batch, beside=beside, applied=applied, message=message)  # pyright: ignore[reportPrivateUsage]

    async def renew(self, signal: Signal) -> None:
        """Renew the lease until it is told to end, or another process has the run."""
        while not await signal.wait(self.lease.ttl_s / 3):
            try:
                await self.lease.renew()
            except LeaseLostError:
                return
            except KeepstateError:
                continue  # the store may be back before the time is up

    async def let_go(self) -> None:
        """End the renewing and let others begin or resume the run, at the latest when its lease is over."""
        try:
            if self.renewing is not None:
                await self.renewing.stop()
        finally:
            await _released(self.lease)


async def _released(lease: Lease) -> None:
    with suppress(KeepstateError):  # it ends by itself, and must not hide how the run has ended
        await lease.release()


async def begin_run(
    place: Space,
    names: Names,
    state: KeyedState,
    *,
    run: tuple[str, str],
    before: KeyedState | None,
    resume: bool,
    wait_s: float,
    lease_ttl_s: float,
) -> HeldRun:
    """Return a run that is begun, or resumed, and held.

    Args:
        place: The space of its thread.
        names: What is called what there.
        state: The state of its thread.
        run: The ids of the thread and the run.
        before: The state of the run before on this thread in this process.
        resume: Whether it goes on with what it had.
        wait_s: How long to wait for its present holder.
        lease_ttl_s: For how long it is held from each renewal on.

    Raises:
        ConflictError: Another process holds it.
    """
    thread_id, run_id = run
    lease = await place.leases.acquire(names.run(run_id), lease_ttl_s, wait_s=wait_s)
    try:
        beginning = _Beginning(place, names, thread_id, run_id, lease, resume)
        record = await beginning.recorded()
        state._fence(lease, before)  # pyright: ignore[reportPrivateUsage]
        await state.refresh()
    except BaseException:
        await _released(lease)
        raise
    held = HeldRun(place, names, state, record, lease, FifoLock(place.runner))
    held.renewing = place.runner.start(held.renew, f"lease of run {run_id}")
    return held


@dataclass(frozen=True, slots=True)
class _Beginning:
    """How a run begins: its record is written, and the values of runs that are over are removed."""

    place: Space
    names: Names
    thread_id: str
    run_id: str
    lease: Lease
    resume: bool

    async def recorded(self) -> RunRecord:
        """Return the record of the run, once it has begun."""
        message = f"run {self.run_id}: {'resume' if self.resume else 'begin'}"
        record = None
        while record is None:  # each batch removes so many values only
            record = await together(self.place, self._begun, lease=self.lease, message=message)
        return record

    async def _begun(self, tx: Transaction) -> RunRecord | None:
        name = self.names.run(self.run_id)
        found = await tx.documents.entries(self.names.head, name)
        head = (
            read_record(Head, self.names.head, found[self.names.head].value)
            if self.names.head in found
            else Head()
        )
        if self.resume and name in found and self.run_id not in head.runs:
            raise StateError(
                f"run {self.run_id!r} of thread {self.thread_id!r} cannot be resumed: it had ended, or "
                f"{_INTERRUPTED_RUNS} others were interrupted after it, and its run-scoped values were "
                "removed; start it without `resume`"
            )
        over = await self._over(tx, head)
        cleared, is_all = await self._clear(tx, over)
        head = head.after_clearing(cleared, self.run_id)
        if not is_all:
            await tx.documents.put(self.names.head, plain(head))
            return None
        fresh = RunRecord(self.run_id, self.thread_id, revision=head.revision)
        old = read_record(RunRecord, name, found[name].value) if self.resume and name in found else fresh
        record = replace(old, status="running", fence=self.lease.token, author=self.place.author)
        await tx.documents.put(name, plain(record))
        runs = {run: revision for run, revision in head.runs.items() if run not in over}
        changed = head.runs.get(self.run_id, 0)
        runs.pop(self.run_id, None)
        await tx.documents.put(self.names.head, plain(replace(head, runs={**runs, self.run_id: changed})))
        return record

    async def _over(self, tx: Transaction, head: Head) -> list[str]:
        """Return the runs whose values go: those that have ended, and unless it is resumed this one.

        Values of no run go as well when a run begins. Of runs that nobody does and that have not ended only
        the last ones stay, to be resumed.
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
        """Remove the values of runs, and return the slots by run, and whether that was all of them."""
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
