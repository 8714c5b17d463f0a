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
01 "dropped" stream                  present while the stream is being dropped
01 "happened" stream digest          the index of the stream's event whose id has this digest; its version is
                                     the revision
01 "fold" stream name kind           a state folded from the stream: the `cache`, or the `base` that
                                     truncation left
01 "cursor" stream name              the progress of a projection
01 "task" id                         a task's record
01 "payload" id                      a task's payload
01 "result" id                       a task's result
01 "ready" -priority STAMP           id, kind and key of a task that can be claimed now
01 "ready" LINED line STAMP          … of one that waits in a line: that of its priority, kind and key
01 "line" line                       the key of the line's turn; each line with tasks has one
01 "turn" epoch lane order line      the turn of a line, in the order of claiming
01 "blocked" epoch counter order line   … that waits for a slot of its key
01 "held" epoch due_ms line          … that waits for its key's next start
01 "slot" limit key number           present while a task runs under a limit
01 "freed" limit key                 present if a slot was freed, until the lines that wait for it have turns
01 "bucket" limit key                the time at which all starts of a limit are back
01 "waiting" due_ms id               … from that time on
01 "claimed" until_ms id             … again from that time on, unless its holder renews the lease
01 "done" at_ms id                   … never again, because it is done
01 "dead" at_ms id, 01 "cancelled" at_ms id   … never again, because of that
01 "follower" id follower            present if a task waits for another one
01 "ending" id                       present if a task has ended and not all its followers know it
01 "attempts" id                     the ended attempts of a task
01 "message" id name STAMP           a message to a task, until it is received or the task ends
01 "sent" id digest                  present, for a day, if a message with this id was sent to the task
01 "step" id name                    a step of a task
01 "step_value" id name              the result of a step, if it is large
01 "schedule" name                   a schedule
01 "planned" name                    the payload of its tasks
01 "tick" due_ms name                the schedule is to be looked at from that time on
01 "approval" id                     an approval
01 "asked" id                        its question, subject and schema
01 "asking" id                       present while it is pending; ends when it expires
01 "assigned" person at_ms id        … in the list of the person who is asked; all are in that of no person
01 "decided" id STAMP                a line of its log
01 "ledger" account                  the budgets of an account of usage, and its reservations
01 "used" account day model share    the sums of a day and a model; added up over the shares
01 "spent" account digest            present, for 30 days, if a use with this id was counted
01 "queue_rules"                     what each claim of a task keeps: paused kinds, limits and aging
01 "checkpoint" line id              a checkpoint of a framework's run: the commit of its state, and more
01 "pending" line id task            the writes of a task on a checkpoint
01 "grant" token                     in a space of a tenant: what each batch checks that writes there
01 "tenant"                          in the space `keepstate:tenant`: the quotas, and the state of an erasure
01 "letting_go"                      present if commits of deleted checkpoints are still to be collected
01 "outbox" index kind id            a subject changed, and the index does not show it yet; its version is the
                                     revision of the change
