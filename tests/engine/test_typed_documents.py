"""A document of a known type: what is read and written is of that type, or refused by its path."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError, NotFoundError


@dataclass
class Run:
    turns: list[int]


async def test_a_typed_document_is_read_changed_and_removed(space: Space) -> None:
    counts = space.documents.document("counts", dict[str, int])
    absent = await counts.get(), await counts.get({"n": 7}), await counts.entry()
    version = await counts.put({"n": 1})
    entry = await counts.entry()
    changed = await counts.update(lambda old: {**old, "n": old["n"] + 1})

    assert absent == (None, {"n": 7}, None)
    assert entry is not None
    assert (entry.key, entry.value, entry.version, entry.created) == ("counts", {"n": 1}, version, version)
    assert changed == await counts.get() == {"n": 2}
    with pytest.raises(ConflictError):
        await counts.put({"n": 9}, expected_version=version)
    assert (await counts.delete(), await counts.delete(), await counts.get()) == (True, False, None)


async def test_a_typed_update_of_an_absent_document_needs_a_default(space: Space) -> None:
    counts = space.documents.document("counts", dict[str, int])
    with pytest.raises(NotFoundError):
        await counts.update(lambda old: old)

    assert await counts.update(lambda old: {**old, "b": 2}, default={"a": 1}) == {"a": 1, "b": 2}


async def test_a_document_of_another_type_is_refused_by_its_path(space: Space) -> None:
    await space.documents.put("run", {"turns": [1, "two"]})
    run = space.documents.document("run", Run)

    with pytest.raises(InvalidError, match=r"turns\[1\]"):
        await run.get()
    with pytest.raises(InvalidError, match=r"turns\[1\]"):
        await run.entry()
    with pytest.raises(InvalidError, match=r"turns\[1\]"):
        await run.update(lambda old: old)
    assert await space.documents.get("run") == {"turns": [1, "two"]}


async def test_a_typed_update_to_another_type_writes_nothing(space: Space) -> None:
    counts = space.documents.document("counts", dict[str, int])
    await counts.put({"n": 1})

    with pytest.raises(InvalidError, match="n"):
        await counts.update(lambda old: {"n": "one"})  # type: ignore[dict-item]
    assert await counts.get() == {"n": 1}


async def test_a_typed_put_of_another_type_writes_nothing_and_names_the_document(space: Space) -> None:
    counts = space.documents.document("counts", dict[str, int])

    with pytest.raises(InvalidError, match=r"document 'counts' of 'run/1' was not written: .*`int`"):
        await counts.put({"n": "one"})  # type: ignore[dict-item]
    assert await space.revision() == 0


async def test_a_typed_read_of_another_type_names_document_and_space(space: Space) -> None:
    await space.documents.put("counts", {"n": "one"})

    with pytest.raises(
        InvalidError, match=r"document 'counts' of 'run/1' cannot be read as this type"
    ) as caught:
        await space.documents.get("counts", type=dict[str, int])
    assert caught.value.path == "[...]"
