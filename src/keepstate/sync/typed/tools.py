"""Blocking twins of `keepstate.typed.tools`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from keepstate.sync.twin import Twin, around
from keepstate.sync.typed.profiles import ProfileAccess
from keepstate.typed import tools as typed
from keepstate.typed.state_map import Snapshot


class ToolCallContext(Twin[typed.ToolCallContext]):
    """The argument of a tool.

    Attributes:
        snapshot: The state that all tools of the step see.
        run_id: The id of the run.
        thread_id: The id of the run's thread.
    """

    @property
    def snapshot(self) -> Snapshot:
        """The state that all tools of the step see."""
        return self._inner.snapshot

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._inner.run_id

    @property
    def thread_id(self) -> str:
        """The id of the run's thread."""
        return self._inner.thread_id

    @property
    def profile(self) -> ProfileAccess:
        """Access to profiles and shared state, with a read set of its own."""
        return around(ProfileAccess, self._inner.profile)
