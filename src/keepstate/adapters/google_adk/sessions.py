"""`KeepstateSessionService`: sessions of ADK, their events, and the state of sessions, users and apps.

A session has a head, its own state, and a document for each event, under the prefix of its generation; see
`Adapter.life`. The state of an app and that of a user are a document each:

    adk/APP               state                              of the app
    adk/~USER/APP         state                              of the user in the app
    adk/~USER/APP/ID      life/N/head, life/N/state, life/N/event/NUMBER

With `space_per="app"` all of it is in `adk/APP`, under `user/USER/` and `user/USER/session/ID/`. Next to each
shared state, `applied/EVENT` says for a day that the changes of an event are in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, TypeVar, Unpack

from keepstate.adapters.base import Adapter, AdapterOptions, BoundSpace, StoreLike, outlast_cancellation
from keepstate.adapters.google_adk.session_records import (
    RELOAD,
    UNKNOWN,
    Change,
    Head,
    Mark,
    Place,
    Places,
    Values,
    check_current,
    event_name,
    make_session,
    read_session,
    user_prefix,
    without_temporary,
)
from keepstate.engine.documents.documents import DocumentEntry
from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, CorruptError, InvalidError, MissingExtraError
from keepstate.names import DEFAULT_URL, segment
from keepstate.sessions.namespace import (
    ANY_USER,
    GENERATIONS,
    HEAD,
    HeadRecord,
    SessionGenerations,
    generation_prefix,
)

try:
    from google.adk.errors import StaleSessionError
    from google.adk.errors.already_exists_error import AlreadyExistsError
    from google.adk.errors.session_not_found_error import SessionNotFoundError
    from google.adk.events.event import Event
    from google.adk.platform import time as platform_time
    from google.adk.platform import uuid as platform_uuid
    from google.adk.sessions._session_util import extract_json_safe_state_delta
    from google.adk.sessions.base_session_service import (
        BaseSessionService,
        GetSessionConfig,
        ListSessionsResponse,
    )
    from google.adk.sessions.session import Session
except ImportError as error:
    raise MissingExtraError.of("google-adk", "google-adk") from error

T = TypeVar("T")

_APPLIED_S: Final = 86_400.0
"""Seconds for which an event that is sent again does not change the state of its app and user again."""
_TOGETHER: Final = 16
"""Sessions that a listing reads at the same time."""
_SCOPES: Final = ("app", "user")


class KeepstateSessionService(Adapter, BaseSessionService):
    """ADK's session service on a keepstate store. Give it to a `Runner`.

    Two writers of one session never interleave: an event that was made on an older state of the session is
    refused with `StaleSessionError`, in this process and in others.

    Each session has a space of its own, and so have the state of each user and of each app. An event that
    changes `app:` or `user:` state is then up to three batches: first the shared changes, once for each event
    id, and last the event. If the last one is refused, the shared changes remain. With `space_per="app"`
    there is one batch, and all writers of an app write to one space.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        guard_shared: Also refuse an event if `app:` or `user:` state which it changes has changed since the
            session was loaded. Otherwise the last writer of a key wins.
        space_per: `session` or `app`. Never change it for a store with sessions.
        options: `tenant`, `author`, `encryption`, `record` and `ttl_s`; see `AdapterOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind = "adk"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        guard_shared: bool = False,
        space_per: Literal["session", "app"] = "session",
        **options: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(store, **options)
        if space_per not in ("session", "app"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`space_per` is {space_per!r}; give 'session' or 'app'")
        self._guards_shared, self._space_per = check_flag("guard_shared", guard_shared), space_per

    # ---- ADK's methods

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Create a session, and return it with the state of its app and user.

        Args:
            app_name: The name of the app.
            user_id: The user.
            state: The first state. Keys that begin with `app:` or `user:` change the shared state.
            session_id: The id, without white space around it; by default a random one.

        Raises:
            AlreadyExistsError: The user has a session of this id in the app.
            InvalidError: An id is empty.
        """
        id = (session_id or "").strip() or platform_uuid.new_uuid()
        places = self._places(app_name, user_id, id)
        changes = extract_json_safe_state_delta(state or {})
        head = Head(app_name, user_id, id, 0, platform_time.get_time(), "")

        async def reject_existing(tx: Transaction) -> None:
            if await self._find(tx, places.session) is not None:
                raise AlreadyExistsError(f"Session with id {id} already exists.")

        async def create(tx: Transaction) -> str:
            await reject_existing(tx)
            prefix = await self._generations(tx, places.session).to_write(tx)
            await tx.documents.put(f"{prefix}head", head.stored())
            await tx.documents.put(f"{prefix}state", changes["session"])
            return prefix

        shared = [
            Change(scope, place, changes[scope])
            for scope, place in zip(_SCOPES, places.shared, strict=True)
            if changes[scope]
        ]
        prefix, _ = await self._apply(places, shared, reject_existing, create, "create a session")
        states, versions = await self.call(lambda ks: self._shared(ks, places))
        return make_session(head, changes["session"], states, [], Mark(prefix, 0, versions))

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Return a session with its events and state, or None if there is none.

        Args:
            app_name: The name of the app.
            user_id: The user.
            session_id: The id, without white space around it.
            config: Return only events since a time, and of these only the last ones. The last ones alone are
                read without the others.
        """
        places = self._places(app_name, user_id, session_id.strip())
        recent = None if config is None else config.num_recent_events
        since = None if config is None else config.after_timestamp

        async def work(ks: Keepstate) -> Session | None:
            space = self._on(ks, places.session)
            generations = self._generations(space, places.session)
            prefix = await generations.to_read()
            if prefix is None:
                return None
            found = await read_session(space, prefix)
            if found is None:
                return None
            head, own = found
            first = 0 if recent is None or since is not None else max(0, head.count - recent)
            listed = space.documents.items(
                prefix=f"{prefix}event/",
                after=event_name(prefix, first - 1) if first else None,
                before=event_name(prefix, head.count),
            )
            events = [Event.model_validate(stored) async for _, stored in listed]
            if len(events) != head.count - first:
                if await generations.to_read() == prefix:
                    raise CorruptError(
                        f"session {head.id!r} in {space.name!r} lacks events; verify the store"
                    )
                return None  # it was deleted during the read
            if since is not None:
                events = [event for event in events if event.timestamp >= since]
            if recent is not None:
                events = events[max(0, len(events) - recent) :]
            states, versions = await self._shared(ks, places)
            return make_session(head, own, states, events, Mark(prefix, head.count, versions))

        return await self.call(work)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Return the sessions of an app, or of one of its users, without events; the last used one last.

        It reads each session's head and state.
        """
        app = _check_id("app_name", app_name)
        user = None if user_id is None else _check_id("user_id", user_id)
        if self._space_per == "app":
            found = await self.call(lambda ks: self._list_in_app(ks, app, user))
        else:
            found = list[tuple[Head, Values]]()
            names = await self.call(lambda ks: self._names(ks, app, user))
            for begin in range(0, len(names), _TOGETHER):
                reads = [self.call(self._reader(name)) for name in names[begin : begin + _TOGETHER]]
                found += [each for each in await asyncio.gather(*reads) if each is not None]
        found = [each for each in found if each[0].app == app and user in (None, each[0].user)]
        states: dict[str, tuple[Values, Values]] = {}
        for each in {head.user for head, _ in found}:
            states[each], _ = await self.call(partial(self._shared, places=self._places(app, each, "")))
        sessions = [make_session(head, own, states[head.user], [], None) for head, own in found]
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Delete a session with its events. The state of its user and app stays."""
        place = self._places(app_name, user_id, session_id.strip()).session

        async def work(ks: Keepstate) -> None:
            generations = self._generations(self._on(ks, place), place)
            await generations.end()
            await generations.sweep()

        await outlast_cancellation(self.call(work))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Return the state of a user in an app; its keys are without `user:`."""
        places = self._places(app_name, user_id, "")
        states, _ = await self.call(lambda ks: self._shared(ks, places))
        return states[1]

    async def append_event(self, session: Session, event: Event) -> Event:
        """Store an event and its changes of state, and add it to the session.

        The session changes only if the event was stored. A partial event is not stored. An event that the
        session has already is not stored again, nor one that is sent again because the first call failed
        after it was stored.

        Raises:
            StaleSessionError: The session was modified in storage since it was loaded; or, with
                `guard_shared`, shared state that the event changes was. Load the session again.
            SessionNotFoundError: The session was deleted, or has ended.
        """
        if event.partial:
            return event
        trimmed = without_temporary(event)
        if any(own.id == event.id and own == trimmed for own in session.events):
            return event
        places = self._places(session.app_name, session.user_id, session.id)
        changes = extract_json_safe_state_delta(trimmed.actions.state_delta)
        stored = trimmed.model_dump(mode="json", exclude_none=True)
        mark = Mark.of(session)

        async def find(tx: Transaction) -> tuple[str, Head, bool]:
            if mark is not None:  # one read of all that follows
                names = (f"{mark.prefix}head", f"{mark.prefix}state")
                await tx.documents.entries(places.session.prefix + HEAD, *names)
            found = await self._find(tx, places.session)
            if found is None:
                raise SessionNotFoundError(f"Session {session.id} not found.")
            prefix, head = found
            is_stored = mark is not None and mark.is_before(prefix, head) and head.last == event.id
            if not is_stored:
                check_current(session, mark, prefix, head)
            return prefix, head, is_stored

        async def append(tx: Transaction) -> tuple[str, int]:
            prefix, head, is_stored = await find(tx)
            if is_stored:
                return prefix, head.count
            await tx.documents.put(event_name(prefix, head.count), stored)
            if changes["session"]:
                own = await tx.documents.get(f"{prefix}state", {})
                await tx.documents.put(f"{prefix}state", {**own, **changes["session"]})
            new = replace(head, count=head.count + 1, at=event.timestamp, last=event.id)
            await tx.documents.put(f"{prefix}head", new.stored())
            return prefix, new.count

        versions = (UNKNOWN, UNKNOWN) if mark is None else mark.versions
        shared = [
            Change(scope, place, changes[scope], event.id, version)
            for scope, place, version in zip(_SCOPES, places.shared, versions, strict=True)
            if changes[scope]
        ]
        message = f"append an event of {event.author}"
        (prefix, count), written = await self._apply(places, shared, find, append, message)
        app, user = (written.get(scope, known) for scope, known in zip(_SCOPES, versions, strict=True))
        self._apply_temp_state(session, event)
        event = self._trim_temp_delta_state(event)
        session.last_update_time = event.timestamp
        session._storage_update_marker = str(Mark(prefix, count, (app, user)))  # pyright: ignore[reportPrivateUsage]
        return self._commit_event_to_session(session, event)

    # ---- ends

    async def sweep_space(self, space: Space) -> int:
        """Delete the documents of sessions that have ended or were deleted, and return their number."""
        places = [
            Place(space.name, key.removesuffix(GENERATIONS))
            async for key in space.documents.keys(f"*{GENERATIONS}")
        ]
        return sum([await self._generations(space, place).sweep() for place in places])

    async def erase(self, owner: str) -> Erased:
        """Erase all sessions of a user, and the user's state in all apps, with their logs and histories.

        The state of apps stays. With `space_per="app"`, older positions in the log of a space that had data
        of the user raise `CompactedError`; see `Space.expunge`. An interrupted call is completed by the next
        one. What a writer stores for the user during the call may remain.
        """
        erased = await super().erase(owner)
        prefix = user_prefix(owner)

        async def work(ks: Keepstate) -> list[Erased]:
            done: list[Erased] = []
            async for name in ks.spaces(f"{self.kind}/"):
                space = ks.space(name, record=self.records)
                if [key async for key in space.documents.keys(prefix=prefix, limit=1)]:
                    done.append(await space.expunge(prefix))
            return done

        for each in await self.call(work):
            erased = Erased(
                erased.spaces + each.spaces,
                erased.entries + each.entries,
                erased.size_bytes + each.size_bytes,
                [*erased.archives, *each.archives],
                sorted({*erased.not_reached, *each.not_reached}),
            )
        return erased

    def conflict(self, error: ConflictError) -> Exception:
        """Return ADK's error for a conflict."""
        return StaleSessionError(f"The session is being modified in storage by others: {error}; {RELOAD}.")

    # ---- places

    def _places(self, app_name: str, user_id: str, session_id: str) -> Places:
        app, user = _check_id("app_name", app_name), _check_id("user_id", user_id)
        id = check_text("session_id", session_id)
        if self._space_per == "app":
            space, under = self.space_name(app), user_prefix(user)
            session = Place(space, f"{under}session/{segment(id)}/")
            return Places((Place(space), Place(space, under)), session)
        shared = Place(self.space_name(app)), Place(self.space_name(app, owner=user))
        return Places(shared, Place(self.space_name(app, id, owner=user)))

    def _on(self, ks: Keepstate, place: Place) -> Space:
        return ks.space(place.space, record=self.records)

    def _generations(self, target: Space | Transaction, place: Place) -> SessionGenerations:
        return SessionGenerations(
            target, place.prefix, what="the session", user_id=ANY_USER, ttl_s=self.ttl_s
        )

    # ---- writing

    async def _apply(
        self,
        places: Places,
        shared: Sequence[Change],
        check: Callable[[Transaction], Awaitable[object]],
        write: Callable[[Transaction], Awaitable[T]],
        message: str,
    ) -> tuple[T, dict[str, int]]:
        """Apply changes of shared state and a write to the session.

        Args:
            places: The places of the session.
            shared: The changes of shared state.
            check: Raises the error of a write that would be refused, before shared state is changed.
            write: Writes to the session's space. It makes the same checks.
            message: The purpose of the write.

        Returns:
            The result of `write`, and the new version of each shared state that was changed.
        """
        session = BoundSpace(self, places.session.space)

        async def together(tx: Transaction) -> tuple[T, list[str]]:
            scopes = [each.scope for each in shared if await self._merge(tx, each)]
            return await write(tx), scopes

        if self._space_per == "app":
            applied = await session.transact(together, message=message)
            result, scopes = applied.value
            return result, dict.fromkeys(scopes, applied.revision)
        written: dict[str, int] = {}
        if shared:
            await session.transact(check)
        for each in shared if len(shared) > 1 else ():
            await BoundSpace(self, each.place.space).transact(partial(self._reject_moved, change=each))
        for each in shared:
            space = BoundSpace(self, each.place.space)
            merged = await space.transact(partial(self._merge, change=each), message=message)
            if merged.value:
                written[each.scope] = merged.revision
        return (await session.transact(write, message=message)).value, written

    async def _merge(self, tx: Transaction, change: Change) -> bool:
        """Change a shared state, and return True; or False if the event has changed it already."""
        state, applied = f"{change.place.prefix}state", change.applied
        found = await self._reject_moved(tx, change)
        if applied in found:
            return False
        if applied is not None:
            await tx.documents.put(applied, True, ttl_s=_APPLIED_S)
        old: Values = found[state].value if state in found else {}
        await tx.documents.put(state, {**old, **change.values})
        return True

    async def _reject_moved(self, tx: Transaction, change: Change) -> dict[str, DocumentEntry[Any]]:
        """Return the stored state, and whether the event has changed it already.

        Raises:
            StaleSessionError: It is guarded, and at another version than the session knows.
        """
        state, applied = f"{change.place.prefix}state", change.applied
        found = await tx.documents.entries(state, *([] if applied is None else [applied]))
        version = found[state].version if state in found else 0
        if self._guards_shared and applied not in (None, *found) and version != change.version:
            raise StaleSessionError(
                f"The state of the {change.scope} has been modified in storage since the session was loaded; "
                f"{RELOAD}."
            )
        return found

    # ---- reading

    async def _find(self, tx: Transaction, place: Place) -> tuple[str, Head] | None:
        """Return the prefix and the head of a session that exists."""
        prefix = await self._generations(tx, place).to_read()
        if prefix is None or (stored := await tx.documents.get(f"{prefix}head")) is None:
            return None
        return prefix, Head(**stored)

    async def _shared(self, ks: Keepstate, places: Places) -> tuple[tuple[Values, Values], tuple[int, int]]:
        """Return the state of the app and that of the user, and their versions."""
        entries = [
            await self._on(ks, place).documents.entry(f"{place.prefix}state") for place in places.shared
        ]
        states: list[Values] = [{} if entry is None else entry.value for entry in entries]
        versions = [0 if entry is None else entry.version for entry in entries]
        return (states[0], states[1]), (versions[0], versions[1])

    async def _names(self, ks: Keepstate, app: str, user: str | None) -> list[str]:
        """Return the names of all spaces that may have a session of the app."""
        under = f"{self.kind}/" if user is None else f"{self.space_name(owner=user)}/"
        names = [name async for name in ks.spaces(under) if name.startswith(f"{self.kind}/~")]
        return [name for name in names if _may_be_session(name, segment(app))]

    def _reader(self, name: str) -> Callable[[Keepstate], Coroutine[Any, Any, tuple[Head, Values] | None]]:
        async def work(ks: Keepstate) -> tuple[Head, Values] | None:
            space = ks.space(name, record=self.records)
            generation = await space.documents.get(HEAD, type=HeadRecord)
            return (
                None
                if generation is None
                else await read_session(space, generation_prefix("", generation.life))
            )

        return work

    async def _list_in_app(self, ks: Keepstate, app: str, user: str | None) -> list[tuple[Head, Values]]:
        space = ks.space(self.space_name(app), record=self.records)
        under = "user/" if user is None else user_prefix(user)
        prefixes = [
            generation_prefix(key.removesuffix(HEAD), record.life)
            async for key, record in space.documents.items(f"*/{HEAD}", prefix=under)
        ]
        return [found for prefix in prefixes if (found := await read_session(space, prefix)) is not None]


def _check_id(name: str, id: str) -> str:
    if not check_text(name, id):
        raise InvalidError(f"`{name}` is empty; sessions belong to an app and a user")
    return id


def _may_be_session(name: str, app: str) -> bool:
    """Return whether a space of a user may have a session of an app, given its segment.

    Too long names have one segment for all ids, so their heads decide.
    """
    _, _, *ids = name.split("/")
    return ids[0] == app if len(ids) > 1 else ids[0] != app
