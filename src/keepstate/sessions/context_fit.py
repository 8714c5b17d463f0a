"""The rules by which messages leave a context that has a token budget. Pure.

Messages that belong together leave together: a message that calls tools forms one group with the results of
these calls. System and pinned messages never leave. Only the newest message may be cut to fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from keepstate.errors import InvalidError
from keepstate.sessions.message_texts import cut, length, longest
from keepstate.sessions.messages import Counter, Message, estimate_tokens, is_system, links
from keepstate.sessions.token_counter import name_of
from keepstate.sessions.window import PINNED, PLAIN, SYSTEM, Row, Window

_LEAST_CUT: Final = 16
"""A message that would be cut to fewer tokens is left out of the context."""
_SUMMARY_SHARE: Final = 4
"""A summary may use at most this fraction (1/n) of the budget."""


@dataclass(frozen=True, slots=True)
class TokenBudget:
    """The limits of a context.

    Attributes:
        max_tokens: The maximum number of tokens.
        counter: Counts the tokens of a message.
        summarise_over: Summarise once the context has more than this many messages; None drops messages
            instead.
        summarise_first: Number of messages that one summary replaces.
    """

    max_tokens: int
    counter: Counter = estimate_tokens
    summarise_over: int | None = None
    summarise_first: int = 10

    def tokens_of(self, message: Message) -> int:
        """Return the number of tokens of a message, from the counter.

        Raises:
            InvalidError: The counter returned something other than a non-negative integer.
        """
        tokens = self.counter(message)
        if type(tokens) is not int or tokens < 0:
            raise InvalidError(
                f"The counter returned {tokens!r} for a message. Return the number of tokens, an integer "
                "from 0."
            )
        return tokens

    @property
    def counted_by(self) -> str:
        """The name of the counter."""
        return name_of(self.counter)


def add(window: Window, message: Message, budget: TokenBudget, *, pinned: bool) -> int:
    """Add a message, drop what exceeds the budget, and return the message's number.

    Raises:
        InvalidError: The messages that must stay exceed the budget, or the message cannot be cut to fit.
        PageMissing: A page must be read first; see `Window.row`.
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
    _require_fixed_fits(window, budget)
    fit(window, message, budget)
    return number


def replace(window: Window, number: int, message: Message, budget: TokenBudget) -> None:
    """Account for an edited message, if it is in the context.

    Raises:
        InvalidError: The messages that must stay now exceed the budget.
        PageMissing: A page must be read first; see `Window.row`.
    """
    if number < window.first and number not in window.fixed:
        return
    row = window.row(number)
    if row is None:
        return
    kind = row.kind if row.kind == PINNED else SYSTEM if is_system(message) else PLAIN
    if kind == PLAIN and number < window.first:
        _drop_group(window, row.group)  # the messages around it have left already
        return
    window.change(row, tokens=budget.tokens_of(message), cut=None, kind=kind)
    _require_fixed_fits(window, budget)


def remove(window: Window, messages: Mapping[int, Message]) -> None:
    """Take removed messages out of the context, if they are in it.

    If a message that called tools is removed, the results that stay leave the context with it.

    Raises:
        PageMissing: A page must be read first; see `Window.row`.
    """
    for number in sorted(messages, reverse=True):
        if number < window.first and number not in window.fixed:
            continue
        row = window.row(number)
        if row is None:
            continue
        if row.group in messages:
            _drop_group(window, row.group)
            continue
        answered, calls = links(messages[number])
        first = window.require_row(row.group)
        window.change(first, more=[other for other in first.more if other != number])
        window.drop(row)
        window.calls = {id: group for id, group in window.calls.items() if id not in calls}
        window.calls |= dict.fromkeys((id for id in answered if isinstance(id, str)), row.group)
    window.find_newest()


def recount(window: Window, messages: Mapping[int, Message], budget: TokenBudget) -> None:
    """Count the whole context with another counter. Call `fit` afterwards.

    Raises:
        PageMissing: A page must be read first; see `Window.row`.
    """
    for row in window.entries:
        window.change(row, tokens=budget.tokens_of(messages[row.number]), cut=None)
    window.summary_tokens = budget.tokens_of(window.summary) if window.summary else 0
    window.counter = budget.counted_by


def fit(window: Window, newest: Message, budget: TokenBudget, *, summarises: bool = True) -> None:
    """Drop what exceeds the budget, and cut the newest message if it alone exceeds it.

    Raises:
        InvalidError: The messages that must stay exceed the budget, or the newest message cannot be cut to
            fit.
        PageMissing: A page must be read first; see `Window.row`.
    """
    _require_fixed_fits(window, budget)
    shrink(window, budget, summarises=summarises)
    _fit_newest(window, newest, budget)


