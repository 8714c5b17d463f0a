"""Spaces in memory are listed as sorting all names would, also while new ones come."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from keepstate.stores.key_index import SpaceTable
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.space_state import SpaceState

names = st.text(alphabet="ab/é\U0001f600", min_size=1, max_size=3)


def state(*, exists: bool) -> SpaceState:
    made = SpaceState()
    made.apply(Batch("s", [Put(b"\x01k", b"")]), 1)
    if not exists:
        made.drop(1)
    return made


@given(
    st.lists(st.dictionaries(names, st.booleans(), max_size=4), max_size=4),
    st.one_of(st.just(""), names),
    st.one_of(st.none(), names),
    st.integers(1, 5),
)
def test_a_page_is_what_sorting_all_names_would_give(
    rounds: list[dict[str, bool]], prefix: str, after: str | None, limit: int
) -> None:
    table = SpaceTable[SpaceState]()
    for added in rounds:
        for name, exists in added.items():
            table[name] = state(exists=exists)

        page = table.page(prefix, after, limit)

        there = sorted((name for name in table if table[name].exists), key=lambda name: name.encode())
        wanted = [name for name in there if name.startswith(prefix) and (after is None or name > after)]
        assert page == wanted[:limit]


def test_names_are_sorted_once_for_all_pages() -> None:
    compared = 0

    class Name(str):
        def __lt__(self, other: str) -> bool:
            nonlocal compared
            compared += 1
            return super().__lt__(other)

    table = SpaceTable[SpaceState]()
    for number in range(2000):
        table[Name(f"{number * 7919 % 2000:04}")] = state(exists=True)
    page = table.page("", None, 100)
    to_sort, compared = compared, 0

    listed = list(page)
    while page := table.page("", page[-1], 100):
        listed += page
    to_page = compared

    assert listed == sorted(listed) and len(listed) == 2000
    assert to_page < to_sort / 10
