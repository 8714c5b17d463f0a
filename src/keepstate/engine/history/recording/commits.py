"""Commits the changes that a unit makes to documents, in the batch of the unit."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from keepstate.engine.documents.record import split_record
from keepstate.engine.documents.write_rules import (
    KnownRules,
    SpaceRules,
    apply_rules,
    put_rules,
    read_rules,
)
from keepstate.engine.history.commit_request import CommitRequest, commit_on_head
from keepstate.engine.history.objects import ObjectCache
from keepstate.engine.history.record import EMPTY_STATE, NONCE_BYTES, Head
from keepstate.engine.history.recording import expiry, states
from keepstate.engine.history.session import HistorySession, Records
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.kernel.locks import serialized
from keepstate.engine.kernel.recorded import Note
from keepstate.engine.kernel.store_abilities import LossDetector
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import ConflictError, CorruptError, InvalidError
from keepstate.stores.protocol import Applied, Entry
from keepstate.values import limits
from keepstate.values.merkle import MerkleValue

_log = logging.getLogger("keepstate.engine")
_HEAD: Final = layout.named_key(layout.BRANCHES, MAIN)
_COMMITS: Final = 64
"""Number of cached commits of a space; the next commit is based on the last one, and jumps to another."""
_SHOWN: Final = 3


class _LastCommit(msgspec.Struct, frozen=True):
    """The entries of a space after a batch of this process; the next commit tries them without reading."""

    entries: Mapping[bytes, Entry | None]
    revision: int
    now_ms: int
    at_s: float
    losses: LossDetector


class RecordedCommits:
    """Makes the commits of one recorded space.

    Args:
        space: What is known of the rules of the space; each commit adds what it reads.
        cache: A cache of objects.
    """

    def __init__(self, space: SpaceRules, cache: ObjectCache) -> None:
        self._space = space
        self._records, self._cache = Records(_COMMITS), cache
        self._last: _LastCommit | None = None
        self._is_alone = True
        """True if this process made the last two commits in a row. Only then is `_last` tried."""

    async def commit(self, executor: Executor, unit: Unit) -> Applied | None:
        """Apply a unit that changes documents, with a commit if the space is still recorded.

        Raises:
            ConflictError: An entry that the unit has read or checks has changed. Nothing was applied.
            InvalidError: It also commits to `main`, or bypasses the index of a collection.
        """
        store = await executor.store()
        # Serialized, because all changes that a process makes to a space move one branch.
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
                "cannot commit to it too; use another branch"
            )
        changes = await _changes(executor, unit)

        async def once() -> Applied | ConflictError | None:
            own = Unit(unit.store, unit.space, unit.name)
            self._assume_last(executor, own, unit)
            await self._write(executor, unit, own, changes)
            try:
                applied = await unit.commit(own)
            except ConflictError as conflict:
                self._is_alone = False
                if unit.is_checking(conflict.key):
                    return conflict  # of the caller: retrying here would not help
                raise
            self._remember(executor, own, applied)
            return applied

        return await executor.retry(once, None)

    # ---- the last commit of this process

    def _assume_last(self, executor: Executor, own: Unit, unit: Unit) -> None:
        known = self._last
        if known is None or known.losses.has_lost_history or not self._is_alone:
            return
        for key, entry in known.entries.items():
            # A conflict of what the unit has read is the caller's, so what differs from it is not tried.
            if unit.has_read(key) and _version(unit.as_read(key)) != _version(entry):
                return
        passed_ms = int((executor.clock.monotonic_s() - known.at_s) * 1000)
        own.assume_cached(known.entries, known.revision, known.now_ms + passed_ms)

    def _remember(self, executor: Executor, own: Unit, applied: Applied | None) -> None:
        if applied is None or not self._space.is_recorded:
            return
        entries = {key: own.as_applied(key, applied.revision) for key in (layout.RULES, _HEAD)}
        now_s = executor.clock.monotonic_s()
        self._last = _LastCommit(entries, applied.revision, applied.now_ms, now_s, own.losses)

    # ---- writing

    async def _write(self, executor: Executor, unit: Unit, own: Unit, changes: _Changes) -> None:
        entry, at = await own.read(layout.RULES, _HEAD)
        last = self._last
        self._is_alone = last is not None and last.entries[_HEAD] == at
        rules = read_rules(entry)
        self._space.is_recorded = rules.is_recorded or executor.record
        if not self._space.is_recorded:  # it has collections only; the batch checks that these are its rules
            self._space.last = KnownRules.of(entry, own.losses)
            apply_rules(unit, own, rules)
            return
        present = rules.with_collections(unit.registered)
        present.reject_bypass(unit)
        session = HistorySession(own, self._records, self._cache)
        author, message, meta = _description(unit, changes, executor)
        head = await session.branch(MAIN)
        now_ms = await own.now_ms()
        first_ms: int | None = None
        left_ms: dict[str, int] = {}
        if not rules.is_recorded and head is not None:
            raise InvalidError(
                f"{executor.name!r} has commits of {MAIN!r} made by hand, and recording would replace "
                f"their state by the documents; keep them under another branch, delete {MAIN!r} with a "
                "handle that does not record, or record another space"
            )
        if not rules.is_recorded or head is None:
            state, left_ms = await _whole(executor, own, changes, now_ms)
        else:
            first_ms = rules.expiring_ms
            try:
                if first_ms is not None and first_ms <= now_ms:
                    head, first_ms = await self._expire(executor, session, head, changes, now_ms)
                root = (await session.record(head.commit)).root
                state = await session.serve(states.change_documents(root, changes.puts, changes.gone))
            except CorruptError as error:
                # Documents must work even if their history is damaged, because they are complete.
                _log.warning("the record of %r is damaged and starts again: %s", executor.name, error)
                state, left_ms = await _whole(executor, own, changes, now_ms)
        left_ms |= changes.left_ms
        expiring_ms = expiry.earlier(first_ms, expiry.note(own, now_ms, left_ms))
        present = msgspec.structs.replace(present, expiring_ms=expiring_ms, is_recorded=True)
        if present != rules:
            put_rules(own, present)
        nonce = executor.clock.random_bytes(NONCE_BYTES)
        request = CommitRequest(MAIN, author, message, nonce, meta=meta)
        merged = [note.merged for note in unit.notes if note.merged is not None]
        unit.recorded = await commit_on_head(session, request, head, state, merged=merged)

    async def _expire(
        self, executor: Executor, session: HistorySession, head: Head, changes: _Changes, now_ms: int
    ) -> tuple[Head, int | None]:
        """Commit the removal of expired documents. Return the head, and the time to read the index again."""
        due = await expiry.take_due(session.unit, now_ms)
        gone = [name for name in due.gone.values() if name not in changes.puts]
        root = (await session.record(head.commit)).root
        state = await session.serve(states.change_documents(root, {}, gone))
        if state.encoding == root:
            return head, due.next_ms
        request = CommitRequest(
            MAIN, None, _listed("expired:", gone), executor.clock.random_bytes(NONCE_BYTES)
        )
        outcome = await commit_on_head(session, request, head, state)
        return Head(outcome.id, outcome.number), due.next_ms


def _version(entry: Entry | None) -> int:
    return entry.version if entry is not None else 0


class _Changes(msgspec.Struct, frozen=True):
    """The changes that a unit makes to documents.

    Attributes:
        puts: Values by name.
        gone: Names of removed documents.
        left_ms: Remaining time of documents that expire, by name.
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
        name, changes.puts[name] = states.to_part(executor, key, stored)
        if key in left_ms:
            changes.left_ms[name] = left_ms[key]
    return changes


