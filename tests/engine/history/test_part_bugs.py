"""The tests of orders, paths and parts find bugs of each kind, planted from outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

from keepstate.errors import KeepstateError
from keepstate.values import diff, merge, order
from keepstate.values.contents import Contents
from keepstate.values.nodes import Entry
from keepstate.values.order import OrderEditing
from keepstate.values.refs import Fetching
from tests.engine.history import test_parts
from tests.values import test_diff, test_order

SEEDS = 60
"""The largest number of seeds that are tried before a bug counts as not found."""


@contextmanager
def order_forgotten_in_a_merge() -> Iterator[None]:
    """Merge the items of dicts, and leave their order as `ours` has it."""

    def forget(*_: object) -> Fetching[None]:
        yield from ()

    with patch.object(merge, "_merge_orders", forget):
        yield


@contextmanager
def ours_order_lost_in_a_merge() -> Iterator[None]:
    """Put the keys of a merge in sorted order, by taking over its tree without the tree of its order."""
    right = order.edit_order

    def forget(*arguments: Any) -> Fetching[tuple[None, int]]:
        yield from right(*arguments)
        return None, 0

    with patch("keepstate.values.patch.edit_order", forget):
        yield


@contextmanager
def descents_counted_without_the_right_neighbour() -> Iterator[None]:
    """Look at one neighbour of an edit only."""
    right = OrderEditing._splice

    def splice(self: OrderEditing, begin: int, end: int, keys: Sequence[bytes]) -> Fetching[None]:
        before = self.descents
        yield from right(self, begin, end, keys)
        self.descents = max(before + len(keys) - (end - begin), 1)

    with patch.object(OrderEditing, "_splice", splice):
        yield


@contextmanager
def removed_paths_in_new_coordinates() -> Iterator[None]:
    """Tell the old path of a removed item by the indexes of the new list."""

    def below(self: Any, step: Any, old_step: Any) -> Any:
        return diff._Place((*self.path, step), (*self.path, old_step))

    with patch.object(diff._Place, "below", below):
        yield


@contextmanager
def parts_cut_out_of_the_whole() -> Iterator[None]:
    """Read all items of a list or dict, and return some of them."""

    def between(self: Contents, begin: int, end: int) -> Fetching[Sequence[Entry]]:
        return (yield from self.items())[begin:end]

    with patch.object(Contents, "between", between):
        yield


def property_of(test: Any) -> Callable[[int], None]:
    """Return the property that a test checks for one seed."""
    inner: Callable[[int], None] = test.hypothesis.inner_test
    return inner


BUGS = [
    (order_forgotten_in_a_merge, property_of(test_order.test_the_side_that_alone_changed_the_order_leads)),
    (ours_order_lost_in_a_merge, property_of(test_order.test_the_side_that_alone_changed_the_order_leads)),
    (
        descents_counted_without_the_right_neighbour,
        property_of(test_order.test_descents_are_those_of_the_keys_after_any_edits),
    ),
    (removed_paths_in_new_coordinates, lambda _: test_diff.test_a_removed_item_has_one_path_in_each_state()),
]


@pytest.mark.parametrize(("bug", "check"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_planted_bug_is_found(bug: Callable[[], Any], check: Callable[[int], None]) -> None:
    with bug():
        seed = next((seed for seed in range(SEEDS) if fails(check, seed)), None)

    assert seed is not None
    check(seed)  # which passes without the bug


def fails(check: Callable[[int], None], seed: int) -> bool:
    """Return whether a property does not hold for a seed."""
    try:
        check(seed)
    except (AssertionError, LookupError, TypeError, KeepstateError):
        return True
    return False


@pytest.mark.parametrize(
    "check",
    [
        test_parts.test_an_outline_of_a_large_dict_reads_a_page,
        test_parts.test_a_hundred_of_ninety_thousand_rows_are_read_from_a_few_objects,
    ],
)
async def test_a_part_that_is_cut_out_of_the_whole_is_found(check: Callable[[], Any]) -> None:
    with parts_cut_out_of_the_whole(), pytest.raises(AssertionError):
        await check()
