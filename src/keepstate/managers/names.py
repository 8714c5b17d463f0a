"""How what managers keep is named: the spaces of subjects, and the names in them.

```
agent/r2d2                 the space of a subject, where the manager has the store for itself
  checkpoint/step 5          a document in it; what a user named stands last, as it is
agent/r%2Fd/checkpoint/…   the same in any other space, which was passed and others use too
```

What stands last in a document's name leads back to the id that it was made of, so that it is never cut: in a
space that was passed an id has so many bytes less than 512 as stand before it. What is only looked up is cut
where it gets too long: branches, streams and leases, and ids that stand between others or in an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

from keepstate._clock import Clock
from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError
from keepstate.home import quoted, space_name
from keepstate.values import limits

_LABEL_BYTES: Final = 200
"""Of the name of a branch or stream."""
_SEGMENT_BYTES: Final = 100
_ENDING_BYTES: Final = 240
"""What of an id stands in the name of what is only looked up; of a longer one its digest follows."""
_ARGUMENTS: Final = {
    "kb": "knowledge_base_id",
    "speech": "session_id",
    "state": "key_prefix",
    "tools": "execution_id",
    "failed": "document_id",
    "retry": "execution_id",
    "run": "execution_id",
    "effect": "name",
    "begun": "name",
    "cache": "parameters_hash",
}
"""What public calls name the id of a kind, where that is not `<kind>_id`."""
_OWN: Final = {"team": "task_id"}
"""What they name that stands alone in a folder of a kind, where that is no `key`."""


def argument_of(kind: str) -> str:
    """Return what public calls name the id of a kind."""
    return _ARGUMENTS.get(kind, f"{kind}_id")


def segment(id: str) -> str:
    """Return any text as one segment of at most 165 bytes, which no other has; it leads back to none."""
    whole = quoted(id)
    if len(whole) <= _SEGMENT_BYTES and len(whole.encode()) <= _SEGMENT_BYTES:
        return whole
    return f"{_beginning(whole, _SEGMENT_BYTES)}~{_digest(id)}"  # no quoted text has a ~


def ending(id: str) -> str:
    """Return any text as the last one of a name, of at most 304 bytes, which no other text has."""
    if len(id) <= _ENDING_BYTES and len(id.encode()) <= _ENDING_BYTES:
        return id
    return _beginning(id, _ENDING_BYTES) + _digest(id)  # longer than each that is whole


def _beginning(text: str, size_bytes: int) -> str:
    return text.encode()[:size_bytes].decode("utf-8", "ignore")


def _digest(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def new_id(clock: Clock) -> str:
    """Return a name that nobody else has given."""
    return str(UUID(bytes=clock.random_bytes(16), version=4))


def space_of(kind: str, id: object, *, least: int = 1) -> str:
    """Return the name of a subject's own space.

    Raises:
        InvalidError: The id is no text, has fewer than the least bytes, or is too long for a space.
    """
    text = check_text(argument_of(kind), id)
    size, most = len(text.encode()), limits.SPACE_BYTES - len(kind) - 1
    if not least <= size <= most:
        raise InvalidError(
            f"{kind} {text[:40]!r}{'…' * (len(text) > 40)} has an id of {size} bytes; give {least} to {most}"
        )
    return space_name(kind, text)


def id_in(kind: str, space: str) -> str:
    """Return the id that a space's name has."""
    return space.removeprefix(f"{kind}/")


def name_of(kind: str, prefix: str, segments: Sequence[str], *, most_bytes: int = limits.KEY_BYTES) -> str:
    """Return the name of a document or task, whose last segment may be any text but an empty one.

    Args:
        kind: What the subject is.
        prefix: What stands before it in a space that others use too.
        segments: What it is made of.
        most_bytes: How long it may be.

    Raises:
        InvalidError: The last segment is no text, empty, or too long behind what stands before it.
    """
    what = argument_of(segments[0]) if len(segments) > 1 else _OWN.get(kind, "key")
    before, last = "/".join((*segments[:-1], "")), check_text(what, segments[-1])
    if not last:
        raise InvalidError(f"`{what}` is empty; give a name")
    name = prefix + before + last
    if 4 * len(name) > most_bytes and len(name.encode()) > most_bytes:
        most = most_bytes - len((prefix + before).encode())
        shown, size = f"{last[:40]!r}{'…' * (len(last) > 40)}", len(last.encode())
        raise InvalidError(f"`{what}` is {shown} of {size} bytes; here it has at most {most} bytes of UTF-8")
    return name


def short(label: str) -> str:
    """Return the name of a branch, stream or lease, cut where it would be too long."""
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    kept = encoded[: _LABEL_BYTES - 65].decode("utf-8", "ignore").rpartition("%")[0] or "cut"
    return f"{kept}/{sha256(encoded).hexdigest()}"
