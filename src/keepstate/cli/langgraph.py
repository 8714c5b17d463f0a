"""LangGraph's checkpoints at a terminal: those of its own savers brought in, and old ones let go of."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from keepstate.cli import exits
from keepstate.cli.display import counted
from keepstate.cli.maintenance import age_of
from keepstate.cli.session import (
    Session,
    checked,
    plain,
    refuse_absent,
    refuse_memory,
    said,
    shown,
    visible,
    write_json,
)
from keepstate.errors import InvalidError, KeepstateError, MissingExtraError, NotFoundError
from keepstate.stores.urls import StoreUrl

if TYPE_CHECKING:
    from keepstate.adapters.langgraph.importer import TakenOver, Tell
    from keepstate.adapters.langgraph.saver import KeepstateSaver

_PLAIN = Session()
_SHOWN = 20

app = App(name="langgraph", help="Bring LangGraph's checkpoints in, and let go of old ones.")


@app.command(name="import")
def import_(
    target: str | None = None,
    *,
    from_: Annotated[
        str, Parameter(name="--from", help="What LangGraph's saver kept: sqlite:///old.db or postgresql://…")
    ],
    thread: Annotated[
        tuple[str, ...], Parameter(negative="", help="Only this thread; may be repeated.")
    ] = (),
    allow: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="A class that may come back, MODULE:CLASS; may be repeated."),
    ] = (),
    session: Session = _PLAIN,
) -> int:
    """Take over what LangGraph's own saver has stored; exit 5 if something came out different.

    The source is only read. What is there already is not written again: an import that was interrupted goes
    on where it stopped. At the end each checkpoint is read from both and compared. A thread with a checkpoint
    that cannot be read or stored ends before it: exit 1, and it goes on there when it is run again.

    Args:
        target: The store to bring it to, if --url does not say.
    """
    classes = _classes(allow)
    begun = perf_counter()
    with _extra():
        from keepstate.adapters.langgraph import importer, official
    with official.opened(from_, classes) as source, _progress() as tell:
        names = [name for name in source.named() if not thread or name.thread in thread]
        if not names:
            raise NotFoundError(f"there is no checkpoint {'of these threads ' if thread else ''}to bring in")
        url = _url(target, session, makes=True)
        with importer.ImportingSaver(url, tenant=session.tenant, allow=classes) as saver:
            totals, brought = importer.take_over(source, saver, names, tell)
        with _saver(target, session, classes) as saver:  # opened anew, it remembers nothing
            importer.compare(source, saver, brought, totals, tell)
    _show(totals, perf_counter() - begun, str(StoreUrl.parse(url)), session)
    if totals.different:
        return exits.DAMAGED
    return exits.FAILED if totals.unread else exits.OK


def _show(totals: TakenOver, seconds: float, store: str, session: Session) -> None:
    if session.json:
        write_json({**msgspec.to_builtins(totals), "store": store, "seconds": round(seconds, 3)})
        return
    _list("different", totals.different)
    _list("left out", totals.unread)
    what = f"{counted(totals.checkpoints, 'checkpoint')} of {counted(totals.threads, 'thread')}"
    done = f"{totals.added:,} brought into {store}, {totals.present:,} there already"
    verdict = f"{totals.compared:,} compared and the same"
    if totals.different:
        verdict += f", {len(totals.different):,} different"
    if totals.unread:
        verdict += f"; {counted(len(totals.unread), 'thread')} not whole"
    shown().print(plain(f"{what} in {seconds:.1f} s: {done}; {verdict}"))


def _list(what: str, found: Sequence[str]) -> None:
    for one in found[:_SHOWN]:
        shown().print(Text.assemble((f"{what}  ", "bold red"), visible(one)))
    if len(found) > _SHOWN:
        shown().print(plain(f"… and {len(found) - _SHOWN:,} more {what}"))


@app.command
def prune(
    threads: Annotated[tuple[str, ...], Parameter(help="The threads.")] = (),
    /,
    *,
    every: Annotated[bool, Parameter(negative="", help="All threads of the store.")] = False,
    keep_last: Annotated[
        int | None, Parameter(help="Keep so many checkpoints of each namespace of a thread.")
    ] = None,
    older_than: Annotated[
        str | None,
        Parameter(help="Let go of what is older: 90s, 30m, 12h, 30d, 8w, or a time with its zone."),
    ] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only say how many there are.")] = False,
    session: Session = _PLAIN,
) -> int:
    """Let go of old checkpoints of LangGraph's threads. The latest of each namespace stays.

    Args:
        threads: The threads.
    """
    if every is bool(threads):
        raise InvalidError("pruning needs the names of threads, or --every; not both")
    if keep_last is None and older_than is None:
        raise InvalidError("pruning needs --keep-last N or --older-than 30d, what is to be kept")
    max_age_s = None if older_than is None else _seconds(older_than)
    with _saver(None, session, ()) as saver:
        chosen = list(saver.threads()) if every else list(threads)
        if not every and (absent := sorted(set(chosen) - set(saver.threads()))):
            raise NotFoundError(f"there is no thread {absent[0]!r} with checkpoints")
        gone = {
            name: saver.prune([name], keep_last=keep_last, max_age_s=max_age_s, dry_run=dry_run)
            for name in chosen
        }
    if session.json:
        write_json({"threads": gone, "checkpoints": sum(gone.values()), "dry_run": dry_run})
        return exits.OK
    for name, count in gone.items():
        if count:
            shown().print(plain(f"{name}: {counted(count, 'checkpoint')}"))
    done = "would be let go of" if dry_run else "let go of"
    of = counted(sum(count > 0 for count in gone.values()), "thread")
    shown().print(plain(f"{counted(sum(gone.values()), 'checkpoint')} of {of} {done}"))
    return exits.OK


def _seconds(text: str) -> float:
    age = age_of(text)
    return (age if isinstance(age, timedelta) else datetime.now(UTC) - age).total_seconds()


def _classes(allow: Sequence[str]) -> list[tuple[str, str]]:
    if allow:
        sys.path.insert(0, os.getcwd())  # as --app does: an application is run where it lies
    return [_class(text) for text in allow]


def _class(text: str) -> tuple[str, str]:
    module, _, name = text.partition(":")
    if not module or not name:
        raise InvalidError(f"--allow {text} names no class; write MODULE:CLASS")
    with _extra():
        from keepstate.adapters.langgraph.classes import class_of
    class_of((module, name))
    return module, name


# ---- the store, and what people see


@contextmanager
def _saver(
    target: str | None, session: Session, allow: Sequence[tuple[str, ...]]
) -> Generator[KeepstateSaver]:
    with _extra():
        from keepstate.adapters.langgraph.saver import KeepstateSaver
    with KeepstateSaver(_url(target, session), tenant=session.tenant, allow=allow) as saver:
        yield saver


def _url(target: str | None, session: Session, *, makes: bool = False) -> str:
    session.load()
    url = target or session.chosen_url()
    parsed = checked(url)
    if makes:
        refuse_memory(parsed)
    else:
        try:
            refuse_absent(parsed)
        except NotFoundError as error:
            raise NotFoundError(
                f"there is no store at {parsed}; name that of your graphs with --url"
            ) from error
    return url


@contextmanager
def _extra() -> Generator[None]:
    try:
        yield
    except MissingExtraError:
        raise
    except ImportError as error:
        install = "pip install 'keepstate[langgraph]'"
        raise MissingExtraError(
            f"this command needs LangGraph ({error}): {install}", install=install
        ) from error


@contextmanager
def _progress() -> Generator[Tell]:
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    console, begun = said(), False
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading")

        def tell(what: str, done: int, count: int) -> None:
            nonlocal begun
            begun = begun or done > 0
            bar.update(task, description=f"{what} checkpoints", completed=done, total=count)

        try:
            yield tell
        except KeepstateError:
            if begun:
                console.print("keepstate: the import goes on there when it is run again", markup=False)
            raise
