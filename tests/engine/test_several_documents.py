"""Several documents, read together."""

from __future__ import annotations

import pytest

from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError


async def test_those_that_are_there_are_read_by_name(space: Space) -> None:
    first = await space.documents.put("a", [1])
    await space.documents.put("b" * 500, "long")

    found = await space.documents.entries("a", "absent", "b" * 500)

    assert {key: entry.value for key, entry in found.items()} == {"a": [1], "b" * 500: "long"}
    assert found["a"].version == first


async def test_what_was_read_together_guards_a_transaction(space: Space) -> None:
    await space.documents.put("a", 1)

    with pytest.raises(ConflictError):
        async with space.transaction() as tx:
            await tx.documents.entries("a", "b")
            await space.documents.put("b", "meanwhile")
            await tx.documents.put("c", 1)

    assert await space.documents.get("c") is None


async def test_none_are_asked_for(space: Space) -> None:
    assert await space.documents.entries() == {}


async def test_a_name_that_is_none_is_refused(space: Space) -> None:
    with pytest.raises(InvalidError):
        await space.documents.entries("a", "")
