"""Watches on a session: each change of its conversation, task and states, and of its user's, in order.

A watch reads the logs of the session's space and of the user's, and writes nothing. A position has the
positions in both logs, and the last life of the session that was told to have ended: later deletions of its
documents are a sweep, and no changes of the session.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, Literal

from keepstate.engine.documents.watch import DocumentChange, Watch
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.glob import compile_pattern, escape_pattern
from keepstate.engine.kernel.positions import Positions
from keepstate.engine.kernel.store_abilities import listen_to
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError
from keepstate.names import unescape
from keepstate.sessions.conversation_documents import EDITS, MESSAGES, RECORD, ConversationRecord
from keepstate.sessions.entries import message_in
from keepstate.sessions.models import to_plain_fields
from keepstate.sessions.namespace import (
    HEAD,
    GenerationsRecord,
    HeadRecord,
    Namespace,
    SessionGenerations,
    life_in,
)
from keepstate.sessions.validated import STATES
from keepstate.stores.protocol import Mark, Store

SessionPart = Literal["session", "conversation", "task", "state", "user"]

_LONGEST_WAIT_S: Final = 5.0
_TASK: Final = "task"
_NEW_FORK: Final = "conversation", "created", None
_EDIT: Final = "conversation", "updated"
_KINDS: Final = "history/"


@dataclass(frozen=True, slots=True)
class SessionChange:
    """A change of a session, or of its user.

    Attributes:
        part: `session` for its beginning and its end; `conversation`, `task`, `state`; or `user`, for the
            preferences, the states and the history of the user.
        kind: The kind of change. A message that was removed from view is `deleted`.
        name: The name of a fork, or "" for the conversation itself; the name of a state; for the user
            `preferences`, the name of a state or the kind of an item.
        number: The number of a message, or of an item of the user's history; None for other changes. A
            conversation that was cleared is `deleted` without a number, and a new fork `created`.
        old: The value before, in its stored form; None if there was none.
        new: The value after, in its stored form; None if it was deleted.
        position: An opaque text: `watch(after=position)` continues after this change, in any process. For
            changes of one batch, it does so only after the last one.
    """

    part: SessionPart
    kind: Literal["created", "updated", "deleted"]
    name: str
    number: int | None
    old: Any
    new: Any
    position: str


class _NoHints:
    """Replaces the listener of a watch, because one listener hears of both spaces."""

    async def wait(self, timeout_s: float) -> None: ...

    def close(self) -> None: ...


class SessionWatch:
    """Tells the changes of one session from a position on.

    Args:
        generations: The namespace of the session.
        user: The namespace of its user, or None.
        after: The position, or None for changes from now on.
    """

    def __init__(self, generations: SessionGenerations, user: Namespace | None, after: str | None) -> None:
        self._generations, self._user, self._after = generations, user, after
        self._watches: list[Watch] = []
        self._positions: list[str] = []
        self._ended = 0
        """The last life that was told to have ended."""
        self._lives = GenerationsRecord()
        """The lives as the watch began. One without an owner in the log may have got one since."""

    async def position(self) -> str:
        """Return the position of the present revisions."""
        namespaces = self._namespaces()
        await self._begin(namespaces, [_space_of(namespace) for namespace in namespaces])
        return self._position()

    async def changes(self) -> AsyncGenerator[SessionChange]:
        """Yield the changes; never ends by itself.

        Raises:
            CompactedError, HistoryLostError: A log does not have what follows the position.
            InvalidError: The position belongs to another session.
            NotOwnerError: Another user owns the session, or becomes its owner.
        """
        namespaces = self._namespaces()
        spaces = [_space_of(namespace) for namespace in namespaces]
        store = await spaces[0].executor.store()
        async with AsyncExitStack() as stack:
            hints = listen_to(store, sorted({space.executor.stored_name for space in spaces}))
            stack.callback(hints.close)
            await self._begin(namespaces, spaces)
            while True:
                has_changed = False
                for place, watch in enumerate(self._watches):
                    for change in self._public(place, await watch.take(0)):
                        has_changed = True
                        yield change
                    self._positions[place] = watch.position
                if not has_changed:
                    await hints.wait(_LONGEST_WAIT_S)

    def _namespaces(self) -> list[Namespace]:
        return [self._generations, *([] if self._user is None else [self._user])]

    def _position(self) -> str:
        return ".".join([*self._positions, str(self._ended)])

    async def _begin(self, namespaces: list[Namespace], spaces: list[Space]) -> None:
        after = self._parse(len(namespaces))
        for place, (namespace, space) in enumerate(zip(namespaces, spaces, strict=True)):
            store = await space.executor.store()
            positions = Positions(store, space.executor.stored_name, space.name)
            if after is None:
                start: Any = (await store.read(space.executor.stored_name, [])).revision
            else:
                start = positions.mark_in("after", after[place])
            glob = compile_pattern(escape_pattern(namespace.prefix) + "*")
            watch = Watch(store, space.executor, glob, _NoHints(), start, None)
            await watch._begin()  # pyright: ignore[reportPrivateUsage]
            self._watches.append(watch)
            self._positions.append(watch.position)
            if place == 0 and after is not None:
                await self._check_former_owner(store, space, start)
        # The owner is read behind the start, so that one who comes between the two is told of by the log.
        await self._generations.check_user()
        self._lives = await self._generations.read_generations()
        if after is None:
            self._ended = await self._generations.count_ended()

    async def _check_former_owner(self, store: Store, space: Space, start: int | Mark) -> None:
        """Raise `NotOwnerError` if another user owned the session at the position, and no longer does."""
        glob = compile_pattern(escape_pattern(self._generations.prefix + HEAD))
        heads = Watch(store, space.executor, glob, _NoHints(), start, 0)
        await heads._begin()  # pyright: ignore[reportPrivateUsage]
        async for change in heads:
            if isinstance(change.old, HeadRecord):
                await self._generations.check_user_of(change.old.life, change.old.user_id)
            return

    def _parse(self, count: int) -> list[str] | None:
        if self._after is None:
            return None
        *logs, ended = check_text("after", self._after).split(".")
        if len(logs) != count or not (ended.isascii() and ended.isdecimal() and len(ended) < 20):
            raise InvalidError(
                f"`after` is {self._after[:60]!r}, which is not a position of a watch on this session, "
                "opened with a user or without one as now. Give the `position` of a change"
            )
        self._ended = int(ended)
        return logs

    def _public(self, place: int, changes: list[DocumentChange]) -> Iterator[SessionChange]:
        """Return what whole batches of one space tell, the beginning and the end of a life first."""
        prefix = (self._generations if place == 0 or self._user is None else self._user).prefix
        head = self._generations.prefix + HEAD
        for _, batch in groupby(changes, key=lambda change: change.revision):
            ordered = list(batch)
            last = ordered[-1].position
            ordered.sort(key=lambda change: change.key != head)
            told: list[SessionChange] = []
            for change in ordered:
                name = change.key[len(prefix) :]
                told += self._of_user(name, change) if place else self._of_session(name, change)
            told = _without_copies(told)
            for index, public in enumerate(told, 1):
                if index == len(told):
                    self._positions[place] = last
                yield replace(public, position=self._position())
            self._positions[place] = last

    def _of_session(self, name: str, change: DocumentChange) -> list[SessionChange]:
        if name == HEAD:
            return self._of_head(change)
        life, rest = life_in(name)
        if life == 0 or (life <= self._ended and change.kind == "deleted"):
            return []
        if rest.startswith(STATES):
            state = rest[len(STATES) :]
            return [_stored("task" if state == _TASK else "state", state, change)]
        fork, tail = "", rest
        if rest.startswith("fork/"):
            _, escaped, tail = rest.split("/", 2)
            fork = unescape(escaped)
        if tail == RECORD:
            return _of_record(fork, change)
        kind: Literal["created", "updated"] = "created" if tail.startswith(MESSAGES) else "updated"
        if change.kind == "deleted" or not tail.startswith((MESSAGES, EDITS)):
            return []
        old = None if change.old is None else message_in(change.old)
        number = int(tail.rpartition("/")[2])
        return [SessionChange("conversation", kind, fork, number, old, message_in(change.new), "")]

    def _of_head(self, change: DocumentChange) -> list[SessionChange]:
        """Tell of the beginning and the end of a life."""
        old, new = change.old, change.new
        if isinstance(new, HeadRecord):
            for owner in (new.user_id, self._lives.owner_of(new.life)):
                self._generations.require_owner(owner)
            self._ended = max(self._ended, new.life - 1)
        elif isinstance(old, HeadRecord):
            self._ended = max(self._ended, old.life)
        if change.kind == "updated":
            return []
        return [SessionChange("session", change.kind, "", None, None, None, "")]

    def _of_user(self, name: str, change: DocumentChange) -> list[SessionChange]:
        if name.startswith(STATES):
            return [_stored("user", name[len(STATES) :], change)]
        if not name.startswith(_KINDS):
            return []
        kind, _, number = name[len(_KINDS) :].rpartition("/")
        return [SessionChange("user", change.kind, unescape(kind), int(number), change.old, change.new, "")]


def _without_copies(told: list[SessionChange]) -> list[SessionChange]:
    """Leave out the edits that a new fork copies from its parent."""
    forks = {each.name for each in told if (each.part, each.kind, each.number) == _NEW_FORK}
    return [each for each in told if (each.part, each.kind) != _EDIT or each.name not in forks]


def _stored(part: SessionPart, name: str, change: DocumentChange) -> SessionChange:
    old, new = (None if value is None else to_plain_fields(value) for value in (change.old, change.new))
    return SessionChange(part, change.kind, name, None, old, new, "")


def _of_record(fork: str, change: DocumentChange) -> list[SessionChange]:
    """Tell of a new fork, and of messages that were removed."""
    if not isinstance(change.new, ConversationRecord):
        return []
    if fork and change.old is None:
        return [SessionChange("conversation", "created", fork, None, None, None, "")]
    old, new = change.old or ConversationRecord(), change.new
    if new.begin > old.begin:
        return [SessionChange("conversation", "deleted", fork, None, None, None, "")]
    gone = [range(first, end) for first, end, change in new.removed if change > old.edits]
    return [
        SessionChange("conversation", "deleted", fork, number, None, None, "")
        for numbers in gone
        for number in numbers
    ]


def _space_of(namespace: Namespace) -> Space:
    assert namespace.space is not None, "watch() is called outside of transactions"
    return namespace.space
