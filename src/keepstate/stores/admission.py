"""Refuses what is malformed or over a limit, before any backend sees it, so that all refuse alike.

Pure rules: what is admitted here is well-formed, and a backend does not check it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.errors import CompactedError, HistoryLostError, InvalidError
from keepstate.stores.protocol import Batch, Check, Delete, Put, Write
from keepstate.values import limits
from keepstate.values.key import STAMP_SIZE, STAMP_TAG

_LAST_SECTION = 2
_LONGEST_KEY = limits.KEY_BYTES + STAMP_SIZE
_LAST_REVISION = 2**53 - 1
"""The largest number that every backend counts to exactly; Redis scripts count in doubles."""
_NO_CONDITIONS = (None, None, None, None)


def admit_space(space: str) -> None:
    """Raise `InvalidError` unless the name is 1 to 200 bytes of UTF-8."""
    if type(space) is str and 0 < len(space) <= limits.SPACE_BYTES and space.isascii():
        return  # what nearly every name is
    try:
        size = len(space.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidError(f"space {space!r} is no text that UTF-8 can hold; name it with a str") from error
    if not 0 < size <= limits.SPACE_BYTES:
        raise InvalidError(f"space {space[:40]!r}… has {size} bytes; a name has 1 to {limits.SPACE_BYTES}")


def admit_batch(batch: Batch) -> int:
    """Return the batch's size in bytes, or raise `InvalidError` that says what is wrong with it."""
    if type(batch) is not Batch:
        raise InvalidError(f"{batch!r} is no batch; give Batch(space, writes, checks)")
    admit_space(batch.space)
    writes, checks = batch.writes, batch.checks
    if (
        len(writes) == 1
        and not checks
        and batch.at is None
        and batch.token is None
        and batch.retry_of is None
        and batch.alive_until_ms is None
    ):
        return _admit_write(writes[0])
    if len(writes) > limits.BATCH_WRITES or len(checks) > limits.BATCH_CHECKS:
        raise InvalidError(
            f"a batch on {batch.space!r} has {len(writes)} writes and {len(checks)} checks; "
            f"at most {limits.BATCH_WRITES} and {limits.BATCH_CHECKS} fit: split it"
        )
    size = 0
    for write in writes:
        size += _admit_write(write)
    for check in checks:
        size += _admit_check(check)
    if size > limits.BATCH_BYTES:
        raise InvalidError(
            f"a batch on {batch.space!r} has {size} bytes; at most {limits.BATCH_BYTES} fit: split it"
        )
    if len(writes) > 1:
        _admit_once(batch.space, writes)
    conditions = batch.at, batch.token, batch.retry_of, batch.alive_until_ms
    if conditions != _NO_CONDITIONS:
        _admit_conditions(batch)
    return size


def _admit_write(write: Write) -> int:
    if type(write) is Put:
        key, value = write.key, write.value
        # One comparison for what nearly every write is; the slow way says what is wrong with the others.
        if type(key) is not bytes or not 0 < len(key) <= limits.KEY_BYTES or key[0] > _LAST_SECTION:
            admit_key(key)
        if type(value) is not bytes or len(value) > limits.VALUE_BYTES:
            raise _no_value(key, value)
        if write.ttl_ms is not None and (
            type(write.ttl_ms) is not int or not 0 < write.ttl_ms <= limits.TTL_MS
        ):
            raise InvalidError(
                f"ttl_ms of {key!r} is {write.ttl_ms!r}; it must be 1 to {limits.TTL_MS}, or None"
            )
        return len(key) + len(value)
    if type(write) is not Delete:
        raise InvalidError(f"{write!r} is no write; give Put or Delete")
    admit_key(write.key)
    return len(write.key)


def _no_value(key: bytes, value: object) -> InvalidError:
    if not isinstance(value, bytes):
        return InvalidError(f"the value of {key!r} is {type(value).__name__}; a store keeps bytes")
    return InvalidError(f"the value of {key!r} has {len(value)} bytes; at most {limits.VALUE_BYTES} fit")


def admit_key(key: bytes) -> None:
    """Raise `InvalidError` unless the key is 1 to 512 bytes, its stamp not counted, and names a section."""
    if type(key) is not bytes:
        raise InvalidError(f"key {key!r} is {type(key).__name__}; a key is bytes")
    if not key or (
        len(key) > limits.KEY_BYTES and not (len(key) <= _LONGEST_KEY and key[-STAMP_SIZE] == STAMP_TAG)
    ):
        raise InvalidError(f"key {key[:40]!r}… has {len(key)} bytes; a key has 1 to {limits.KEY_BYTES}")
    if key[0] > _LAST_SECTION:
        raise InvalidError(f"key {key!r} is in no section; its first byte must be 00, 01 or 02")


def _admit_check(check: Check) -> int:
    if type(check) is not Check:
        raise InvalidError(f"{check!r} is no check; give Check(key, version=…) or Check(key, created=…)")
    admit_key(check.key)
    version = check.created if check.version is None else check.version
    if (check.version is None) is (check.created is None):
        raise InvalidError(f"the check of {check.key!r} must give `version` or `created`, and only one")
    if type(version) is not int or not 0 <= version <= _LAST_REVISION:
        raise InvalidError(f"the check of {check.key!r} asks for {version!r}; a revision is 0 or more")
    return len(check.key)


