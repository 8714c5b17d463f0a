"""What a refused write says: what was asked, what is there, in the words of who asked."""

from __future__ import annotations

import pytest

from keepstate.engine.events.events import EXISTS, NO_STREAM, Expected
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError
from tests.engine.conftest import Turned


@pytest.fixture
def space(turned: Turned) -> Space:
    return turned.ks.tenant("5dbd4c").space("a")


async def test_a_stream_that_should_be_new_and_has_events_is_told_so(space: Space) -> None:
    await space.events.append(1, stream="n2")
    with pytest.raises(ConflictError) as caught:
        await space.events.append(2, stream="n2", expected=NO_STREAM)

    assert (
        str(caught.value)
        == "stream 'n2' of 'a' has events, but expected=NO_STREAM was required. Read it again"
    )
    assert caught.value.space == "a"


@pytest.mark.parametrize(("expected", "asked"), [(EXISTS, "EXISTS"), (65536, "65536")])
async def test_a_stream_that_should_have_events_and_is_absent_is_told_so(
    space: Space, expected: Expected | int, asked: str
) -> None:
    with pytest.raises(ConflictError) as caught:
        await space.events.append(1, stream="n2", expected=expected)

    assert (
        str(caught.value)
        == f"stream 'n2' of 'a' does not exist, but expected={asked} was required. Read it again"
    )


@pytest.mark.parametrize(("stored", "asked"), [(False, 4), (True, 4), (True, 0)])
async def test_a_document_that_is_not_at_the_version_asked_for_is_told_so(
    space: Space, *, stored: bool, asked: int
) -> None:
    version = await space.documents.put("d", 1) if stored else 0
    with pytest.raises(ConflictError) as caught:
        await space.documents.put("d", 2, expected_version=asked)

    found = f"is at version {version}" if stored else "does not exist"
    assert (
        str(caught.value)
        == f"document 'd' of 'a' {found}, but expected_version={asked} was required. Read it again"
    )
    assert (caught.value.actual, caught.value.space) == (version, "a")


async def test_a_transaction_is_told_what_its_version_met(space: Space) -> None:
    async def expecting() -> None:
        async with space.transaction() as tx:
            await tx.documents.get("d")
            await tx.documents.put("d", 2, expected_version=7)

    with pytest.raises(ConflictError, match="'d' of 'a' does not exist, but expected_version=7 was required"):
        await expecting()


async def test_a_document_that_somebody_else_changed_is_told_by_the_names_of_its_user(space: Space) -> None:
    async def reading() -> None:
        async with space.transaction() as tx:
            await tx.documents.put("e", await tx.documents.get("d"))
            await space.documents.put("d", 1)

    with pytest.raises(ConflictError, match=r"^document 'd' of 'a' changed after it was read and now is at"):
        await reading()
