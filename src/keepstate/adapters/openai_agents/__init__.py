"""HOW does an agent of the OpenAI Agents SDK keep its state here? A session, and runs that wait for people.

API boundary: `KeepstateSession`, one line to switch to; `PausedRuns` and `current_task` for runs with tool
calls that people approve. For an agent without a framework, take `keepstate.sessions`.

Invariant: a call of a session is one batch. A snapshot of a run is resumed by one worker at a time.
"""

from keepstate.adapters.openai_agents.paused_runs import PausedRuns, current_task
from keepstate.adapters.openai_agents.session import KeepstateSession, SessionClosedError

__all__ = ["KeepstateSession", "SessionClosedError", "PausedRuns", "current_task"]
