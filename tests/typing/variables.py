"""What a type checker knows of an agent's variables. It is checked, and never run."""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, assert_type

from keepstate import ActionEvent, Cache, Commit, Disk, Live, Versioned, events, view
from keepstate.kv import KVStore
from keepstate.workspace import Agent, AgentTask, Memory, PastState, TaskEvent


class Own(KVStore):
    def get(self, key: str) -> bytes | None: ...
    def set(self, key: str, value: bytes) -> None: ...
    def delete(self, key: str) -> None: ...
    def keys(self, prefix: str = "") -> list[str]: ...  # type: ignore[empty-body]


def states() -> None:
    for store in (None, "sqlite:///x.db", Memory(), Disk("x", size_limit=1), Cache(Disk("x"), 5), Own()):
        state = Versioned(store, branch="main")
        variables: MutableMapping[str, Any] = state
        assert_type(variables["x"], Any)
        assert_type(state.current_commit, str | None)
        assert_type(state.commit("why"), Commit)
        assert_type(state.checkout("main~1"), PastState)
        assert_type(state.history(), list[str])
        assert_type(state.diffs(), dict[str, Any])
        assert_type(state.rollback(steps=1), Commit)
        assert_type(state.branch("other").merge("main"), Commit)
        assert_type(view(state, focus="full"), dict[str, Any])
        assert_type(view(state.checkout("main")), str)


def happenings(state: Live | Versioned | PastState) -> None:
    assert_type(events(state), list[TaskEvent])
    for event in events(state):
        if isinstance(event, ActionEvent):
            assert_type(event.commit_hash, str | None)
            assert_type(event.code, str)


def tasks() -> None:
    def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        return "task_success()"

    agent = Agent("ana", policy=policy)

    @agent.task
    def count(data: list[int]) -> int:
        return len(data)

    assert_type(count([1], state=Versioned()), int)
