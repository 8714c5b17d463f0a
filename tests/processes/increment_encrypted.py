"""Open an encrypted store and increment its counter: `URL SPACE TIMES KEY`."""

from __future__ import annotations

import sys
from typing import Any

from keepstate import KeyRing
from keepstate._finish import finish
from keepstate.opening import source_of
from keepstate.testing.store_contract.company import increment


async def work(url: str, space: str, times: int, key: str) -> None:
    source = source_of(url, "blocking", KeyRing(bytes.fromhex(key)))
    store: Any = await source.opened()
    await increment(store, space, times)
    await source.close()


if __name__ == "__main__":
    finish(work(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]))
