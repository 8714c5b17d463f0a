"""A process that reads and writes at random through tiers: `COLD WARM FILE LAUNCH SEED OPERATIONS`."""

from __future__ import annotations

import sys
from pathlib import Path
from random import Random

from keepstate import TieredStore
from keepstate._finish import finish
from keepstate.stores.protocol import Batch, Check, Delete, Put, Store
from keepstate.testing.proof import RecordedStore, Recorder

SPACES = ("tiers/1", "tiers/2", "tiers/3")
KEYS = [b"\x01%d" % i for i in range(5)] + [b"\x02%d" % i for i in range(5)] + [b"\x00object"]


async def work(store: Store, random: Random, operations: int) -> None:
    for number in range(operations):
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


async def main(cold: str, warm: str, file: str, launch: int, seed: int, operations: int) -> None:
    recorder = Recorder(Path(file))
    tiers = TieredStore(cold=cold, warm=warm, hot_bytes=6000, colour="blocking")
    store = RecordedStore(tiers, recorder, launch)
    await store.open()
    await work(store, Random(seed), operations)
    await store.close()
    recorder.close()


if __name__ == "__main__":
    cold, warm, file, *numbers = sys.argv[1:]
    finish(main(cold, warm, file, *map(int, numbers)))
