"""Grants to write into the spaces of a tenant, so that no write slips through an erasure of the tenant.

A batch changes one space, and cannot check another one. So each space of a tenant has a grant, an entry under
a random key, and each batch that writes there checks a grant. A writer knows a grant, because it has read it
or put it; and after that it has read, in the tenant's own record, that no erasure is under way. An erasure
first marks the record, then lists the spaces and drops them.

Invariant: a batch that is applied after a space was dropped checks a grant that is not there. If the writer
has read the record before it was marked, its grant was stored before that, so the listing has its space. A
writer that reads the record later is rejected, and so is one that finds another life of the tenant than the
one that its work began in. A life ends with the drop of the record, which changes its revision.

Batches that a tenant's writer sends before its own batch, with parts of large values, check the same grant.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK
from keepstate._runner import Runner
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.large_values import apply_with_parts
from keepstate.engine.kernel.quotas import Quota, check_quota, check_spaces
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.kernel.stored import decode_stored
from keepstate.engine.kernel.totals import Totals
from keepstate.errors import KeepstateError, NotAllowedError, QuotaExceededError
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Delete, Outcome, Put, Store
from keepstate.values.key import pack

_TOKEN_BYTES: Final = 16
_ATTEMPTS: Final = 64
_TENANTS: Final = 1_024
_SPACES: Final = 4_096
"""Number of spaces of one tenant whose grants are known."""
_RENEWED_AT_ONCE: Final = 64
_LOCATION: Final = "the record of the tenant"


class Erasure(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of an erasure: the counts, the last space counted, the archives met, and the pages."""

    spaces: int = 0
    entries: int = 0
    size_bytes: int = 0
    archives: Sequence[str] = ()
    upto: tuple[bool, str] = (False, "")
    pages: int = 0


class TenantRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """The record of a tenant. A tenant without quotas, and without an erasure under way, has none.

    Attributes:
        life: The revision of the record's space before the record. It distinguishes the lives of the tenant.
        erasing: The progress of an erasure; None if none is under way.
        importing: The digest of the file that is being imported; None if none is.
        quota: The most that each space may hold, and all of them.
        later: Fields added by a later version of keepstate, and those added to the quota, as a dict under its
            name. They are written back unchanged.
    """

    life: int
    erasing: Erasure | None = None
    importing: str | None = None
    quota: Quota | None = None
    later: dict[str, Any] = msgspec.field(default_factory=dict[str, Any])


class _Tenant:
    """Knowledge of this process about one tenant."""

    __slots__ = ("grants", "life", "quota", "totals")

    def __init__(self) -> None:
        self.totals = Totals()
        self.quota: Quota | None = None
        self.life: int | None = None
        self.grants: dict[str, Check] = {}

    def live_on(self, life: int) -> None:
        """Note the present life; the grants of another one are gone."""
        if life != self.life:
            self.life, self.grants, self.totals = life, {}, Totals()


class Grants:
    """The grants that this process knows, by tenant and space."""

    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}

    def of(self, beginning: str) -> _Tenant:
        """Return the cached life and grants of a tenant, by the prefix of its names."""
        tenant = self._tenants.get(beginning)
        if tenant is None:
            if len(self._tenants) >= _TENANTS:
                self._tenants = {}
            tenant = self._tenants.setdefault(beginning, _Tenant())
        return tenant

    def forget(self, beginning: str) -> None:
        """Forget a tenant, because this process has erased it."""
        self._tenants.pop(beginning, None)


def needs_grant(space: str) -> bool:
    """Return whether a space belongs to a tenant, and is not that of the tenant's record."""
    return space.startswith(names.TENANTS) and not space.endswith(_RECORD_END)


_RECORD_END: Final = "\x01" + names.OWN_RECORD


def _beginning(space: str) -> str:
    beginning = names.tenant_beginning(space)
    assert beginning is not None
    return beginning


def record_space(beginning: str) -> str:
    """Return the stored name of the space with the record of a tenant, by the prefix of its names."""
    return beginning + names.OWN_RECORD


def life_at(store: Store, space: str) -> int | None:
    """Return the life of the tenant of a space, as far as this process knows it."""
    return cache_of(store).part(Grants).of(_beginning(space)).life


async def learn_life(store: Store, space: str) -> None:
    """Read the life of the tenant of a space, unless this process knows one, for work that begins now."""
    beginning = _beginning(space)
    tenant = cache_of(store).part(Grants).of(beginning)
    if tenant.life is None:
        _, _, life = await read_record(store, beginning)
        if tenant.life is None:
            tenant.life = life


class Grant(NamedTuple):
    """The grant that a batch to a space of a tenant checks.

    Attributes:
        check: The check of the grant.
        put_at: The revision at which the grant was put for this batch; None if it was there.
    """

    check: Check
    put_at: int | None = None