01 "carried" index kind id           a subject that the index shows: the time of its last change
02 "doc" name                        a document
02 "lease" name                      a lease
02 "branch" name                     a branch of the history: its head
02 "tag" name                        a tag: a commit
```

The space `keepstate:index` of a tenant has keys of its own:

```
01 "meta"                            present while the tenant has an index; says whether it is complete
01 "by" list values digest           the place of a row in a sorted list; see `engine.index.rows`
01 "carrying" digest carrier         a row that was written, while its outbox may still be there
01 "dropping" space carrier          a space that is being dropped
01 "erasing" digest                  an owner whose erasure has begun: the spaces to expunge
02 "row" digest                      a subject: space, kind, id, state and times
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
MAIN: Final = "main"
"""The branch that is used if a call names none."""
FOLDS: Final = stored_key(BY_KEY, "fold")
CURSORS: Final = stored_key(BY_KEY, "cursor")
TASKS: Final = stored_key(BY_KEY, "task")
READY: Final = stored_key(BY_KEY, "ready")
WAITING: Final = stored_key(BY_KEY, "waiting")
CLAIMED: Final = stored_key(BY_KEY, "claimed")
DONE: Final = stored_key(BY_KEY, "done")
DEAD: Final = stored_key(BY_KEY, "dead")
CANCELLED: Final = stored_key(BY_KEY, "cancelled")
PAYLOADS: Final = stored_key(BY_KEY, "payload")
RESULTS: Final = stored_key(BY_KEY, "result")
STEPS: Final = stored_key(BY_KEY, "step")
STEP_VALUES: Final = stored_key(BY_KEY, "step_value")
SCHEDULES: Final = stored_key(BY_KEY, "schedule")
PLANNED: Final = stored_key(BY_KEY, "planned")
TICKS: Final = stored_key(BY_KEY, "tick")
FOLLOWERS: Final = stored_key(BY_KEY, "follower")
ENDING: Final = stored_key(BY_KEY, "ending")
ATTEMPTS: Final = stored_key(BY_KEY, "attempts")
MESSAGES: Final = stored_key(BY_KEY, "message")
SENT: Final = stored_key(BY_KEY, "sent")
APPROVALS: Final = stored_key(BY_KEY, "approval")
ASKED: Final = stored_key(BY_KEY, "asked")
ASKING: Final = stored_key(BY_KEY, "asking")
ASSIGNED: Final = stored_key(BY_KEY, "assigned")
DECIDED: Final = stored_key(BY_KEY, "decided")
LEDGERS: Final = stored_key(BY_KEY, "ledger")
USED: Final = stored_key(BY_KEY, "used")
SPENT: Final = stored_key(BY_KEY, "spent")
LINES: Final = stored_key(BY_KEY, "line")
TURNS: Final = stored_key(BY_KEY, "turn")
BLOCKED: Final = stored_key(BY_KEY, "blocked")
HELD: Final = stored_key(BY_KEY, "held")
SLOTS: Final = stored_key(BY_KEY, "slot")
FREED: Final = stored_key(BY_KEY, "freed")
BUCKETS: Final = stored_key(BY_KEY, "bucket")
LINED: Final = READY + pack(1 << 32)
"""Prefix of ready tasks in lines. The segment is above all priorities, so that they come after the others."""
QUEUE_RULES: Final = stored_key(BY_KEY, "queue_rules")
CHECKPOINTS: Final = stored_key(BY_KEY, "checkpoint")
PENDING: Final = stored_key(BY_KEY, "pending")
LETTING_GO: Final = stored_key(BY_KEY, "letting_go")
GRANTS: Final = stored_key(BY_KEY, "grant")
TENANT: Final = stored_key(BY_KEY, "tenant")
OUTBOX: Final = stored_key(BY_KEY, "outbox")
CARRIED: Final = stored_key(BY_KEY, "carried")
INDEX_META: Final = stored_key(BY_KEY, "meta")
LISTS: Final = stored_key(BY_KEY, "by")
CARRYING: Final = stored_key(BY_KEY, "carrying")
DROPPING: Final = stored_key(BY_KEY, "dropping")
ERASING: Final = stored_key(BY_KEY, "erasing")
ROWS: Final = stored_key(WITH_VALUES, "row")
UNUSED: Final = stored_key(BY_KEY, "restored")
"""A key that no part of a space uses: its deletion takes a revision and changes nothing."""

INDEXES: Final = {
    "ready": READY,
    "waiting": WAITING,
    "claimed": CLAIMED,
    "done": DONE,
    "dead": DEAD,
    "cancelled": CANCELLED,
}
"""The index of each state of a task."""

NAME_PARTS: Final = (
    *(DOCUMENTS, EVENTS, FOLDS, PAYLOADS, RESULTS, MESSAGES, PLANNED, STEP_VALUES, ASKED),
    *(STATES, GRAFTS, EXPIRING, BLOBS, CHECKPOINTS, PENDING),
)
"""Key prefixes of values that may be too large for one entry."""

LONGEST_NAME: Final = 440
"""Size of the longest name that is whole in a key."""
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
    if len(text) > LONGEST_NAME:
        return part + text[:LONGEST_NAME] + _CUT + sha256(text).digest()
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
    return key[len(part) + LONGEST_NAME : len(part) + LONGEST_NAME + 1] == _CUT


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
    return part + text.encode("utf-8", "surrogatepass")[:LONGEST_NAME]
