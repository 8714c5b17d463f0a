"""The table of operations: one row makes the route, the validation, the rights and the OpenAPI document.

Invariant: the query is converted before the right is judged, and the space that was judged is the only one
that the operation gets. Unknown and repeated parameters are refused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from keepstate.binding import space_name
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import NotAllowedError
from keepstate.server.conditions import Conditions
from keepstate.server.keys import Grant, Key, Keys, Right
from keepstate.server.limits import Limits
from keepstate.server.problems import RefusedError
from keepstate.server.request_parts import parameters_in

Method: TypeAlias = Literal["GET", "PUT", "PATCH", "POST", "DELETE"]

Text: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=512)]
SpaceName: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Prefix: TypeAlias = Annotated[str, msgspec.Meta(max_length=512)]
Cursor: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=2_048)]
Label: TypeAlias = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]
Note: TypeAlias = Annotated[str, msgspec.Meta(max_length=4_096)]
Instant: TypeAlias = Annotated[datetime, msgspec.Meta(tz=True)]
PageLimit: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1_000)]

JSON: Final = "application/json"
MERGE_PATCH: Final = "application/merge-patch+json"
EVENT_STREAM: Final = "text/event-stream"
_SPACES_KNOWN: Final = 64
"""Spaces that one key keeps at hand, because making a handle costs as much as reading by it."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters of an operation. A type validates its field; a default makes it optional."""

    def is_reached_by(self, key: Key) -> bool:
        """Return whether a key reaches what the operation concerns: here, everything of its tenant."""
        return not key.under


class InSpace(Query, frozen=True, kw_only=True):
    """Parameters of an operation in one space.

    Attributes:
        space: The name of the space, without its tenant.
    """

    space: SpaceName

    def is_reached_by(self, key: Key) -> bool:
        """Return whether the key reaches the space."""
        return key.reaches(self.space)


class InSession(Query, frozen=True, kw_only=True):
    """Parameters of an operation in the space of a session.

    Attributes:
        session: The id of the session.
    """

    session: Annotated[str, msgspec.Meta(min_length=1, max_length=190)]

    def is_reached_by(self, key: Key) -> bool:
        """Return whether the key reaches the space of the session."""
        return key.reaches(space_name("session", self.session))


class UnderQuery(Query, frozen=True, kw_only=True):
    """Parameters of a listing of several spaces.

    Attributes:
        under: Only this space, and those that continue its name after a `/`. Default: all that the key
            reaches.
    """

    under: Annotated[str, msgspec.Meta(max_length=200)] | None = None

    def is_reached_by(self, key: Key) -> bool:
        """Return whether the key reaches all that is listed."""
        return self.under is None or key.reaches(self.under)


