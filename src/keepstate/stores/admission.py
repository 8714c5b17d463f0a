"""Validates batches, keys and reads before any backend sees them, so that all backends reject the same input.

Pure rules, without I/O. A backend does not check again what these functions accepted.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate.errors import CompactedError, HistoryLostError, InvalidError, OutcomeUnknownError
from keepstate.stores.protocol import Batch, Check, Delete, Put, Write
from keepstate.values import limits
from keepstate.values.key import STAMP_SIZE, STAMP_TAG, stamp_suffix

_LAST_SECTION = 2
_LONGEST_KEY = limits.KEY_BYTES + STAMP_SIZE
_LAST_REVISION = 2**53 - 1
"""The largest revision that every backend represents exactly: Redis scripts count in doubles."""
_NO_CONDITIONS = (None, None, None, None)


def check_space(space: str) -> None:
    """Raise `InvalidError` unless the name is 1 to 200 bytes of UTF-8."""
    if type(space) is str and 0 < len(space) <= limits.SPACE_BYTES and space.isascii():
        return  # the fast path: nearly every name is ASCII
    try:
        size = len(space.encode())
    except (AttributeError, UnicodeEncodeError) as error:
        raise InvalidError(
            f"Space name {space!r} cannot be encoded as UTF-8. Pass a str without surrogates."
        ) from error
    if not 0 < size <= limits.SPACE_BYTES:
        raise InvalidError(
            f"Space name {space[:40]!r}… has {size} bytes. A name has 1 to {limits.SPACE_BYTES} bytes."
        )


def check_batch(batch: Batch) -> int:
    """Validate a batch and return its size in bytes.

    Raises:
        InvalidError: The batch is malformed or over a limit.
    """
    if type(batch) is not Batch:
        raise InvalidError(f"{batch!r} is not a batch. Pass Batch(space, writes, checks).")
    check_space(batch.space)
    writes, checks = batch.writes, batch.checks
    if (
        len(writes) == 1
        and not checks
        and batch.at is None
        and batch.token is None
        and batch.retry_of is None
        and batch.alive_until_ms is None
    ):
        return _check_write(writes[0])
    if len(writes) > limits.BATCH_WRITES or len(checks) > limits.BATCH_CHECKS:
        raise InvalidError(
            f"A batch on space {batch.space!r} has {len(writes)} writes and {len(checks)} checks. "
            f"At most {limits.BATCH_WRITES} writes and {limits.BATCH_CHECKS} checks fit. Split the batch."
        )
    size = 0
    for write in writes:
        size += _check_write(write)
    for check in checks:
        # As for writes, one comparison accepts nearly every check.
        if (
            type(check) is Check
            and type(check.key) is bytes
            and 0 < len(check.key) <= limits.KEY_BYTES
            and check.key[0] <= _LAST_SECTION
            and type(check.version) is int
            and 0 <= check.version <= _LAST_REVISION
            and check.created is None
        ):
            size += len(check.key)
        else:
            size += _check_check(check)
    if size > limits.BATCH_BYTES:
        raise InvalidError(
            f"A batch on space {batch.space!r} has {size} bytes. At most {limits.BATCH_BYTES} fit. Split "
            f"the batch."
        )
    if len(writes) > 1:
        _require_distinct_keys(batch.space, writes)
    conditions = batch.at, batch.token, batch.retry_of, batch.alive_until_ms
    if conditions != _NO_CONDITIONS:
        _check_conditions(batch)
    return size


def _check_write(write: Write) -> int:
    if type(write) is Put:
        key, value = write.key, write.value
        # One comparison accepts nearly every key. The slow path finds the reason to reject the rest.
        if type(key) is not bytes or not 0 < len(key) <= limits.KEY_BYTES or key[0] > _LAST_SECTION:
            check_key(key)
        if type(value) is not bytes or len(value) > limits.VALUE_BYTES:
            raise _value_error(key, value)
        if write.ttl_ms is not None and (
            type(write.ttl_ms) is not int or not 0 < write.ttl_ms <= limits.TTL_MS
        ):
            raise InvalidError(
                f"`ttl_ms` of key {key!r} is {write.ttl_ms!r}. Pass 1 to {limits.TTL_MS}, or None."
            )
        return len(key) + len(value)
    if type(write) is not Delete:
        raise InvalidError(f"{write!r} is not a write. Pass Put or Delete.")
    check_key(write.key)
    return len(write.key)


def _value_error(key: bytes, value: object) -> InvalidError:
    if not isinstance(value, bytes):
        return InvalidError(f"The value of key {key!r} is of type {type(value).__name__}. Pass bytes.")
    return InvalidError(f"The value of key {key!r} has {len(value)} bytes. At most {limits.VALUE_BYTES} fit.")


def check_key(key: bytes) -> None:
    """Raise `InvalidError` unless the key has 1 to 512 bytes, without its stamp, and names a section."""
    if type(key) is not bytes:
        raise InvalidError(f"Key {key!r} is of type {type(key).__name__}. Pass bytes.")
    if not key or (
        len(key) > limits.KEY_BYTES and not (len(key) <= _LONGEST_KEY and key[-STAMP_SIZE] == STAMP_TAG)
    ):
        raise InvalidError(
            f"Key {key[:40]!r}… has {len(key)} bytes. A key has 1 to {limits.KEY_BYTES} bytes."
        )
    if key[0] > _LAST_SECTION:
        raise InvalidError(f"Key {key!r} does not name a section. Its first byte must be 00, 01 or 02.")


def _check_check(check: Check) -> int:
    if type(check) is not Check:
        raise InvalidError(f"{check!r} is not a check. Pass Check(key, version=…) or Check(key, created=…).")
    check_key(check.key)
    version = check.created if check.version is None else check.version
    if (check.version is None) is (check.created is None):
        raise InvalidError(f"The check of key {check.key!r} needs exactly one of `version` and `created`.")
    if type(version) is not int or not 0 <= version <= _LAST_REVISION:
        raise InvalidError(f"The check of key {check.key!r} names {version!r}. A revision is 0 or more.")
    return len(check.key)


def _require_distinct_keys(space: str, writes: Sequence[Write]) -> None:
    plain = [write.key for write in writes if not (type(write) is Put and write.stamp)]
    if len(set(plain)) != len(plain):
        twice = next(key for key in plain if plain.count(key) > 1)
        raise InvalidError(
            f"A batch on space {space!r} writes key {twice!r} twice. Write each key once in a batch."
        )


def _check_conditions(batch: Batch) -> None:
    for name, number in (("at", batch.at), ("retry_of", batch.retry_of)):
        if number is not None and (type(number) is not int or not 0 <= number <= _LAST_REVISION):
            raise InvalidError(
                f"`{name}` of a batch on space {batch.space!r} is {number!r}. A revision is 0 or more."
            )
    if batch.token is not None and (
        type(batch.token) is not bytes or not 0 < len(batch.token) <= limits.TOKEN_BYTES
    ):
        raise InvalidError(f"Token {batch.token!r} is not a name of 1 to {limits.TOKEN_BYTES} bytes.")
    if batch.alive_until_ms is not None:
        check_time("alive_until_ms", batch.alive_until_ms)
        if batch.at is None:
            raise InvalidError(
                f"A batch on space {batch.space!r} has `alive_until_ms` without `at`. Pass the revision as "
                f"`at` too."
            )
    if batch.retry_of is not None and batch.token is None:
        raise InvalidError(
            f"A batch on space {batch.space!r} is a retry without a token. Pass the token of the first "
            f"attempt."
        )


def check_time(name: str, at_ms: int | None) -> None:
    """Raise `InvalidError` unless the value is None or a time in milliseconds."""
    if at_ms is not None and (type(at_ms) is not int or not 0 <= at_ms <= _LAST_REVISION):
        raise InvalidError(f"`{name}` is {at_ms!r}. Pass milliseconds since 1970, or None.")


def check_read(space: str, keys: Sequence[bytes], at_ms: int | None = None) -> None:
    """Raise `InvalidError` unless there are at most 1,000 keys, all well-formed, and `at_ms` is valid."""
    check_space(space)
    check_time("at_ms", at_ms)
    if len(keys) > limits.READ_KEYS:
        raise InvalidError(
            f"A read of space {space!r} asks for {len(keys)} keys. At most {limits.READ_KEYS} fit. Split "
            f"the read."
        )
    for key in keys:
        check_key(key)


def check_read_size(space: str, size: int) -> None:
    """Raise `InvalidError` if the values of one read have more than 8 MiB."""
    if size > limits.READ_BYTES:
        raise InvalidError(
            f"A read of space {space!r} found {size} bytes. At most {limits.READ_BYTES} fit. Read fewer "
            f"keys, or scan."
        )


REPLACING_WRITES = limits.LOG_BYTES // limits.VALUE_BYTES
"""The number of writes whose replaced values always fit in one record of the log."""


def log_size_error(space: str) -> InvalidError:
    """Return the error for a batch whose replaced and deleted values are too large for the log."""
    return InvalidError(
        f"A batch on space {space!r} replaces or deletes logged values of more than "
        f"{limits.LOG_BYTES} bytes in total. Split the batch."
    )


def cut_log_error(batch: Batch, url: str | None = None) -> OutcomeUnknownError:
    """Return the error for a retry whose first attempt was sent before the log's present start."""
    return OutcomeUnknownError(
        f"The log of space {batch.space!r} no longer reaches back to revision {batch.retry_of}, so it is "
        "unknown whether the first attempt applied. This retry was not applied. Read the space.",
        url=url,
        space=batch.space,
        token=batch.token,
    )


