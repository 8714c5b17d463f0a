"""Where branches and tags stand: small entries that are logged with their values, and can be watched."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Annotated, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.key_text import describe
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.unit import Unit
from keepstate.errors import CorruptError, InvalidError
from keepstate.values.digest import DIGEST_SIZE

MAIN: Final = "main"
NAME_BYTES: Final = 200

_MARKS = re.compile(r"[~#@\x00-\x1f]")


class Head(msgspec.Struct, array_like=True, frozen=True):
    """A commit, and how many lead to it by first parents."""

    commit: Annotated[bytes, msgspec.Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
    number: Annotated[int, msgspec.Meta(ge=1)]


def admit_ref_name(what: str, name: object) -> str:
    """Return the name of a branch or tag.

    Raises:
        InvalidError: It cannot be told from what else may stand for a commit, or is too long.
    """
    text = check_text(what, name)
    if not 0 < len(text.encode()) <= NAME_BYTES or _MARKS.search(text):
        raise InvalidError(
            f"`{what}` is {text[:40]!r}; it has 1 to {NAME_BYTES} bytes, "
            "none of ~ # @ and no control characters"
        )
    if is_whole_id(text):
        raise InvalidError(f"`{what}` is {text!r}, which is how the id of a commit looks; name it otherwise")
    return text


def is_whole_id(text: str) -> bool:
    """Whether this stands for the one commit of this id, and for nothing else."""
    return len(text) == 2 * DIGEST_SIZE and all(letter in "0123456789abcdef" for letter in text)


async def read_head(unit: Unit, part: bytes, name: str) -> Head | None:
    """Return where a branch or tag stands; the unit's batch applies only if it still does."""
    entry = await unit.get(layout.named_key(part, name))
    return None if entry is None else head_of(entry.key, entry.value)


def head_of(key: bytes, stored: bytes) -> Head:
    """Return where a branch or tag stands by what is stored under its key.

    Raises:
        CorruptError: Nobody wrote it.
    """
    try:
        return decode_stored(stored, Head, "")
    except CorruptError:
        return decode_stored(
            stored, Head, describe(key)
        )  # to name the place takes longer than to read the head


def put_head(unit: Unit, part: bytes, name: str, head: Head) -> None:
    """Put a branch or tag on a commit."""
    unit.put(layout.named_key(part, name), msgspec.msgpack.encode(head))


async def heads(unit: Unit, part: bytes) -> AsyncIterator[tuple[str, Head]]:
    """Yield all branches, or all tags, as they stand while they are read; nothing is checked.

    Those that the unit itself has written come first.
    """
    own = unit.written(part)
    for key, value in own.items():
        if value is not None:
            yield layout.name_of(part, key), head_of(key, value)
    after: bytes | None = None
    while True:
        page = await unit.store.scan(unit.space, part, after=after)
        for entry in page.entries:
            if entry.key not in own:
                yield layout.name_of(part, entry.key), head_of(entry.key, entry.value)
        if page.next is None:
            return
        after = page.next