async def _whole(
    executor: Executor, own: Unit, changes: _Changes, now_ms: int
) -> tuple[MerkleValue, dict[str, int]]:
    """Return the state of all documents after the changes, and the remaining times of those that expire."""
    documents, to_expire = await states.read_documents(executor, own)
    left_ms: dict[str, int] = {}
    for entry in to_expire:
        name, _ = split_record(entry.key, await own.value(entry))
        if name not in changes.puts and entry.expires_at_ms is not None:
            left_ms[name] = max(1, entry.expires_at_ms - now_ms)
    for name in changes.gone:
        documents.pop(name, None)
    documents |= changes.puts
    if not documents:
        return MerkleValue(EMPTY_STATE, {}), left_ms
    session = HistorySession(own, Records())
    return await session.serve(states.join_documents(documents)), left_ms


# ---- author and message


def _description(unit: Unit, changes: _Changes, executor: Executor) -> tuple[str | None, str, dict[str, str]]:
    """Return the author, the message and the notes of the commit."""
    notes = unit.notes or [Note(executor.author, executor.message, executor.meta)]
    authors = dict.fromkeys(note.author for note in notes if note.author is not None)
    messages = dict.fromkeys(note.message for note in notes if note.message)
    meta = executor.meta_of({key: value for note in notes for key, value in note.meta.items()})
    own = "; ".join(messages)
    # The message of a transaction covers all calls in it. Otherwise a call's own message is more specific.
    message = (executor.message or own if executor.gathers else own or executor.message) or _summary(changes)
    return ", ".join(authors) or None, _cut(message), meta


def _summary(changes: _Changes) -> str:
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
