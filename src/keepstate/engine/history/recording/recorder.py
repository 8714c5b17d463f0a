"""Commits what a unit does to documents, in the batch that the unit becomes."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from keepstate.engine.documents.record import split_record
from keepstate.engine.history.commit_request import CommitRequest, put_onto
from keepstate.engine.history.heads import MAIN, Head
from keepstate.engine.history.objects import Kept
from keepstate.engine.history.record import EMPTY_STATE, NONCE_BYTES
from keepstate.engine.history.recording import expiry, states
from keepstate.engine.history.recording.flag import Flag, put_flag, read_flag
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.loss_detector import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.kernel.update_lock import serialized
from keepstate.errors import ConflictError, CorruptError, InvalidError
from keepstate.stores.protocol import Applied, Check, Entry
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue

_log = logging.getLogger("keepstate.engine")
_HEAD: Final = layout.named_key(layout.BRANCHES, MAIN)
_UNRECORDED: Final = Check(layout.RECORDED, version=0)
_COMMITS: Final = 8
"""Remembered a space: what comes next stands on the last one."""
_SHOWN: Final = 3


class _Standing(msgspec.Struct, frozen=True):
    """How the space stood after a batch of this process, to be tried without reading it again."""

    entries: Mapping[bytes, Entry | None]
    revision: int
    now_ms: int
    at_s: float
    losses: LossDetector


class Recorder:
    """Records one space, as far as this handle knows it to be recorded.

    Args:
        kept: Objects of its history that are at hand.
    """

    def __init__(self, kept: Kept) -> None:
        self._is_recorded = False
        self._records, self._kept = Records(_COMMITS), kept
        self._standing: _Standing | None = None
        self._is_alone = True
        """Whether nobody else recorded there between the last two times; only then is the last one tried."""

    async def commit(self, executor: Executor, unit: Unit) -> Applied | None:
        """Apply a unit that changes documents, with a commit if the space is recorded.

        Raises:
            ConflictError: What the unit had read or was told to check has changed; nothing was applied.
        """
        if not (self._is_recorded or executor.record):
            unit.add_check(_UNRECORDED)
            try:
                return await unit.commit()
            except ConflictError as conflict:
                if conflict.key != layout.RECORDED:
                    raise
            unit.drop_checks(layout.RECORDED)
        store = await executor.store()
        # Who records waits for its turn: all of a process's changes to a space move one branch.
        answer = await serialized(
            store, executor.stored_name, _HEAD, executor.runner, lambda: self._recorded(executor, unit)
        )
        if isinstance(answer, ConflictError):
            raise answer
        return answer

    async def _recorded(self, executor: Executor, unit: Unit) -> Applied | ConflictError | None:
        if _HEAD in unit.written(_HEAD):
            raise InvalidError(
                f"a transaction that changes documents of {executor.name!r} becomes a commit of {MAIN!r} and "
                "cannot commit to it as well; take another branch"
            )
        changes = await _changes(executor, unit)

        async def once() -> Applied | ConflictError | None:
            beside = Unit(unit.store, unit.space, unit.name)
            self._suppose(executor, beside)
            await self._write(executor, unit, beside, changes)
            try:
                applied = await unit.commit(beside)
            except ConflictError as conflict:
                self._is_alone = False
                if unit.is_checking(conflict.key):
                    return conflict  # not for this to be done again
                raise
            self._stand(executor, beside, applied)
            return applied

        return await executor.retry(once, None)

    # ---- what is known from the last time

    def _suppose(self, executor: Executor, beside: Unit) -> None:
        known = self._standing
        if known is None or known.losses.has_lost_history or not self._is_alone:
            return
        passed_ms = int((executor.clock.monotonic_s() - known.at_s) * 1000)
        beside.assume_cached(known.entries, known.revision, known.now_ms + passed_ms)

    def _stand(self, executor: Executor, beside: Unit, applied: Applied | None) -> None:
        if applied is None or not self._is_recorded:
            return
        entries = {key: beside.as_applied(key, applied.revision) for key in (layout.RECORDED, _HEAD)}
        now_s = executor.clock.monotonic_s()
        self._standing = _Standing(entries, applied.revision, applied.now_ms, now_s, beside.losses)

    # ---- what is written

    async def _write(self, executor: Executor, unit: Unit, beside: Unit, changes: _Changes) -> None:
        entry, at = await beside.read(layout.RECORDED, _HEAD)
        last = self._standing
        self._is_alone = last is not None and last.entries[_HEAD] == at
        flag = read_flag(entry)
        self._is_recorded = flag is not None or executor.record
        if not self._is_recorded:
            return  # it was dropped meanwhile; that it is still not recorded is checked, since it was read
        session = HistorySession(beside, self._records, self._kept)
        author, message = _said(unit, changes, executor)
        head = await session.branch(MAIN)
        now_ms = await beside.now_ms()
        first_ms: int | None = None
        left_ms: dict[str, int] = {}
        if flag is None and head is not None:
            raise InvalidError(
                f"{executor.name!r} has commits of {MAIN!r} made by hand, and recording would replace "
                f"their state by the documents; keep them under another branch, delete {MAIN!r} by a handle "
                "that does not record, or record another space"
            )
        if flag is None or head is None:
            state, left_ms = await _whole(executor, beside, changes, now_ms)
        else:
            first_ms = flag.expiring_ms
            try:
                if first_ms is not None and first_ms <= now_ms:
                    head, first_ms = await self._expire(executor, session, head, changes, now_ms)
                root = (await session.record(head.commit)).root
                state = await session.serve(states.changed(root, changes.puts, changes.gone))
            except CorruptError as error:
                # Documents must go on where only their history is damaged; they themselves are all here.
                _log.warning("the record of %r is damaged and begins anew: %s", executor.name, error)
                state, left_ms = await _whole(executor, beside, changes, now_ms)
        left_ms |= changes.left_ms
        now_flag = Flag(expiring_ms=expiry.earlier(first_ms, expiry.note(beside, now_ms, left_ms)))
        if now_flag != flag:
            put_flag(beside, now_flag)
        request = CommitRequest(MAIN, author, message, executor.clock.random_bytes(NONCE_BYTES))
        unit.recorded = await put_onto(session, request, head, state)

    async def _expire(
        self, executor: Executor, session: HistorySession, head: Head, changes: _Changes, now_ms: int
    ) -> tuple[Head, int | None]:
        """Commit that documents have expired, if some have; returns the head, and when to look again."""
        due = await expiry.take_due(session.unit, now_ms)
        gone = [name for name in due.gone.values() if name not in changes.puts]
        root = (await session.record(head.commit)).root
        state = await session.serve(states.changed(root, {}, gone))
        if state.encoding == root:
            return head, due.next_ms
        request = CommitRequest(
            MAIN, None, _listed("expired:", gone), executor.clock.random_bytes(NONCE_BYTES)
        )
        outcome = await put_onto(session, request, head, state)
        return Head(outcome.id, outcome.number), due.next_ms


class _Changes(msgspec.Struct, frozen=True):
    """What a unit does to documents.

    Attributes:
        puts: Values by name.
        gone: Names of what it removes.
        left_ms: How long those that expire have to live.
    """

    puts: dict[str, MerkleValue]
    gone: list[str]
    left_ms: dict[str, int]


async def _changes(executor: Executor, unit: Unit) -> _Changes:
    changes = _Changes({}, [], {})
    left_ms = unit.expiring(layout.DOCUMENTS)
    for key, stored in unit.written(layout.DOCUMENTS).items():
        if stored is None:
            changes.gone.append(await states.name_of_removed(unit, key))
            continue
        name, changes.puts[name] = states.planted(executor, key, stored)
        if key in left_ms:
            changes.left_ms[name] = left_ms[key]
    return changes


async def _whole(
    executor: Executor, beside: Unit, changes: _Changes, now_ms: int
) -> tuple[MerkleValue, dict[str, int]]:
    """Return the state of all documents as they will be, and how long those have to live that expire."""
    documents, to_expire = await states.scanned(executor, beside)
    left_ms: dict[str, int] = {}
    for entry in to_expire:
        name, _ = split_record(entry.key, await beside.value(entry))
        if name not in changes.puts and entry.expires_at_ms is not None:
            left_ms[name] = max(1, entry.expires_at_ms - now_ms)
    for name in changes.gone:
        documents.pop(name, None)
    documents |= changes.puts
    if not documents:
        return MerkleValue(EMPTY_STATE, {}), left_ms
    session = HistorySession(beside, Records())
    return await session.serve(states.all_of(documents)), left_ms


# ---- what is said of it


def _said(unit: Unit, changes: _Changes, executor: Executor) -> tuple[str | None, str]:
    """Return who made the changes, and what they are for."""
    notes = unit.notes or [(executor.author, executor.message)]
    authors = dict.fromkeys(author for author, _ in notes if author is not None)
    messages = dict.fromkeys(message for _, message in notes if message)
    own = "; ".join(messages)
    # Of a transaction's message all who join it are part; else the call that has one knows better.
    message = (executor.message or own if executor.gathers else own or executor.message) or _told(changes)
    return ", ".join(authors) or None, _cut(message)


def _told(changes: _Changes) -> str:
    return "; ".join(
        _listed(word, names)
        for word, names in (("put", list(changes.puts)), ("delete", changes.gone))
        if names
    )


def _listed(word: str, names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    more = len(names) - _SHOWN
    return f"{word} {shown} and {more} more" if more > 0 else f"{word} {shown}"


def _cut(message: str) -> str:
    encoded = message.encode()
    return encoded[: limits.MESSAGE_BYTES].decode(errors="ignore")