def _require_fixed_fits(window: Window, budget: TokenBudget) -> None:
    if (fixed := window.fixed_tokens) > budget.max_tokens:
        raise InvalidError(
            f"The system and pinned messages have {fixed} tokens, but the context may have at most "
            f"{budget.max_tokens}. Pin fewer messages, or raise max_tokens."
        )


def _group_of(window: Window, message: Message, number: int) -> int | None:
    """Return the group of a message; None if it answers a call that is not open in the context."""
    answered, calls = links(message)
    groups = [window.calls.get(id) if isinstance(id, str) else None for id in answered]
    if None in groups:
        return None
    joined = sorted({each for each in groups if each is not None})
    group = joined[0] if joined else number
    for other in joined[1:]:  # a message that answers calls of several groups joins these groups
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


def shrink(window: Window, budget: TokenBudget, *, summarises: bool = True) -> None:
    """Drop the oldest groups, except the newest group, until the context fits or nothing more may leave.

    Raises:
        PageMissing: A page must be read first; see `Window.row`.
    """
    if window.total_tokens <= budget.max_tokens:
        return
    newest = None if window.newest < 0 else window.require_row(window.newest).group
    while window.total_tokens > budget.max_tokens:
        plain = (row for row in window.plain_rows() if row.group != newest)
        over, first = budget.summarise_over, next(plain, None)
        if first is None:
            break
        groups = [first.group]
        if summarises and over is not None and window.size > over:
            rows = [first, *(row for row, _ in zip(plain, range(budget.summarise_first - 1), strict=False))]
            groups = list(dict.fromkeys(row.group for row in rows))
            left = [row.number for group in groups for row in window.members(group) if not row.stays]
            window.mark_due(left)
        for group in groups:
            _drop_group(window, group)
    window.advance()


def _drop_group(window: Window, group: int) -> None:
    for row in reversed(window.members(group)):
        window.drop(row)
    window.calls = {id: other for id, other in window.calls.items() if other != group}


def _fit_newest(window: Window, message: Message, budget: TokenBudget) -> None:
    """Cut the newest message, or drop its group, if it alone exceeds the budget."""
    excess = window.total_tokens - budget.max_tokens
    if excess <= 0:
        return
    newest = window.require_row(window.newest)
    room = newest.tokens - excess
    if excess <= window.summary_tokens or newest.kind != PLAIN or room < _LEAST_CUT:
        room += window.summary_tokens  # the newest message takes precedence over the summary
        window.summary, window.summary_tokens = None, 0
        if window.total_tokens <= budget.max_tokens:
            return
    if room >= _LEAST_CUT and length(message):
        if (size := longest(message, room, budget.tokens_of)) > 0:
            window.change(newest, cut=size, tokens=budget.tokens_of(cut(message, size)))
            return
    if newest.group == newest.number and not newest.more and not links(message)[1]:
        raise InvalidError(
            f"The newest message has {newest.tokens} tokens and cannot be cut to the {max(0, room)} tokens "
            f"left of {budget.max_tokens}. Shorten it, pin fewer messages, or raise max_tokens."
        )
    _drop_group(window, newest.group)
    window.advance()


def summarise(window: Window, summary: Message, numbers: list[int], budget: TokenBudget) -> None:
    """Add a summary of messages that left the context, in place of the summary before it.

    Raises:
        PageMissing: A page must be read first; see `Window.row`.
    """
    most = min(budget.max_tokens // _SUMMARY_SHARE, budget.max_tokens - window.fixed_tokens)
    window.mark_done(numbers)
    window.summary, window.summary_tokens = None, 0
    tokens = budget.tokens_of(summary)
    if tokens > most and length(summary):
        size = longest(summary, most, budget.tokens_of)
        if size <= 0:
            return
        summary = cut(summary, size)
        tokens = budget.tokens_of(summary)
    if tokens > most:
        return
    window.summary, window.summary_tokens = summary, tokens
    shrink(window, budget, summarises=False)
    if window.total_tokens > budget.max_tokens:
        window.summary, window.summary_tokens = None, 0


def ordered(window: Window, messages: Mapping[int, Message]) -> list[Message]:
    """Return the context: leading system messages, then the summary, then the other messages in order."""
    rows = [row for row in window.entries if row.number in messages]
    messages_in_order = [
        messages[row.number] if row.cut is None else cut(messages[row.number], row.cut) for row in rows
    ]
    if window.summary is None:
        return messages_in_order
    index = next((at for at, row in enumerate(rows) if row.kind != SYSTEM), len(rows))
    return [*messages_in_order[:index], window.summary, *messages_in_order[index:]]