def _admit_once(space: str, writes: Sequence[Write]) -> None:
    plain = [write.key for write in writes if not (type(write) is Put and write.stamp)]
    if len(set(plain)) != len(plain):
        twice = next(key for key in plain if plain.count(key) > 1)
        raise InvalidError(f"a batch on {space!r} writes {twice!r} twice; a key stands once in a batch")


def _admit_conditions(batch: Batch) -> None:
    for name, number in (("at", batch.at), ("retry_of", batch.retry_of)):
        if number is not None and (type(number) is not int or not 0 <= number <= _LAST_REVISION):
            raise InvalidError(
                f"`{name}` of a batch on {batch.space!r} is {number!r}; a revision is 0 or more"
            )
    if batch.token is not None and (
        type(batch.token) is not bytes or not 0 < len(batch.token) <= limits.TOKEN_BYTES
    ):
        raise InvalidError(f"token {batch.token!r} is no name of 1 to {limits.TOKEN_BYTES} bytes")
    if batch.alive_until_ms is not None:
        admit_time("alive_until_ms", batch.alive_until_ms)
        if batch.at is None:
            raise InvalidError(
                f"a batch on {batch.space!r} gives `alive_until_ms` without `at`; give the revision as well"
            )
    if batch.retry_of is not None and batch.token is None:
        raise InvalidError(
            f"a batch on {batch.space!r} is a retry without a token; a retry gives the first one's"
        )


def admit_time(name: str, at_ms: int | None) -> None:
    """Raise `InvalidError` unless this is None or a time in milliseconds."""
    if at_ms is not None and (type(at_ms) is not int or not 0 <= at_ms <= _LAST_REVISION):
        raise InvalidError(f"`{name}` is {at_ms!r}; it is milliseconds since 1970, or None")


def admit_read(space: str, keys: Sequence[bytes], at_ms: int | None = None) -> None:
    """Raise `InvalidError` unless these are at most 1,000 well-formed keys, and a time or none."""
    admit_space(space)
    admit_time("at_ms", at_ms)
    if len(keys) > limits.READ_KEYS:
        raise InvalidError(
            f"a read of {space!r} asks for {len(keys)} keys; at most {limits.READ_KEYS}: split it"
        )
    for key in keys:
        admit_key(key)


def admit_reading(space: str, size: int) -> None:
    """Raise `InvalidError` when the values of one read have more than 8 MiB."""
    if size > limits.READ_BYTES:
        raise InvalidError(
            f"a read of {space!r} found {size} bytes; at most {limits.READ_BYTES}: ask for fewer, or scan"
        )


REPLACING_WRITES = limits.LOG_BYTES // limits.VALUE_BYTES
"""Of how many writes the values before, which the log keeps, cannot be too much for one record."""


def replaces_too_much(space: str) -> InvalidError:
    """Return the error of a batch whose replaced and deleted values no log could keep."""
    return InvalidError(
        f"a batch on {space!r} replaces or deletes values that the log keeps, of more than "
        f"{limits.LOG_BYTES} bytes in all: split it"
    )


def admit_scan(space: str, prefix: bytes, after: bytes | None, limit: int, at_ms: int | None = None) -> None:
    """Raise `InvalidError` unless the range is one of a single section."""
    admit_space(space)
    admit_key(prefix)
    if after is not None and not (type(after) is bytes and after.startswith(prefix)):
        raise InvalidError(f"`after` {after!r} does not start with the prefix {prefix!r}")
    limits.admit_count("limit", limit)
    admit_time("at_ms", at_ms)


def admit_changes(space: str, after: int, limit: int) -> None:
    """Raise `InvalidError` unless `after` is a revision and `limit` positive."""
    admit_space(space)
    if type(after) is not int or not 0 <= after <= _LAST_REVISION:
        raise InvalidError(f"`after` is {after!r}; a revision is 0 or more")
    limits.admit_count("limit", limit)


def admit_listing(prefix: str, after: str | None, limit: int) -> None:
    """Raise `InvalidError` unless prefix and `after` are text that a name could start with."""
    for name in (prefix, after):
        if name:
            admit_space(name)
    limits.admit_count("limit", limit)


def refuse_gone(space: str, after: int, *, floor: int, revision: int, url: str | None = None) -> None:
    """Raise where the log of a space, from `floor` up to `revision`, cannot tell what came after a revision.

    Raises:
        CompactedError: The log starts above it.
        HistoryLostError: The space ends below it.
    """
    if after < floor:
        raise CompactedError(
            f"changes of {space!r} after revision {after} are gone; the log starts after {floor}: "
            "read the present state and follow from its revision",
            url=url,
            space=space,
            floor=floor,
        )
    if after > revision:
        raise HistoryLostError(
            f"space {space!r} is at revision {revision}, below {after}: "
            "the revision is another space's, or the store lost it",
            url=url,
            space=space,
            revision=after,
        )
