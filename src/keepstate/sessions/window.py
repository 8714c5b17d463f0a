"""Which messages of a conversation are in an agent's context: a budget of tokens, kept by rules. Pure.

What belongs together leaves together: a message that calls tools and the results of these calls are one
group. System and pinned messages never leave. The newest group alone may be cut to fit; nothing else is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.builtin import json_form
from keepstate.values.schema import register

Message: TypeAlias = dict[str, Any]
Counter: TypeAlias = Callable[[Message], int]

CUT: Final = " […]"
"""Ends a text of which a part was left out."""
_SYSTEM, _PINNED, _PLAIN = "system", "pinned", "plain"
_BY_MESSAGE: Final = 4
_BYTES_BY_TOKEN: Final = 4
_LEAST_CUT: Final = 16
"""A message of which less would be left is left out whole."""
_SUMMARY_SHARE: Final = 4
"""A summary has at most this part of the budget."""


def estimate_tokens(message: Message) -> int:
    """Returns about how many tokens a message has: 4, and one for each 4 bytes of what it says.

    English text of today's models comes within a fifth of that; code and other languages differ more.
    """
    size = 0
    for name, part in message.items():
        if isinstance(part, str):
            size += len(part.encode("utf-8", "surrogatepass"))
        elif part is not None:
            size += len(msgspec.json.encode(json_form(part)))
        size += len(name) if name not in ("role", "content") else 0
    return _BY_MESSAGE + ceil(size / _BYTES_BY_TOKEN)


@dataclass
class WindowEntry:
    """One message in the context."""

    number: int
    tokens: int
    kind: str
    group: int
    """The number of the message that it belongs to; its own if it stands alone."""
    cut: int | None = None
    """How many characters of its content are left, if it was cut."""

    @property
    def is_pinned(self) -> bool:
        """Whether it was pinned."""
        return self.kind == _PINNED

    @property
    def stays(self) -> bool:
        """Whether it never leaves the context."""
        return self.kind != _PLAIN


@register("keepstate.Window")
@dataclass(frozen=True)
class WindowRecord:
    """A context as it is stored.

    A row for each message in it: number, tokens, kind, how far back its group begins, how much it was cut to.
    """

    count: int
    entries: list[list[Any]]
    calls: dict[str, int]
    due: list[int]
    summary: Message | None
    summary_tokens: int


@dataclass
class Window:
    """A context, without the messages themselves."""

    count: int = 0
    """How many messages were added."""
    entries: list[WindowEntry] = field(default_factory=list[WindowEntry])
    calls: dict[str, int] = field(default_factory=dict[str, int])
    """The groups of the tool calls that are in the context, by the id of the call."""
    due: list[int] = field(default_factory=list[int])
    """The messages that have left and are to be summarised, in order."""
    summary: Message | None = None
    summary_tokens: int = 0

    @property
    def tokens(self) -> int:
        """Returns how many tokens the context has."""
        return self.summary_tokens + sum(entry.tokens for entry in self.entries)

    @classmethod
    def of(cls, record: WindowRecord | None) -> Window:
        """Returns the context that was stored; an empty one, if there is none."""
        if record is None:
            return cls()
        entries = [
            WindowEntry(number, tokens, kind, number - back, kept)
            for number, tokens, kind, back, kept in record.entries
        ]
        calls, due = dict(record.calls), list(record.due)
        return cls(record.count, entries, calls, due, record.summary, record.summary_tokens)

    def record(self) -> WindowRecord:
        """Returns what is stored of it."""
        rows = [
            [each.number, each.tokens, each.kind, each.number - each.group, each.cut] for each in self.entries
        ]
        return WindowRecord(self.count, rows, self.calls, self.due, self.summary, self.summary_tokens)


@dataclass(frozen=True, slots=True)
class Budget:
    """What a context may hold.

    Attributes:
        max_tokens: How much at the most.
        counter: Counts the tokens of a message.
        summarise_over: With more messages than so many, the first are summarised; None drops them.
        summarise_first: How many are summarised at once.
    """

    max_tokens: int
    counter: Counter = estimate_tokens
    summarise_over: int | None = None
    summarise_first: int = 10

    def tokens_of(self, message: Message) -> int:
        """Returns a message's tokens, as its counter says.

        Raises:
            InvalidError: The counter counts no tokens.
        """
        tokens = self.counter(message)
        if type(tokens) is not int or tokens < 0:
            raise InvalidError(
                f"the counter returned {tokens!r} for a message; let it return how many tokens"
            )
        return tokens


def admit(message: object) -> Message:
    """Returns a message as a plain dict.

    Raises:
        InvalidError: It is no dict with a role.
    """
    if not isinstance(message, Mapping):
        raise InvalidError(
            f"a message is {type(message).__name__}; give a dict such as {{'role': 'user', …}}"
        )
    plain = dict(cast("Mapping[str, Any]", message))
    if not isinstance(plain.get("role"), str):
        raise InvalidError(f"a message has the role {plain.get('role')!r}; give one, such as 'user'")
    return plain


def add(window: Window, message: Message, budget: Budget, *, pinned: bool) -> int:
    """Adds a message, lets go of what is too much, and returns the message's number.

    Raises:
        InvalidError: What may not leave is too much by itself.
    """
    number, tokens = window.count, budget.tokens_of(message)
    window.count += 1
    kind = _SYSTEM if message["role"] == _SYSTEM else _PINNED if pinned else _PLAIN
    group = _group_of(window, message, number)
    if group is None:
        return number  # the result of a call that is not in the context
    stay = [entry for entry in window.entries if entry.group == group and entry.kind == _PINNED]
    entry = WindowEntry(number, tokens, _PINNED if stay else kind, group)
    window.entries.append(entry)
    if kind == _PINNED:
        for other in window.entries:
            other.kind = _PINNED if other.group == group and other.kind == _PLAIN else other.kind
    _refuse_too_fixed(window, budget)
    fit(window, message, budget)
    return number


def replace(window: Window, number: int, message: Message, budget: Budget) -> None:
    """Counts another message in the place of one, if that is in the context.

    Raises:
        InvalidError: What may not leave is too much by itself then.
    """
    for entry in window.entries:
        if entry.number == number:
            entry.tokens, entry.cut = budget.tokens_of(message), None
            if not entry.is_pinned:
                entry.kind = _SYSTEM if message["role"] == _SYSTEM else _PLAIN
    _refuse_too_fixed(window, budget)


def _refuse_too_fixed(window: Window, budget: Budget) -> None:
    if (fixed := _fixed(window)) > budget.max_tokens:
        raise InvalidError(
            f"the system and pinned messages have {fixed} tokens, the context at most {budget.max_tokens}; "
            "pin less, or give it more"
        )


def fit(window: Window, newest: Message, budget: Budget, *, summarises: bool = True) -> None:
    """Lets go of what is too much; cuts the newest message, if that is."""
    shrink(window, budget, summarises=summarises)
    _fit_newest(window, newest, budget)


def _group_of(window: Window, message: Message, number: int) -> int | None:
    """Returns the group that a message belongs to; None if that is not in the context.

    Calls stand in `tool_calls` or in blocks of type `tool_use`; results name them by `tool_call_id`, or in
    blocks of type `tool_result`.
    """
    answered, calls = links(message)
    groups = [window.calls.get(id) if isinstance(id, str) else None for id in answered]
    if None in groups:
        return None
    group = min((each for each in groups if each is not None), default=number)
    window.calls |= dict.fromkeys(calls, group)
    for entry in window.entries:  # one message that answers calls of several makes them one
        if entry.group in groups:
            entry.group = group
    window.calls = {id: group if known in groups else known for id, known in window.calls.items()}
    return group


def links(message: Message) -> tuple[list[Any], list[str]]:
    """Returns the ids of the tool calls that a message answers, and of those that it makes."""
    blocks = _dicts(message.get("content"))
    answered = [block.get("tool_use_id") for block in blocks if block.get("type") == "tool_result"]
    if message["role"] == "tool" or "tool_call_id" in message:
        answered.append(message.get("tool_call_id"))
    made = [
        call for call in (*_dicts(message.get("tool_calls")), *blocks) if call.get("type") != "tool_result"
    ]
    return answered, [id for call in made if isinstance(id := call.get("id"), str)]


def _dicts(parts: object) -> list[Mapping[str, Any]]:
    if not isinstance(parts, list | tuple):
        return []
    return [
        cast("Mapping[str, Any]", part) for part in cast("list[object]", parts) if isinstance(part, Mapping)
    ]


def shrink(window: Window, budget: Budget, *, summarises: bool = True) -> None:
    """Lets go of the oldest groups but the newest, until the context fits or nothing more may leave."""
    while window.tokens > budget.max_tokens:
        newest = window.entries[-1].group if window.entries else None
        plain = [entry for entry in window.entries if entry.kind == _PLAIN and entry.group != newest]
        if not plain:
            return
        over = budget.summarise_over
        if summarises and over is not None and len(window.entries) > over:
            first = list(dict.fromkeys(entry.group for entry in plain[: budget.summarise_first]))
            window.due += sorted(entry.number for entry in plain if entry.group in first)
        else:
            first = [plain[0].group]
        for group in first:
            _let_go(window, group)


def _let_go(window: Window, group: int) -> None:
    window.entries = [entry for entry in window.entries if entry.group != group]
    window.calls = {id: kept for id, kept in window.calls.items() if kept != group}


def _fit_newest(window: Window, message: Message, budget: Budget) -> None:
    """Cuts the newest message, or lets go of its group, where that alone is too much."""
    excess = window.tokens - budget.max_tokens
    if excess <= 0:
        return
    newest = window.entries[-1]
    room = newest.tokens - excess
    if excess <= window.summary_tokens or newest.kind != _PLAIN or room < _LEAST_CUT:
        room += window.summary_tokens  # what is said now goes before what was said
        window.summary, window.summary_tokens = None, 0
        if window.tokens <= budget.max_tokens:
            return
    content = message.get("content")
    if newest.kind == _PLAIN and isinstance(content, str) and room >= _LEAST_CUT:
        if (kept := longest(message, content, room, budget)) > 0:
            newest.cut = kept
            newest.tokens = budget.tokens_of(cut(message, kept))
            return
    _let_go(window, newest.group)


def longest(message: Message, content: str, room: int, budget: Budget) -> int:
    """Returns how many characters of a message's content fit; 0 if none does."""
    low, high = 0, len(content)
    while low < high:
        middle = (low + high + 1) // 2
        if budget.tokens_of(cut(message, middle)) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def cut(message: Message, kept: int) -> Message:
    """Returns a message with so many characters of its content."""
    return {**message, "content": message["content"][:kept] + CUT}


