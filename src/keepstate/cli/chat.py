"""Messages of a chat in the chat-completions format: how to recognize, summarize and print them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from keepstate._deferral import defer_imports
from keepstate.cli.display import (
    counted,
    plain,
    room,
    shortened,
    shown,
    styled,
    text_of,
    visible,
    write_indented,
    write_rows,
)

if TYPE_CHECKING:
    from keepstate.engine.history import paths as _paths
else:
    defer_imports(
        globals(),
        _paths="keepstate.engine.history.paths",
    )


Message = dict[str, Any]

_OWN_FIELDS: Final = frozenset({"role", "content", "tool_calls"})
_APART: Final = "  "
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


def is_message(value: object) -> TypeGuard[Message]:
    """Return whether a value is a message: an object with a text `role`."""
    return isinstance(value, dict) and isinstance(cast("Message", value).get("role"), str)


def are_messages(value: object) -> TypeGuard[list[Message]]:
    """Return whether a value is a list of messages with at least one."""
    if not isinstance(value, list):
        return False
    items = cast("list[object]", value)
    return bool(items) and all(map(is_message, items))


# ---- the parts of a message


def content_of(message: Message) -> str:
    """Return the text of all parts of a message; a part that is not text as JSON."""
    content: object = message.get("content", message.get("parts", message.get("items")))
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "\n".join(_as_text(_field(part, "text") or part) for part in cast("list[object]", content))
    return text_of(content)


def calls_of(message: Message) -> list[tuple[str, str]]:
    """Return the name and the arguments of each tool that a message calls."""
    calls = message.get("tool_calls")
    return [_call(call) for call in cast("list[object]", calls)] if isinstance(calls, list) else []


def _call(call: object) -> tuple[str, str]:
    function = _field(call, "function")
    name = _field(function, "name")
    if not isinstance(name, str):
        return "?", text_of(call)
    return name, _as_text(_field(function, "arguments"))


def _as_text(value: object) -> str:
    return value if isinstance(value, str) else text_of(value)


def _field(value: object, name: str) -> object:
    return cast("Message", value).get(name) if isinstance(value, dict) else None


def gist(message: Message) -> str:
    """Return a message as one line: its text and the tools that it calls."""
    text = " ".join(content_of(message).split())
    called = "; ".join(f"→ {name}({arguments})" for name, arguments in calls_of(message))
    name = message.get("name")
    answer = f"{name} ⇒ {text}" if message["role"] == "tool" and isinstance(name, str) else text
    return " ".join(filter(None, (answer, called)))


def brief(value: object, width: int | None = None) -> str:
    """Return a value, or the gist of a message, in one line of at most `width` characters."""
    text = f"{value['role']}: {gist(value)}" if is_message(value) else text_of(value)
    return shortened(text) if width is None else shortened(text, width)


# ---- printing


def write_state(state: Mapping[str, Any], more: Callable[[str], str], *, full: bool) -> None:
    """Print a state: a line for each key, and conversations message by message.

    Args:
        state: The state.
        more: Returns the command that prints the whole of a list, given its path.
        full: Print everything in full.
    """
    rows: list[tuple[Text, Text]] = []
    for key, value in state.items():
        if are_messages(value):
            _flush(rows)
            count = f"{_APART}{counted(len(value), 'message')}"
            shown().print(Text.assemble(styled(key, "bold"), (count, "dim")))
            left = 0 if full else max(len(value) - _LATEST, 0)
            if left:
                hint = f"  … {left:,} before these: {visible(more(_paths.format_path((key,))))}"
                shown().print(Text(hint, "dim"), soft_wrap=True)
            write_messages(value, full=full, first=left)
        elif full:
            shown().print(_key(key))
            write_value(value, full=True)
        else:
            rows.append((_key(key), plain(brief(value, room()))))
    _flush(rows)


def _key(key: str) -> Text:
    return styled(_paths.format_path((key,)), "bold")


def _flush(rows: list[tuple[Text, Text]]) -> None:
    if rows:
        write_rows(rows)
        rows.clear()


def write_value(value: object, *, full: bool) -> None:
    """Print one value: messages in readable form, anything else as JSON."""
    if is_message(value):
        _write_message(value, "")
    elif are_messages(value):
        write_messages(value, full=full)
    else:
        write_indented(value)


def write_messages(messages: Sequence[Message], *, full: bool, first: int = 0) -> None:
    """Print the messages from index `first` on, each in a few lines or in full."""
    console = shown()
    roles = max(cell_len(visible(message["role"])) for message in messages)
    for index, message in enumerate(messages[first:], first):
        if full:
            _write_message(message, f"[{index}] ")
            continue
        gap = " " * (roles - cell_len(visible(message["role"]))) + _APART
        number = f"{index:>{len(str(len(messages)))}}{_APART}"
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


def _write_message(message: Message, number: str) -> None:
    console = shown()
    console.print(Text.assemble((number, "dim"), _role(message)), soft_wrap=True)
    for line in content_of(message).splitlines():
        console.print(plain(line), soft_wrap=not console.is_terminal)
    for name, arguments in calls_of(message):
        console.print(Text.assemble(("→ ", "dim"), styled(name, "bold"), f"({visible(arguments)})"))
    for name, value in message.items():
        if name not in _OWN_FIELDS and value is not None:
            console.print(Text(f"{visible(name)}: {visible(brief(value, _PIPED))}", "dim"), soft_wrap=True)


def _role(message: Message) -> Text:
    role = message["role"]
    return styled(role, f"bold {_ROLES.get(role, 'white')}")
