"""The layout of a database. Later versions read what a released version wrote.

`PRAGMA application_id` marks a file of keepstate, and `PRAGMA user_version` is its layout. A newer layout is
rejected. Layout 1:

* `spaces` maps a space's name to a number. A drop clears the name of its row and gives the name to a new row.
  Rows of a number without a name count as absent, and are removed a few at a time. `leap` is the last leap of
  the space's time: revision, time before and time after, of eight bytes each; a drop copies it.
* `entries` has one row per key. Rows have a number of their own, and `(space, key)` an index, because values
  of 0.5 to 4 KB then stay on one page: 1.14 times the bytes of the values, where a clustered key took 1.36.
* `log` has one row per revision, numbered `space << 36 | revision`. A space's newest row is also its head:
  besides revision and clock it carries the log's floor and size, a time before which no entry expires, and
  the sizes of the space's parts. So a batch changes two pages instead of three, and no counter can disagree
  with the log. Rows up to the floor count as absent. `nonce` is random for each revision, and `floor_nonce`
  is that of the floor.
* `retries` stores the outcomes of retries by their tokens, even over a drop.

Every page ends with a checksum of eight bytes (see `connection`). `seal` is a CRC-32 of a row's content,
seeded with the row's position, so it also detects an old or misplaced row in a sound page. Names are UTF-8 in
blobs: any text, in the order of its bytes.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Final, TypeAlias
from zlib import crc32

import apsw
import msgspec

from keepstate.errors import CorruptError, StorageError, UnsupportedError
from keepstate.stores.protocol import Change, Leap
from keepstate.stores.sqlite import connection
from keepstate.stores.sqlite.connection import Execute

APPLICATION_ID: Final = 0x6B656570
"""`keep`, in ASCII."""
LAYOUT: Final = 1

REVISION_BITS: Final = 36
LAST_REVISION: Final = (1 << REVISION_BITS) - 1
"""The last revision that a row number of the log can hold: 68 billion revisions per space."""
LAST_SPACE: Final = (1 << 63 - REVISION_BITS) - 1

_LEAP: Final = Struct(">QQQ")

_TABLES = (
    "CREATE TABLE spaces (id INTEGER PRIMARY KEY, name BLOB UNIQUE, leap BLOB) STRICT",
    """
    CREATE TABLE entries (
        id INTEGER PRIMARY KEY,
        space INTEGER NOT NULL,
        key BLOB NOT NULL,
        version INTEGER NOT NULL,
        created INTEGER NOT NULL,
        expires_at_ms INTEGER,
        seal INTEGER NOT NULL,
        value BLOB NOT NULL,
        UNIQUE (space, key)
    ) STRICT
    """,
    "CREATE INDEX entries_by_expiry ON entries (space, expires_at_ms) WHERE expires_at_ms IS NOT NULL",
    """
    CREATE TABLE log (
        id INTEGER PRIMARY KEY,
        now_ms INTEGER NOT NULL,
        floor INTEGER NOT NULL,
        kept_bytes INTEGER NOT NULL,
        expiry_ms INTEGER,
        size_bytes INTEGER NOT NULL,
        token BLOB,
        nonce BLOB NOT NULL,
        floor_nonce BLOB NOT NULL,
        sizes BLOB NOT NULL,
        seal INTEGER NOT NULL,
        changes BLOB NOT NULL
    ) STRICT
    """,
    "CREATE INDEX log_by_token ON log (token) WHERE token IS NOT NULL",
    """
    CREATE TABLE retries (
        space INTEGER NOT NULL,
        token BLOB NOT NULL,
        until_ms INTEGER NOT NULL,
        answer BLOB NOT NULL,
        PRIMARY KEY (space, token)
    ) STRICT, WITHOUT ROWID
    """,
)


PUT: Final = 0
DELETED: Final = 1
PUT_OVER_EXPIRED: Final = 2
Logged: TypeAlias = tuple[bytes, int, bytes | None, bytes | None]
"""A key, one of the three kinds above, and the old and new value if the section logs values."""
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Logged])
encode_changes = _encoder.encode


def is_made(execute: Execute, path: str) -> bool:
    """Return whether the file has this layout; False if it is empty.

    Raises:
        CorruptError: The file is a database of another program.
        UnsupportedError: A newer keepstate created it.
    """
    owner: Any = execute("PRAGMA application_id").get
    layout: Any = execute("PRAGMA user_version").get
    if owner != APPLICATION_ID:
        if layout or execute("SELECT count(*) FROM sqlite_schema").get:
            raise CorruptError(f"{path} is a database of another program. Use a file of its own.", place=path)
        return False
    if layout > LAYOUT:
        raise UnsupportedError(
            f"{path} has layout {layout} of a newer keepstate. This one reads up to layout {LAYOUT}. "
            f"Upgrade keepstate."
        )
    return True


def make(execute: Execute) -> None:
    """Create the tables in the caller's transaction."""
    for statement in _TABLES:
        execute(statement)
    execute(f"PRAGMA application_id = {APPLICATION_ID}")
    execute(f"PRAGMA user_version = {LAYOUT}")