def stamped_key_error(space: str) -> InvalidError:
    """Return the error for a batch in which a stamped key equals another key."""
    return InvalidError(
        f"A batch on space {space!r} writes a key that equals one of its stamped keys. Rename one of them."
    )


def check_stamped_keys(batch: Batch, revision: int) -> InvalidError | None:
    """Return an error if a stamped key of the batch, applied as `revision`, equals another of its keys."""
    if len(batch.writes) < 2:
        return None
    for write in batch.writes:
        if type(write) is Put and write.stamp:
            break
    else:
        return None
    keys = {
        write.key + stamp_suffix(revision, index) if type(write) is Put and write.stamp else write.key
        for index, write in enumerate(batch.writes)
    }
    return None if len(keys) == len(batch.writes) else stamped_key_error(batch.space)


def check_scan(space: str, prefix: bytes, after: bytes | None, limit: int, at_ms: int | None = None) -> None:
    """Raise `InvalidError` unless the range lies in a single section."""
    check_space(space)
    check_key(prefix)
    if after is not None and not (type(after) is bytes and after.startswith(prefix)):
        raise InvalidError(f"`after` is {after!r}, which does not start with the prefix {prefix!r}.")
    limits.admit_count("limit", limit)
    check_time("at_ms", at_ms)


def check_changes(space: str, after: int, limit: int) -> None:
    """Raise `InvalidError` unless `after` is a revision and `limit` is positive."""
    check_space(space)
    if type(after) is not int or not 0 <= after <= _LAST_REVISION:
        raise InvalidError(f"`after` is {after!r}. A revision is 0 or more.")
    limits.admit_count("limit", limit)


