"""Key layout of a space. Frozen: later releases read the keys that earlier ones wrote.

```
00 "part" digest                     a part of a value over 1 MiB, named by its content
00 "object" digest                   a part of a state in a history, named by its content
00 "commit" digest                   a commit of a history
00 "blob" name                       bytes by name
01 "blobs" "size"                    the total size of these bytes and their names
01 "gc" "epoch"                      version: the revision of the last collection of unnamed parts
01 "grafts"                          parents of the commits whose own parents were pruned
01 "archive"                         the path of the file that holds archived objects of the history
01 "rules"                           what each batch with document writes must keep: whether it is also a
                                     commit of `main`, and which collections have indexes
01 "index" name build index tuple 00 id   the id of a record of a collection, at its place in an index
01 "token" digest                    present, for a day, if a transaction with this token was applied: its
                                     version is the revision
01 "expiring" due_ms digest          names of recorded documents that expire at that time
01 "event" stream STAMP              an event
01 "stream" stream                   the head of a stream: the index of its last event; its version is the
                                     revision
01 "happened" stream digest          the index of the stream's event whose id has this digest; its version is
                                     the revision
01 "fold" stream name kind           a state folded from the stream: the `cache`, or the `base` that
                                     truncation left
01 "cursor" stream name              the progress of a projection
01 "task" id                         a task's record
01 "payload" id                      a task's payload
01 "result" id                       a task's result
01 "ready" -priority STAMP           id, kind and key of a task that can be claimed now
01 "waiting" due_ms id               … from that time on
01 "claimed" until_ms id             … again from that time on, unless its holder renews the lease
01 "done" at_ms id, 01 "dead" at_ms id   … never again
01 "checkpoint" line id              a checkpoint of a framework's run: the commit of its state, and more
01 "pending" line id task            the writes of a task on a checkpoint
01 "letting_go"                      present if commits of deleted checkpoints are still to be collected
02 "doc" name                        a document
02 "lease" name                      a lease
02 "branch" name                     a branch of the history: its head
02 "tag" name                        a tag: a commit
```

The name of a document, lease, branch or tag is the last segment, as plain UTF-8, so that a prefix of the name
is a prefix of the key. A name too long for a key is cut and ends with its digest; the value then begins with
the full name. An encrypted store keys the digests of parts, objects and event ids.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

from keepstate.errors import CorruptError, InvalidError
from keepstate.values import limits
from keepstate.values.key import BY_KEY, OBJECTS, WITH_VALUES, pack, stored_key

DOCUMENTS: Final = stored_key(WITH_VALUES, "doc")
LEASES: Final = stored_key(WITH_VALUES, "lease")
BRANCHES: Final = stored_key(WITH_VALUES, "branch")
TAGS: Final = stored_key(WITH_VALUES, "tag")
PARTS: Final = stored_key(OBJECTS, "part")
STATES: Final = stored_key(OBJECTS, "object")
COMMITS: Final = stored_key(OBJECTS, "commit")
BLOBS: Final = stored_key(OBJECTS, "blob")
BLOBS_SIZE: Final = stored_key(BY_KEY, "blobs", "size")
EPOCH: Final = stored_key(BY_KEY, "gc", "epoch")
GRAFTS: Final = stored_key(BY_KEY, "grafts")
ARCHIVE: Final = stored_key(BY_KEY, "archive")
RULES: Final = stored_key(BY_KEY, "rules")
INDEX: Final = stored_key(BY_KEY, "index")
TOKENS: Final = stored_key(BY_KEY, "token")
EXPIRING: Final = stored_key(BY_KEY, "expiring")
EVENTS: Final = stored_key(BY_KEY, "event")
HEADS: Final = stored_key(BY_KEY, "stream")
HAPPENED: Final = stored_key(BY_KEY, "happened")
DROPPED: Final = stored_key(BY_KEY, "dropped")
FOLDS: Final = stored_key(BY_KEY, "fold")
CURSORS: Final = stored_key(BY_KEY, "cursor")
TASKS: Final = stored_key(BY_KEY, "task")
READY: Final = stored_key(BY_KEY, "ready")
WAITING: Final = stored_key(BY_KEY, "waiting")
CLAIMED: Final = stored_key(BY_KEY, "claimed")
DONE: Final = stored_key(BY_KEY, "done")
DEAD: Final = stored_key(BY_KEY, "dead")
PAYLOADS: Final = stored_key(BY_KEY, "payload")
RESULTS: Final = stored_key(BY_KEY, "result")
CHECKPOINTS: Final = stored_key(BY_KEY, "checkpoint")
PENDING: Final = stored_key(BY_KEY, "pending")
LETTING_GO: Final = stored_key(BY_KEY, "letting_go")

INDEXES: Final = {"ready": READY, "waiting": WAITING, "claimed": CLAIMED, "done": DONE, "dead": DEAD}
"""The index of each state of a task."""

NAME_PARTS: Final = (
    *(DOCUMENTS, EVENTS, FOLDS, PAYLOADS, RESULTS, STATES, GRAFTS, EXPIRING, BLOBS, CHECKPOINTS, PENDING),
)
"""Key prefixes of values that may be too large for one entry."""

_LONGEST_NAME = 440
_CUT = b"\xff"
"""A byte that UTF-8 never contains, so that a cut name differs from every other name."""


def named_key(part: bytes, name: str) -> bytes:
    """Return the key of a document, lease, branch or tag.

    Raises:
        InvalidError: The name is not a str, is empty, exceeds 512 bytes, or cannot be encoded as UTF-8.
    """
    try:
        text = name.encode()
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidError(f"{_argument(part)} is {name!r}, which UTF-8 cannot encode; give a str") from error
    if not 0 < len(text) <= limits.KEY_BYTES:
        found = f"{_argument(part)} is {name[:40]!r}{'…' * (len(name) > 40)}"
        raise InvalidError(f"{found} of {len(text)} bytes; it has 1 to {limits.KEY_BYTES} bytes of UTF-8")
    if len(text) > _LONGEST_NAME:
        return part + text[:_LONGEST_NAME] + _CUT + sha256(text).digest()
    return part + text


def _argument(part: bytes) -> str:
    """Return the name of the argument of public calls that such keys are built from."""
    return "`key`" if part == DOCUMENTS else "`name`"


def stream_key(part: bytes, stream: str) -> bytes:
    """Return the key of a stream's head, or the prefix of the keys of its events."""
    return part + pack(stream)


