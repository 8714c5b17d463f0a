"""Does typed state do the same on every backend? One test a clause, in both colours.

Subclass a contract in a test file, and say where state is to be kept:

```python
class TestMine(KeyedStateContract, AgentRunContract, ProfileContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```
"""

from keepstate.testing.typed_contract.batches import BatchContract
from keepstate.testing.typed_contract.contract import KeyedStateContract
from keepstate.testing.typed_contract.plugins import PluginContract
from keepstate.testing.typed_contract.profiles import ProfileContract
from keepstate.testing.typed_contract.runs import AgentRunContract
from keepstate.testing.typed_contract.stage import TypedStage
from keepstate.testing.typed_contract.whole import WholeStateContract

__all__ = [
    "AgentRunContract",
    "BatchContract",
    "KeyedStateContract",
    "PluginContract",
    "ProfileContract",
    "TypedStage",
    "WholeStateContract",
]
