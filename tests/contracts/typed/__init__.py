"""Does typed state do the same on every backend? One test a clause, in both modes.

Subclass a contract in a test file, and say where state is to be kept:

```python
class TestMine(KeyedStateContract, AgentRunContract, ProfileContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```
"""

from tests.contracts.typed.batches import BatchContract
from tests.contracts.typed.contract import KeyedStateContract
from tests.contracts.typed.plugins import PluginContract
from tests.contracts.typed.profiles import ProfileContract
from tests.contracts.typed.runs import AgentRunContract
from tests.contracts.typed.stage import TypedStage
from tests.contracts.typed.whole import WholeStateContract

__all__ = [
    "AgentRunContract",
    "BatchContract",
    "KeyedStateContract",
    "PluginContract",
    "ProfileContract",
    "TypedStage",
    "WholeStateContract",
]
