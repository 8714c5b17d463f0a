"""Operations on the store as a whole, for its administrators: health, keys, and sizes of tenants."""

from __future__ import annotations

from typing import Annotated

import msgspec

from keepstate.engine.space.health import index_finding, store_findings, time_finding
from keepstate.errors import NotAllowedError
from keepstate.server.operations.documents import DeletionResult
from keepstate.server.operations.spaces import AnywhereQuery, Size
from keepstate.server.table import Call, Instant, Label, Operation, PageLimit, Query


class StoreFinding(msgspec.Struct, frozen=True):
    """A line of the report: whether it is well, and what to do if not."""

    subject: str
    well: bool
    text: str
    value: str | None
    mend: str


class StoreReport(msgspec.Struct, frozen=True):
    """A report of what the store really offers. `well` is False if one of its settings could lose data."""

    kind: str
    well: bool
    items: list[StoreFinding]


class KeyRow(msgspec.Struct, frozen=True):
    """A key, without its secret."""

    name: str
    rights: list[str]
    tenant: str | None
    under: str
    expires_at: Instant | None
    rate: float | None


class KeyPage(msgspec.Struct, frozen=True):
    """A page of keys; `next` continues behind it, as `after`."""

    items: list[KeyRow]
    next: str | None


class HealthQuery(AnywhereQuery, frozen=True, kw_only=True):
    """A report; with `full`, it also reads the time of each space and compares the index with all of them."""

    full: bool = False


class KeysQuery(Query, frozen=True, kw_only=True):
    """A listing of keys."""

    after: Annotated[str, msgspec.Meta(min_length=1, max_length=2_048)] | None = None
    limit: PageLimit = 100


class KeyQuery(Query, frozen=True, kw_only=True):
    """A key."""

    name: Label


class TenantQuery(Query, frozen=True, kw_only=True):
    """A tenant."""

    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


async def get_health(call: Call, query: HealthQuery) -> StoreReport:
    """Return what the store really offers."""
    _require_administrator(call)
    ks = call.server
    kind, store = ks.url.partition(":")[0], await ks.opened()
    findings = await store_findings(store, kind)
    if query.full:
        findings.append(await time_finding(store, ks.clock))
        findings.append(await index_finding(ks, "keepstate reindex --tenants"))
    items = [StoreFinding(each.subject, each.well, each.text, each.value, each.mend) for each in findings]
    return StoreReport(kind, all(each.well for each in items), items)


async def list_keys(call: Call, query: KeysQuery) -> KeyPage:
    """Return one page of keys."""
    _require_administrator(call)
    page = await call.keys.list(after=query.after, limit=query.limit)
    rows = [
        KeyRow(key.name, sorted(key.rights), key.tenant, key.under, key.expires_at, key.rate) for key in page
    ]
    return KeyPage(rows, page.next)


async def revoke_key(call: Call, query: KeyQuery) -> DeletionResult:
    """Revoke a key."""
    _require_administrator(call)
    await call.keys.revoke(query.name)
    return DeletionResult(existed=True)


async def get_size_of_tenant(call: Call, query: TenantQuery) -> Size:
    """Return the size of a tenant."""
    _require_administrator(call)
    size = await call.server.tenant(query.tenant).size()
    return Size(size.entries, size.size_bytes)


def _require_administrator(call: Call) -> None:
    if call.key.tenant is not None or call.key.under:
        raise NotAllowedError("the key is not one of an administrator: it has a tenant, or a place")


OPERATIONS = (
    Operation(
        method="GET", path="/v1/health", name="getHealth",
        summary="Report what the store really offers.", right="admin", query=HealthQuery, run=get_health,
        answer=StoreReport, is_audited=True,
    ),
    Operation(
        method="GET", path="/v1/keys", name="listKeys", summary="List the keys of the server.",
        right="admin", query=KeysQuery, run=list_keys, answer=KeyPage, is_audited=True,
    ),
    Operation(
        method="DELETE", path="/v1/key", name="revokeKey",
        summary="Revoke a key. Its streams end within a second, on every server.", right="admin",
        query=KeyQuery, run=revoke_key, answer=DeletionResult, is_audited=True,
    ),
    Operation(
        method="GET", path="/v1/tenants/size", name="getSizeOfTenant",
        summary="Show the size of all spaces of a tenant.", right="admin", query=TenantQuery,
        run=get_size_of_tenant, answer=Size, is_audited=True,
    ),
)  # fmt: skip
