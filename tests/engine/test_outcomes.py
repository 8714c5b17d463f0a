"""Settling a batch whose outcome was unknown, by its token."""

from __future__ import annotations

import pytest

from keepstate.engine.space.space import Space
from keepstate.errors import OutcomeUnknownError
from keepstate.stores.protocol import Batch, Conflict, Put

TOKEN = b"a token of its own"


async def test_the_outcome_of_a_batch_that_applied_is_its_revision(space: Space) -> None:
    store = await space.executor.home.opened()
    await space.documents.put("before", 1)
    await store.apply([Batch(space.name, [Put(b"\x01key", b"value")], token=TOKEN)])
    await space.documents.put("after", 1)

    assert await space.outcome(TOKEN) == 2
    assert await space.revision() == 3


async def test_a_batch_without_an_outcome_is_refused_when_it_comes_late(space: Space) -> None:
    store = await space.executor.home.opened()
    await space.documents.put("before", 1)
    settled = await space.outcome(TOKEN)
    late = (await store.apply([Batch(space.name, [Put(b"\x01key", b"value")], token=TOKEN)]))[0]

    assert settled is None
    assert isinstance(late, Conflict)
    assert (await store.read(space.name, [b"\x01key"])).entries[0] is None
    assert await space.outcome(TOKEN) is None


async def test_an_outcome_that_the_log_has_forgotten_is_unknown(space: Space) -> None:
    store = await space.executor.home.opened()
    await store.apply([Batch(space.name, [Put(b"\x01key", b"value")], token=TOKEN)])
    await store.drop(space.name)

    with pytest.raises(OutcomeUnknownError):
        await space.outcome(TOKEN)
