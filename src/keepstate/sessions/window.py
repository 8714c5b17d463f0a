"""Which messages of a conversation are in an agent's context: a row for each, in pages of sixteen. Pure.

The head has counts, and the rows of the newest page; all others are read when they are asked for. A row is
written when its page is full, and again only if what belongs to it changes: plain messages leave from the
front, and the head says up to where. So to add a message costs the same however many are in the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from keepstate.sessions.messages import Message
from keepstate.values.schema import register

ROWS: Final = 16
"""How many messages' rows are in a page, whether they are in the context or not."""
SYSTEM, PINNED, PLAIN = "system", "pinned", "plain"
_KINDS: Final = (PLAIN, PINNED, SYSTEM)


class PageMissing(Exception):  # noqa: N818 - nothing went wrong: it asks for a page
    """A page is asked for that was not read yet."""

    def __init__(self, page: int) -> None:
        super().__init__(page)
        self.page = page


@dataclass
class Row:
    """One message in the context."""

    number: int
    tokens: int
    kind: str
    group: int
    """The number of the message that it belongs to; its own if it stands alone."""
    cut: int | None = None
    """How many characters of what it says are left, if it was cut."""
    more: list[int] = field(default_factory=list[int])
    """The others of the group, if it is the first of one."""

    @property
    def stays(self) -> bool:
        """Whether it never leaves the context."""
        return self.kind != PLAIN

    def stored(self) -> list[Any]:
        """Return what is stored of it: most rows are two small numbers."""
        place, back = self.number % ROWS, self.number - self.group
        if self.kind == PLAIN and not back and self.cut is None and not self.more:
            return [place, self.tokens]
        more = [number - self.number for number in self.more]
        return [place, self.tokens, _KINDS.index(self.kind), back, self.cut, more]

    @classmethod
    def of(cls, page: int, stored: Sequence[Any]) -> Self:
        """Return the row that was stored."""
        place, tokens, kind, back, kept, more = stored if len(stored) > 2 else (*stored, 0, 0, None, ())
        number = page * ROWS + place
        return cls(number, tokens, _KINDS[kind], number - back, kept, [number + each for each in more])


@register("keepstate.Window")
@dataclass(frozen=True)
class WindowRecord:
    """The head of a context as it is stored."""

    count: int
    size: int
    tokens: int
    first: int
    newest: int
    fixed: list[int]
    fixed_tokens: int
    calls: dict[str, int]
    due: list[list[int]]
    summary: Message | None
    summary_tokens: int
    counter: str
    era: int
    tail: list[list[Any]]


