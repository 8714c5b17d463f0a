"""HOW does an agent of Pydantic AI keep its conversations here? In a `ConversationStore` on any store.

API boundary: `KeepstateConversationStore`. The stores of the harness are in `pydantic_ai_harness`. For an
agent without a framework, take `keepstate.sessions`.

Invariant: a message is stored once, however many conversations continue or branch off from it.
"""

from keepstate.adapters.pydantic_ai.conversations import KeepstateConversationStore

__all__ = ["KeepstateConversationStore"]
