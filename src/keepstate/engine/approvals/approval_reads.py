"""Reads of approvals: one, pages of pending ones, logs, and waiting for an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, cast

import msgspec

from keepstate.engine.approvals.records import (
    Approval,
    ApprovalEvent,
    ApprovalRecord,
    Vote,
    approval_key,
    asked_key,
    decode_approval,
    decode_line,
    digest_of,
    id_in,
    list_prefix,
    log_prefix,
    mark_key,
)
from keepstate.engine.documents.record import decode_value
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_wait
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.positions import Page, Positions
from keepstate.engine.kernel.store_abilities import content_name, listen
from keepstate.engine.kernel.stored import corrupt_error, shorten, to_datetime
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.unreadable import (
    UNREADABLE,
    IfUnreadable,
    Unreadable,
    check_unreadable,
    stand_in,
)
from keepstate.engine.queue.step_records import Answer
from keepstate.engine.queue.tasks import check_kind
from keepstate.errors import ApprovalClosedError, CorruptError, NotFoundError
from keepstate.stores.protocol import Entry
from keepstate.values import limits
from keepstate.values.key import unpack

_LONGEST_WAIT_S: Final = 1.0
_SHOWN_AT_ONCE: Final = 7
"""Approvals whose content one read fetches: entries of at most 1 MiB, in a read of at most 8 MiB."""


@dataclass(frozen=True, slots=True)
class ReadApproval:
    """An approval as a unit has read it.

    Attributes:
        record: The record, in the state of the unit's time.
        shown: What its approvers are shown: question, subject and schema.
    """

    record: ApprovalRecord
    shown: dict[str, Any]


class ApprovalReads:
    """Reads the approvals of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def get(self, id: str) -> Approval | None:
        """Return an approval, or None if none has this id."""
        approval_key(id)

        async def work(unit: Unit) -> Approval | None:
            found = await self._read(unit, id)
            return None if found is None else self._public(found)

        return (await self._executor.run(work))[0]

    async def wait(self, id: str, *, timeout_s: float | None = None) -> Answer:
        """Wait until an approval is answered, and return the answer.

        Args:
            id: The id of the approval.
            timeout_s: Seconds to wait at most; None for no limit.

        Raises:
            ApprovalClosedError: It has expired, or was withdrawn.
            NotFoundError: No approval has this id.
            TimeoutError: It was not answered in time.
        """
        self._executor.require_outside_transaction("waiting for an answer")
        if timeout_s is not None:
            check_wait("timeout_s", timeout_s)
        now_s = self._executor.clock.monotonic_s
        deadline_s = None if timeout_s is None else now_s() + timeout_s
        async with listen(await self._executor.store(), self._executor.stored_name) as hints:
            while True:
                record, answer = (await self._executor.run(partial(self._answered, id=id)))[0]
                if answer is not None:
                    return answer
                if record.state != "pending":
                    raise self._closed_error(record)
                left_s = _LONGEST_WAIT_S if deadline_s is None else deadline_s - now_s()
                if left_s <= 0:
                    raise TimeoutError(
                        f"approval {id!r} of {self._executor.name!r} has no answer after {timeout_s:g} s"
                    )
                await hints.wait(min(left_s, _LONGEST_WAIT_S))

    async def _answered(self, unit: Unit, id: str) -> tuple[ApprovalRecord, Answer | None]:
        found = await self._found(unit, id)
        return found.record, self._answer(found)

    async def log(self, id: str) -> list[ApprovalEvent]:
        """Return what happened to an approval, in order. It is stored for ever, like the approval.

        Raises:
            NotFoundError: No approval has this id.
        """
        approval_key(id)

        async def work(unit: Unit) -> None:
            await self._found(unit, id)

        await self._executor.run(work)
        prefix = log_prefix(id)
        stored = [await unit.value(entry) async for unit, entry in self._executor.scan(prefix)]
        return [self._event(id, each) for each in (*stored, *self._executor.appended(prefix))]

    def _event(self, id: str, stored: bytes) -> ApprovalEvent:
        line = decode_line(stored, f"the log of approval {id!r} of {self._executor.name!r}")
        value = None if line.value is None else decode_value(self._executor, approval_key(id), line.value)
        return ApprovalEvent(
            line.kind, to_datetime(line.at_ms), line.by, value, line.note, line.to, line.group
        )

    async def pending(
        self,
        *,
        to: str | None = None,
        after: str | None = None,
        limit: int = 100,
        unreadable: IfUnreadable = "raise",
    ) -> Page[Approval]:
        """Return one page of the pending approvals, the earliest first.

        Use `Keepstate.find` for those of all spaces.

        Args:
            to: Only those that are assigned to this person or group by name.
            after: Only approvals after the page with this cursor as `next`.
            limit: The largest number of approvals to return.
            unreadable: With `skip`, an approval that cannot be read is left out. With `raw`, its `unreadable`
                says why.
        """
        limits.admit_count("limit", limit)
        check_unreadable(unreadable)
        if to is not None:
            check_kind("to", to)
        prefix = list_prefix(await self._name_of(), to)
        positions = Positions(await self._executor.store(), self._executor.stored_name, self._executor.name)
        part = await positions.range_in(prefix, prefix, after=after, before=None, reverse=False)
        keys: list[bytes] = []
        mark = None
        at_once = min(limit + 1, limits.PAGE_ROWS)
        async for unit, entry in self._executor.scan(prefix, after=part.after, at_once=at_once):
            mark = unit.scanned_at
            keys.append(entry.key)
            if len(keys) > limit:
                break
        if mark is None:
            return Page()
        found = await self._approvals([*map(id_in, keys)], unreadable)
        rows = list(zip(keys, found, strict=True))
        page = positions.page_of(prefix, part, limit, rows, mark)
        # An approval may have been settled since the list was read.
        return Page((each for each in page if each is not None and each.state == "pending"), next=page.next)

    async def _approvals(self, ids: Sequence[str], unreadable: IfUnreadable) -> list[Approval | None]:
        found: list[Approval | None] = []
        for start in range(0, len(ids), _SHOWN_AT_ONCE):
            some = ids[start : start + _SHOWN_AT_ONCE]

            async def work(unit: Unit, some: Sequence[str] = some) -> list[Approval | None]:
                await unit.read(*(key for id in some for key in _keys(id)))
                return [await self._listed(unit, id, unreadable) for id in some]

            found += (await self._executor.run(work))[0]
        return found

    async def _listed(self, unit: Unit, id: str, unreadable: IfUnreadable) -> Approval | None:
        """Return an approval for a listing; None if it does not exist, or cannot be read and is left out."""
        try:
            found = await self._read(unit, id)
            return None if found is None else self._public(found)
        except UNREADABLE as error:
            entry, shown, _ = await unit.read(*_keys(id))
            encoded = None
            if unreadable == "raw" and shown is not None:
                with suppress(CorruptError):
                    encoded = await unit.value(shown)
            listed = stand_in(unreadable, encoded, error)
            if entry is None or not isinstance(listed, Unreadable):
                return None
            record = ApprovalRecord(id, "pending", "", 0, None, (), 1, None, None)
            with suppress(CorruptError):
                record = self._stored(entry)
            form = cast("dict[str, Any]", listed.value) if isinstance(listed.value, dict) else {}
            known = {"question": form.get("question") or ""} | {
                name: form.get(name) for name in ("subject", "schema")
            }
            return replace(self._public(ReadApproval(record, known)), unreadable=listed)

    # ---- parts

    async def _name_of(self) -> Callable[[bytes], bytes]:
        return partial(content_name, await self._executor.store(), self._executor.stored_name)

    async def _found(self, unit: Unit, id: str) -> ReadApproval:
        found = await self._read(unit, id)
        if found is None:
            raise NotFoundError(f"no approval of {self._executor.name!r} has the id {shorten(id)!r}")
        return found

    async def _read(self, unit: Unit, id: str) -> ReadApproval | None:
        """Read an approval. If it has expired by now, the record says so, though no batch has written it."""
        entry, shown, mark = await unit.read(*_keys(id))
        if entry is None:
            return None
        record = self._stored(entry)
        what = f"approval {id!r} of {self._executor.name!r}"
        if shown is None:
            raise corrupt_error(what, "its question is lost")
        stored = await unit.value(shown)
        if digest_of(stored) != record.digest:
            raise corrupt_error(what, "its question and subject do not fit its digest")
        if record.state == "pending" and record.expires_ms is not None:
            # The mark may outlive the time by as long as the batch took that asked.
            if mark is None or record.expires_ms <= await unit.now_ms():
                record = msgspec.structs.replace(record, state="expired", closed_ms=record.expires_ms)
        return ReadApproval(record, self._decode_shown(id, stored))

    def _stored(self, entry: Entry) -> ApprovalRecord:
        id = unpack(entry.key[len(layout.APPROVALS) :])[-1]
        return decode_approval(entry.value, f"approval {id!r} of {self._executor.name!r}")

    def _decode_shown(self, id: str, stored: bytes) -> dict[str, Any]:
        shown: dict[str, Any] = decode_value(self._executor, asked_key(id), stored)
        return shown

    def _answer(self, found: ReadApproval) -> Answer | None:
        record = found.record
        if record.state != "answered" or record.value is None or record.closed_ms is None:
            return None
        value = decode_value(self._executor, approval_key(record.id), record.value)
        return Answer(
            value,
            value is True or (record.has_schema and value is not False),
            record.closed_by,
            to_datetime(record.closed_ms),
            record.note,
            found.shown["subject"],
        )

    def _public(self, found: ReadApproval) -> Approval:
        record, shown = found.record, found.shown
        return Approval(
            record.id,
            record.state,
            shown["question"],
            shown["subject"],
            shown["schema"],
            record.digest,
            record.to,
            record.need,
            tuple(Vote(each.by, to_datetime(each.at_ms), each.note, each.group) for each in record.votes),
            record.asker,
            to_datetime(record.asked_ms),
            None if record.expires_ms is None else to_datetime(record.expires_ms),
            record.task,
            self._answer(found),
            None if record.closed_ms is None else to_datetime(record.closed_ms),
            record.closed_by,
            record.note if record.state == "withdrawn" else "",
        )

    def _closed_error(self, record: ApprovalRecord) -> ApprovalClosedError:
        by = f" by {shorten(record.closed_by)!r}" if record.closed_by else ""
        told = {"answered": f"was answered{by}", "withdrawn": f"was withdrawn{by}"}.get(
            record.state, "has expired"
        )
        return ApprovalClosedError(
            f"approval {record.id!r} of {self._executor.name!r} {told}, and takes "
            "no answer any more; see get()",
            space=self._executor.name,
            approval=record.id,
            state=record.state,
        )


def _keys(id: str) -> tuple[bytes, bytes, bytes]:
    return approval_key(id), asked_key(id), mark_key(id)