def summarise(window: Window, summary: Message, numbers: list[int], budget: Budget) -> None:
    """Puts a summary of messages that have left into the context, in the place of the one before it."""
    most = min(budget.max_tokens // _SUMMARY_SHARE, budget.max_tokens - _fixed(window))
    window.due = [number for number in window.due if number not in numbers]
    window.summary, window.summary_tokens = None, 0
    tokens, content = budget.tokens_of(summary), summary.get("content")
    if tokens > most and isinstance(content, str):
        kept = longest(summary, content, most, budget)
        if kept <= 0:
            return
        summary = cut(summary, kept)
        tokens = budget.tokens_of(summary)
    if tokens > most:
        return
    window.summary, window.summary_tokens = summary, tokens
    shrink(window, budget, summarises=False)
    if window.tokens > budget.max_tokens:
        window.summary, window.summary_tokens = None, 0


def _fixed(window: Window) -> int:
    return sum(entry.tokens for entry in window.entries if entry.stays)


def ordered(window: Window, messages: Mapping[int, Message]) -> list[Message]:
    """Returns the context: system messages at the beginning, then the summary, then all else in order."""
    entries = [entry for entry in window.entries if entry.number in messages]
    told = [
        messages[entry.number] if entry.cut is None else cut(messages[entry.number], entry.cut)
        for entry in entries
    ]
    if window.summary is None:
        return told
    place = next((at for at, entry in enumerate(entries) if entry.kind != _SYSTEM), len(entries))
    return [*told[:place], window.summary, *told[place:]]
