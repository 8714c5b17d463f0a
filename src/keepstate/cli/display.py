"""Output at a terminal: results and messages, rows and tables, values in one line, progress.

Stored text never reaches the terminal as it is: characters on which a terminal would act are escaped. At a
terminal a line is as wide as the window. Elsewhere long values are cut, but no row is.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from keepstate._deferral import defer_imports

if TYPE_CHECKING:
    import msgspec
    from rich import highlighter as _highlighter
    from rich import progress as _progress
    from rich import table as _table

    from keepstate.engine.history import commits as _commits
    from keepstate.values import builtin as _builtin
else:
    defer_imports(
        globals(),
        msgspec="msgspec",
        _highlighter="rich.highlighter",
        _progress="rich.progress",
        _table="rich.table",
        _commits="keepstate.engine.history.commits",
        _builtin="keepstate.values.builtin",
    )


NONE: Final = "keepstate: nothing to list"
_APART: Final = "  "
_TO: Final = " → "
_VALUE: Final = 100
_UNBOUND: Final = 100_000
"""A width that no row of a table reaches."""
_TIMES: Final = frozenset({"at", "until"})
"""The times of an answer whose names do not end with `_at`."""
_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_STYLES: Final = "\n\r\t\x1b\x07"
"""Control characters that rich writes itself: line ends, styles, moves of a progress bar, and links."""


class Terminal(Console):
    """A console that escapes control characters in what it prints, except those of its own styles.

    `app.run` handles a closed pipe.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; a text as `visible` returns it, line by line."""
        texts = (visible(one, keep="\n") if isinstance(one, str) else one for one in objects)
        super().print(*texts, **options)

    @property
    def file(self) -> IO[str]:
        """Return the stream, which escapes what is written to it."""
        is_plain = getattr(self, "_color_system", None) is None
        return cast("IO[str]", _Escaping(super().file, "\n" if is_plain else _STYLES))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:
        """Raise the error of a closed pipe, for `app.run`."""
        raise BrokenPipeError


class _Escaping:
    """A stream that escapes what is written to it, except the characters in `keep`."""

    def __init__(self, stream: IO[str], keep: str) -> None:
        self._stream, self._keep = stream, keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(visible(text, keep=self._keep))


def said() -> Console:
    """Return the console for messages and progress: standard error."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True)


def shown() -> Console:
    """Return the console for results: standard output."""
    return Terminal(highlight=False, soft_wrap=not sys.stdout.isatty())


def discard_output() -> None:
    """Discard unwritten output after a stream was closed. Otherwise Python writes it again as it exits."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def visible(text: str, *, keep: str = "") -> str:
    """Return text with its unprintable characters as JSON escapes, except those in `keep`.

    Unprintable are the control characters (C0, DEL, C1) and invisible ones, such as those that turn the
    direction of a line.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    if sign in _SHORT:
        return _SHORT[sign]
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def plain(text: str) -> Text:
    """Return stored text without markup: brackets are text, and control characters are escaped."""
    return Text(visible(text))


def styled(text: str, style: str) -> Text:
    """Return stored text in a style."""
    return Text(visible(text), style)


# ---- values


def log_to_stderr() -> None:
    """Print warnings and errors of the log on standard error, unless the application has set its log up."""
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(format=form, handlers=[logging.StreamHandler(said().file)])


def write_json(value: object) -> None:
    """Print one JSON document on one line."""
    sys.stdout.write(text_of(value) + "\n")
    sys.stdout.flush()


def text_of(value: object) -> str:
    """Return a stored value as one line of JSON."""
    return visible(msgspec.json.encode(_builtin.json_form(value)).decode())


def write_indented(value: object) -> None:
    """Print a stored value as JSON over several lines."""
    text = msgspec.json.format(text_of(value), indent=2)
    shown().print(_highlighter.JSONHighlighter()(Text(text)), soft_wrap=True)


def fields_of(value: object, *names: str) -> dict[str, Any]:
    """Return the named attributes of an object, to be printed as JSON."""
    return answer({name: getattr(value, name) for name in names})


