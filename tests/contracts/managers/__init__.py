"""Does a manager do the same on every backend? One test a clause, in both modes.

Subclass a contract in a test file, and say where managers are to work:

```python
class TestMine(StateContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```

Put `InPassedSpace` before it to let all managers of a test share one space.
"""

from tests.contracts.managers.agents import AgentContract
from tests.contracts.managers.knowledge import KnowledgeContract
from tests.contracts.managers.recovery import RecoveryContract
from tests.contracts.managers.speech import SpeechContract
from tests.contracts.managers.stage import InPassedSpace, ManagerStage
from tests.contracts.managers.state import StateContract
from tests.contracts.managers.subscriptions import SubscriptionContract
from tests.contracts.managers.teams import TeamContract
from tests.contracts.managers.tools import ToolContract
from tests.contracts.managers.workflows import WorkflowContract

__all__ = [
    "AgentContract",
    "InPassedSpace",
    "KnowledgeContract",
    "ManagerStage",
    "RecoveryContract",
    "SpeechContract",
    "StateContract",
    "SubscriptionContract",
    "TeamContract",
    "ToolContract",
    "WorkflowContract",
]