def log_range(space: int) -> tuple[int, int]:
    """Return the lowest and highest number that a row of the space's log can have."""
    first = space << REVISION_BITS
    return first, first | LAST_REVISION


def decode_name(stored: bytes) -> str:
    """Decode the name of a space.

    Raises:
        CorruptError: The bytes are not UTF-8.
    """
    try:
        return stored.decode()
    except UnicodeDecodeError as error:
        place = f"the name {stored!r} in the table of spaces"
        raise CorruptError(
            f"{place} is damaged: it is not UTF-8. Restore the file from a backup.", place=place
        ) from error


def decode_leap(stored: bytes | None) -> Leap | None:
    """Decode the leap in a row of `spaces`; None if there is none, or if the bytes are not a leap."""
    return Leap(*_LEAP.unpack(stored)) if stored is not None and len(stored) == _LEAP.size else None


def encode_leap(leap: Leap) -> bytes:
    """Encode a leap for its row."""
    return _LEAP.pack(*leap)


def entry_seal(key: bytes, value: bytes, version: int, expires_at_ms: int | None) -> int:
    """Return the checksum of an entry's row."""
    return crc32(value, crc32(key, (version ^ (expires_at_ms or 0)) & 0xFFFFFFFF))


def log_seal(row: int, nonce: bytes, changes: bytes) -> int:
    """Return the checksum of a row of the log."""
    return crc32(changes, crc32(nonce, row & 0xFFFFFFFF))


def damage_error(what: str, path: str, space: bytes) -> CorruptError:
    """Return the error for a row whose bytes are not as written."""
    name = space.decode()
    return CorruptError(
        f"{what} of space {name!r} in {path} is damaged. Restore the file from a backup.",
        place=path,
        space=name,
    )


def decode_changes(changes: bytes, revision: int) -> list[Change]:
    """Decode the changes of a row.

    Raises:
        CorruptError: The bytes are not changes.
    """
    if not changes:
        return []
    try:
        logged = _decoder.decode(changes)
    except msgspec.MsgspecError as error:
        place = f"revision {revision} of the log"
        raise CorruptError(
            f"{place} is damaged: {error}. Restore the file from a backup.", place=place
        ) from error
    return [
        Change(revision, key, kind == DELETED, old, new, kind == PUT_OVER_EXPIRED)
        for key, kind, old, new in logged
    ]


def prepare(opened: apsw.Connection, path: str) -> None:
    """Create the tables of an empty file; the caller holds the lock file, so no other process does it too.

    Raises:
        CorruptError: The file is a database of another program.
        StorageError: The file cannot be written to.
    """
    if opened.readonly("main"):
        raise StorageError(
            f"{path} cannot be written to, and even reads write files next to it. Make the file and its "
            f"folder writable."
        )
    execute = connection.execute_on(opened)
    was_made = is_made(execute, path)
    if was_made:
        connection.require_checksums(execute, path)
    else:
        connection.reserve(opened)
    _enable_write_ahead_log(execute, path)
    if was_made:
        return
    execute("BEGIN IMMEDIATE")
    try:
        make(execute)
    except BaseException:
        execute("ROLLBACK")
        raise
    execute("COMMIT")


def _enable_write_ahead_log(execute: Execute, path: str) -> None:
    # Setting the present mode again would need an exclusive lock, which other processes may hold.
    if execute("PRAGMA journal_mode").get == "wal":
        return
    mode = execute("PRAGMA journal_mode = WAL").get
    if mode != "wal":
        raise StorageError(
            f"{path} cannot have a write-ahead log: it stays in mode {mode}. Use another disk."
        )
