"""Operations of administrators on keys and tenants, besides their listings."""

from __future__ import annotations

from typing import Annotated

import msgspec

from keepstate.errors import NotAllowedError
from keepstate.server.operations.documents import DeletionResult
from keepstate.server.operations.spaces import Size
from keepstate.server.table import Call, Label, Operation, Query


class KeyQuery(Query, frozen=True, kw_only=True):
    """A key."""

    name: Label


class TenantQuery(Query, frozen=True, kw_only=True):
    """A tenant."""

    tenant: Annotated[str, msgspec.Meta(min_length=1, max_length=200)]


async def revoke_key(call: Call, query: KeyQuery) -> DeletionResult:
    """Revoke a key."""
    _require_no_tenant(call)
    await call.keys.revoke(query.name)
    return DeletionResult(existed=True)


async def get_size_of_tenant(call: Call, query: TenantQuery) -> Size:
    """Return the size of a tenant."""
    _require_no_tenant(call)
    size = await call.server.tenant(query.tenant).size()
    return Size(size.entries, size.size_bytes)


def _require_no_tenant(call: Call) -> None:
    if call.key.tenant is not None:
        raise NotAllowedError("the key belongs to a tenant; use a key without a tenant")


OPERATIONS = (
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