async def grant_for(store: Store, space: str, began_in: int | None = None) -> Grant:
    """Return the grant that a batch to a space of a tenant needs.

    Costs nothing if this process knows a grant, and two reads if it does not. In a space without a grant it
    costs three reads and a batch.

    Args:
        store: The store.
        space: The stored name of the space.
        began_in: The life that was known when the work began.

    Raises:
        NotAllowedError: The tenant is being erased, or was erased since the work began.
    """
    beginning = _beginning(space)
    tenant = cache_of(store).part(Grants).of(beginning)
    known = tenant.grants.get(space)
    grant = await _enter(store, space, beginning, tenant, began_in) if known is None else Grant(known)
    require_life(space, began_in, tenant.life)
    return grant


async def checks_for(store: Store, space: str) -> list[Check]:
    """Return the checks that each batch to a space needs: none, unless the space belongs to a tenant."""
    return [(await grant_for(store, space)).check] if needs_grant(space) else []


async def apply_granted(
    store: Store, batch: Batch, parts: dict[bytes, bytes], began_in: int | None
) -> Outcome:
    """Apply a batch with parts of large values to a space of a tenant, under a grant.

    Args:
        store: The store.
        batch: The batch.
        parts: The parts that its manifests list.
        began_in: The life that was known when the work began.

    Raises:
        NotAllowedError: The tenant is being erased, or was erased since the work began.
        QuotaExceededError: The batch would exceed a quota of the tenant.
    """
    space, is_current = batch.space, False
    for _ in range(_ATTEMPTS):
        check, put_at = await grant_for(store, space, began_in)
        if batch.at is not None and put_at == batch.at + 1:
            batch = msgspec.structs.replace(batch, at=put_at)  # nothing else has changed
        at, tenant = batch.at, cache_of(store).part(Grants).of(_beginning(space))
        quota, checked = tenant.quota, None
        if quota is not None and (quota.bounds_each_space or quota.bounds_total):
            try:
                checked = await check_quota(store, batch, parts, quota, tenant.totals, is_last=is_current)
            except QuotaExceededError:
                if is_current:
                    raise
                is_current = True
                tenant.grants.pop(space, None)  # the quota is read again with the grant
                continue
            if quota.bounds_each_space:
                at = checked.revision if at is None else at
        granted = msgspec.structs.replace(batch, checks=[check, *batch.checks], at=at)
        outcome = await apply_with_parts(store, granted, parts)
        if not isinstance(outcome, Conflict):
            if checked is not None and isinstance(outcome, Applied):
                tenant.totals.note(space, checked.used)
            return outcome
        if outcome.key == check.key:
            # The space was dropped, or its quota changed. The other checks tell whether that matters.
            if tenant.grants.get(space) == check:
                tenant.grants.pop(space, None)
        elif outcome.key is not None or batch.at is not None:
            return outcome
    return Conflict(layout.GRANTS, 0)


def require_life(space: str, began_in: int | None, life: int | None) -> None:
    """Raise `NotAllowedError` if work began in another life of the tenant."""
    if began_in is not None and began_in != life:
        raise _refusal(space, "was erased while this write was under way. Nothing was written. Read again")


async def read_record(store: Store, beginning: str) -> tuple[TenantRecord | None, int, int]:
    """Return the record of a tenant, its version, and the life of the tenant."""
    # A scan, because a tiered store may answer a read from memory that is not fresh.
    page = await store.scan(record_space(beginning), layout.TENANT, limit=1)
    if not page.entries:
        return None, ABSENT, page.revision
    (entry,) = page.entries
    record = decode_record(entry.value)
    return record, entry.version, record.life


def decode_record(stored: bytes) -> TenantRecord:
    """Decode the record of a tenant."""
    record = decode_stored(stored, TenantRecord, _LOCATION)
    fields = decode_stored(stored, dict[str, Any], _LOCATION)
    later = _without(fields, TenantRecord)
    if added := _without(fields.get("quota") or {}, Quota):
        later["quota"] = added
    return msgspec.structs.replace(record, later=later)


def encode_record(record: TenantRecord) -> bytes:
    """Encode the record of a tenant."""
    fields = msgspec.to_builtins(record)
    for name, more in fields.pop("later").items():
        fields[name] = fields.get(name, {}) | more if name == "quota" else more
    return msgspec.msgpack.encode(fields)


def _without(fields: dict[str, Any], known: type[msgspec.Struct]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name not in known.__struct_fields__}


async def write_record(store: Store, beginning: str, record: TenantRecord, version: int) -> bool:
    """Replace the record of a tenant, and return whether its version was the one given."""
    put = Put(layout.TENANT, encode_record(record))
    batch = Batch(record_space(beginning), [put], [Check(layout.TENANT, version=version)])
    outcome = (await store.apply([batch]))[0]
    if isinstance(outcome, KeepstateError):
        raise outcome
    return isinstance(outcome, Applied)


