"""What one process supposes of a space while another one writes to it: each story has one right ending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec

import keepstate
from keepstate.engine.kernel import layout
from keepstate.engine.kernel.executor import SpaceExecutor
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.space.space import Space
from keepstate.stores.memory import MemoryHeap, MemoryStore
from keepstate.stores.protocol import Capabilities

SPACE: Final = "run/1"


class SharedStore(MemoryStore):
    """A store in memory that says what a server would. Of one in this process nothing is supposed."""

    async def _open(self) -> Capabilities:
        return msgspec.structs.replace(await super()._open(), shared=True)


_KEY: Final = layout.named_key(layout.DOCUMENTS, "plan")


async def _warm(space: Space) -> None:
    """Let the process know the document `plan`, which says who has written it last."""
    for _ in range(2):
        await space.documents.update("plan", lambda old: {"by": "us", "count": old["count"] + 1})


async def answer(us: Space, others: Space) -> None:
    """An update is made from what another process has written."""
    await others.documents.update("plan", lambda old: {"by": "others", "count": old["count"] + 10})
    answer = await us.documents.update("plan", lambda old: {**old, "count": old["count"] + 1})

    assert answer == {"by": "others", "count": 13}, f"an update was made from a stale value: {answer}"
    assert await others.documents.get("plan") == answer


async def error(us: Space, others: Space) -> None:
    """An error of the caller's function over a stale value reaches no caller."""

    def change(old: dict[str, Any]) -> dict[str, Any]:
        if old["by"] == "us":
            raise LookupError("the value is stale")
        return {**old, "seen": True}

    await others.documents.put("plan", {"by": "others", "count": 1})
    try:
        answer = await us.documents.update("plan", change)
    except LookupError as stale:
        raise AssertionError(f"an error came from a supposition: {stale}") from stale

    assert answer["seen"]


async def refusal(us: Space, others: Space) -> None:
    """A decision to write nothing over a stale value is made again."""

    async def work(unit: Unit) -> bool:
        entry = await unit.get(_KEY)
        assert entry is not None
        if b"others" in entry.value:
            unit.put(_KEY, entry.value)
            return True
        return False

    await others.documents.put("plan", {"by": "others", "count": 1})
    done, _ = await _executor(us).run(work, supposes=True)

    assert done, "a decision to write nothing came from a supposition"


async def absence(us: Space, others: Space) -> None:
    """A document that another process has created is not taken for absent."""
    key = layout.named_key(layout.DOCUMENTS, "new")

    async def work(unit: Unit) -> bool:
        is_absent = await unit.get(key) is None
        await unit.get(_KEY)
        unit.put(_KEY, (await unit.value(entry)) if (entry := await unit.get(_KEY)) else b"")
        return is_absent

    for _ in range(3):
        assert (await _executor(us).run(work, supposes=True))[0]
    await others.documents.put("new", 1)
    is_absent, _ = await _executor(us).run(work, supposes=True)

    assert not is_absent, "an absence came from a supposition"


async def listing(us: Space, others: Space) -> None:
    """Work that lists the space after it has supposed something does not lose what others have written."""

    async def work(unit: Unit) -> int:
        entry = await unit.get(_KEY)
        count = len([found async for found in unit.scan(layout.DOCUMENTS)])
        assert entry is not None
        unit.put(_KEY, entry.value)
        return count

    await others.documents.put("plan", {"by": "others", "count": 1})
    await _executor(us).run(work, supposes=True)

    found = await others.documents.get("plan")
    assert found["by"] == "others", f"a listing took over a stale value: {found}"


async def mixture(us: Space, others: Space) -> None:
    """What is supposed and what is read are of one revision."""

    async def work(unit: Unit) -> tuple[bytes, bytes]:
        one, other = await unit.get(_KEY), await unit.get(layout.named_key(layout.DOCUMENTS, "pair"))
        assert one is not None
        assert other is not None
        unit.put(layout.named_key(layout.DOCUMENTS, "copy"), one.value)
        return one.value, other.value

    async with others.transaction() as tx:
        await tx.documents.put("plan", "together")
        await tx.documents.put("pair", "together")
    (one, other), _ = await _executor(us).run(work, supposes=True)

    assert one == other, f"a supposed {one!r} was mixed with a read {other!r}"


async def head(us: Space, others: Space) -> None:
    """An append to a branch that another process has moved on keeps both."""
    await us.history.append("lines", "one")
    await us.history.append("lines", "two")
    await others.history.append("lines", "three")
    await us.history.append("lines", "four")

    lines = (await others.history.checkout())["lines"]
    assert lines == ["one", "two", "three", "four"], f"a commit was lost: {lines}"


async def draft(us: Space, others: Space) -> None:
    """A draft of a branch that another process has moved on is refused, and its nodes stay whole."""
    await us.history.commit({f"key{number}": "value" * number for number in range(99)})
    draft = await us.history.begin()
    draft["key3"] = "ours"
    await draft.commit()
    theirs = await others.history.begin()
    theirs["key4"] = "theirs"
    await theirs.commit()
    draft["key5"] = "ours"
    try:
        await draft.commit()
    except keepstate.ConflictError:
        verified = await others.history.verify()
        assert verified.problems == (), verified.problems
        return
    raise AssertionError("a draft replaced a commit of another process")


STORIES: Final[tuple[Callable[[Space, Space], Awaitable[None]], ...]] = (
    *(answer, error, refusal, absence, listing, mixture, head, draft),
)


def _executor(space: Space) -> SpaceExecutor:
    return space.executor


async def tell(story: Callable[[Space, Space], Awaitable[None]]) -> None:
    """Let a story happen on one store, in two handles that know nothing of each other."""
    heap = MemoryHeap()
    stores = [SharedStore(heap=heap) for _ in range(2)]
    async with keepstate.open(await stores[0].open()) as one, keepstate.open(await stores[1].open()) as two:
        us, others = one.space(SPACE), two.space(SPACE)
        await us.documents.put("plan", {"by": "us", "count": 0})
        await us.documents.put("pair", "before")
        await _warm(us)
        try:
            await story(us, others)
        finally:
            for store in stores:
                await store.close()
