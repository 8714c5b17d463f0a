"""`KeepstateApprovalStore`: tool calls that wait for a person's answer, in a space for each owner."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Unpack

from keepstate.adapters.base import StoreAdapter, StoreLike, StoreOptions
from keepstate.engine.kernel.arguments import check_duration_ms, check_text
from keepstate.engine.space.space import Transaction
from keepstate.errors import AlreadyExistsError, MissingExtraError, NotFoundError
from keepstate.names import DEFAULT_URL, segment

try:
    from agent_framework import Content
except ImportError as error:
    raise MissingExtraError.of("agent-framework", "agent-framework-core") from error

_REQUEST: Final = "request/"


class KeepstateApprovalStore(StoreAdapter):
    """A store of the approval requests of functions, as `agent-framework-foundry-hosting` defines it.

    A request is stored once and never changes, so the call that a person approves is the call that was shown.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        owner: The person whose requests these are, if any. `erase(owner)` removes all of an owner.
        expires_s: Seconds until a request is absent; None means never.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "agent-approvals"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        owner: str | None = None,
        expires_s: float | None = None,
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(store, **options)
        if expires_s is not None:
            check_duration_ms("expires_s", expires_s)
        self._expires_s = expires_s
        self._space = self.space("requests", owner=owner)

    async def save_approval_request(self, approval_request_id: str, request: Content) -> None:
        """Store a request under an id. The same request is stored once.

        Raises:
            AlreadyExistsError: Another request has this id. It is also a `ValueError`, as the framework asks.
        """
        name, plain = _name(approval_request_id), request.to_dict()

        async def save(tx: Transaction) -> None:
            stored: Any = await tx.documents.get(name)
            if stored is None:
                await tx.documents.put(name, plain, ttl_s=self._expires_s)
            elif stored != plain:
                raise _TakenError(f"Approval request with ID '{approval_request_id}' already exists.")

        await self._space.transact(save)

    async def load_approval_request(self, approval_request_id: str) -> Content:
        """Return the request with an id.

        Raises:
            NotFoundError: There is none. It is also a `KeyError`, as the framework asks.
        """
        name = _name(approval_request_id)
        stored: Any = await self._space.call(lambda space: space.documents.get(name))
        if stored is None:
            raise NotFoundError(f"Approval request with ID '{approval_request_id}' does not exist.")
        return Content.from_dict(stored)


class _TakenError(AlreadyExistsError, ValueError):
    """Another request has the id."""


def _name(id: str) -> str:
    return _REQUEST + segment(check_text("approval_request_id", id))
