"""Reading and answering by a link: one function of a request's body, for any server.

Invariant: the signature is verified before anything is read, and all reasons for which a link is not valid
give the same response. A batch that answers checks all of them again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from keepstate._finish import finish
from keepstate._runner import Lock
from keepstate.approval_links.strict_json import read_json
from keepstate.engine.approvals.link_tokens import Link, verify_link
from keepstate.engine.approvals.records import Approval
from keepstate.engine.approvals.shown_text import reveal, text_of
from keepstate.engine.approvals.signers import Signer
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.store_cache import cache_of
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import (
    ApprovalClosedError,
    ConflictError,
    InvalidError,
    NotAllowedError,
    NotFoundError,
    StoreUnavailableError,
)
from keepstate.sync.twin import inner_of
from keepstate.values import limits

if TYPE_CHECKING:
    from keepstate import sync

Response = tuple[int, dict[str, Any]]

_NOT_VALID: Final[Response] = (403, {"error": "not_valid"})
_BAD_REQUEST: Final[Response] = (400, {"error": "bad_request"})
_TOO_LARGE: Final[Response] = (413, {"error": "too_large"})
_TOO_MANY: Final[Response] = (429, {"error": "too_many"})
_UNAVAILABLE: Final[Response] = (503, {"error": "unavailable"})


_BURST: Final = 30
_PER_S: Final = 1.0
_BUCKETS: Final = 10_000


class _Request(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request, after its JSON was read."""

    token: str
    do: Literal["read", "answer"]
    value: Any = None
    note: str = ""
    saw: str = ""


class LinkLimits:
    """Token buckets of links, by approval and person. Only requests with a valid signature have one.

    Of more than 10,000 at a time, the one that was used least recently is forgotten, and full again.
    """

    def __init__(self) -> None:
        self._buckets = OrderedDict[tuple[object, ...], tuple[float, float]]()
        self._lock = Lock()

    def take(self, link: Link, now_s: float) -> bool:
        """Take a token for one request, and return whether there was one."""
        key = link.tenant, link.space, link.id, link.to
        with self._lock:
            left, at_s = self._buckets.pop(key, (float(_BURST), now_s))
            left = min(float(_BURST), left + max(0.0, now_s - at_s) * _PER_S)
            is_there = left >= 1
            self._buckets[key] = (left - is_there, now_s)
            if len(self._buckets) > _BUCKETS:
                self._buckets.popitem(last=False)
            return is_there


class _AnswerError(Exception):
    """An answer that its person can correct."""


async def handle(ks: Keepstate, body: bytes, *, signer: Signer) -> Response:
    """Read or answer an approval by a link, and return the status and the JSON of the response.

    The body is JSON: `token` is the fragment of the link, and `do` is `read` or `answer`. An answer has a
    `value`, `saw` (the `digest` that was read) and perhaps a `note`.

    - 200: the approval as it stands. The same answer sent again gets the state of the first one.
    - 400, 413: the body is not such a request, or has over 64 KiB.
    - 403: the link is not valid, for any reason: never signed, expired, of another approval or tenant, or its
      person may not answer any more.
    - 409: the approval was answered otherwise, has expired or was withdrawn.
    - 422: the value does not fit; `message` has the path of the part at fault.
    - 429: the person sends too many requests about this approval: over 30 at once, or one a second for long.
      Each process counts for itself.
    - 503: the store does not answer now.

    Args:
        ks: The handle of the tenant, or the administrator's, which serves links of all tenants.
        body: The body of a POST request.
        signer: The signer with the keys that links were made with.
    """
    require_instance("ks", ks, Keepstate)
    require_instance("signer", signer, Signer)
    if len(body) > limits.LINK_BODY_BYTES:
        return _TOO_LARGE
    try:
        request = msgspec.convert(read_json(body), _Request)
    except (ValueError, RecursionError):  # those of msgspec are ValueErrors too
        return _BAD_REQUEST
    link = verify_link(request.token, signer)
    if link is None:
        return _NOT_VALID
    try:
        if not cache_of(await ks.opened()).part(LinkLimits).take(link, ks.clock.monotonic_s()):
            return _TOO_MANY
        space = _space_of(ks, link)
        if request.do == "read":
            return 200, _shown(await space.approvals.linked(link), link)
        return await _answer(space, link, request)
    except (NotAllowedError, NotFoundError, InvalidError):
        return _NOT_VALID
    except (StoreUnavailableError, ConflictError):
        return _UNAVAILABLE


def handle_blocking(ks: sync.Keepstate, body: bytes, *, signer: Signer) -> Response:
    """Do what `handle` does, with a handle of `keepstate.sync`."""
    return finish(handle(inner_of(ks), body, signer=signer))


def _space_of(ks: Keepstate, link: Link) -> Space:
    """Return the space of a link.

    Raises:
        NotAllowedError: The handle belongs to another tenant.
        InvalidError: The link names no tenant or space.
    """
    if ks.tenant_id == link.tenant:
        return ks.space(link.space)
    if ks.tenant_id is not None or link.tenant is None:
        raise NotAllowedError("the link belongs to another tenant")
    return ks.tenant(link.tenant).space(link.space)


async def _answer(space: Space, link: Link, request: _Request) -> Response:
    async def work(tx: Transaction) -> Response:
        approval = await tx.approvals.linked(link)
        if request.saw != approval.digest:
            return 409, {"error": "not_seen", "state": approval.state}
        try:
            approval = await _corrected(
                lambda: tx.approvals.answer(
                    link.id, request.value, by=link.to, group=link.group, note=request.note, saw=request.saw
                )
            )
        except ApprovalClosedError:
            return 409, {"error": "already", "state": approval.state}
        except _AnswerError as error:
            return 422, {"error": "does_not_fit", "message": str(error)}
        return 200, _state_of(approval, link)

    return await run_in_transaction(space, work, turn=f"approval {link.id}"[:100])


async def _corrected(answer: Callable[[], Awaitable[Approval]]) -> Approval:
    try:
        return await answer()
    except InvalidError as error:
        raise _AnswerError(reveal(str(error))) from error


def _shown(approval: Approval, link: Link) -> dict[str, Any]:
    """Return what the person of a link is shown; only the state of an approval that is not pending."""
    state = _state_of(approval, link)
    if approval.state != "pending":
        return state
    return {
        **state,
        "question": reveal(approval.question),
        "subject": None if approval.subject is None else text_of(approval.subject),
        "schema": approval.schema,
        "digest": approval.digest,
        "asked_by": None if approval.asked_by is None else reveal(approval.asked_by),
        "asked_at": _text_of(approval.asked_at),
        "expires_at": _text_of(approval.expires_at),
    }


def _state_of(approval: Approval, link: Link) -> dict[str, Any]:
    has_closed = approval.state == "answered" and approval.closed_by == link.to
    has_answered = has_closed or any(vote.by == link.to for vote in approval.votes)
    return {
        "state": approval.state,
        "to": reveal(link.to),
        "need": approval.need,
        "votes": len(approval.votes),
        "has_answered": has_answered,
    }


def _text_of(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")
