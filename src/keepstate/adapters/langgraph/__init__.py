"""HOW does a LangGraph agent keep its state here? A checkpointer and a store, each one line to switch to.

API boundary: `KeepstateSaver` and `KeepstateStore`; `resume`, `InterruptQuestion` and `current_task` for
interrupts that people answer. For chains of LangChain, take `adapters.langchain`; for an agent without a
framework, take `keepstate.sessions`.

Invariant: a stored value equals the value that was passed, even if that changes later; stored bytes become
objects of allowed classes only.
"""

from keepstate.adapters.langgraph.interrupts import InterruptQuestion
from keepstate.adapters.langgraph.resumption import current_task, resume
from keepstate.adapters.langgraph.saver import KeepstateSaver
from keepstate.adapters.langgraph.store import KeepstateStore

__all__ = ["KeepstateSaver", "KeepstateStore", "InterruptQuestion", "current_task", "resume"]
