"""A recorded history with objects of classes, as version 2 of its format wrote it, is read for ever."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import keepstate
from keepstate._runner import TaskRunner
from keepstate.stores.memory import MemoryStore
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource
from tests.formats.test_history_2 import BEGIN_MS

PATH = Path(__file__).parent / "history_2_classes.bundle"
IDS = [
    "2bec09a79e7282ec43927fff955fe38259004bdf",
    "d43cff57a9eca495eb76f701c132725b651912a7",
    "78c9a22503c29df973be2a1f28811dc2734a1410",
    "c6689eb0a8dc6f6100f6dac97966f73e687ef4e8",
]


@keepstate.register("tests.formats.Step", version=2)
@dataclass(frozen=True)
class Step:
    name: str
    tries: int = 0


async def made(path: Path) -> list[str]:
    """Write the history into a file, and return its ids from the first."""
    clock = ManualClock(BEGIN_MS)
    store = MemoryStore(runner=TaskRunner(), clock=clock)
    async with TurnedKeepstate(TurnedSource(store)) as ks:
        ks.turned = clock
        space = ks.space("a", author="ada", record=True)
        await space.documents.put("plan", [Step("look"), Step("act", 2)])
        await space.documents.put("brief", 1, ttl_s=1)
        clock.advance(5_000)
        await space.by("bob", message="many").documents.put(
            "steps", [Step(f"step {n} " * 9) for n in range(99)]
        )
        ids = [commit.id async for commit in space.history.log()]
        await space.history.export_bundle(path)
    return ids[::-1]


def test_the_same_record_has_the_same_ids(tmp_path: Path) -> None:
    assert asyncio.run(made(tmp_path / "again.bundle")) == IDS


def test_what_was_recorded_is_read() -> None:
    async def whole() -> None:
        async with keepstate.open("memory://") as ks:
            space = ks.space("b")
            await space.history.import_bundle(PATH)

            assert [commit.id async for commit in space.history.log()][::-1] == IDS
            assert (await space.history.verify()).problems == ()
            assert dict(await space.at("main#2")) == {"plan": [Step("look"), Step("act", 2)], "brief": 1}
            assert (await space.at())["steps", 7] == Step("step 7 " * 9)
            commits = [commit async for commit in space.history.log()]
            assert [(commit.author, commit.message) for commit in commits] == [
                ("bob", "many"),
                (None, "expired: brief"),
                ("ada", "put brief"),
                ("ada", "put plan"),
            ]
            assert commits[0].classes == ("tests.formats.Step@2",)

    asyncio.run(whole())