def event_id_key(stream: str, id_name: bytes) -> bytes:
    """Return the key of the entry that holds the index of an event, by the digest of the event's id."""
    return HAPPENED + pack(stream, id_name)


def fold_key(stream: str, name: str, kind: str) -> bytes:
    """Return the key of a state folded from a stream."""
    return FOLDS + pack(stream, name, kind)


def cursor_key(stream: str, name: str) -> bytes:
    """Return the key of a projection's progress."""
    return CURSORS + pack(stream, name)


def is_cut(part: bytes, key: bytes) -> bool:
    """Return whether the key contains only the beginning of its name."""
    return key[len(part) + _LONGEST_NAME : len(part) + _LONGEST_NAME + 1] == _CUT


def name_of(part: bytes, key: bytes) -> str:
    """Return the name in a key that is not cut.

    Raises:
        CorruptError: The name in the key is not UTF-8.
    """
    try:
        return key[len(part) :].decode()
    except UnicodeDecodeError as error:
        location = f"key {key.hex()}"
        raise CorruptError(f"{location} is damaged: its name is not UTF-8", place=location) from error


def name_prefix(part: bytes, text: str) -> bytes:
    """Return the prefix of the keys of all names that start with `text`."""
    return part + text.encode("utf-8", "surrogatepass")[:_LONGEST_NAME]
