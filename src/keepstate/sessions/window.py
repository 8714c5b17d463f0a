"""The rows of a context: one for each message, in pages of sixteen. Pure.

The head has counts and the rows of the newest page; older pages are read on demand. A page is written when it
is full, and again only if one of its rows changes. Plain messages leave from the front, and the head stores
where the context begins. So adding a message costs the same however many are in the context.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

from keepstate.sessions.messages import Message
from keepstate.values.schema import register

ROWS: Final = 16
"""Number of messages that a page covers, whether they are in the context or not."""
SYSTEM, PINNED, PLAIN = "system", "pinned", "plain"
_KINDS: Final = (PLAIN, PINNED, SYSTEM)


class PageMissing(Exception):  # noqa: N818 - not an error: it requests a page
    """A page that was not read yet is needed."""

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
    """The number of the first message of its group; its own if it is alone."""
    cut: int | None = None
    """Number of characters left of the text, if it was cut."""
    more: list[int] = field(default_factory=list[int])
    """The other members of the group, if this is its first."""

    @property
    def stays(self) -> bool:
        """True if the message never leaves the context."""
        return self.kind != PLAIN

    def encode(self) -> list[Any]:
        """Return the stored form: two small numbers for most rows."""
        index, back = self.number % ROWS, self.number - self.group
        if self.kind == PLAIN and not back and self.cut is None and not self.more:
            return [index, self.tokens]
        more = [number - self.number for number in self.more]
        return [index, self.tokens, _KINDS.index(self.kind), back, self.cut, more]

    @classmethod
    def of(cls, page: int, stored: Sequence[Any]) -> Self:
        """Return the row of a stored form."""
        index, tokens, kind, back, kept, more = stored if len(stored) > 2 else (*stored, 0, 0, None, ())
        number = page * ROWS + index
        return cls(number, tokens, _KINDS[kind], number - back, kept, [number + each for each in more])


@register("keepstate.Window")
@dataclass
class WindowRecord:
    """The stored head of a context."""

    count: int = 0
    """Number of messages added."""
    size: int = 0
    """Number of messages in the context."""
    tokens: int = 0
    """Number of tokens of the messages in the context."""
    first: int = 0
    """No plain message before this number is in the context."""
    newest: int = -1
    """The last message in the context."""
    fixed: list[int] = field(default_factory=list[int])
    """The messages that never leave."""
    fixed_tokens: int = 0
    calls: dict[str, int] = field(default_factory=dict[str, int])
    """The groups of unanswered tool calls in the context, by call id."""
    due: list[list[int]] = field(default_factory=list[list[int]])
    """The messages that left and are due for a summary, as half-open ranges."""
    summary: Message | None = None
    summary_tokens: int = 0
    counter: str = ""
    """The name of the counter that counted the tokens."""
    era: int = 0
    """Number of times the conversation was cleared; pages of earlier eras are never read."""
    tail: list[list[Any]] = field(default_factory=list[list[Any]])
    """The stored form of the newest page."""


_HEAD: Final = tuple(each.name for each in fields(WindowRecord))


@dataclass
class Window(WindowRecord):
    """A context, without the messages themselves."""

    pages: dict[int, dict[int, Row]] = field(default_factory=dict[int, dict[int, Row]])
    """The pages that were read, and the newest page."""
    changed: set[int] = field(default_factory=set[int])
    """The pages with added or changed rows."""
    left: set[int] = field(default_factory=set[int])
    """The messages that left since the window was read."""

    @property
    def total_tokens(self) -> int:
        """The number of tokens of the context, with its summary."""
        return self.summary_tokens + self.tokens

    @property
    def due_numbers(self) -> list[int]:
        """The messages that left and are due for a summary, in order."""
        return [number for begin, end in self.due for number in range(begin, end)]

    # ---- rows

    def next_number(self) -> int:
        """Count an added message and return its number."""
        number, self.count = self.count, self.count + 1
        if self.count % ROWS == 0 and number // ROWS in self.pages:
            self.changed.add(number // ROWS)  # the newest page is full, so it moves out of the head
        return number

    def row(self, number: int) -> Row | None:
        """Return the row of a message, or None if it is not in the context.

        Raises:
            PageMissing: Its page was not read.
        """
        if not 0 <= number < self.count:
            return None
        return self._page(number).get(number)

    def require_row(self, number: int) -> Row:
        """Return the row of a message that must be in the context; see `row`."""
        row = self.row(number)
        assert row is not None
        return row

    def members(self, group: int) -> list[Row]:
        """Return the rows of a group; see `row`."""
        first = self.require_row(group)
        return [first, *map(self.require_row, first.more)]

    def put(self, row: Row) -> None:
        """Add the row of the newest message."""
        self._page(row.number)[row.number] = row
        self.changed.add(row.number // ROWS)
        self.size, self.tokens = self.size + 1, self.tokens + row.tokens
        self.newest = max(self.newest, row.number)
        if row.stays:
            self.fixed.append(row.number)
            self.fixed_tokens += row.tokens
        if row.group != row.number:
            self.require_row(row.group).more.append(row.number)
            self.changed.add(row.group // ROWS)

    def change(self, row: Row, **parts: Any) -> None:
        """Replace parts of a row."""
        new = replace(row, **parts)
        self._page(row.number)[row.number] = new
        self.changed.add(row.number // ROWS)
        self.tokens += new.tokens - row.tokens
        self.fixed_tokens += (new.tokens if new.stays else 0) - (row.tokens if row.stays else 0)
        if new.stays != row.stays:
            numbers = [number for number in self.fixed if number != row.number]
            self.fixed = sorted([*numbers, row.number]) if new.stays else numbers

    def drop(self, row: Row) -> None:
        """Remove a row from the context."""
        del self._page(row.number)[row.number]
        self.left.add(row.number)
        self.size, self.tokens = self.size - 1, self.tokens - row.tokens
        if row.stays:
            self.fixed.remove(row.number)
            self.fixed_tokens -= row.tokens
        if row.number == self.newest:
            self.newest = max(self.fixed, default=-1)

    def find_newest(self) -> None:
        """Find the last message in the context again, after rows were dropped; see `row`."""
        plain = range(self.count - 1, self.first - 1, -1) if self.size > len(self.fixed) else ()
        last = next((number for number in plain if self.row(number) is not None), -1)
        self.newest = max([last, *self.fixed])

    def plain_rows(self) -> Iterator[Row]:
        """Yield the rows that may leave, oldest first; see `row`."""
        if self.size == len(self.fixed):
            self.first = self.count
        for number in range(self.first, self.count):
            row = self.row(number)
            if row is not None and not row.stays:
                yield row

    def advance(self) -> None:
        """Move the beginning of the context to its first plain row; see `row`."""
        self.first = next((row.number for row in self.plain_rows()), self.count)

    @property
    def entries(self) -> list[Row]:
        """All rows in order; see `row`."""
        for page in self.needed:
            if page not in self.pages:
                raise PageMissing(page)
        return [row for page in sorted(self.pages) for _, row in sorted(self.pages[page].items())]

    @property
    def needed(self) -> list[int]:
        """The pages that may have rows of the context."""
        plain = range(self.first // ROWS, self.newest // ROWS + 1) if self.size > len(self.fixed) else ()
        return sorted({*plain, *(number // ROWS for number in self.fixed)})

    def mark_due(self, numbers: Sequence[int]) -> None:
        """Mark messages that left as due for a summary."""
        self.due = _spans(sorted({*self.due_numbers, *numbers}))

    def mark_done(self, numbers: Sequence[int]) -> None:
        """Mark messages as summarised."""
        self.due = _spans(sorted({*self.due_numbers} - {*numbers}))

    def _page(self, number: int) -> dict[int, Row]:
        page = number // ROWS
        if page not in self.pages:
            if number % ROWS or number < self.count - 1:
                raise PageMissing(page)
            self.pages[page] = {}
        return self.pages[page]

    # ---- what is stored

    def copy(self) -> Window:
        """Return an independent copy."""
        made = copy(self)
        made.fixed, made.calls = list(self.fixed), dict(self.calls)
        made.pages = {
            page: {number: replace(row, more=list(row.more)) for number, row in rows.items()}
            for page, rows in self.pages.items()
        }
        made.changed, made.left = set(self.changed), set(self.left)
        return made

    def load_page(self, page: int, stored: Sequence[Sequence[Any]]) -> None:
        """Add a page that was read, without plain rows before `first`, which have left."""
        rows = [Row.of(page, each) for each in stored]
        self.pages[page] = {row.number: row for row in rows if row.stays or row.number >= self.first}

    @classmethod
    def of(cls, record: WindowRecord | None) -> Window:
        """Return the context of a stored head; an empty one without it."""
        if record is None:
            return cls(pages={0: {}})
        made = cls(**{name: copy(getattr(record, name)) for name in _HEAD})
        made.load_page(record.count // ROWS, record.tail)
        return made

    def record(self) -> WindowRecord:
        """Return the stored form of the head, including the newest page."""
        self.tail = self.encode_page(self.count // ROWS)
        return WindowRecord(**{name: getattr(self, name) for name in _HEAD})

    def page_changes(self) -> tuple[list[int], list[int]]:
        """Return the pages to write in addition to the head, and the pages to delete.

        The rows of plain messages that left from the front need no write, because the head stores where the
        context begins.
        """
        emptied = {number // ROWS for number in self.left if not self.pages[number // ROWS]}
        behind = {number // ROWS for number in self.left if number >= self.first}
        head = {self.count // ROWS}
        return sorted((self.changed | behind) - emptied - head), sorted(emptied - head)

    def encode_page(self, page: int) -> list[list[Any]]:
        """Return the stored form of a page."""
        return [row.encode() for _, row in sorted(self.pages.get(page, {}).items())]


def _spans(numbers: Sequence[int]) -> list[list[int]]:
    spans: list[list[int]] = []
    for number in numbers:
        if spans and spans[-1][1] == number:
            spans[-1][1] += 1
        else:
            spans.append([number, number + 1])
    return spans
