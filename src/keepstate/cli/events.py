"""Commands on the events of a space: events, replay."""

from __future__ import annotations

from dataclasses import fields
from datetime import datetime
from pathlib import Path
from traceback import extract_tb, format_exception_only
from typing import Annotated, Any

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.display import fields_of, text_of, utc, write_none
from keepstate.cli.session import (
    PLAIN,
    Session,
    check_url,
    import_named,
    read_value,
    reject_memory,
    trace_from_environment,
)
from keepstate.engine.events.events import Events, EventStream
from keepstate.engine.events.folds import FoldEntry
from keepstate.engine.events.record import Event
from keepstate.engine.events.reducers import Fold
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError
from keepstate.opening import source_of

_LIMIT = 100
_FIELDS = ("position", *(part.name for part in fields(Event) if part.repr))


async def events(
    space: str,
    stream: str = "main",
    *,
    streams: Annotated[bool, Parameter(negative="", help="List the streams of the space instead.")] = False,
    after: Annotated[
        str | None, Parameter(help="Start after the event at this position of --json output.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="Print at most N events, instead of 100.")] = None,
    follow: Annotated[
        bool, Parameter(negative="", help="Then print new events as they come, until Ctrl-C.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Print the events of a stream in order.

    Args:
        space: The space.
        stream: The stream.
    """
    if follow and limit is not None:
        raise InvalidError("--follow has no end, and --limit is one; give one of them")
    if streams and (after is not None or limit is not None or follow):
        raise InvalidError("--streams lists names and prints no events; give it alone")
    if follow:
        reject_memory(check_url(session.chosen_url()))
    async with session.opened() as ks:
        found = ks.space(space).events
        if not follow:
            await _require_stream(found, space, None if streams else stream)
        if streams:
            async for name in found.streams():
                session.write(name, name)
        elif follow:
            async for event in found.follow(stream=stream, after=after):
                _show(event, session)
        else:
            most = _LIMIT if limit is None else limit
            page = await found.read(stream=stream, after=after, limit=most)
            for event in page:
                _show(event, session)
            if not page and not session.json:
                write_none()
    return exits.OK


async def replay(
    space: str,
    reducer: str,
    *,
    stream: Annotated[str, Parameter(help="The stream.")] = "main",
    initial: Annotated[str, Parameter(help="The state before the first event, as JSON.")] = "{}",
    at: Annotated[
        str | None, Parameter(help="Stop at the event of this number, or at a time with its zone.")
    ] = None,
    each: Annotated[bool, Parameter(negative="", help="Print the state after each event.")] = False,
    session: Session = PLAIN,
) -> int:
    """Print the state that a reducer computes from the events of a stream. Writes nothing.

    Args:
        space: The space.
        reducer: MODULE:FUNCTION; the function takes a state and an event, and returns the new state.
    """
    session.load()
    function, start = import_named(reducer, "MODULE:FUNCTION"), read_value(initial)
    if not callable(function):
        raise InvalidError(f"{reducer} is {function!r}; name a function of a state and an event")
    url = session.chosen_url()
    own = Keepstate(source_of(url, "async"), tenant=session.tenant, observe=trace_from_environment())
    async with session.opened(), own as ks:
        source = EventStream(ks.space(space), stream)
        await _require_stream(ks.space(space).events, space, stream)
        if at is not None:
            source = source.at(_moment(at))

        async def show_each(state: Any, event: Event) -> Any:
            try:
                state = await call_function(function, state, event)
            except Exception as error:  # anything that the application's own function raises
                raise InvalidError(_describe_failure(reducer, event, error)) from error
            if each:
                _show_state(FoldEntry(state, event.number, 1), session)
            return state

        last = await source.fold_entry(Fold(show_each, start, None, name=reducer))
        if not each:
            _show_state(last, session)
    return exits.OK


async def _require_stream(events: Events, space: str, stream: str | None) -> None:
    """Raise `NotFoundError` for an absent stream, or for None if there is none: the name may be mistyped."""
    if stream is not None and await events.last(stream) is not None:
        return
    known = [repr(name) async for name in events.streams()]
    if not known:
        raise NotFoundError(f"space {space!r} has no streams of events; `keepstate spaces` lists the spaces")
    if stream is not None:
        raise NotFoundError(f"space {space!r} has no stream {stream!r}; it has {', '.join(known)}")


def _describe_failure(reducer: str, event: Event, error: Exception) -> str:
    frame = extract_tb(error.__traceback__)[-1]
    reason = "".join(format_exception_only(error)).strip()
    return (
        f"{reducer} failed at event {event.number} ({event.type}): {reason} "
        f"({Path(frame.filename).name}, line {frame.lineno}); --each shows the states before it"
    )


def _moment(text: str) -> int | datetime:
    if text.isdecimal():
        return int(text)
    try:
        return datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidError(
            f"--at {text} is not a number of an event or a time; write 6553600 or 2026-11-21T10:00Z"
        ) from error


def _show_state(entry: FoldEntry, session: Session) -> None:
    text = "" if session.json else f"{entry.number or 0:>12}  {text_of(entry.state)}"
    session.write({"number": entry.number, "state": entry.state}, text)


def _show(event: Event, session: Session) -> None:
    words = filter(None, (event.type, event.author, event.id and f"#{event.id}"))
    parts = [utc(event.recorded_at), *words, "" if session.json else text_of(event.data)]
    session.write(fields_of(event, *_FIELDS), f"{event.number:>12}  {'  '.join(parts)}")
