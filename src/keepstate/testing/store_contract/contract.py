"""The whole contract of a store, one test for each clause."""

from __future__ import annotations

from keepstate.testing.store_contract.batches import Batches
from keepstate.testing.store_contract.bounds import Bounds
from keepstate.testing.store_contract.checks import Checks
from keepstate.testing.store_contract.company import Company
from keepstate.testing.store_contract.handles import Handles
from keepstate.testing.store_contract.hints import Hints
from keepstate.testing.store_contract.logs import Logs
from keepstate.testing.store_contract.reads import Reads, Scans
from keepstate.testing.store_contract.serial_orders import SerialOrders
from keepstate.testing.store_contract.sizes import SizesOfParts
from keepstate.testing.store_contract.spaces import Spaces
from keepstate.testing.store_contract.stamps import Stamps
from keepstate.testing.store_contract.times import Times
from keepstate.testing.store_contract.tokens import Tokens


class StoreContract(
    Batches,
    Checks,
    Stamps,
    Tokens,
    Times,
    SerialOrders,
    Reads,
    Scans,
    Logs,
    Spaces,
    SizesOfParts,
    Bounds,
    Company,
    Handles,
    Hints,
):
    """Subclass it in a test file, write `make_store`, and put the store's abilities before it.

    ```python
    class TestMemory(Clocked, StoreContract):
        def make_store(self, tmp_path):
            return MemoryStore(name=str(tmp_path), runner=self.runner(), clock=self.clock)
    ```
    """
