"""Messages that several checkpoints share, decoded once and given out as copies.

The checkpoints of a conversation hold nearly the same messages. To make one of its bytes takes several times
as long as to copy it: most of what it holds are texts and numbers, which need no copy.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final, cast

from langchain_core.messages import BaseMessage

from keepstate.adapters.langgraph.shapes import MESSAGES
from keepstate.values.merkle import Read

_FIXED: Final = frozenset({str, int, float, bool, bytes, type(None)})
_MANY: Final = 4_096
"""So many leaves of lists are kept, of about 16 items each."""

Copy = Callable[[], Any]
_set: Final = object.__setattr__


@contextmanager
def uncollected() -> Generator[None]:
    """Keep Python from looking for garbage while objects are made that are none.

    A thousand messages are 6,000 objects. Each 700 of them Python looks for cycles among the new ones, and
    after some rounds among all objects of the process: that took longer than to decode them.

    The switch of the collector is left alone: another thread may use it meanwhile, and to put it back would
    undo that.
    """
    before = gc.get_threshold()
    if not gc.isenabled() or before[0] == 0:
        yield
        return
    gc.set_threshold(0)
    try:
        yield
    finally:
        if gc.get_threshold()[0] == 0:
            gc.set_threshold(*before)


class Copies:
    """The leaves of lists that were decoded for one call."""

    def __init__(self) -> None:
        self._by_leaf: dict[bytes, list[Copy] | None] = {}

    def read(self, read: Read, leaves: Sequence[bytes]) -> list[Any]:
        """Return the items of a list, none of which anybody else has."""
        items: list[Any] = []
        for leaf in leaves:
            if leaf not in self._by_leaf:
                if len(self._by_leaf) >= _MANY:
                    self._by_leaf = {}
                self._by_leaf[leaf] = _copies(read(leaf))
            copies = self._by_leaf[leaf]
            items += read(leaf) if copies is None else [copy() for copy in copies]
        return items


def _copies(items: Sequence[Any]) -> list[Copy] | None:
    """Return what copies each item; None if one of them is not known how to copy."""
    copies: list[Copy] = []
    for item in items:
        copy = _message(item) if type(item) in MESSAGES() else _plain(item)
        if copy is None:
            return None
        copies.append(copy)
    return copies


def _message(one: BaseMessage) -> Copy | None:
    kind, held = cast("Any", type(one)), one.__dict__
    groups = {name: _plain(value) for name, value in held.items() if type(value) not in _FIXED}
    extra = _plain(one.__pydantic_extra__ or {})
    makers = [(name, copy) for name, copy in groups.items() if copy is not None]
    if extra is None or len(makers) < len(groups):
        return None
    names, new = one.__pydantic_fields_set__, kind.__new__

    def copy() -> Any:
        made, own = new(kind), held.copy()
        for name, make in makers:
            own[name] = make()
        _set(made, "__dict__", own)
        _set(made, "__pydantic_fields_set__", names.copy())
        _set(made, "__pydantic_extra__", extra())
        _set(made, "__pydantic_private__", None)
        return made

    return copy


def _plain(value: Any) -> Copy | None:
    """Return what copies a value of texts, numbers, lists and dicts; None if anything else is in it."""
    kind = cast("Any", type(value))
    if kind in _FIXED:
        return lambda: value
    if kind is not list and kind is not dict:
        return None
    if not value:
        return cast("Copy", kind)
    parts = [_plain(one) for one in (value if kind is list else value.values())]
    makers = [part for part in parts if part is not None]
    if len(makers) < len(parts):
        return None
    if kind is list:
        return lambda: [make() for make in makers]
    pairs = [*zip(value, makers, strict=True)]
    return lambda: {name: make() for name, make in pairs}
