"""Usage as it is stored: the ledger of an account, and sums of each day and model.

The ledger has the budgets with what they have used in their present period, and the reservations. Each batch
that spends under a budget replaces it, so its version is the check of every ceiling. Sums are for reading.
While an account has no budget, writers share out the sums of a day among several entries, and do not meet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime, timedelta
from hashlib import sha256
from operator import itemgetter
from typing import Annotated, Any, Final

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.stored import (
    StoredMs,
    corrupt_error,
    decode_fields,
    decode_stored,
    encode_fields,
    to_datetime,
)
from keepstate.engine.queue.timetable import find_zone
from keepstate.engine.usage.amounts import Amounts, Period, Usage, add, to_billionths, to_money
from keepstate.errors import InvalidError
from keepstate.values import limits
from keepstate.values.key import pack, unpack

SHARES: Final = 16
"""Number of entries among which the sums of a day are shared out in an account without a budget."""
_DIGEST_BYTES: Final = 16

Count = Annotated[int, msgspec.Meta(ge=0)]
_encode: Final = msgspec.msgpack.Encoder().encode


class BudgetRecord(msgspec.Struct, array_like=True, frozen=True):
    """A budget. `since` is the first day of its present period, as an ordinal; 0 without periods."""

    name: str
    tokens: Count | None
    cost: Count | None
    calls: Count | None
    per: Period | None
    model: str | None
    since: Count = 0
    used: Amounts = Amounts()
    later: tuple[Any, ...] = ()

    def counts(self, model: str | None) -> bool:
        """Return whether usage of a model counts. Of an unknown model it does."""
        return self.model is None or model is None or self.model == model


class ReservationRecord(msgspec.Struct, array_like=True, frozen=True):
    """The amounts that a spend may use until a time."""

    id: str
    until_ms: StoredMs
    model: str | None
    amounts: Amounts
    later: tuple[Any, ...] = ()


class LedgerRecord(msgspec.Struct, array_like=True, frozen=True):
    """The budgets and reservations of an account, and the zone of its days."""

    zone: str = "UTC"
    budgets: tuple[BudgetRecord, ...] = ()
    reservations: tuple[ReservationRecord, ...] = ()
    later: tuple[Any, ...] = ()
    """Fields added by a later version of keepstate. They are written back unchanged."""


class UsedRecord(msgspec.Struct, array_like=True, frozen=True):
    """The sums of a day and a model."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cached_tokens: Count = 0
    reasoning_tokens: Count = 0
    cost: Count = 0
    calls: Count = 0

    def plus(self, other: UsedRecord) -> UsedRecord:
        """Return the sum."""
        return UsedRecord(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    @classmethod
    def total(cls, records: Iterable[UsedRecord]) -> UsedRecord:
        """Return a sum that is only read, so it may be larger than what can be stored."""
        return cls(*map(sum, zip((0,) * 6, *map(msgspec.structs.astuple, records), strict=True)))

    @classmethod
    def of(cls, usage: Usage) -> UsedRecord:
        """Return the sums of one usage."""
        counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens
        return cls(*counts, to_billionths("cost", usage.cost), usage.calls)

    @property
    def amounts(self) -> Amounts:
        """The amounts that a budget counts."""
        return Amounts(add(self.input_tokens, self.output_tokens), self.cost, self.calls)


def ledger_key(account: str) -> bytes:
    """Return the key of the ledger of an account."""
    return layout.LEDGERS + pack(account)


def spent_key(account: str, id: str) -> bytes:
    """Return the key that has the digest of a use while its id is known."""
    return layout.SPENT + pack(account, sha256(id.encode()).digest()[:_DIGEST_BYTES])


def digest_of(usages: Sequence[Usage]) -> bytes:
    """Return the digest of the sums of uses by model, by which a use is known again."""
    sums = {usage.model: UsedRecord() for usage in usages}
    for usage in usages:
        sums[usage.model] = sums[usage.model].plus(UsedRecord.of(usage))
    return sha256(_encode(sorted(sums.items(), key=itemgetter(0)))).digest()[:_DIGEST_BYTES]


def scoped_id(space: str, account: str, id: str) -> str:
    """Return the id of a use in a wider account: other parts of that account may have the same id."""
    return f"{sha256(pack(space, account)).digest()[:_DIGEST_BYTES].hex()}/{id}"


def unscoped(id: str) -> str:
    """Return the id of a use as the caller gave it, for messages."""
    return id[33:] if re.match(r"[0-9a-f]{32}/", id) else id


def used_key(account: str, day: int, model: str, share: int) -> bytes:
    """Return the key of the sums of a day and a model."""
    return layout.USED + pack(account, day, model, share)


def used_prefix(account: str, day: int | None = None) -> bytes:
    """Return the prefix of the keys of all sums of an account, or of those of a day."""
    return layout.USED + (pack(account) if day is None else pack(account, day))


def day_and_model(key: bytes) -> tuple[int, str]:
    """Return the day and the model in the key of sums."""
    match unpack(key[len(layout.USED) :]):
        case (str(), int(day), str(model), int()):
            return day, model
        case _:
            raise corrupt_error(f"key {key.hex()}", "it is not that of sums of usage")


def encode_ledger(record: LedgerRecord) -> bytes:
    """Encode a ledger with the fields of a later version."""
    zone, budgets, reservations, *later = encode_fields(record)
    parts = ([encode_fields(each) for each in own] for own in (budgets, reservations))
    return _encode([zone, *parts, *later])


def decode_ledger(stored: bytes | None, location: str) -> LedgerRecord:
    """Decode a ledger; an empty one without an entry."""
    if stored is None:
        return LedgerRecord()
    fields = decode_stored(stored, list[Any], location)
    for index, kind in ((1, BudgetRecord), (2, ReservationRecord)):
        try:
            own = msgspec.convert(fields[index] if index < len(fields) else [], list[Any])
        except msgspec.ValidationError as error:
            raise corrupt_error(location, error) from error
        fields[index : index + 1] = [[decode_fields(each, kind, location) for each in own]]
    return decode_fields(fields, LedgerRecord, location)


def encode_used(record: UsedRecord) -> bytes:
    """Encode the sums of a day and a model."""
    return _encode(record)


def decode_used(stored: bytes | None, location: str) -> UsedRecord:
    """Decode the sums of a day and a model; zeros without an entry."""
    return UsedRecord() if stored is None else decode_stored(stored, UsedRecord, location)


def check_account(what: str, name: object) -> str:
    """Return the name of an account, or raise `InvalidError`."""
    text = check_text(what, name)
    if len(text.encode()) > limits.ACCOUNT_BYTES:
        raise InvalidError(f"`{what}` has {len(text.encode())} bytes; at most {limits.ACCOUNT_BYTES}")
    return text


def usage_of(model: str, record: UsedRecord) -> Usage:
    """Return sums as a usage, whatever their size."""
    made = Usage(model=model)
    for name in UsedRecord.__struct_fields__:
        value = getattr(record, name)
        object.__setattr__(made, name, to_money(value) if name == "cost" else value)
    return made


# ---- days and periods


def day_of(now_ms: int, zone: str) -> int:
    """Return the day of a time in a zone, as an ordinal."""
    return to_datetime(now_ms).astimezone(find_zone(zone)).toordinal()


def first_day(per: Period | None, day: int) -> int:
    """Return the first day of the period that has a day; 0 without periods."""
    if per is None:
        return 0
    return day if per == "day" else date.fromordinal(day).replace(day=1).toordinal()


def end_day(per: Period, start: int) -> int:
    """Return the first day after the period that begins with a day."""
    if per == "day":
        return start + 1
    return (date.fromordinal(start) + timedelta(days=31)).replace(day=1).toordinal()


def begin_of(day: int, zone: str) -> datetime:
    """Return the time at which a day begins in a zone, in UTC."""
    from datetime import UTC

    at = datetime.combine(date.fromordinal(day), datetime.min.time(), find_zone(zone))
    return at.astimezone(UTC)
