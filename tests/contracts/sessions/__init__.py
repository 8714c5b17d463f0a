"""Does a session do the same on every backend? One test a clause, in both modes.

Subclass a contract in a test file, and say where sessions are to be kept:

```python
class TestMine(SessionContract, ConversationContract, EntryContract, ReplyContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```

Put `InPassedSpace` before it to let all sessions of a test share one space.
"""

from tests.contracts.managers.stage import InPassedSpace
from tests.contracts.sessions.conversations import ConversationContract
from tests.contracts.sessions.entries import EntryContract
from tests.contracts.sessions.machines import MachineContract
from tests.contracts.sessions.replies import ReplyContract
from tests.contracts.sessions.sessions import SessionContract
from tests.contracts.sessions.stage import SessionStage
from tests.contracts.sessions.threads import ThreadContract
from tests.contracts.sessions.usage import UsageContract

__all__ = [
    "ConversationContract",
    "EntryContract",
    "InPassedSpace",
    "MachineContract",
    "ReplyContract",
    "SessionContract",
    "SessionStage",
    "ThreadContract",
    "UsageContract",
]
