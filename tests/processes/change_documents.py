"""Change documents for some seconds, then print how often: `python change_documents.py URL SECONDS`.

Step n is revision n + 1 of the space `shared`: it writes `a` and `b` together, or `a`, or deletes `b`.
"""

import asyncio
import sys
import time

import keepstate

PAUSE_S = 0.004
"""Between two steps: the writer is not to outrun the log, only to keep it moving."""


async def main(url: str, seconds: float) -> None:
    async with keepstate.open(url) as ks:
        space = ks.space("shared")
        until_s = time.monotonic() + seconds
        step = 0
        while time.monotonic() < until_s:
            if step % 3 == 0:
                async with space.transaction() as tx:
                    await tx.documents.put("a", step)
                    await tx.documents.put("b", step)
            elif step % 3 == 1:
                await space.documents.put("a", step)
            else:
                await space.documents.delete("b")
            step += 1
            await asyncio.sleep(PAUSE_S)
        await space.documents.put("end", step)
    print(step)


asyncio.run(main(sys.argv[1], float(sys.argv[2])))