async def end_record(store: Store, beginning: str) -> bool:
    """Drop the record of a tenant, which begins another life of it; return whether it is gone."""
    own = record_space(beginning)
    page = await store.scan(own, layout.TENANT, limit=1)
    return not page.entries or await store.drop(own, at=page.revision)


async def _enter(store: Store, space: str, beginning: str, tenant: _Tenant, began_in: int | None) -> Grant:
    """Find a grant of the space, or put one, and confirm it by the record."""
    check, life, put_at = await _find(store, space), None, None
    if check is None:
        life = await _read_life(store, space, beginning)
        tenant.live_on(life)
        require_life(space, began_in, life)
        if tenant.quota is not None:
            await check_spaces(store, beginning, space, tenant.quota)
        check = await _put(store, space)
        put_at = check.created
    try:
        confirmed = await _read_life(store, space, beginning)
        if life is not None:
            require_life(space, life, confirmed)
    except NotAllowedError:
        if put_at is not None:
            await store.drop(space, at=put_at)
        raise
    tenant.live_on(confirmed)
    if len(tenant.grants) >= _SPACES:
        tenant.grants = {}
    tenant.grants[space] = check
    return Grant(check, put_at)


async def _find(store: Store, space: str) -> Check | None:
    page = await store.scan(space, layout.GRANTS, limit=1)
    return Check(page.entries[0].key, created=page.entries[0].created) if page.entries else None


async def _put(store: Store, space: str) -> Check:
    key = layout.GRANTS + pack(SYSTEM_CLOCK.random_bytes(_TOKEN_BYTES))
    outcome = (await store.apply([Batch(space, [Put(key, b"")], [Check(key, version=ABSENT)])]))[0]
    if isinstance(outcome, Applied):
        return Check(key, created=outcome.revision)
    if isinstance(outcome, KeepstateError):
        raise outcome
    assert isinstance(outcome, Conflict)
    raise KeepstateError(f"a random key of {names.shown(space)} exists already; write again")


async def set_quota(store: Store, runner: Runner, beginning: str, quota: Quota | None) -> None:
    """Store the quota of a tenant, and let each writer read it before its next batch.

    A writer reads the record with a grant, and each space gets another grant. Cost: a scan of each space,
    and one call of the store for the batches of 64 spaces.

    Raises:
        NotAllowedError: The tenant is being erased or imported.
    """
    while True:
        life = await _read_life(store, beginning + names.OWN_RECORD, beginning)
        record, version, _ = await read_record(store, beginning)
        record = record or TenantRecord(life)
        later = {name: value for name, value in record.later.items() if name != "quota"}
        changed = msgspec.structs.replace(record, quota=quota, later=later)
        if changed.erasing is None and changed.importing is None:
            if await write_record(store, beginning, changed, version):
                break
    after: str | None = None
    while page := await store.spaces(beginning, after=after):
        after = page[-1]
        spaces = [space for space in page if needs_grant(space)]
        for start in range(0, len(spaces), _RENEWED_AT_ONCE):
            await _renew(store, runner, spaces[start : start + _RENEWED_AT_ONCE])


async def _renew(store: Store, runner: Runner, spaces: Sequence[str]) -> None:
    """Replace the grants of some spaces."""
    while spaces:
        found = await runner.gather([partial(_renewal, store, space) for space in spaces])
        batches: list[Batch] = []
        for each in found:
            if isinstance(each, BaseException):
                raise each
            if each is not None:
                batches.append(each)
        spaces = []
        for batch, outcome in zip(batches, await store.apply(batches) if batches else (), strict=True):
            if isinstance(outcome, KeepstateError):
                raise outcome
            if not isinstance(outcome, Applied):
                spaces.append(batch.space)


async def _renewal(store: Store, space: str) -> Batch | None:
    """Return the batch that replaces the grants of a space; None if it has none."""
    entries = (await store.scan(space, layout.GRANTS)).entries
    if not entries:
        return None
    put = Put(layout.GRANTS + pack(SYSTEM_CLOCK.random_bytes(_TOKEN_BYTES)), b"")
    old = [Check(entry.key, created=entry.created) for entry in entries]
    return Batch(space, [put, *(Delete(check.key) for check in old)], old)


async def _read_life(store: Store, space: str, beginning: str) -> int:
    record, _, life = await read_record(store, beginning)
    cache_of(store).part(Grants).of(beginning).quota = None if record is None else record.quota
    if record is not None and record.erasing is not None:
        raise _refusal(space, "is being erased. Nothing was written. Wait until the erasure is complete")
    if record is not None and record.importing is not None:
        raise _refusal(space, "is being imported. Nothing was written. Complete the import, or erase it")
    return life


def _refusal(space: str, what: str) -> NotAllowedError:
    tenant, _ = names.parts_of(space)
    return NotAllowedError(f"tenant {tenant!r} {what}", tenant=tenant)
