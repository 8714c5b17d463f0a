"""Approvals: questions to people, each settled once.

The batch that settles an approval also wakes the one task that waits for it, so no kill comes between the
two. A batch that answers checks the approval as it was read, the mark that the store ends when the approval
expires, and the task: of any number of answers at once one is stored, and none after the expiry.

The caller has verified `by`, and that the person is a member of the `group`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hmac import compare_digest
from typing import Final, cast
from uuid import UUID

import msgspec

from keepstate.engine.approvals.approval_links import ApprovalLinks
from keepstate.engine.approvals.approval_reads import ReadApproval
from keepstate.engine.approvals.records import (
    Approval,
    ApprovalRecord,
    ApprovalState,
    LineRecord,
    TaskSpec,
    VoteRecord,
    approval_key,
    asked_key,
    digest_of,
    encode_approval,
    encode_line,
    listed_keys,
    log_prefix,
    mark_key,
    terms_of,
)
from keepstate.engine.approvals.schemas import check_answer, check_schema
from keepstate.engine.kernel.arguments import (
    check_duration_ms,
    check_message,
    check_text,
    require_instance,
)
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue import followers, tasks
from keepstate.engine.queue.endings import put_task
from keepstate.engine.queue.step_records import approval_marks
from keepstate.engine.queue.tasks import TaskRecord, check_kind
from keepstate.errors import (
    AlreadyExistsError,
    InvalidError,
    NotFoundError,
    TransitionError,
)
from keepstate.values import limits

_NONCE_BYTES: Final = 16


class Approvals(ApprovalLinks):
    """The approvals of a space, or of a transaction on it."""

    def __repr__(self) -> str:
        return f"<Approvals of {self._executor.name!r}>"

    # ---- asking

    async def ask(
        self,
        question: str,
        *,
        id: str | None = None,
        subject: object = None,
        schema: object = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
        task: str | None = None,
        then: TaskSpec | None = None,
    ) -> Approval:
        """Ask people, and return the approval. Asking the same again under one id returns the first one.

        The same is the question, the subject and the schema, and also `to` in any order, `need`, `expires_s`,
        `task` and `then`, as the first call had them: `assign` and the time that has passed change nothing.

        The author of the handle asks, and may not answer. A handler of a task uses `task.ask` instead, which
        also waits.

        Args:
            question: The question; 1 byte to 64 KiB of UTF-8.
            id: The id of the approval; 1 to 200 bytes of UTF-8. Default: a new one.
            subject: The thing that is decided about; any value that the codec stores. It never changes.
            schema: A JSON Schema of the answer, as a dict; see the page on approvals for the words that it
                may have. Default: the answer is yes or no.
            to: The people and groups who may answer, at most 100. Default: everyone but the asker.
            need: The number of different people who have to say yes. One no is enough to close it.
            expires_s: Seconds after which it takes no answer, by the store's clock. Default: it does not
                expire.
            task: The id of a task of this space. It becomes ready when the approval is answered, expires or
                is withdrawn, if it waits then.
            then: A task that waits from now on, and becomes ready when the approval is answered, expires or
                is withdrawn.

        Raises:
            AlreadyExistsError: The id belongs to an approval that was asked otherwise, or that of `then` to
                another task.
            InvalidError: `to` names the asker, `need` is given with a schema, or both `task` and `then` are.
            NotFoundError: The task does not exist.
            TransitionError: The task has ended.
        """
        wanted, shown, spec = self._definition(question, id, subject, schema, to, need, expires_s, task, then)

        async def work(unit: Unit) -> Approval:
            keys = [approval_key(wanted.id), asked_key(wanted.id), mark_key(wanted.id)]
            if wanted.task is not None:
                keys.append(tasks.task_key(wanted.task))
            former = (await unit.read(*keys))[0]
            if former is not None:
                found = await self._found(unit, wanted.id)
                return await self._same(unit, found, wanted)
            now_ms = await unit.now_ms()
            ends_ms = None if wanted.expires_ms is None else now_ms + wanted.expires_ms
            record = msgspec.structs.replace(wanted, asked_ms=now_ms, expires_ms=ends_ms)
            unit.put(asked_key(record.id), shown)
            unit.put(mark_key(record.id), b"", ttl_ms=wanted.expires_ms)
            for key in listed_keys(await self._name_of(), record):
                unit.put(key, b"", ttl_ms=wanted.expires_ms)
            unit.put(approval_key(record.id), encode_approval(record))
            line = LineRecord("asked", now_ms, by=record.asker, to=record.to)
            unit.append(log_prefix(record.id), encode_line(line))
            if task is not None:
                await self._bind_task(unit, record, task)
            if spec is not None:
                await self._put_task(unit, record, *spec)
            return self._public(ReadApproval(record, self._decode_shown(record.id, shown)))

        return (await self._executor.run(work))[0]

    def _definition(
        self,
        question: object,
        id: str | None,
        subject: object,
        schema: object,
        to: object,
        need: object,
        expires_s: float | None,
        task: str | None,
        then: TaskSpec | None,
    ) -> tuple[ApprovalRecord, bytes, tuple[TaskRecord, bytes] | None]:
        """Return a new approval whose expiry is a duration, what its approvers are shown, and its task."""
        executor = self._executor
        own = str(UUID(bytes=executor.clock.random_bytes(16), version=4)) if id is None else id
        approval_key(own)
        text = check_text("question", question)
        if not 0 < len(text.encode()) <= limits.MESSAGE_BYTES:
            raise InvalidError(f"`question` has {len(text.encode())} bytes; 1 to {limits.MESSAGE_BYTES}")
        names = _check_people(to)
        if executor.author is not None and executor.author in names:
            raise InvalidError(
                f"`to` names {shorten(executor.author)!r}, who asks and may not answer; ask another person"
            )
        limits.admit_count("need", need, most=limits.APPROVERS)
        if schema is not None and need != 1:
            raise InvalidError(f"`need` is {need!r}; with a schema one person answers")
        if task is not None and then is not None:
            raise InvalidError("`task` and `then` were both given; an approval wakes one task")
        rules = None if schema is None else check_schema(schema)
        shown = executor.encode({"question": text, "subject": subject, "schema": rules}, asked_key(own))
        spec = None if then is None else self._spec(own, then, expires_s)
        if task is not None:
            tasks.task_key(task)
        expires_ms = None if expires_s is None else check_duration_ms("expires_s", expires_s)
        put: list[object] = []
        if spec is not None:
            (made, payload) = spec
            put = [made.id, made.kind, made.key, made.priority, made.max_attempts, made.keep_ms, payload]
        return (
            ApprovalRecord(
                own,
                "pending",
                digest_of(shown),
                0,
                executor.author,
                names,
                cast("int", need),
                expires_ms,
                task if spec is None else spec[0].id,
                has_schema=schema is not None,
                nonce=executor.clock.random_bytes(_NONCE_BYTES),
                terms=terms_of(names, cast("int", need), expires_ms, task, put),
            ),
            shown,
            spec,
        )

    def _spec(self, id: str, then: TaskSpec, expires_s: float | None) -> tuple[TaskRecord, bytes]:
        require_instance("then", then, TaskSpec)
        own = f"approval/{id}" if then.id is None else then.id
        tasks.task_key(own)
        limits.admit_count("max_attempts", then.max_attempts)
        if type(then.priority) is not int or not -(2**31) <= then.priority < 2**31:
            raise InvalidError(f"`priority` is {then.priority!r}; it must be an int of 32 bits")
        record = TaskRecord(
            own, "ready", then.priority, 0, then.max_attempts, 0, put_at_ms=0,
            due_at_ms=0 if expires_s is None else check_duration_ms("expires_s", expires_s),
            kind=check_kind("kind", then.kind) if then.kind != "" else "",
            key=None if then.key is None else check_kind("key", then.key),
            keep_ms=None if then.keep_s is None else check_duration_ms("keep_s", then.keep_s),
            waits_on=(wake_name(id),),
            traceparent=self._executor.traceparent(),
        )  # fmt: skip
        return record, self._executor.encode(then.payload, tasks.payload_key(own))

    async def _same(self, unit: Unit, found: ReadApproval, wanted: ApprovalRecord) -> Approval:
        record = found.record
        if record.digest != wanted.digest:
            raise AlreadyExistsError(
                f"approval {record.id!r} of {self._executor.name!r} asks something else; give another id"
            )
        if record.terms != wanted.terms:
            raise AlreadyExistsError(
                f"approval {record.id!r} of {self._executor.name!r} asks this already, with other `to`, "
                "`need`, `expires_s`, `task` or `then`. Nothing was changed: pass those of the first call, "
                "`assign` it to other people, or give another id"
            )
        if record.state == "pending" and wanted.asker is not None and wanted.asker in record.to:
            raise AlreadyExistsError(
                f"approval {record.id!r} of {self._executor.name!r} is put to {shorten(wanted.asker)!r}, who "
                "asks now and may not answer; give another id"
            )
        return self._public(found)

    async def _put_task(self, unit: Unit, record: ApprovalRecord, task: TaskRecord, payload: bytes) -> None:
        at_ms = tasks.FOREVER_MS if record.expires_ms is None else None
        await put_task(self._executor, unit, task, payload, "raise", at_ms=at_ms)

    async def _bind_task(self, unit: Unit, record: ApprovalRecord, id: str) -> None:
        """Let a waiting task wait for the approval too, but at most until that expires."""
        entry = await unit.get(tasks.task_key(id))
        if entry is None:
            raise NotFoundError(f"no task of {self._executor.name!r} has the id {id!r}")
        task = tasks.decode_record(entry.value, f"task {id!r} of {self._executor.name!r}")
        if task.state in tasks.ENDED:
            raise TransitionError(
                f"task {id!r} of {self._executor.name!r} is {task.state} and waits for nothing",
                current=task.state,
                wanted="waiting",
            )
        if task.state == "waiting":
            due_ms = task.due_at_ms if record.expires_ms is None else min(task.due_at_ms, record.expires_ms)
            waits_on = (*task.waits_on, wake_name(record.id))
            tasks.move(unit, task, "waiting", due_at_ms=due_ms, waits_on=waits_on)

    # ---- settling

    async def answer(
        self,
        id: str,
        value: object,
        *,
        by: str,
        group: str | None = None,
        note: str = "",
        saw: str | None = None,
    ) -> Approval:
        """Answer an approval, and return it. The same answer of the same person sent again changes nothing.

        Args:
            id: The id of the approval.
            value: True or False, or a value of the approval's schema.
            by: The person who answers, as the caller has verified it.
            group: The group among those asked that the person answers for, as the caller has verified it.
            note: A note; at most 4 KiB of UTF-8.
            saw: The digest of the approval as the person saw it. With another one nothing is written.

        Raises:
            ApprovalClosedError: It was answered otherwise, has expired or was withdrawn.
            InvalidError: The value does not fit, or `saw` is the digest of something else.
            NotAllowedError: The person asked, or is not among those asked.
            NotFoundError: No approval has this id.
        """
        approval_key(id)
        check_kind("by", by)
        if group is not None:
            check_kind("group", group)
        check_note("note", note)
        if saw is not None:
            check_text("saw", saw)

        async def work(unit: Unit) -> Approval:
            found = await self._found(unit, id)
            record = found.record
            self.require_right(record, by, group)
            if saw is not None and not compare_digest(saw.encode(), record.digest.encode()):
                raise InvalidError(
                    f"`saw` is not the digest of approval {id!r} of {self._executor.name!r}: the person saw "
                    "something else. Show the approval, and pass its digest"
                )
            self._check_value(value, found)
            stored = self._executor.encode(value, approval_key(id))
            if len(stored) > limits.ANSWER_BYTES:
                raise InvalidError(f"the answer has {len(stored)} bytes; at most {limits.ANSWER_BYTES}")
            if record.state != "pending":
                if record.state == "answered" and _has_said(record, by, stored):
                    return self._public(found)
                raise self._closed_error(record)
            now_ms = await unit.now_ms()
            votes = record.votes
            if value is True and not record.has_schema:
                if any(vote.by == by for vote in votes):
                    return self._public(found)
                votes = (*votes, VoteRecord(by, group, now_ms, note))
            record = msgspec.structs.replace(record, votes=votes)
            line = LineRecord("answered", now_ms, by=by, note=note, value=stored, group=group)
            if value is True and not record.has_schema and len(votes) < record.need:
                record = self._write(unit, record, line)
            else:
                record = await self._settle(unit, record, "answered", line, value=stored)
            return self._public(ReadApproval(record, found.shown))

        return (await self._executor.run(work))[0]

    def _check_value(self, value: object, found: ReadApproval) -> None:
        schema = found.shown["schema"]
        if schema is not None:
            check_answer(value, schema)
        elif type(value) is not bool:
            raise InvalidError(
                f"the answer is {value!r:.60}; approval {found.record.id!r} asks for yes or no"
            )

    async def assign(self, id: str, to: Sequence[str], *, by: str) -> Approval:
        """Let other people and groups answer, instead of the present ones, and return the approval.

        A yes of a person who may not answer any more does not count any more.

        Args:
            id: The id of the approval.
            to: The people and groups; 1 to 100.
            by: The person who assigns it, for the log.

        Raises:
            ApprovalClosedError: It was answered, has expired or was withdrawn.
            InvalidError: `to` is empty or names the asker, or the log is full.
            NotFoundError: No approval has this id.
        """
        approval_key(id)
        names = _check_people(to)
        if not names:
            raise InvalidError("`to` is empty; name the people or groups who may answer")
        check_kind("by", by)

        async def work(unit: Unit) -> Approval:
            found = await self._found(unit, id)
            former = found.record
            if former.state != "pending":
                raise self._closed_error(former)
            if former.asker is not None and former.asker in names:
                raise InvalidError(f"`to` names {shorten(former.asker)!r}, who asked and may not answer")
            if former.lines >= limits.APPROVAL_EVENTS:
                raise InvalidError(f"approval {id!r} was assigned too often; withdraw it, and ask again")
            if former.to == names:
                return self._public(found)
            now_ms = await unit.now_ms()
            votes = tuple(vote for vote in former.votes if (vote.group or vote.by) in names)
            record = msgspec.structs.replace(former, to=names, votes=votes)
            name_of = await self._name_of()
            for key in listed_keys(name_of, former)[1:]:
                unit.delete(key)
            left_ms = None if record.expires_ms is None else max(record.expires_ms - now_ms, 1)
            for key in listed_keys(name_of, record)[1:]:
                unit.put(key, b"", ttl_ms=left_ms)
            record = self._write(unit, record, LineRecord("assigned", now_ms, by=by, to=names))
            return self._public(ReadApproval(record, found.shown))

        return (await self._executor.run(work))[0]

    async def withdraw(self, id: str, *, by: str, reason: str = "") -> Approval:
        """Close an approval without an answer, and return it. Doing it again changes nothing.

        Args:
            id: The id of the approval.
            by: The person or program that withdraws it.
            reason: The reason; at most 4 KiB of UTF-8.

        Raises:
            ApprovalClosedError: It was answered, or has expired.
            NotFoundError: No approval has this id.
        """
        approval_key(id)
        check_kind("by", by)
        check_note("reason", reason)

        async def work(unit: Unit) -> Approval:
            found = await self._found(unit, id)
            record = found.record
            if record.state == "withdrawn":
                return self._public(found)
            if record.state != "pending":
                raise self._closed_error(record)
            line = LineRecord("withdrawn", await unit.now_ms(), by=by, note=reason)
            record = await self._settle(unit, record, "withdrawn", line)
            return self._public(ReadApproval(record, found.shown))

        return (await self._executor.run(work))[0]

    async def expire(self, id: str) -> Approval:
        """Store that an approval has expired, if it has, and return it; for the step of a task."""

        async def work(unit: Unit) -> Approval:
            found = await self._found(unit, id)
            record = found.record
            entry = await unit.get(approval_key(id))
            if record.state == "expired" and entry is not None and self._stored(entry).state == "pending":
                line = LineRecord("expired", record.closed_ms or await unit.now_ms())
                record = await self._settle(unit, record, "expired", line)
            return self._public(ReadApproval(record, found.shown))

        return (await self._executor.run(work))[0]

    async def discard(self, id: str) -> None:
        """Delete an approval, but not its log, and wake the task that waits for it; for an expunging."""

        async def work(unit: Unit) -> None:
            entry = await unit.get(approval_key(id))
            if entry is None:
                return
            record = self._stored(entry)
            for key in (approval_key(id), asked_key(id), mark_key(id)):
                unit.delete(key)
            for key in listed_keys(await self._name_of(), record):
                unit.delete(key)
            if record.state == "pending" and record.task is not None:
                await self._wake(unit, record, record.task)

        await self._executor.run(work, attempts=None)

    async def _settle(
        self,
        unit: Unit,
        record: ApprovalRecord,
        state: ApprovalState,
        line: LineRecord,
        *,
        value: bytes | None = None,
    ) -> ApprovalRecord:
        """Close an approval, and wake its task in the same batch."""
        unit.delete(mark_key(record.id))
        for key in listed_keys(await self._name_of(), record):
            unit.delete(key)
        record = msgspec.structs.replace(
            record, state=state, value=value, closed_ms=line.at_ms, closed_by=line.by, note=line.note
        )
        record = self._write(unit, record, line)
        if record.task is not None:
            await self._wake(unit, record, record.task)
        return record

    async def _wake(self, unit: Unit, record: ApprovalRecord, id: str) -> None:
        entry = await unit.get(tasks.task_key(id))
        if entry is None:
            return
        task = tasks.decode_record(entry.value, f"task {id!r} of {self._executor.name!r}")
        is_free = task.is_suspended and not task.waits_for
        if task.state == "waiting" and (wake_name(record.id) in task.waits_on or is_free):
            followers.wake(unit, task, await unit.now_ms())

    def _write(self, unit: Unit, record: ApprovalRecord, line: LineRecord) -> ApprovalRecord:
        record = msgspec.structs.replace(record, lines=record.lines + 1)
        unit.put(approval_key(record.id), encode_approval(record))
        unit.append(log_prefix(record.id), encode_line(line))
        return record


def wake_name(id: str) -> str:
    """Return the name that a task waits on for an approval."""
    [name] = approval_marks(id)
    return name


def check_note(what: str, note: object) -> None:
    """Raise `InvalidError` unless this is a text of at most 4 KiB."""
    if len(check_message(check_text(what, note)).encode()) > limits.NOTE_BYTES:
        raise InvalidError(f"`{what}` is too long; it has at most {limits.NOTE_BYTES} bytes of UTF-8")


def _has_said(record: ApprovalRecord, by: str, stored: bytes) -> bool:
    """Return whether a person's answer counted for an answered approval."""
    if record.value != stored:
        return False
    return by == record.closed_by or any(vote.by == by for vote in record.votes)


def _check_people(to: object) -> tuple[str, ...]:
    if isinstance(to, str) or not isinstance(to, Sequence):
        raise InvalidError(f"`to` is {to!r:.60}; give a list of people and groups")
    names = tuple(dict.fromkeys(check_kind("to", each) for each in cast("Sequence[object]", to)))
    if len(names) > limits.APPROVERS:
        raise InvalidError(f"`to` names {len(names)}; it may name {limits.APPROVERS}")
    return names
