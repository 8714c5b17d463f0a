"""Work at random through tiers: `TIERS COLD WARM FILE ENOUGH LAUNCH SEED OPERATIONS`.

TIERS is `right`, or names a way in which they are wrong and must be caught. After so many operations it goes
on until the file ENOUGH is there.
"""

from __future__ import annotations

import sys
from collections.abc import Set
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from keepstate_testing.proof import RecordedStore, Recorder

from keepstate import TieredStore
from keepstate._finish import finish
from keepstate.stores.protocol import Batch, Check, Delete, Mark, Put, Store

SPACES = ("tiers/1", "tiers/2", "tiers/3")
KEYS = [b"\x01%d" % i for i in range(5)] + [b"\x02%d" % i for i in range(5)] + [b"\x00object"]


async def work(store: Store, random: Random, operations: int, enough: Path) -> None:
    for number in count():
        if number >= operations and enough.exists():
            return
        space, key = random.choice(SPACES), random.choice(KEYS)
        dice = random.random()
        if dice < 0.65:
            await store.read(space, random.sample(KEYS, random.randint(1, 4)))
        elif dice < 0.85:
            await store.apply([Batch(space, [Put(key, b"%d" % number * random.randint(1, 200))])])
        elif dice < 0.9:
            await store.apply([Batch(space, [Delete(key)])])
        else:
            entry = (await store.read(space, [key])).entries[0]
            check = Check(key, version=entry.version if entry else 0)
            await store.apply([Batch(space, [Put(key, b"checked %d" % number)], [check])])


class Deaf(TieredStore):
    """Believes that nothing has changed since what is remembered or claimed."""

    async def _changed(
        self, space: str, after: int, upto: int, mark: Mark | None = None
    ) -> Set[bytes] | None:
        return set()


class Late(TieredStore):
    """Reads for ten milliseconds what it has verified, and says that it verifies each time."""

    def __init__(self, **told: Any) -> None:
        super().__init__(**told, max_staleness_s=0.01)


TIERS: dict[str, type[TieredStore]] = {"right": TieredStore, "deaf": Deaf, "late": Late}


async def main(
    tiers: str, cold: str, warm: str, file: str, enough: str, launch: int, seed: int, operations: int
) -> None:
    recorder = Recorder(Path(file))
    wrapped = TIERS[tiers](cold=cold, warm=warm, hot_bytes=6000, mode="blocking")
    store = RecordedStore(wrapped, recorder, launch)
    await store.open()
    await work(store, Random(seed), operations, Path(enough))
    await store.close()
    recorder.close()


if __name__ == "__main__":
    tiers, cold, warm, file, enough, *numbers = sys.argv[1:]
    finish(main(tiers, cold, warm, file, enough, *map(int, numbers)))
