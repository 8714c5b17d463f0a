"""The events of a space: events, replay."""

from __future__ import annotations

import sys
from dataclasses import fields
from datetime import datetime
from importlib import import_module
from pathlib import Path
from traceback import extract_tb, format_exception_only
from typing import Annotated, Any

from cyclopts import Parameter

from keepstate.cli import exits
from keepstate.cli.session import (
    Session,
    checked,
    plain,
    read_value,
    refuse_memory,
    shown,
    text_of,
    write_json,
)
from keepstate.engine.events.events import Events, EventStream
from keepstate.engine.events.folds import FoldEntry
from keepstate.engine.events.record import Event
from keepstate.engine.events.reducers import Fold
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError
from keepstate.opening import source_of

_PLAIN = Session()
_LIMIT = 100
_SHOWN = ("position", *(part.name for part in fields(Event) if part.repr))


async def events(
    space: str,
    stream: str = "main",
    *,
    streams: Annotated[bool, Parameter(negative="", help="List the streams of the space instead.")] = False,
    after: Annotated[
        str | None, Parameter(help="Go on behind the event of this position, as --json shows it.")
    ] = None,
    limit: Annotated[int | None, Parameter(help="How many at the most; 100 if not given.")] = None,
    follow: Annotated[bool, Parameter(negative="", help="Then print new ones as they come.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Print the events of a stream in order.

    Args:
        space: The space.
        stream: The stream.
    """
    if follow and limit is not None:
        raise InvalidError("--follow has no end, and --limit is one; give one of them")
    if streams and (after is not None or limit is not None or follow):
        raise InvalidError("--streams lists names, and prints no events; give it alone")
    if follow:
        refuse_memory(checked(session.chosen_url()))
    async with session.opened() as ks:
        found = ks.space(space).events
        if not follow:
            await _refuse_nothing(found, space, None if streams else stream)
        if streams:
            async for name in found.streams():
                write_json(name) if session.json else shown().print(plain(name))
        elif follow:
            async for event in found.follow(stream=stream, after=after):
                _show(event, session)
        else:
            most = _LIMIT if limit is None else limit
            for event in await found.read(stream=stream, after=after, limit=most):
                _show(event, session)
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
    session: Session = _PLAIN,
) -> int:
    """Print the state that a reducer makes of the events of a stream; writes nothing.

    Args:
        space: The space.
        reducer: MODULE:FUNCTION; the function takes a state and an event, and returns the state after it.
    """
    session.load()
    function, start = _imported(reducer), read_value(initial)
    url = session.chosen_url()
    async with session.opened(), Keepstate(source_of(url, "async"), tenant=session.tenant) as ks:
        told = EventStream(ks.space(space), stream)
        await _refuse_nothing(ks.space(space).events, space, stream)
        if at is not None:
            told = told.at(_moment(at))

        async def shown_each(state: Any, event: Event) -> Any:
            try:
                state = await call_function(function, state, event)
            except Exception as error:  # whatever the application's own function raises
                raise InvalidError(_failed(reducer, event, error)) from error
            if each:
                _show_state(FoldEntry(state, event.number, 1), session)
            return state

        last = await told.fold_entry(Fold(shown_each, start, None, name=reducer))
        if not each:
            _show_state(last, session)
    return exits.OK


def _imported(name: str) -> Any:
    module, colon, function = name.partition(":")
    if not colon:
        raise InvalidError(f"{name!r} names no function; write MODULE:FUNCTION")
    if "" not in sys.path:
        sys.path.insert(0, "")
    try:
        found: Any = getattr(import_module(module), function)
    except Exception as error:  # whatever the application's own module raises
        raise InvalidError(f"{name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(found):
        raise InvalidError(f"{name} is {found!r}; name a function of a state and an event")
    return found


async def _refuse_nothing(events: Events, space: str, stream: str | None) -> None:
    """Raise `NotFoundError` where there is no such stream, or none at all: the name may be mistyped."""
    if stream is not None and await events.last(stream) is not None:
        return
    known = [repr(name) async for name in events.streams()]
    if not known:
        raise NotFoundError(f"space {space!r} has no streams of events; `keepstate spaces` lists the spaces")
    if stream is not None:
        raise NotFoundError(f"space {space!r} has no stream {stream!r}; it has {', '.join(known)}")


def _failed(reducer: str, event: Event, error: Exception) -> str:
    place = extract_tb(error.__traceback__)[-1]
    told = "".join(format_exception_only(error)).strip()
    return (
        f"{reducer} failed at event {event.number} ({event.type}): {told} "
        f"({Path(place.filename).name}, line {place.lineno}); --each shows the states before it"
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
    if session.json:
        write_json({"number": entry.number, "state": entry.state})
    else:
        shown().print(plain(f"{entry.number or 0:>12}  {text_of(entry.state)}"))


def _show(event: Event, session: Session) -> None:
    if session.json:
        write_json({name: getattr(event, name) for name in _SHOWN})
        return
    told = [event.recorded_at.isoformat(sep=" ", timespec="seconds")]
    told += [word for word in (event.type, event.author, event.id and f"#{event.id}") if word]
    shown().print(plain(f"{event.number:>12}  {'  '.join(told)}  {text_of(event.data)}"))
