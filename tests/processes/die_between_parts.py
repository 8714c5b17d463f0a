"""Be killed between the parts of a large value and their entry: `python die_between_parts.py URL`."""

import asyncio
import os
import signal
import sys
from collections.abc import Sequence

import keepstate
from keepstate.engine.kernel import layout
from keepstate.stores.protocol import Batch, Outcome


async def main(url: str) -> None:
    async with keepstate.open(url) as ks:
        store = ks.store
        plain = store.apply

        async def apply(batches: Sequence[Batch]) -> list[Outcome]:
            if any(check.key == layout.EPOCH for check in batches[0].checks):
                os.kill(os.getpid(), signal.SIGKILL)
            return await plain(batches)

        store.apply = apply  # type: ignore[method-assign]
        await ks.space("run/1").documents.put("large", os.urandom(20_000_000))


asyncio.run(main(sys.argv[1]))