@dataclass
class Window:
    """A context, without the messages themselves."""

    count: int = 0
    """How many messages were added."""
    size: int = 0
    """How many are in the context."""
    row_tokens: int = 0
    """How many tokens these have."""
    first: int = 0
    """No plain message before this is in the context."""
    newest: int = -1
    """The last message in the context."""
    fixed: list[int] = field(default_factory=list[int])
    """The messages that never leave."""
    fixed_tokens: int = 0
    calls: dict[str, int] = field(default_factory=dict[str, int])
    """The groups of the tool calls in the context that nobody has answered, by the id of the call."""
    spans: list[list[int]] = field(default_factory=list[list[int]])
    """The messages that have left and are to be summarised: from the first to before the second of each."""
    summary: Message | None = None
    summary_tokens: int = 0
    counter: str = ""
    """By which counter the tokens were counted."""
    era: int = 0
    """How often the conversation was cleared; the pages of an earlier era are read by nobody."""
    pages: dict[int, dict[int, Row]] = field(default_factory=dict[int, dict[int, Row]])
    """Those that were read, and the newest."""
    changed: set[int] = field(default_factory=set[int])
    """The pages of which rows were added or changed."""
    left: set[int] = field(default_factory=set[int])
    """The messages that have left since it was read."""

    @property
    def tokens(self) -> int:
        """Return how many tokens the context has."""
        return self.summary_tokens + self.row_tokens

    @property
    def due(self) -> list[int]:
        """The messages that have left and are to be summarised, in order."""
        return [number for begin, end in self.spans for number in range(begin, end)]

    # ---- rows

    def next_number(self) -> int:
        """Count a message that is added, and return its number."""
        number, self.count = self.count, self.count + 1
        if self.count % ROWS == 0 and number // ROWS in self.pages:
            self.changed.add(number // ROWS)  # the newest page is full, and leaves the head
        return number

    def row(self, number: int) -> Row | None:
        """Return the row of a message, or None if it is not in the context.

        Raises:
            PageMissing: Its page was not read.
        """
        if not 0 <= number < self.count:
            return None
        return self._page(number).get(number)

    def known(self, number: int) -> Row:
        """Return the row of a message in the context; see `row`."""
        row = self.row(number)
        assert row is not None
        return row

    def members(self, group: int) -> list[Row]:
        """Return the rows of a group; see `row`."""
        first = self.known(group)
        return [first, *map(self.known, first.more)]

    def put(self, row: Row) -> None:
        """Add the row of the newest message."""
        self._page(row.number)[row.number] = row
        self.changed.add(row.number // ROWS)
        self.size, self.row_tokens = self.size + 1, self.row_tokens + row.tokens
        self.newest = max(self.newest, row.number)
        if row.stays:
            self.fixed.append(row.number)
            self.fixed_tokens += row.tokens
        if row.group != row.number:
            self.known(row.group).more.append(row.number)
            self.changed.add(row.group // ROWS)

    def change(self, row: Row, **parts: Any) -> None:
        """Change parts of a row."""
        new = replace(row, **parts)
        self._page(row.number)[row.number] = new
        self.changed.add(row.number // ROWS)
        self.row_tokens += new.tokens - row.tokens
        self.fixed_tokens += (new.tokens if new.stays else 0) - (row.tokens if row.stays else 0)
        if new.stays != row.stays:
            numbers = [number for number in self.fixed if number != row.number]
            self.fixed = sorted([*numbers, row.number]) if new.stays else numbers

    def drop(self, row: Row) -> None:
        """Take a row out of the context."""
        del self._page(row.number)[row.number]
        self.left.add(row.number)
        self.size, self.row_tokens = self.size - 1, self.row_tokens - row.tokens
        if row.stays:
            self.fixed.remove(row.number)
            self.fixed_tokens -= row.tokens
        if row.number == self.newest:
            self.newest = max(self.fixed, default=-1)

    def plain(self) -> Iterator[Row]:
        """Yield the rows that may leave, the oldest first; see `row`."""
        if self.size == len(self.fixed):
            self.first = self.count
        for number in range(self.first, self.count):
            row = self.row(number)
            if row is not None and not row.stays:
                yield row

    def advance(self) -> None:
        """Let the context begin with the first plain row that is in it; see `row`."""
        self.first = next((row.number for row in self.plain()), self.count)

    @property
    def entries(self) -> list[Row]:
        """All rows in order; see `row`."""
        for page in self.needed:
            if page not in self.pages:
                raise PageMissing(page)
        return [row for page in sorted(self.pages) for _, row in sorted(self.pages[page].items())]

    @property
    def needed(self) -> list[int]:
        """The pages in which rows may be."""
        plain = range(self.first // ROWS, self.newest // ROWS + 1) if self.size > len(self.fixed) else ()
        return sorted({*plain, *(number // ROWS for number in self.fixed)})

    def is_due(self, numbers: Sequence[int]) -> None:
        """Note messages that have left and are to be summarised."""
        self.spans = _spans(sorted({*self.due, *numbers}))

    def is_done(self, numbers: Sequence[int]) -> None:
        """Note that messages were summarised."""
        self.spans = _spans(sorted({*self.due} - {*numbers}))

    def _page(self, number: int) -> dict[int, Row]:
        page = number // ROWS
        if page not in self.pages:
            if number % ROWS or number < self.count - 1:
                raise PageMissing(page)
            self.pages[page] = {}
        return self.pages[page]

    # ---- what is stored

    def copy(self) -> Window:
        """Return another that may be changed."""
        made = copy(self)
        made.fixed, made.calls = list(self.fixed), dict(self.calls)
        made.pages = {
            page: {number: replace(row, more=list(row.more)) for number, row in rows.items()}
            for page, rows in self.pages.items()
        }
        made.changed, made.left = set(self.changed), set(self.left)
        return made

    def take(self, page: int, stored: Sequence[Sequence[Any]]) -> None:
        """Take a page that was read; plain rows before `first` have left."""
        rows = [Row.of(page, each) for each in stored]
        self.pages[page] = {row.number: row for row in rows if row.stays or row.number >= self.first}

    @classmethod
    def of(cls, record: WindowRecord | None) -> Window:
        """Return the context whose head was stored; an empty one, if there is none."""
        if record is None:
            return cls(pages={0: {}})
        made = cls(
            record.count,
            record.size,
            record.tokens,
            record.first,
            record.newest,
            list(record.fixed),
            record.fixed_tokens,
            dict(record.calls),
            [list(span) for span in record.due],
            record.summary,
            record.summary_tokens,
            record.counter,
            record.era,
        )
        made.take(record.count // ROWS, record.tail)
        return made

    def record(self) -> WindowRecord:
        """Return what is stored of its head, the newest page among it."""
        return WindowRecord(
            self.count,
            self.size,
            self.row_tokens,
            self.first,
            self.newest,
            self.fixed,
            self.fixed_tokens,
            self.calls,
            self.spans,
            self.summary,
            self.summary_tokens,
            self.counter,
            self.era,
            self.stored(self.count // ROWS),
        )

    def writes(self) -> tuple[list[int], list[int]]:
        """Return the pages to be written beside the head, and those of which nothing is needed any more.

        Of plain messages that have left from the front the rows may stand: the head says up to where.
        """
        emptied = {number // ROWS for number in self.left if not self.pages[number // ROWS]}
        behind = {number // ROWS for number in self.left if number >= self.first}
        head = {self.count // ROWS}
        return sorted((self.changed | behind) - emptied - head), sorted(emptied - head)

    def stored(self, page: int) -> list[list[Any]]:
        """Return what is stored of a page."""
        return [row.stored() for _, row in sorted(self.pages.get(page, {}).items())]


def _spans(numbers: Sequence[int]) -> list[list[int]]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number:
            spans[-1][1] += 1
        else:
            spans.append([number, number + 1])
    return spans
