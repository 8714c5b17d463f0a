"""Names of managers' data: the spaces of subjects, and the names in them.

```
agent/r2d2                 the space of a subject, if the manager has a store
  checkpoint/step 5          a document in it; the name that a user gave is the last segment, unchanged
agent/r%2Fd/checkpoint/…   the same document in a shared space that was passed in
```

The last segment of a document's name is never truncated, because listings turn it back into an id. In a
shared space, an id may have 512 bytes less those of its prefix. Names that are only looked up are truncated
at their limit: branches, streams and leases, and ids inside a name or in an index.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from typing import Final
from uuid import UUID

from keepstate._clock import Clock
from keepstate.binding import space_name
from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError
from keepstate.names import escape
from keepstate.values import limits

_LABEL_BYTES: Final = 200
"""Maximum size of the name of a branch or stream."""
_SEGMENT_BYTES: Final = 100
_ENDING_BYTES: Final = 240
"""Bytes of an id in a name that is only looked up; the digest of a longer id follows."""
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
"""Names of the id arguments of public calls, by kind, where they differ from `<kind>_id`."""
_OWN: Final = {"team": "task_id"}
"""Names of the arguments of ids directly in a namespace, by its kind, where they differ from `key`."""


def argument_name(kind: str) -> str:
    """Return the name of the argument of public calls that holds the id of a kind."""
    return _ARGUMENTS.get(kind, f"{kind}_id")


def to_segment(id: str) -> str:
    """Encode any text as one unique segment of at most 165 bytes. It cannot be decoded."""
    whole = escape(id)
    if len(whole) <= _SEGMENT_BYTES and len(whole.encode()) <= _SEGMENT_BYTES:
        return whole
    return f"{_truncate(whole, _SEGMENT_BYTES)}~{_hash_text(id)}"  # no quoted text has a ~


def to_last_segment(id: str) -> str:
    """Encode any text as the unique last segment of a name, of at most 304 bytes."""
    if len(id) <= _ENDING_BYTES and len(id.encode()) <= _ENDING_BYTES:
        return id
    return _truncate(id, _ENDING_BYTES) + _hash_text(id)  # longer than every text that is not truncated


def _truncate(text: str, size_bytes: int) -> str:
    return text.encode()[:size_bytes].decode("utf-8", "ignore")


def _hash_text(text: str) -> str:
    return sha256(text.encode()).hexdigest()


def new_id(clock: Clock) -> str:
    """Return a random unique name."""
    return str(UUID(bytes=clock.random_bytes(16), version=4))


def space_of(kind: str, id: object, *, least: int = 1) -> str:
    """Return the name of a subject's own space.

    Raises:
        InvalidError: The id is not text, has fewer than `least` bytes, or is too long for a space.
    """
    text = check_text(argument_name(kind), id)
    size, most = len(text.encode()), limits.SPACE_BYTES - len(kind) - 1
    if not least <= size <= most:
        raise InvalidError(
            f"{kind} {text[:40]!r}{'…' * (len(text) > 40)} has an id of {size} bytes. "
            f"Use {least} to {most} bytes."
        )
    return space_name(kind, text)


def id_in(kind: str, space: str) -> str:
    """Return the id in the name of a space."""
    return space.removeprefix(f"{kind}/")


def name_of(kind: str, prefix: str, segments: Sequence[str], *, most_bytes: int = limits.KEY_BYTES) -> str:
    """Return the name of a document or task. The last segment may be any non-empty text.

    Args:
        kind: The kind of subject.
        prefix: Prefix of the subject's names in a shared space.
        segments: The segments of the name.
        most_bytes: Maximum size.

    Raises:
        InvalidError: The last segment is not text, is empty, or is too long after its prefix.
    """
    what = argument_name(segments[0]) if len(segments) > 1 else _OWN.get(kind, "key")
    before, last = "/".join((*segments[:-1], "")), check_text(what, segments[-1])
    if not last:
        raise InvalidError(f"`{what}` is empty. Pass a name.")
    name = prefix + before + last
    if 4 * len(name) > most_bytes and len(name.encode()) > most_bytes:
        most = most_bytes - len((prefix + before).encode())
        shown, size = f"{last[:40]!r}{'…' * (len(last) > 40)}", len(last.encode())
        raise InvalidError(f"`{what}` is {shown} of {size} bytes. Use at most {most} bytes of UTF-8 here.")
    return name


def shorten(label: str) -> str:
    """Return the name of a branch, stream or lease, truncated to its limit."""
    encoded = label.encode()
    if len(encoded) <= _LABEL_BYTES:
        return label
    kept = encoded[: _LABEL_BYTES - 65].decode("utf-8", "ignore").rpartition("%")[0] or "cut"
    return f"{kept}/{sha256(encoded).hexdigest()}"
