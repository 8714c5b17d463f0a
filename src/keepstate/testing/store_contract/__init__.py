"""What must every store do? The one suite that proves each of them, in both colours.

Invariant: a test names a clause of the protocol, uses a space that no other test knows, and asks nothing of a
store beside the protocol. Plain `assert` speaks in full once `conftest.py` says
`pytest.register_assert_rewrite("keepstate.testing")`, before the contract is imported.

To add one: a method in the part that it belongs to; what only some stores can do is an ability, a mixin.
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
