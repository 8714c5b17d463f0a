"""Commands on LangGraph's checkpoints: import from its own savers, prune old ones."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import msgspec
from cyclopts import App, Parameter
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from keepstate.cli import exits
from keepstate.cli.display import counted, plain, progress, said, shown, write_json, write_problem
from keepstate.cli.maintenance import OLDER_THAN, age_of
from keepstate.cli.session import PLAIN, Session, check_url, reject_memory, require_file
from keepstate.errors import InvalidError, KeepstateError, MissingExtraError, NotFoundError
from keepstate.stores.urls import StoreUrl

if TYPE_CHECKING:
    from keepstate.adapters.langgraph.importer import ImportTotals
    from keepstate.adapters.langgraph.saver import KeepstateSaver

_SHOWN = 20

app = App(
    name="langgraph", help="Import LangGraph's checkpoints, and prune old ones.", help_format="markdown"
)


@app.command(name="import")
def import_(
    target: str | None = None,
    *,
    from_: Annotated[
        str, Parameter(name="--from", help="The saver's database: sqlite:///old.db or postgresql://…")
    ],
    thread: Annotated[
        tuple[str, ...], Parameter(negative="", help="Import only this thread; may be repeated.")
    ] = (),
    allow: Annotated[
        tuple[str, ...],
        Parameter(negative="", help="A class whose objects may come back, MODULE:CLASS; may be repeated."),
    ] = (),
    session: Session = PLAIN,
) -> int:
    """Import the checkpoints of LangGraph's own saver. Exit with 5 if one came out different.

    The source is only read. Checkpoints that are already there are not written again, so you can run an
    interrupted import again. At the end each checkpoint is read from both stores and compared. A checkpoint
    that cannot be read or stored ends the import of its thread, with exit code 1; run the import again to
    continue there.

    Args:
        target: The store to import into, instead of --url.
    """
    classes = _classes(allow)
    begun = perf_counter()
    with _extra():
        from keepstate.adapters.langgraph import importer, official
    with official.opened(from_, classes) as source, _progress() as tell:
        names = [name for name in source.named() if not thread or name.thread in thread]
        if not names:
            raise NotFoundError(f"there are no checkpoints {'of these threads ' if thread else ''}to import")
        url = _url(target, session, makes=True)
        with importer.ImportingSaver(url, tenant=session.tenant, allow=classes) as saver:
            totals, brought = importer.import_all(source, saver, names, tell)
        with _saver(target, session, classes) as saver:  # a new saver has no caches
            importer.compare(source, saver, brought, totals, tell)
    _show(totals, perf_counter() - begun, str(StoreUrl.parse(url)), session)
    if totals.different:
        return exits.DAMAGED
    return exits.FAILED if totals.unread else exits.OK


def _show(totals: ImportTotals, seconds: float, store: str, session: Session) -> None:
    if session.json:
        write_json({**msgspec.to_builtins(totals), "store": store, "seconds": round(seconds, 3)})
        return
    for what, found in (("different", totals.different), ("left out", totals.unread)):
        for one in found[:_SHOWN]:
            write_problem(what, one)
        if len(found) > _SHOWN:
            shown().print(plain(f"… and {len(found) - _SHOWN:,} more {what}"))
    what = f"{counted(totals.checkpoints, 'checkpoint')} of {counted(totals.threads, 'thread')}"
    done = f"{totals.added:,} imported into {store}, {totals.present:,} already there"
    verdict = f"{totals.compared:,} compared and equal"
    if totals.different:
        verdict += f", {len(totals.different):,} different"
    if totals.unread:
        verdict += f"; {counted(len(totals.unread), 'thread')} incomplete"
    shown().print(plain(f"{what} in {seconds:.1f} s: {done}; {verdict}"))


@app.command
def prune(
    threads: Annotated[tuple[str, ...], Parameter(help="The threads.")] = (),
    /,
    *,
    every: Annotated[bool, Parameter(negative="", help="Prune all threads of the store.")] = False,
    keep_last: Annotated[
        int | None, Parameter(help="Keep N checkpoints of each namespace of a thread.")
    ] = None,
    older_than: Annotated[str | None, OLDER_THAN] = None,
    dry_run: Annotated[bool, Parameter(negative="", help="Only report how many there are.")] = False,
    session: Session = PLAIN,
) -> int:
    """Delete old checkpoints of LangGraph's threads. The latest of each namespace stays.

    Args:
        threads: The threads.
    """
    if every is bool(threads):
        raise InvalidError("prune needs the names of threads, or --every; not both")
    age = age_of(keep_last, older_than)
    if isinstance(age, datetime):
        age = datetime.now(UTC) - age
    with _saver(None, session, ()) as saver:
        chosen = list(saver.threads()) if every else list(threads)
        if not every and (absent := sorted(set(chosen) - set(saver.threads()))):
            raise NotFoundError(f"there is no thread {absent[0]!r} with checkpoints")
        max_age_s = age.total_seconds() if isinstance(age, timedelta) else None
        pruned = {
            name: saver.prune([name], keep_last=keep_last, max_age_s=max_age_s, dry_run=dry_run)
            for name in chosen
        }
    total = sum(pruned.values())
    if session.json:
        write_json({"threads": pruned, "checkpoints": total, "dry_run": dry_run})
        return exits.OK
    for name, count in pruned.items():
        if count:
            shown().print(plain(f"{name}: {counted(count, 'checkpoint')}"))
    done = "would be deleted" if dry_run else "deleted"
    of = counted(sum(count > 0 for count in pruned.values()), "thread")
    shown().print(plain(f"{counted(total, 'checkpoint')} of {of} {done}"))
    return exits.OK


def _classes(allow: Sequence[str]) -> list[tuple[str, str]]:
    if allow:
        sys.path.insert(0, os.getcwd())  # as for --app: an application runs in its own folder
    return [_class(text) for text in allow]


def _class(text: str) -> tuple[str, str]:
    module, _, name = text.partition(":")
    if not module or not name:
        raise InvalidError(f"--allow {text} is not the name of a class; write MODULE:CLASS")
    with _extra():
        from keepstate.adapters.langgraph.classes import class_of
    class_of((module, name))
    return module, name


# ---- the store, and the output


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
    parsed = check_url(url)
    if makes:
        reject_memory(parsed)
        return url
    try:
        require_file(parsed)
    except NotFoundError as error:
        raise NotFoundError(
            f"there is no store at {parsed}; name the store of your graphs with --url"
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
def _progress() -> Generator[Callable[[str, int, int], None]]:
    begun = False
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with progress(*columns, text="reading") as update:

        def tell(what: str, done: int, count: int) -> None:
            nonlocal begun
            begun = begun or done > 0
            update(description=f"{what} checkpoints", completed=done, total=count)

        try:
            yield tell
        except KeepstateError:
            if begun:
                said().print("keepstate: run the import again to continue there", markup=False)
            raise