def check_drop(at: int | None) -> None:
    """Raise `InvalidError` unless `at` is a revision of a space that was written, or None."""
    if at is not None and (type(at) is not int or not 0 < at <= _LAST_REVISION):
        raise InvalidError(f"`at` is {at!r}. A revision to drop at is 1 or more.")


def check_kept(keep: int) -> None:
    """Raise `InvalidError` unless `keep` is a number of revisions that a log can have."""
    if type(keep) is not int or not 1 <= keep <= limits.LOG_REVISIONS:
        raise InvalidError(f"`keep` is {keep!r}. A log keeps 1 to {limits.LOG_REVISIONS} revisions.")


def check_listing(prefix: str, after: str | None, limit: int) -> None:
    """Raise `InvalidError` unless `prefix` and `after` could begin a space's name."""
    for name in (prefix, after):
        if name:
            check_space(name)
    limits.admit_count("limit", limit)


def require_logged(space: str, after: int, *, floor: int, revision: int, url: str | None = None) -> None:
    """Require that the log of a space, from `floor` up to `revision`, holds all changes after `after`.

    Raises:
        CompactedError: The log starts above `after`.
        HistoryLostError: The space ends below `after`.
    """
    if after < floor:
        raise CompactedError(
            f"The changes of space {space!r} after revision {after} are no longer in the log, which starts "
            f"after revision {floor}. Read the present state and follow from its revision.",
            url=url,
            space=space,
            floor=floor,
        )
    if after > revision:
        raise HistoryLostError(
            f"Space {space!r} is at revision {revision}, below {after}. Either revision {after} belongs to "
            "another space, or the store lost it. Read the space again.",
            url=url,
            space=space,
            revision=after,
        )
