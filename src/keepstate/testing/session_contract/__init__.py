"""Does a session do the same on every backend? One test a clause, in both colours.

Subclass a contract in a test file, and say where sessions are to be kept:

```python
class TestMine(SessionContract, ConversationContract, ThreadContract, MachineContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```

Put `InPassedSpace` before it to let all sessions of a test share one space.
"""

from keepstate.testing.manager_contract.stage import InPassedSpace
from keepstate.testing.session_contract.conversations import ConversationContract
from keepstate.testing.session_contract.machines import MachineContract
from keepstate.testing.session_contract.sessions import SessionContract
from keepstate.testing.session_contract.stage import SessionStage
from keepstate.testing.session_contract.threads import ThreadContract

__all__ = [
    "ConversationContract",
    "InPassedSpace",
    "MachineContract",
    "SessionContract",
    "SessionStage",
    "ThreadContract",
]
