"""HOW does a LangGraph agent keep its state here? A checkpointer and a store, switched to with one line.

Invariant: what is stored equals what was passed at that moment, whatever becomes of it later; stored bytes
turn only into classes that the application has allowed.
"""

from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.adapters.langgraph.store import KeepstateStore

__all__ = ["KeepstateSaver", "KeepstateStore"]
