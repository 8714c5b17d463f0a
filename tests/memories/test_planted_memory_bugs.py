"""Bugs of memories, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from keepstate.memories import local_index, memories, memory
from keepstate.memories.local_index import LocalIndex
from keepstate.memories.memories import Memories
from keepstate.values.vectors import VectorMatrix
from tests.contracts.memories import MemoryContract
from tests.contracts.memories.memories import MemoryStage
from tests.managers.places import InAsyncMode, InMemory

Plant = Callable[[pytest.MonkeyPatch], None]


def ended_ones_are_found(planting: pytest.MonkeyPatch) -> None:
    """Take every memory for a current one when it is indexed and found."""
    read = memory.read_listed_memory

    def blind(*given: Any) -> Any:
        found = read(*given)
        return found if found is None else memories.replace(found, status="current")

    planting.setattr(local_index, "read_listed_memory", blind)
    planting.setattr(memories, "read_listed_memory", blind)


def filters_ignored(planting: pytest.MonkeyPatch) -> None:
    """Select all memories, whatever the filter."""
    planting.setattr(LocalIndex, "select", lambda *_: None)


def truth_is_one(planting: pytest.MonkeyPatch) -> None:
    """Compare values of filters as Python does."""
    planting.setattr(memory, "_equal", lambda one, other: one == other)


def stale_index(planting: pytest.MonkeyPatch) -> None:
    """Read what changed once, and never again."""
    catch_up = LocalIndex.catch_up

    async def once(self: Any) -> None:
        if self._at is None:
            await catch_up(self)

    planting.setattr(LocalIndex, "catch_up", once)


def owners_share_an_index(planting: pytest.MonkeyPatch) -> None:
    """Put the memories of all owners into one place."""
    locate = Memories._locate  # pyright: ignore[reportPrivateUsage]
    planting.setattr(Memories, "_locate", lambda self, _: locate(self, "everyone"))


def removed_vectors_stay(planting: pytest.MonkeyPatch) -> None:
    """Leave the vector of an ended memory, and do not check its hit."""
    planting.setattr(VectorMatrix, "discard", lambda *_: None)
    planting.setattr(LocalIndex, "discard", lambda *_: None)
    ended_ones_are_found(planting)


def models_mix(planting: pytest.MonkeyPatch) -> None:
    """Compare vectors of any model."""
    planting.setattr(Memories, "_require_model", lambda *_: None)


def foreign_index_trusted(planting: pytest.MonkeyPatch) -> None:
    """Return what the caller's index returns, without more of it."""

    async def trust(
        self: Any, index: Any, local: Any, vector: Any, limit: int, where: Any, allowed: Any
    ) -> Any:
        rows = await index.search(vector, limit, where)
        return [row for row in rows if row[0] in local.embedded]

    planting.setattr(Memories, "_nearest_of", trust)


def line_left(planting: pytest.MonkeyPatch) -> None:
    """Erase the memory alone, without what it replaced."""
    line = Memories._line  # pyright: ignore[reportPrivateUsage]

    async def alone(self: Any, id: str) -> Any:
        return {id: (await line(self, id))[id]}

    planting.setattr(Memories, "_line", alone)


PLANTED: list[tuple[Plant, Callable[[Any], Any]]] = [
    (ended_ones_are_found, MemoryContract.test_a_forgotten_fact_is_not_found),
    (ended_ones_are_found, MemoryContract.test_a_replaced_fact_is_in_the_history_only),
    (filters_ignored, MemoryContract.test_a_filter_selects_by_data),
    (truth_is_one, MemoryContract.test_a_filter_selects_by_data),
    (stale_index, MemoryContract.test_others_writes_are_seen_at_once),
    (owners_share_an_index, MemoryContract.test_owners_do_not_see_each_other),
    (removed_vectors_stay, MemoryContract.test_a_forgotten_fact_is_not_found),
    (models_mix, MemoryContract.test_two_models_never_mix),
    (foreign_index_trusted, MemoryContract.test_an_index_is_never_trusted_about_what_exists),
    (line_left, MemoryContract.test_an_erased_memory_is_gone_with_its_line),
]


class TestPlanted(InMemory, InAsyncMode, MemoryStage):
    @pytest.mark.parametrize(
        ("plant", "test"),
        PLANTED,
        ids=[f"{plant.__name__}-{number}" for number, (plant, _) in enumerate(PLANTED)],
    )
    def test_a_planted_bug_is_noticed(
        self, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Callable[[Any], Any]
    ) -> None:
        plant(monkeypatch)

        with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
            test(self)
