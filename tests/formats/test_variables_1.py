"""Variables that version 1 of their format wrote into a key-value store are read for ever, events too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepstate import TaskFailedError, Versioned, events
from keepstate.workspace import (
    ActionEvent,
    Agent,
    AgentTask,
    ErrorEvent,
    FailEvent,
    OutputEvent,
    SuccessEvent,
    TaskEvent,
    TaskStartEvent,
)
from tests.workspace.plain import Plain

PATH = Path(__file__).parent / "variables_1.msgpack"
STEPS = ("seen = [data]\nprint('one')", "1 / 0", "task_success({'ok': (1, None)})", "task_fail('no more')")
COMMITS = 6
ROWS: list[tuple[type[TaskEvent], dict[str, Any]]] = [
    (TaskStartEvent, {"inputs": {"data": 3}, "message": "Look."}),
    (ActionEvent, {"code": STEPS[0], "thinking": ""}),
    (OutputEvent, {"parts": ["one\n"]}),
    (ActionEvent, {"code": STEPS[1], "thinking": ""}),
    (ErrorEvent, {"error": "ZeroDivisionError: division by zero (line 1)", "recoverable": True}),
    (ActionEvent, {"code": STEPS[2], "thinking": ""}),
    (SuccessEvent, {"result": {"ok": (1, None)}}),
    (TaskStartEvent, {"inputs": {"data": 4}, "message": "Look."}),
    (ActionEvent, {"code": STEPS[3], "thinking": ""}),
    (FailEvent, {"message": "no more"}),
]


def write(store: Plain) -> None:
    """Makes what the file holds."""
    steps = iter(STEPS)

    def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        return next(steps)

    @Agent("ana", policy=policy).task
    def look(data: int) -> Any:
        """Look."""

    with Versioned(store) as state:
        state["large"] = [{"n": n} for n in range(1_000)]
        state.commit("begin", author="eva")
        look(3, state=state)
        with pytest.raises(TaskFailedError):
            look(4, state=state)
        state.branch("trial")
        del state["large"]
        state.commit()


def rows(state: Versioned) -> list[tuple[type[TaskEvent], dict[str, Any]]]:
    common = set(TaskEvent.__struct_fields__)
    return [
        (
            type(event),
            {key: value for key, value in msgspec.structs.asdict(event).items() if key not in common},
        )
        for event in events(state)
    ]


def test_what_version_1_wrote_is_read() -> None:
    store = Plain()
    store.values = msgspec.msgpack.decode(PATH.read_bytes(), type=dict[str, bytes])

    with Versioned(store) as state:
        assert dict(state) == {"seen": [3]}
        assert dict(state.checkout("trial")) == {"large": [{"n": n} for n in range(1_000)], "seen": [3]}
        assert len(state.history()) == COMMITS
        assert state.checkout("main#1").commit.author == "eva"
        assert rows(state) == ROWS
        assert [event.commit_hash for event in events(state)[1:4:2]] == state.history()[3:5][::-1]
        assert events(state)[0].timestamp.utcoffset() == timedelta(0)
        state["more"] = 1
        state.commit()
        assert dict(state) == {"seen": [3], "more": 1}


def test_what_is_written_today_is_read_alike() -> None:
    store = Plain()
    write(store)

    with Versioned(store) as state:
        assert rows(state) == ROWS and len(state.history()) == COMMITS


if __name__ == "__main__":
    made = Plain()
    write(made)
    PATH.write_bytes(msgspec.msgpack.encode(made.values))
