"""Does a manager do the same on every backend? One test a clause, in both colours.

Subclass a contract in a test file, and say where managers are to work:

```python
class TestMine(StateContract):
    def make_url(self, tmp_path):
        return f"mine:///{tmp_path}/state"
```

Put `InPassedSpace` before it to let all managers of a test share one space.
"""

from keepstate.testing.manager_contract.agents import AgentContract
from keepstate.testing.manager_contract.knowledge import KnowledgeContract
from keepstate.testing.manager_contract.recovery import RecoveryContract
from keepstate.testing.manager_contract.speech import SpeechContract
from keepstate.testing.manager_contract.stage import InPassedSpace, ManagerStage
from keepstate.testing.manager_contract.state import StateContract
from keepstate.testing.manager_contract.subscriptions import SubscriptionContract
from keepstate.testing.manager_contract.teams import TeamContract
from keepstate.testing.manager_contract.tools import ToolContract
from keepstate.testing.manager_contract.workflows import WorkflowContract

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
