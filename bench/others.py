"""Other packages that keep the state of agents or queues of tasks, and how to import them.

They are installed for the bench alone, into a folder next to the environment's own packages, so that no test
imports them. All have permissive licences and had a release within the last year; arq is only maintained. arq
asks for an older driver of Redis, and runs here with the one that keepstate uses.
"""

from __future__ import annotations

import sqlite3
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGES = Path(sys.prefix) / "bench"
INSTALL = "`make bench` installs it"


def admit() -> None:
    """Let what is installed for the bench be imported, after everything else."""
    if PACKAGES.is_dir() and str(PACKAGES) not in sys.path:
        sys.path.append(str(PACKAGES))


MODULES = {
    "kvgit": "kvgit",
    "SqliteSaver": "langgraph.checkpoint.sqlite",
    "LangGraph's savers": "langgraph.checkpoint.postgres",
    "agenticaiframework": "agenticaiframework.state",
    "procrastinate": "procrastinate",
    "huey": "huey",
    "arq": "arq",
    "DBOS": "dbos",
    "SQLiteSession": "agents",
}


def missing(*names: str) -> list[str]:
    """Return which of these are not installed; without names, which of all."""
    admit()
    return [name for name in names or MODULES if not _is_there(MODULES[name])]


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def agentic_managers() -> tuple[Any, Any, Any]:
    """Return agenticaiframework's managers of state and of teams, and the class of its configuration."""
    state = import_module("agenticaiframework.state")
    return state.StateManager, state.OrchestrationStateManager, state.StateConfig


def kvgit_worktree(folder: Path | None) -> Any:
    """Return an open worktree of kvgit, in memory or on disk, where it syncs as SQLite's `normal` does."""
    kvgit = import_module("kvgit")
    return kvgit.open(kind="memory") if folder is None else kvgit.open(kind="disk", path=str(folder))


class Saver:
    """LangGraph's SqliteSaver, called as its own loop does: one `put` of the channels after each step."""

    def __init__(self, path: Path) -> None:
        sqlite = import_module("langgraph.checkpoint.sqlite")
        self._base = import_module("langgraph.checkpoint.base")
        self._new_id = import_module("langgraph.checkpoint.base.id").uuid6
        self._connection = sqlite3.connect(path, check_same_thread=False)
        self._saver = sqlite.SqliteSaver(self._connection)
        self._saver.setup()
        self._connection.execute("pragma synchronous = normal")  # as the others here
        self._config: Any = {"configurable": {"thread_id": "bench", "checkpoint_ns": ""}}
        self._step = 0

    def put(self, state: dict[str, Any], changed: list[str]) -> None:
        """Keep the state after a step."""
        self._step += 1
        checkpoint = self._base.empty_checkpoint()
        checkpoint["id"] = str(self._new_id(clock_seq=self._step))
        checkpoint["channel_values"] = state
        versions = dict.fromkeys(changed, self._step)
        checkpoint["channel_versions"] = {**dict.fromkeys(state, 1), **versions}
        metadata = {"source": "loop", "step": self._step, "parents": {}}
        self._config = self._saver.put(self._config, checkpoint, metadata, versions)

    def stored_bytes(self) -> int:
        """Return how much its checkpoints have."""
        query = "select total(length(checkpoint) + length(metadata)) from checkpoints"
        return int(self._connection.execute(query).fetchone()[0])

    def close(self) -> None:
        """Close the connection, which brings its log into the file."""
        self._connection.close()
