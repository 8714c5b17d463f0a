"""How histories look at a terminal: rows, values in one line, and messages that people can read.

At a terminal a line is as wide as the window; elsewhere values are cut, and never a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from keepstate.cli.chat import are_messages, beside, calls_of, content_of, gist, is_message
from keepstate.cli.session import plain, shown, text_of, visible, write_indented
from keepstate.engine.history.commits import Commit
from keepstate.engine.history.paths import format_path

_APART: Final = "  "
_TO: Final = " → "
_VALUE: Final = 100
_PIPED: Final = 200
_LINES: Final = 3
_LATEST: Final = 20
_ROLES: Final = {
    "system": "magenta",
    "developer": "magenta",
    "user": "green",
    "assistant": "cyan",
    "tool": "yellow",
}


def counted(number: int, noun: str) -> str:
    """Return a number and what it counts."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def shortened(text: str, width: int = _VALUE) -> str:
    """Return a text, its end cut off if it is longer."""
    return text if len(text) <= width else f"{text[: max(width - 1, 0)]}…"


def brief(value: object, width: int = _VALUE) -> str:
    """Return a value in one short line."""
    if is_message(value):
        return shortened(f"{value['role']}: {gist(value)}", width)
    return shortened(text_of(value), width)


def styled(text: str, style: str) -> Text:
    """Return stored text in a style."""
    return Text(visible(text), style)


def time_of(moment: datetime) -> str:
    """Return a time in UTC, in a form that `main@…` takes."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def commit_row(commit: Commit, *names: str) -> list[Text]:
    """Return a commit as a row; names are the branches and tags that stand on it."""
    place = f"{commit.branch}#{commit.number}" if commit.number is not None else ""
    message = Text(visible(commit.message or ("merge" if len(commit.parents) > 1 else "")))
    if names:
        message = Text.assemble((f"({visible(', '.join(names))}) ", "bold green"), message)
    return [
        Text(visible(place), "yellow"),
        Text(commit.id[:10], "dim"),
        Text(time_of(commit.created_at), "dim"),
        styled(commit.author or "-", "blue"),
        message,
    ]


def write_rows(rows: Sequence[Sequence[Text]], *, indent: str = "") -> None:
    """Print rows in columns; at a terminal what does not fit into a line is cut off."""
    console = shown()
    widths = [max(map(cell_len, map(str, column))) for column in zip(*rows, strict=True)]
    for row in rows:
        line = Text(indent)
        for cell, width in zip(row[:-1], widths[:-1], strict=True):
            line += cell + Text(" " * (width - cell_len(str(cell))) + _APART)
        line += row[-1]
        line.rstrip()
        if console.is_terminal:
            line.truncate(console.width, overflow="ellipsis")
        console.print(line, soft_wrap=True)


# ---- values


def write_state(state: Mapping[str, Any], more: Callable[[str], str], *, full: bool) -> None:
    """Print a state: a line for each key, and conversations as such.

    Args:
        state: The state.
        more: Returns the command that shows all of a list that is cut, given its path.
        full: Cuts nothing.
    """
    rows: list[tuple[Text, Text]] = []
    for key, value in state.items():
        if are_messages(value):
            _flush(rows)
            shown().print(
                Text.assemble(styled(key, "bold"), (f"{_APART}{counted(len(value), 'message')}", "dim"))
            )
            left = 0 if full else max(len(value) - _LATEST, 0)
            if left:
                shown().print(
                    Text(f"  … {left:,} before these: {visible(more(format_path((key,))))}", "dim"),
                    soft_wrap=True,
                )
            write_messages(value, full=full, first=left)
        elif full:
            shown().print(_key(key))
            write_value(value, full=True)
        else:
            rows.append((_key(key), plain(brief(value, room()))))
    _flush(rows)


def _key(key: str) -> Text:
    return styled(format_path((key,)), "bold")


def _flush(rows: list[tuple[Text, Text]]) -> None:
    if rows:
        write_rows(rows)
        rows.clear()


def write_value(value: object, *, full: bool) -> None:
    """Print one value: a message or a list of messages to be read, anything else as JSON."""
    if is_message(value):
        _write_message(value, None)
    elif are_messages(value):
        write_messages(value, full=full)
    else:
        write_indented(value)


def write_messages(messages: Sequence[dict[str, Any]], *, full: bool, first: int = 0) -> None:
    """Print messages from the first one asked for, each in a few lines, or in full."""
    console = shown()
    roles = max(cell_len(visible(message["role"])) for message in messages)
    for place, message in enumerate(messages[first:], first):
        if full:
            _write_message(message, place)
            continue
        gap = " " * (roles - cell_len(visible(message["role"]))) + _APART
        number = f"{place:>{len(str(len(messages)))}}{_APART}"
        head = Text.assemble((number, "dim"), _role(message), gap)
        for line in _beginning(gist(message), console, cell_len(str(head))):
            console.print(head + line, soft_wrap=True)
            head = Text(" " * cell_len(str(head)))


def _beginning(text: str, console: Console, indent: int) -> Iterator[Text]:
    """Yield the first lines of a text."""
    if not console.is_terminal:
        yield plain(shortened(text, _PIPED))
        return
    width = max(console.width - indent, 20)
    lines = plain(shortened(text, width * (_LINES + 1))).wrap(console, width)
    for number, line in enumerate(lines[:_LINES]):
        line.rstrip()
        if number == _LINES - 1 and len(lines) > _LINES:
            line.truncate(width - 1)
            line.append("…")
        yield line
    if not lines:
        yield Text()


def _write_message(message: dict[str, Any], place: int | None) -> None:
    console = shown()
    console.print(
        Text.assemble(("" if place is None else f"[{place}] ", "dim"), _role(message)), soft_wrap=True
    )
    for line in content_of(message).splitlines():
        console.print(plain(line), soft_wrap=not console.is_terminal)
    for name, arguments in calls_of(message):
        console.print(Text.assemble(("→ ", "dim"), styled(name, "bold"), f"({visible(arguments)})"))
    for name, value in beside(message).items():
        if value is not None:
            console.print(Text(f"{visible(name)}: {visible(brief(value, _PIPED))}", "dim"), soft_wrap=True)


def _role(message: dict[str, Any]) -> Text:
    role = message["role"]
    return styled(role, f"bold {_ROLES.get(role, 'white')}")


# ---- differences


def change(old: object, new: object, indent: int) -> Text:
    """Return how a value changed, both cut to where they begin to differ, to stand behind other columns."""
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


def room() -> int:
    """Return how wide a line of values may be."""
    console = shown()
    return max(console.width, 40) if console.is_terminal else _VALUE


def items_of(value: object) -> list[tuple[object, object]]:
    """Return the items of a list with their places, or of a dict with their keys."""
    if isinstance(value, dict):
        return list(cast("dict[object, object]", value).items())
    if isinstance(value, list):
        return list(enumerate(cast("list[object]", value)))
    return []