def answer(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a command's answer with their times as text.

    A datetime under another name is a value of the application, which JSON shows with its type.
    """
    return {
        name: instant(value) if isinstance(value, datetime) and is_time(name) else value
        for name, value in fields.items()
    }


def is_time(name: str) -> bool:
    """Return whether a field of an answer is a time of the store."""
    return name in _TIMES or name.endswith("_at")


def commit_fields(commit: _commits.Commit) -> dict[str, Any]:
    """Return a commit as fields of an answer."""
    return answer(commit.to_dict() | {"created_at": commit.created_at})


def counted(number: int, noun: str) -> str:
    """Return a number and its noun."""
    if number != 1:
        noun = f"{noun[:-1]}ies" if noun.endswith("ry") else f"{noun}s"
    return f"{number:,} {noun}"


_NOTE: Final = 40
"""Characters of a note on a commit in its row."""


def shortened(text: str, width: int = _VALUE) -> str:
    """Return a text of at most `width` characters; a longer one is cut."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def room() -> int:
    """Return the width for a line of values."""
    console = shown()
    return max(console.width, 40) if console.is_terminal else _VALUE


def change(old: object, new: object, indent: int) -> Text:
    """Return the old and the new value in one line after other columns, cut to the part that differs."""
    width = max((room() - indent - cell_len(_TO)) // 2, 20)
    before, after = _cut(text_of(old), text_of(new), width)
    return Text.assemble((visible(before), "red"), (_TO, "dim"), (visible(after), "green"))


def _cut(old: str, new: str, width: int) -> tuple[str, str]:
    if max(len(old), len(new)) <= width:
        return old, new
    shared = next(
        (n for n, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )
    start = max(shared - width // 3, 0)
    begin = "…" if start else ""
    return shortened(begin + old[start:], width), shortened(begin + new[start:], width)


# ---- times, rows and tables


def utc(moment: datetime) -> str:
    """Return a time in UTC, in a form that `main@…` takes."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def instant(moment: datetime) -> str:
    """Return a time in UTC for JSON, with milliseconds unless they are zero."""
    moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="milliseconds" if moment.microsecond >= 1000 else "seconds") + "Z"


def commit_row(commit: _commits.Commit, *names: str) -> list[Text]:
    """Return a commit as a row; `names` are the branches and tags on it."""
    position = f"{commit.branch}#{commit.number}" if commit.number is not None else ""
    message = Text(visible(commit.message or ("merge" if len(commit.parents) > 1 else "")))
    if names:
        message = Text.assemble((f"({visible(', '.join(names))}) ", "bold green"), message)
    for key, note in commit.meta.items():
        message = Text.assemble(message, (f"  {visible(key)}={visible(shortened(note, _NOTE))}", "dim"))
    return [
        Text(visible(position), "yellow"),
        Text(commit.id[:10], "dim"),
        Text(utc(commit.created_at), "dim"),
        styled(commit.author or "-", "blue"),
        message,
    ]


def write_rows(rows: Sequence[Sequence[Text]]) -> None:
    """Print rows in columns; cut to one line each at a terminal; without rows, say so on standard error."""
    if not rows:
        write_none()
        return
    console = shown()
    widths = [max(map(cell_len, map(str, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        line = Text()
        for cell, width in zip(row[:-1], widths[:-1], strict=True):
            line += cell + Text(" " * (width - cell_len(str(cell))) + _APART)
        line += row[-1]
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


def write_lines(lines: Iterable[str]) -> None:
    """Print lines of stored text."""
    for line in lines:
        shown().print(plain(line))


def write_table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table of stored values under its heads; without rows, say so on standard error.

    At a terminal, cells are wrapped to the width of the window. Elsewhere each row is one line.
    """
    table = _table.Table(*heads, box=None, pad_edge=False)
    for row in rows:
        table.add_row(*(plain(str(cell)) for cell in row))
    if table.row_count:
        console = shown()
        if not console.is_terminal:
            console.width = _UNBOUND
        console.print(table)
    else:
        write_none()


def write_none() -> None:
    """Say on standard error that a listing is empty: the same words in all commands."""
    said().print(NONE)


def write_problem(what: str, text: str) -> None:
    """Print a line about something that is wrong."""
    shown().print(Text.assemble((f"{what}  ", "bold red"), visible(text)))


def items_of(value: object) -> list[tuple[object, object]]:
    """Return the items of a list with their indexes, or of a dict with their keys."""
    if isinstance(value, Mapping):
        return list(cast("Mapping[object, object]", value).items())
    if isinstance(value, list):
        return list(enumerate(cast("list[object]", value)))
    return []


@contextmanager
def progress(
    *columns: _progress.ProgressColumn, text: str = "", total: float | None = None
) -> Generator[Callable[..., None]]:
    """Show a progress bar at a terminal, and yield the function that updates it: `Progress.update`."""
    console = said()
    is_hidden = not console.is_terminal
    with _progress.Progress(
        *columns, _progress.TimeElapsedColumn(), console=console, transient=True, disable=is_hidden
    ) as bar:
        yield partial(bar.update, bar.add_task(visible(text), total=total))
