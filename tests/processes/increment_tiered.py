"""Open a tiered store by its URL and increment its counter: `URL SPACE TIMES`."""

from __future__ import annotations

import sys
from typing import Any

from keepstate._finish import finish
from keepstate.opening import source_of
from keepstate.testing.store_contract.company import increment


async def work(url: str, space: str, times: int) -> None:
    source = source_of(url, "blocking")
    store: Any = await source.opened()
    await increment(store, space, times)
    await source.close()


if __name__ == "__main__":
    finish(work(sys.argv[1], sys.argv[2], int(sys.argv[3])))
