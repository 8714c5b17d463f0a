"""Bugs of schema changes, planted from outside: each of them is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import keepstate
from keepstate import register_write_version
from keepstate.engine.kernel import unreadable
from keepstate.engine.space import migration
from keepstate.values import builtin, decode, json_exchange
from keepstate.values.builtin import Record
from keepstate.values.schema import Registry
from tests.engine import test_migrating, test_unreadable
from tests.engine.trips import NAME, know_trips
from tests.values import test_writing_forms

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[], None]


def only_up(planting: pytest.MonkeyPatch) -> None:
    """Leave objects above the written version as they are."""
    planting.setattr(
        Registry,
        "is_due",
        lambda self, name, version: name in self._by_name and self._by_name[name].written > version,
    )


def losses_not_compared(planting: pytest.MonkeyPatch) -> None:
    """Take every downcast for one without a loss."""
    planting.setattr(Registry, "newest", lambda self: self)


def index_left_after_a_loss(planting: pytest.MonkeyPatch) -> None:
    """Leave the index of a record that has lost data."""
    planting.setattr(migration, "mark_changed", lambda *_: None)


def first_damage_ends_it(planting: pytest.MonkeyPatch) -> None:
    """End a migration at the first document that cannot be read."""
    planting.setattr(migration, "_UNREADABLE", ())


def raw_values_are_skipped(planting: pytest.MonkeyPatch) -> None:
    """Leave out what should be shown as it is stored."""
    stand_in = unreadable.stand_in

    def skipping(choice: Any, encoded: Any, error: Any) -> Any:
        return stand_in("skip" if choice == "raw" else choice, encoded, error)

    for module in ("documents.record", "documents.watch", "documents.collection_indexes", "events.record"):
        planting.setattr(f"keepstate.engine.{module}.stand_in", skipping)


def unset_fields_forgotten(planting: pytest.MonkeyPatch) -> None:
    """Forget in builtin form which fields were not set."""
    planting.setattr(
        decode,
        "object_form",
        lambda name, version, fields, _, is_plain: builtin.object_form(
            name, version, fields, [], is_plain=is_plain
        ),
    )


def equal_forms_become_one(planting: pytest.MonkeyPatch) -> None:
    """Put objects with equal forms into one set, of which one is left."""
    planting.setattr(decode, "_KEYED", frozenset())


def scalars_become_arrays(planting: pytest.MonkeyPatch) -> None:
    """Write every numpy value as an array."""
    stored = Record.stored

    def wrong(self: Record) -> Any:
        tag, parts = stored(self)
        return (13 if tag == 14 else tag), parts

    planting.setattr(Record, "stored", wrong)


def large_integers_as_numbers(planting: pytest.MonkeyPatch) -> None:
    """Leave integers beyond 2^53 to the readers of JSON."""
    planting.setattr(json_exchange, "_SAFE", 1 << 64)


def names_of_zones_forgotten(planting: pytest.MonkeyPatch) -> None:
    """Forget the names of fixed offsets in JSON."""
    planting.setattr(builtin, "_name_of", lambda _: None)


def in_a_space(test: Callable[[Any], Any]) -> Test:
    """Return a test of a space, in memory."""

    def run() -> None:
        async def whole() -> None:
            async with keepstate.open("memory://") as ks:
                await test(ks.space("run/1"))

        know_trips()
        try:
            asyncio.run(whole())
        finally:
            register_write_version(NAME, None)

    return run


def documents_around_it() -> None:
    """Run the test of listings of documents with a planting of its own."""
    with pytest.MonkeyPatch.context() as patching:
        older = test_unreadable.older.__wrapped__(patching)  # type: ignore[attr-defined]
        in_a_space(
            lambda space: test_unreadable.test_documents_are_listed_and_paged_around_it(space, older)
        )()


def sets_of_equal_forms() -> None:
    """Run the test of objects with equal fields."""
    test_writing_forms.test_objects_with_equal_fields_do_not_become_one(*test_writing_forms.NOT_EQUAL[0])


def moments() -> None:
    """Run the test of a zone with a name."""
    for moment in test_writing_forms.MOMENTS:
        test_writing_forms.test_moments_and_numbers_keep_all_of_their_parts(moment)


def large_integers() -> None:
    """Run the test of the first integer that a float does not hold."""
    test_writing_forms.test_integers_that_a_float_does_not_hold_are_text(2**53)


FOUND_BY: list[tuple[Plant, Test]] = [
    (only_up, in_a_space(test_migrating.test_documents_go_down_and_come_back_as_they_were)),
    (
        losses_not_compared,
        in_a_space(test_migrating.test_an_undeclared_loss_is_refused_and_a_declared_one_is_told),
    ),
    (
        index_left_after_a_loss,
        in_a_space(test_migrating.test_indexes_stay_right_and_are_built_again_after_a_loss),
    ),
    (
        first_damage_ends_it,
        in_a_space(test_migrating.test_a_damaged_document_is_refused_and_the_others_are_written),
    ),
    (raw_values_are_skipped, documents_around_it),
    (unset_fields_forgotten, test_writing_forms.test_fields_that_were_not_set_stay_so),
    (equal_forms_become_one, sets_of_equal_forms),
    (scalars_become_arrays, test_writing_forms.test_arrays_and_scalars_of_numpy_stay_what_they_are),
    (large_integers_as_numbers, large_integers),
    (names_of_zones_forgotten, moments),
]


@pytest.mark.parametrize(("plant", "test"), FOUND_BY, ids=[plant.__name__ for plant, _ in FOUND_BY])
def test_a_planted_bug_is_noticed(plant: Plant, test: Test) -> None:
    test()
    with pytest.MonkeyPatch.context() as planting:
        plant(planting)
        with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
            test()
