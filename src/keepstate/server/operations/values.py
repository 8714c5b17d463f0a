"""Values as JSON, and the idempotent writes that several groups of operations share.

Invariant: `read_value(show(value))` is the same value. A value without a JSON type, and an integer
beyond 2^53, is an object with the member `@type`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from hashlib import sha256
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import msgspec

from keepstate.engine.kernel.unreadable import Unreadable
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AttemptsExhaustedError, ConflictError, InvalidError
from keepstate.server.problems import RefusedError
from keepstate.server.table import Call, decode_json
from keepstate.values.json_exchange import from_json, to_json

T = TypeVar("T")
Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=3_153_600_000)]
"""A time to live or a lease, up to a hundred years."""
Delay: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=3_153_600_000)]
_DIGEST_BYTES: Final = 32
_ATTEMPTS: Final = 100


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A body; unknown members are refused."""


class Done(msgspec.Struct, frozen=True):
    """An answer without content."""


def show(value: object) -> Any:
    """Return a value as JSON types; for one that cannot be read, the reason."""
    if isinstance(value, Unreadable):
        return {"@type": "unreadable", "code": value.code, "reason": value.reason}
    return to_json(value)


def read_value(raw: msgspec.Raw | bytes | msgspec.UnsetType) -> Any:
    """Return the value of JSON from a client; None if it was left out.

    Raises:
        RefusedError: It is not JSON.
        InvalidError: A form with an `@type` is not one of a value.
    """
    return None if isinstance(raw, msgspec.UnsetType) else from_json(decode_json(raw))


def read_steps(steps: list[Any]) -> tuple[Any, ...]:
    """Return a path from its steps in JSON.

    Raises:
        InvalidError: A step is a list or dict, or has one in it.
    """
    path = tuple(from_json(step) for step in steps)
    try:
        hash(path)
    except TypeError:
        raise InvalidError("a step of the path is a list or dict; give keys and indexes") from None
    return path


async def write_once(
    call: Call, space: Space, operation: str, work: Callable[[Transaction], Awaitable[T]], kind: type[T]
) -> tuple[T, int]:
    """Run work in a transaction, and return its answer with the revision; 0 if nothing was written.

    With an `Idempotency-Key`, the answer is stored in the same batch, under the key, the author, the
    operation and the space. The same request sent again within a day gets that answer, and writes nothing.

    Raises:
        RefusedError: 422, the key was used with another body.
    """
    if call.idempotency_key is None:
        applied = await space.apply(work)
        return applied.value, applied.revision
    scope = [call.author, call.key.tenant, operation, call.idempotency_key]
    token = sha256(msgspec.msgpack.encode(scope)).hexdigest()
    for _ in range(_ATTEMPTS):
        try:
            return await _write_with(token, call, space, work, kind)
        except ConflictError as conflict:
            if not conflict.retryable:
                raise
    raise AttemptsExhaustedError(
        f"{operation} met {_ATTEMPTS} conflicts in space {space.name!r}; send it again with the same key",
        attempts=_ATTEMPTS,
    )


async def _write_with(
    token: str, call: Call, space: Space, work: Callable[[Transaction], Awaitable[T]], kind: type[T]
) -> tuple[T, int]:
    async with space.transaction(token=token) as tx:
        if not tx.revision:
            answer = await work(tx)
            tx.set_note(call.body_digest + msgspec.msgpack.encode(answer))
    note = tx.note
    if note[:_DIGEST_BYTES] != call.body_digest:
        raise RefusedError(
            422,
            "idempotency_key_reused",
            "the Idempotency-Key was used with another body; use a new key for a new request",
        )
    return msgspec.msgpack.decode(note[_DIGEST_BYTES:], type=kind), tx.revision
