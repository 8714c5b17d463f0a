"""HOW does Pydantic AI's harness keep its steps and memories here? In two stores on any keepstate store.

API boundary: `KeepstateStepStore` for `StepPersistence` and `ConversationSearch`, and `KeepstateMemoryStore`
for `Memory`. Conversations are in `pydantic_ai`.

Invariant: a message is stored once, however many snapshots and runs repeat it.
"""

from keepstate.adapters.pydantic_ai_harness.memories import KeepstateMemoryStore
from keepstate.adapters.pydantic_ai_harness.steps import KeepstateStepStore

__all__ = ["KeepstateStepStore", "KeepstateMemoryStore"]
