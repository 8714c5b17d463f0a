"""Parts of states for a model: as much as has room, the outer parts first, and marks for the rest.

Invariant: what is read is bounded. A list of a million items is not read to be cut.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from keepstate.engine.history.checkout import Checkout
from keepstate.engine.history.outline import Outline, ValueSummary
from keepstate.engine.space.space import Space
from keepstate.errors import InvalidError, NotFoundError
from keepstate.server.mcp.abridging import abridge, json_text, last_shown, mark
from keepstate.server.operations.values import show

MOST: Final = 20_000
"""Characters of a result."""
_ROOM: Final = MOST - 1_000
"""Length of a value in characters, without the facts of its commit."""
_OUTLINES: Final = 150
"""Lists and dicts of a state that are looked into for one result."""
_ITEMS: Final = 100
_DOCUMENTS: Final = 50
_SMALL_BYTES: Final = 4_096
_READ_BYTES: Final = 40_000
"""Bytes of documents that are read for one result, beyond which they are marked."""


async def read_state(checkout: Checkout, path: Sequence[Any], after: int | None) -> dict[str, Any]:
    """Return the value at a path of a state, abridged.

    Args:
        checkout: The state, of which nothing need be loaded.
        path: The keys and indexes.
        after: Begin behind this item of a list or dict, or with this character of a text.
    """
    try:
        outline = await checkout.outline(tuple(path), after=after, limit=_ITEMS)
    except InvalidError:
        if not path:
            raise
        return {"value": _tail(show(await checkout.fetch(tuple(path))), after, path)}
    first = 0 if after is None else after + 1
    found = show(await _expand(checkout, list(path), outline))
    value = abridge(found, _ROOM, path, first=first, total=outline.count)
    answer: dict[str, Any] = {"value": value, "items": outline.count}
    if (last := outline.next if (last := last_shown(value)) is None else last) is not None:
        answer["after"] = last
    return answer


async def _expand(checkout: Checkout, path: list[Any], outline: Outline) -> Any:
    """Return the container of an outline, with inner lists and dicts in it while they have room."""
    value = _container(outline)
    left, reads = MOST, _OUTLINES
    waiting: deque[tuple[Any, Any, Sequence[Any]]] = deque()

    def take(container: dict[Any, Any] | list[Any], steps: Mapping[Any, Any], at: Sequence[Any]) -> None:
        nonlocal left
        for place, (step, child) in enumerate(steps.items()):
            inner = [*at, step] if type(step) in (str, int) else None  # other keys are not steps of JSON
            key = step if isinstance(container, dict) else place
            if not isinstance(child, ValueSummary):
                left -= len(str(child)) + len(str(step))
                continue
            is_open = child.kind in ("list", "dict")
            container[key] = mark(child.kind, inner, **{"items" if is_open else "size": child.count})
            left -= len(json_text(container[key]))
            if is_open and inner is not None:
                waiting.append((container, key, inner))

    take(value, outline.children, path)
    while waiting and left > 0 and reads > 0:
        container, key, at = waiting.popleft()
        found = await checkout.outline(tuple(at), limit=_ITEMS)
        reads, left = reads - 1, left + len(json_text(container[key]))
        inner = _container(found)
        take(inner, found.children, at)
        if found.next is not None:
            rest = mark(found.kind, at, items=found.count, after=found.next)
            inner = inner | rest if found.kind == "dict" else [*inner, rest]
        container[key] = inner
    return value


def _container(outline: Outline) -> Any:
    return dict(outline.children) if outline.kind == "dict" else list(outline.children.values())


async def read_documents(space: Space, path: Sequence[Any], after: str | int | None) -> dict[str, Any]:
    """Return the documents of a space, or a part of one of them, abridged.

    Raises:
        NotFoundError: The path does not exist.
    """
    if not path:
        return await _list_documents(space, after)
    entry = await space.documents.entry(str(path[0]))
    if entry is None:
        raise NotFoundError(f"document {path[0]!r} does not exist in space {space.name!r}")
    value = _part(entry.value, path[1:], path)
    if not isinstance(after, int) or isinstance(value, str):
        return {"value": _tail(show(value), after, path), "version": entry.printed_version}
    if isinstance(value, list | tuple):
        items = [show(item) for item in cast("Sequence[Any]", value)]
        rest = abridge(items[after + 1 :], _ROOM, path, first=after + 1)
        return {"value": rest, "version": entry.printed_version}
    return {"value": abridge(show(value), _ROOM, path), "version": entry.printed_version}


async def _list_documents(space: Space, after: str | int | None) -> dict[str, Any]:
    page = await space.documents.page(
        after=None if after is None else str(after), limit=_DOCUMENTS, values=False, unreadable="raw"
    )
    left = _READ_BYTES
    small = [
        entry.key
        for entry in page
        if entry.size_bytes <= _SMALL_BYTES and (left := left - entry.size_bytes) > 0
    ]
    read = await space.documents.entries(*small) if small else {}
    value = {
        entry.key: show(read[entry.key].value)
        if entry.key in read
        else mark("document", [entry.key], size=entry.size_bytes)
        for entry in page
    }
    if not value and after is None and not (await space.size()).entries:
        raise NotFoundError(f"nothing is in space {space.name!r}; the tool `find` lists spaces with subjects")
    answer: dict[str, Any] = {"value": abridge(value, _ROOM - 1_500, [])}
    if page.next is not None:
        answer["after"] = page.next
    return answer


def _part(value: Any, steps: Sequence[Any], path: Sequence[Any]) -> Any:
    for step in steps:
        try:
            if not isinstance(value, dict | list | tuple):
                raise KeyError(step)
            value = cast("Any", value)[step]
        except (LookupError, TypeError):
            raise NotFoundError(
                f"the path {json_text(list(path))} does not exist; read a shorter one"
            ) from None
    return value


def _tail(value: Any, after: str | int | None, path: Sequence[Any]) -> Any:
    """Return a value abridged; of a text, the characters behind the first `after`."""
    if not isinstance(value, str) or not isinstance(after, int) or after <= 0:
        return abridge(value, _ROOM, path)
    return abridge(value[after:], _ROOM, path, first=after)
