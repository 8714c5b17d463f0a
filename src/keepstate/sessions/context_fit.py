"""Which messages leave a context: a budget of tokens, kept by rules. Pure.

What belongs together leaves together: a message that calls tools and the results of these calls are one
group. System and pinned messages never leave. The newest message alone may be cut to fit; nothing else is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from keepstate.errors import InvalidError
from keepstate.sessions.counters import name_of
from keepstate.sessions.messages import (
    Counter,
    Message,
    cut,
    estimate_tokens,
    is_system,
    length,
    links,
    longest,
)
from keepstate.sessions.window import PINNED, PLAIN, SYSTEM, Row, Window

_LEAST_CUT: Final = 16
"""A message of which less would be left is left out whole."""
_SUMMARY_SHARE: Final = 4
"""A summary has at most this part of the budget."""


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
        """Return a message's tokens, as its counter says.

        Raises:
            InvalidError: The counter counts no tokens.
        """
        tokens = self.counter(message)
        if type(tokens) is not int or tokens < 0:
            raise InvalidError(
                f"the counter returned {tokens!r} for a message; let it return how many tokens"
            )
        return tokens

    @property
    def counted_by(self) -> str:
        """A name of the counter."""
        return name_of(self.counter)


def add(window: Window, message: Message, budget: Budget, *, pinned: bool) -> int:
    """Add a message, lets go of what is too much, and return the message's number.

    Raises:
        InvalidError: What may not leave is too much by itself, or nothing can be left of the message.
        PageMissing: A page has to be read first; see `Window.row`.
    """
    tokens, number = budget.tokens_of(message), window.next_number()
    window.counter = budget.counted_by
    kind = SYSTEM if is_system(message) else PINNED if pinned else PLAIN
    group = _group_of(window, message, number)
    if group is None:
        return number  # the result of a call that is not in the context, or was answered
    before = [] if group == number else window.members(group)
    if any(row.kind == PINNED for row in before):
        kind = PINNED
    window.put(Row(number, tokens, kind, group))
    if kind == PINNED:
        for row in before:
            if row.kind == PLAIN:
                window.change(row, kind=PINNED)
    _refuse_too_fixed(window, budget)
    fit(window, message, budget)
    return number


def replace(window: Window, number: int, message: Message, budget: Budget) -> None:
    """Count another message in the place of one, if that is in the context.

    Raises:
        InvalidError: What may not leave is too much by itself then.
        PageMissing: A page has to be read first; see `Window.row`.
    """
    if number < window.first and number not in window.fixed:
        return
    row = window.row(number)
    if row is None:
        return
    kind = row.kind if row.kind == PINNED else SYSTEM if is_system(message) else PLAIN
    if kind == PLAIN and number < window.first:
        _let_go(window, row.group)  # all that was said around it has left already
        return
    window.change(row, tokens=budget.tokens_of(message), cut=None, kind=kind)
    _refuse_too_fixed(window, budget)


def recount(window: Window, messages: Mapping[int, Message], budget: Budget) -> None:
    """Count all that is in the context by another counter; what is too much by it has to leave then.

    Raises:
        PageMissing: A page has to be read first; see `Window.row`.
    """
    for row in window.entries:
        window.change(row, tokens=budget.tokens_of(messages[row.number]), cut=None)
    window.summary_tokens = budget.tokens_of(window.summary) if window.summary else 0
    window.counter = budget.counted_by


def fit(window: Window, newest: Message, budget: Budget, *, summarises: bool = True) -> None:
    """Let go of what is too much; cuts the newest message, if that is.

    Raises:
        InvalidError: What may not leave is too much by itself, or nothing can be left of the newest message.
        PageMissing: A page has to be read first; see `Window.row`.
    """
    _refuse_too_fixed(window, budget)
    shrink(window, budget, summarises=summarises)
    _fit_newest(window, newest, budget)


def _refuse_too_fixed(window: Window, budget: Budget) -> None:
    if (fixed := window.fixed_tokens) > budget.max_tokens:
        raise InvalidError(
            f"the system and pinned messages have {fixed} tokens, the context at most {budget.max_tokens}; "
            "pin less, or give it more"
        )


def _group_of(window: Window, message: Message, number: int) -> int | None:
    """Return the group that a message belongs to; None if it answers a call that nobody waits for here."""
    answered, calls = links(message)
    groups = [window.calls.get(id) if isinstance(id, str) else None for id in answered]
    if None in groups:
        return None
    joined = sorted({each for each in groups if each is not None})
    group = joined[0] if joined else number
    for other in joined[1:]:  # one message that answers calls of several makes them one
        _join(window, group, other)
    window.calls = {
        id: group if known in joined else known for id, known in window.calls.items() if id not in answered
    }
    window.calls |= dict.fromkeys(calls, group)
    return group


def _join(window: Window, group: int, other: int) -> None:
    rows, others = window.members(group), window.members(other)
    numbers = sorted([row.number for row in (*rows, *others)][1:])
    is_pinned = any(row.kind == PINNED for row in (*rows, *others))
    for row in (*rows, *others):
        kind = PINNED if is_pinned and row.kind == PLAIN else row.kind
        more = numbers if row.number == group else []
        window.change(row, group=group, kind=kind, more=more)


def shrink(window: Window, budget: Budget, *, summarises: bool = True) -> None:
    """Let go of the oldest groups but the newest, until the context fits or nothing more may leave.

    Raises:
        PageMissing: A page has to be read first; see `Window.row`.
    """
    if window.tokens <= budget.max_tokens:
        return
    newest = None if window.newest < 0 else window.known(window.newest).group
    while window.tokens > budget.max_tokens:
        plain = (row for row in window.plain() if row.group != newest)
        over, first = budget.summarise_over, next(plain, None)
        if first is None:
            break
        groups = [first.group]
        if summarises and over is not None and window.size > over:
            rows = [first, *(row for row, _ in zip(plain, range(budget.summarise_first - 1), strict=False))]
            groups = list(dict.fromkeys(row.group for row in rows))
            left = [row.number for group in groups for row in window.members(group) if not row.stays]
            window.is_due(left)
        for group in groups:
            _let_go(window, group)
    window.advance()


def _let_go(window: Window, group: int) -> None:
    for row in reversed(window.members(group)):
        window.drop(row)
    window.calls = {id: kept for id, kept in window.calls.items() if kept != group}


def _fit_newest(window: Window, message: Message, budget: Budget) -> None:
    """Cut the newest message, or let go of its group, where that alone is too much."""
    excess = window.tokens - budget.max_tokens
    if excess <= 0:
        return
    newest = window.known(window.newest)
    room = newest.tokens - excess
    if excess <= window.summary_tokens or newest.kind != PLAIN or room < _LEAST_CUT:
        room += window.summary_tokens  # what is said now goes before what was said
        window.summary, window.summary_tokens = None, 0
        if window.tokens <= budget.max_tokens:
            return
    if room >= _LEAST_CUT and length(message):
        if (kept := longest(message, room, budget.tokens_of)) > 0:
            window.change(newest, cut=kept, tokens=budget.tokens_of(cut(message, kept)))
            return
    if newest.group == newest.number and not newest.more and not links(message)[1]:
        raise InvalidError(
            f"the newest message has {newest.tokens} tokens and cannot be cut to the {max(0, room)} that are "
            f"left of {budget.max_tokens}; say less, pin less, or give the context more"
        )
    _let_go(window, newest.group)
    window.advance()


def summarise(window: Window, summary: Message, numbers: list[int], budget: Budget) -> None:
    """Put a summary of messages that have left into the context, in the place of the one before it.

    Raises:
        PageMissing: A page has to be read first; see `Window.row`.
    """
    most = min(budget.max_tokens // _SUMMARY_SHARE, budget.max_tokens - window.fixed_tokens)
    window.is_done(numbers)
    window.summary, window.summary_tokens = None, 0
    tokens = budget.tokens_of(summary)
    if tokens > most and length(summary):
        kept = longest(summary, most, budget.tokens_of)
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


def ordered(window: Window, messages: Mapping[int, Message]) -> list[Message]:
    """Return the context: system messages at the beginning, then the summary, then all else in order."""
    rows = [row for row in window.entries if row.number in messages]
    told = [messages[row.number] if row.cut is None else cut(messages[row.number], row.cut) for row in rows]
    if window.summary is None:
        return told
    place = next((at for at, row in enumerate(rows) if row.kind != SYSTEM), len(rows))
    return [*told[:place], window.summary, *told[place:]]
