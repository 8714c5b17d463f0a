"""Which messages leave a context, as a plain function of what is said: any conversation, in pages."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keepstate.errors import InvalidError
from keepstate.sessions import context_fit
from keepstate.sessions.context_fit import TokenBudget
from keepstate.sessions.messages import Message
from keepstate.sessions.window import PageMissing, Window, WindowRecord
from tests.sessions.talking import by_words, call, orphans, result, said


class Shelf:
    """Keeps a context as a store does, in pages that are read when they are asked for."""

    def __init__(self) -> None:
        self.head: WindowRecord | None = None
        self.pages: dict[int, list[list[Any]]] = {}

    def worked(self, change: Callable[[Window], Any]) -> Any:
        window, wanted = Window.of(self.head), set[int]()
        while True:
            trial = window.copy()
            for page in wanted:
                trial.load_page(page, self.pages.get(page, []))
            try:
                answer = change(trial)
                break
            except PageMissing as missing:
                wanted.add(missing.page)
        puts, deletes = trial.page_changes()
        for page in puts:
            self.pages[page] = trial.encode_page(page)
        for page in deletes:
            self.pages.pop(page, None)
        self.head = trial.record()
        return answer

    def whole(self) -> Window:
        window = Window.of(self.head)
        for page in window.needed:
            if page not in window.pages:
                window.load_page(page, self.pages.get(page, []))
        return window


MESSAGES = st.one_of(
    st.integers(0, 30).map(lambda n: said("word " * n)),
    st.integers(0, 4).map(lambda n: said("rule " * n, "system")),
    st.lists(st.sampled_from("abcde"), min_size=1, max_size=3, unique=True).map(lambda ids: call(*ids)),
    st.builds(lambda id, n: result(id, "data " * n), st.sampled_from("abcde"), st.integers(0, 30)),
)


@settings(max_examples=300)
@given(
    st.lists(st.tuples(MESSAGES, st.booleans()), max_size=60),
    st.integers(5, 60),
    st.one_of(st.none(), st.integers(1, 8)),
)
def test_whatever_is_said_the_context_is_within_its_budget(
    told: list[tuple[Message, bool]], most: int, over: int | None
) -> None:
    budget, shelf, messages = TokenBudget(most, by_words, over, 3), Shelf(), dict[int, Message]()
    stay: list[int] = []
    for message, pinned in told:
        pin = pinned and message["role"] == "user"
        try:
            number = shelf.worked(partial(context_fit.add, message=message, budget=budget, pinned=pin))
        except InvalidError:
            continue
        messages[number] = message
        if pin or message["role"] == "system":
            stay.append(number)
        window = shelf.whole()
        context = context_fit.ordered(window, messages)

        assert window.total_tokens == sum(map(by_words, context)) <= most
        assert orphans(context) == []
        assert set(stay) <= {row.number for row in window.entries}
        assert [row.number for row in window.entries] == sorted(row.number for row in window.entries)
        assert window.size == len(window.entries)
        assert window.fixed == [row.number for row in window.entries if row.stays]
        while window.due_numbers:
            shelf.worked(
                partial(
                    context_fit.summarise,
                    summary=said("brief " * 9, "system"),
                    numbers=window.due_numbers[:3],
                    budget=budget,
                )
            )
            window = shelf.whole()
            assert window.total_tokens == sum(map(by_words, context_fit.ordered(window, messages))) <= most
