"""WHAT must every store do? One suite that proves each store, in both modes.

Invariant: a test covers one clause of the protocol, uses a space of its own, and calls only the protocol.
To get full messages from plain `assert`, call `pytest.register_assert_rewrite("keepstate.testing")` in
`conftest.py`, before the contract is imported. API boundary.

To add a test, write a method in the part that it belongs to. An ability of some stores is a mixin.
"""

from keepstate.testing.store_contract.abilities import Clocked as Clocked
from keepstate.testing.store_contract.abilities import KeepsTime as KeepsTime
from keepstate.testing.store_contract.abilities import LosesReplies as LosesReplies
from keepstate.testing.store_contract.abilities import Persists as Persists
from keepstate.testing.store_contract.abilities import Shared as Shared
from keepstate.testing.store_contract.abilities import SharedAcrossProcesses as SharedAcrossProcesses
from keepstate.testing.store_contract.contract import StoreContract as StoreContract

__all__ = [
    "Clocked",
    "KeepsTime",
    "LosesReplies",
    "Persists",
    "Shared",
    "SharedAcrossProcesses",
    "StoreContract",
]
