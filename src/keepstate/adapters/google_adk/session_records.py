"""Records of sessions: their places and heads, changes of shared state, and the marks of loaded sessions."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from keepstate.engine.space.space import Space
from keepstate.errors import MissingExtraError
from keepstate.names import segment

try:
    from google.adk.errors import StaleSessionError
    from google.adk.events.event import Event
    from google.adk.sessions.session import Session
    from google.adk.sessions.state import State
except ImportError as error:
    raise MissingExtraError.of("google-adk", "google-adk") from error

_DRIFT_S: Final = 0.001
"""A time of the framework may lose this much on its way through other services."""
_MARK: Final = re.compile(r"(.*):(\d+)\|(-?\d+),(-?\d+)", re.DOTALL)
UNKNOWN: Final = -1
"""The version of shared state that a session does not know."""
RELOAD: Final = "load the session again, and repeat the turn on it"

Values = dict[str, Any]
"""State: values by key."""


@dataclass(frozen=True, slots=True)
class Place:
    """A space, and the prefix of names in it."""

    space: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Places:
    """The places of a session: those of the shared state of its app and its user, and its own."""

    shared: tuple[Place, Place]
    session: Place


@dataclass(frozen=True, slots=True)
class Change:
    """Values for a shared state; `version` is that which the session knows, for the event with this id."""

    scope: str
    place: Place
    values: Values
    event_id: str | None = None
    version: int = UNKNOWN

    @property
    def applied(self) -> str | None:
        """The name of the document that says that the event has made the change; None without an event."""
        return None if self.event_id is None else f"{self.place.prefix}applied/{segment(self.event_id)}"


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a session: its ids, how many events it has, and the time and id of the last one."""

    app: str
    user: str
    id: str
    count: int
    at: float
    last: str

    def stored(self) -> dict[str, Any]:
        """Return the value of the document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Mark:
    """The place at which a session object was loaded: its generation, its events, and shared versions.

    Its text is `PREFIX:COUNT|APP,USER`.
    """

    prefix: str
    count: int
    versions: tuple[int, int]

    def __str__(self) -> str:
        return f"{self.prefix}:{self.count}|{self.versions[0]},{self.versions[1]}"

    @classmethod
    def of(cls, session: Session) -> Self | None:
        """Return the mark of a session; None if no service has loaded it."""
        text = session._storage_update_marker  # pyright: ignore[reportPrivateUsage]
        if text is None:
            return None
        if (found := _MARK.fullmatch(text)) is None:
            raise StaleSessionError(f"Session {session.id} was loaded by another service; {RELOAD}.")
        prefix, count, app, user = found.groups()
        return cls(prefix, int(count), (int(app), int(user)))

    def is_at(self, prefix: str, head: Head) -> bool:
        """Return whether the stored session has no later event."""
        return (self.prefix, self.count) == (prefix, head.count)

    def is_before(self, prefix: str, head: Head) -> bool:
        """Return whether the stored session has one later event."""
        return (self.prefix, self.count + 1) == (prefix, head.count)


def check_current(session: Session, mark: Mark | None, prefix: str, head: Head) -> None:
    """Raise `StaleSessionError` if a session object lacks events that were stored.

    An object without a mark was made by hand or came over a wire. Its last event decides, or else its time.
    """
    if mark is not None:
        is_current = mark.is_at(prefix, head)
    elif session.events:
        is_current = session.events[-1].id == head.last
    else:
        is_current = head.at <= session.last_update_time + _DRIFT_S
    if not is_current:
        raise StaleSessionError(
            f"Session {session.id} has been modified in storage since it was loaded; {RELOAD}."
        )


def without_temporary(event: Event) -> Event:
    """Return an event without changes of `temp:` state, which is never stored; the event stays as it is."""
    kept = {
        key: value
        for key, value in event.actions.state_delta.items()
        if not key.startswith(State.TEMP_PREFIX)
    }
    if len(kept) == len(event.actions.state_delta):
        return event
    return event.model_copy(update={"actions": event.actions.model_copy(update={"state_delta": kept})})


def user_prefix(user: str) -> str:
    """Return the prefix of what a user has in the space of an app."""
    return f"user/{segment(user)}/"


def event_name(prefix: str, number: int) -> str:
    """Return the name of an event's document."""
    return f"{prefix}event/{number:012}"


async def read_session(space: Space, prefix: str) -> tuple[Head, Values] | None:
    """Return the head and the own state of a session."""
    found = await space.documents.entries(f"{prefix}head", f"{prefix}state")
    if f"{prefix}head" not in found:
        return None
    return Head(**found[f"{prefix}head"].value), found[f"{prefix}state"].value


def make_session(
    head: Head, own: Values, shared: tuple[Values, Values], events: list[Event], mark: Mark | None
) -> Session:
    """Return a session of ADK."""
    state = {
        **own,
        **{State.APP_PREFIX + key: value for key, value in shared[0].items()},
        **{State.USER_PREFIX + key: value for key, value in shared[1].items()},
    }
    session = Session(
        app_name=head.app, user_id=head.user, id=head.id, state=state, events=events, last_update_time=head.at
    )
    session._storage_update_marker = None if mark is None else str(mark)  # pyright: ignore[reportPrivateUsage]
    return session
