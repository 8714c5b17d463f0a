"""Updates under way in this process: those of one document come in turn, and none writes its document twice.

Updates that race make each other's work void, so that many of them cost their square. Turns are a courtesy:
that no update is lost is the work of the batch's checks. So nobody waits for ever: who has been at work for
long, in a slow function or waiting for another, no longer holds others up. An update that is made inside
another's function waits for nobody, or two that update each other's documents would.

A function that is given to `update` and writes its own document would change what it was given, be called
again, write again, and never end. Contexts carry which updates a call is made inside of, so such a write is
refused; tasks started by the function belong to its update until the function has returned.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Awaitable, Callable, Container
from contextvars import ContextVar, copy_context
from inspect import isawaitable
from typing import Any, TypeVar

from keepstate._runner import Runner, Signal, reentrant_lock
from keepstate.stores.protocol import Store

T = TypeVar("T")

_PATIENCE_S = 0.25


class _Update:
    """A caller's function at work on one document, until it has returned."""

    __slots__ = ("is_over", "outer", "place", "space", "store")

    def __init__(self, store: Store, space: str, place: bytes, outer: _Update | None) -> None:
        self.store, self.space, self.place, self.outer = store, space, place, outer
        self.is_over = False


_present: ContextVar[_Update | None] = ContextVar("keepstate_updates", default=None)


async def apply_update(
    store: Store, space: str, place: bytes, change: Callable[[Any], Awaitable[Any] | Any], value: object
) -> Any:
    """Return what the caller's function makes of the value of the document at this place."""
    update = _Update(store, space, place, _present.get())
    # A context of its own is left by the interpreter itself, wherever Ctrl-C comes.
    context = copy_context()
    context.run(_present.set, update)
    try:
        answer = context.run(change, value)
        if not isawaitable(answer):
            return answer
        _present.set(update)
        return await answer
    finally:
        update.is_over = True
        if _present.get() is update:
            _present.set(update.outer)  # a token could not be given back where a cancelled task is collected


def find_update_in_progress(store: Store, space: str, places: Container[bytes]) -> bytes | None:
    """Return which of these places the caller is computing a new value for, if any."""
    update = _present.get()
    while update is not None:
        if not update.is_over and update.place in places and update.space == space and update.store is store:
            return update.place
        update = update.outer
    return None


def _is_inside() -> bool:
    update = _present.get()
    while update is not None and update.is_over:
        update = update.outer
    return update is not None


# ---- in turn

_Place = tuple[int, str, bytes]


class _Turn:
    """One who updates: with a signal, who has to wait for it."""

    __slots__ = ("signal",)

    def __init__(self) -> None:
        self.signal: Signal | None = None


# Reentrant: a signal's handler or a finalizer may update too, wherever its thread is.
_lock = reentrant_lock()
_lines: dict[_Place, deque[_Turn]] = {}
"""Who updates a document just now, and who waits behind; only of documents that are being updated."""


def _forget_parent() -> None:
    """Let a forked child begin with no line; who stands in its parent's does not run here."""
    global _lock
    _lines.clear()
    _lock = reentrant_lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)


async def serialized(
    store: Store, space: str, place: bytes, runner: Runner, work: Callable[[], Awaitable[T]]
) -> T:
    """Return what the work returns, done after that of those who came before to the same place."""
    if _is_inside():
        return await work()
    at, turn = (id(store), space, place), _Turn()  # whoever stands in a line keeps its store alive
    try:
        ahead = _enter(at, turn, runner)
        while ahead is not None and turn.signal is not None and not await turn.signal.wait(_PATIENCE_S):
            ahead = _pass(at, turn, ahead)
        return await work()
    finally:
        _leave(at, turn)


def _enter(at: _Place, turn: _Turn, runner: Runner) -> _Turn | None:
    """Return who is at work, or None if it is this turn."""
    with _lock:
        line = _lines.get(at)
        if line is None:
            _lines[at] = deque((turn,))
            return None
        turn.signal = runner.signal()
        line.append(turn)
        return line[0]


def _pass(at: _Place, turn: _Turn, ahead: _Turn) -> _Turn | None:
    """Return who is at work now; the next in the line passes one who has been for too long."""
    with _lock:
        line = _lines[at]
        if line[0] is ahead and line[1] is turn:
            line.popleft()
        return None if line[0] is turn else line[0]


def _leave(at: _Place, turn: _Turn) -> None:
    with _lock:
        line = _lines.get(at)
        if line is None or turn not in line:
            return  # others have passed it
        was_at_work = line[0] is turn
        line.remove(turn)
        if not line:
            del _lines[at]
        elif was_at_work and (signal := line[0].signal) is not None:
            signal.set()