@dataclass(frozen=True, slots=True)
class TaggedAnswer:
    """An answer with the version of its target, which becomes its `ETag`."""

    content: Any
    version: str | None


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event of a stream.

    Attributes:
        data: The data, of the type that the row of the operation names.
        id: The position from which a client continues after this event.
        name: The type of the event; None for the usual one.
        short: The same data without its value, for an event that is too large.
    """

    data: Any
    id: str | None
    name: str | None = None
    short: Any = None


class Call(msgspec.Struct, frozen=True, gc=False):
    """An admitted request: the key that it has shown, and what the operation may use.

    Attributes:
        grant: The grant of the key.
        author: The author of its writes: the key, or the key and the person that it acts for.
        ks: The handle of the key's tenant.
        keys: The keys, and the audit stream.
        limits: The limits of the server.
        conditions: The conditions of the request.
        idempotency_key: The `Idempotency-Key`, or None.
        body_digest: The digest of the body, to compare with that of an earlier request.
        last_event_id: The `Last-Event-ID` of a stream, or None.
        server: The administrator's handle.
        typed: Returns the administrator's handle that reads objects, for sessions.
        trace_url: The address of a trace, with `{trace_id}`, or None.
    """

    grant: Grant
    author: str
    ks: Keepstate
    server: Keepstate
    typed: Callable[[], Awaitable[Keepstate]]
    keys: Keys
    limits: Limits
    conditions: Conditions
    idempotency_key: str | None = None
    body_digest: bytes = b""
    last_event_id: str | None = None
    trace_url: str | None = None

    @property
    def key(self) -> Key:
        """The key."""
        return self.grant.key

    def space(self, query: InSpace) -> Space:
        """Return the space of the request, for writes of its author."""
        # A space holds its handle, so the number of a handle whose spaces are known is not used again.
        known, place = self.grant.spaces, (id(self.server), self.author, query.space)
        found = known.get(place)
        if found is None:
            found = self.ks.space(query.space, author=self.author)
            if len(known) >= _SPACES_KNOWN:
                known.clear()
            known[place] = found
        return found

    async def sessions(self) -> Keepstate:
        """Return the handle of the key's tenant for sessions, whose records are objects."""
        typed = await self.typed()
        return typed if self.key.tenant is None else typed.tenant(self.key.tenant)

    def under(self, query: UnderQuery) -> str:
        """Return the name under which a listing lists."""
        return self.key.under if query.under is None else query.under

    def require_reached(self, space: str) -> None:
        """Raise `NotAllowedError` unless the key reaches a space, to which a forged cursor may lead."""
        if not self.key.reaches(space):
            raise NotAllowedError("the cursor leads out of the spaces of the key; begin the listing again")


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table.

    Attributes:
        method: The method.
        path: The path; identifiers are in the query.
        name: The `operationId`.
        summary: A sentence.
        right: The right that the key needs.
        query: The type of the parameters.
        run: The function: of the call, the query and, if there is one, the body. For a stream, a function
            that returns an iterator of `StreamEvent`.
        answer: The type of the answer, or of the data of a stream's events.
        body: The type of the body, or None.
        media: The media type of the body.
        has_etag: Whether the answer has an `ETag`, and the request may have conditions.
        is_stream: Whether the answer is a stream of server-sent events.
        takes_key: Whether the request may have an `Idempotency-Key`.
        is_wait: Whether it may wait for something to happen. It then ends with its key, and with the server.
        is_audited: Whether the operation is written to the audit stream before it runs.
        also: Rights that the key needs besides.
    """

    method: Method
    path: str
    name: str
    summary: str
    right: Right
    query: type[Query]
    run: Callable[..., Any]
    answer: Any
    body: Any = None
    media: str = JSON
    has_etag: bool = False
    is_stream: bool = False
    takes_key: bool = False
    is_wait: bool = False
    is_audited: bool = False
    also: tuple[Right, ...] = ()

    @property
    def is_read(self) -> bool:
        """True if the operation writes nothing, so that it may be cancelled when its client has gone."""
        return self.method == "GET"

    def read_query(self, raw: bytes) -> Query:
        """Convert the parameters in a query string.

        Raises:
            RefusedError: A parameter is missing, unknown, repeated or of the wrong type.
        """
        given: dict[str, str] = {}
        for name, value in parameters_in(raw):
            if name in given:
                raise RefusedError(422, "invalid", f"the parameter {name!r} was given twice; give it once")
            given[name] = value
        try:
            query: Query = msgspec.convert(given, self.query, strict=False)
        except msgspec.ValidationError as error:
            raise RefusedError(422, "invalid", f"the parameters are wrong: {error}") from error
        for name, text in given.items():
            found = getattr(query, name)
            if found is None:  # of the text `null`, which must not widen a listing
                raise RefusedError(422, "invalid", f"the parameter {name!r} has no value; leave it out")
            if isinstance(found, datetime) and ":" not in text:  # seconds, which the converter takes too
                detail = f"the parameter {name!r} is not a time; give one like 2026-11-28T12:00:00Z"
                raise RefusedError(422, "invalid", detail)
        return query

    def authorise(self, key: Key, query: Query) -> None:
        """Raise `RefusedError` unless the key may do this."""
        for right in (self.right, *self.also):
            authorise(right, key, query)

    def read_body(self, headers: Mapping[str, str], body: bytes) -> Any:
        """Decode a body.

        Raises:
            RefusedError: It has another media type, is not JSON, or is not of the type of the operation.
        """
        kind = headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != self.media:
            raise RefusedError(
                415, "unsupported_media_type", f"the Content-Type is {kind!r}; send {self.media}"
            )
        return decode_json(body, self.body)


def authorise(right: Right, key: Key, query: Query) -> None:
    """Raise `RefusedError` unless a key has a right, and reaches what a query concerns.

    The answer is the same for a space that does not exist.
    """
    if not key.allows(right):
        raise RefusedError(403, "forbidden", f"the key {key.name!r} does not have the right {right!r}")
    if not query.is_reached_by(key):
        raise RefusedError(403, "forbidden", f"the key {key.name!r} reaches spaces under {key.under!r} only")


def decode_json(text: bytes | msgspec.Raw, kind: Any = Any) -> Any:
    """Decode JSON from a stranger.

    Raises:
        RefusedError: It is not JSON, nests too deep, or is not of the type.
    """
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.ValidationError as error:
        raise RefusedError(422, "invalid", f"the body is wrong: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RefusedError(400, "malformed", f"the body is not JSON: {error}") from error
    except RecursionError:
        raise RefusedError(422, "invalid", "the body nests too deep") from None
