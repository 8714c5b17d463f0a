"""Variables that version 1 of their format wrote into a key-value store are read for ever, events too."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepstate import TaskFailedError, Versioned, events
from keepstate.values.codec import PLAIN, canonical, decode
from keepstate.workspace import (
    ActionEvent,
    Agent,
    AgentTask,
    Definition,
    ErrorEvent,
    FailEvent,
    Import,
    Instance,
    OutputEvent,
    Reference,
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


RECORDS = [
    (
        Definition(name="f", source="def f(x=1):\n    return x", order=2, defaults=(1,), attributes={"n": 1}),
        "c77b2493b46b65657073746174652e646566696e6974696f6e0187a46e616d65a166a6736f75726365b8646566206628783d31293a0a2020202072657475726e2078a56f7264657202a864656661756c7473d5209101b06b6579776f72645f64656661756c747380a5676976656e80aa6174747269627574657381a16e01",
    ),
    (
        Import(module="xml", also=("xml.dom",)),
        "c7362493b06b65657073746174652e696d706f72740183a66d6f64756c65a3786d6ca46e616d65c0a4616c736fc7092091a7786d6c2e646f6d",
    ),
    (
        Import(module="math", name="sqrt"),
        "c7322493b06b65657073746174652e696d706f72740183a66d6f64756c65a46d617468a46e616d65a473717274a4616c736fd42090",
    ),
    (
        Instance(of="Point", args=(1,), state={"x": 1}, items=(2,), pairs=(("k", 3),)),
        "c74c2493b26b65657073746174652e696e7374616e63650185a26f66a5506f696e74a461726773d5209101a5737461746581a17801a56974656d73d5209102a57061697273c7072091d62092a16b03",
    ),
    (Reference("f"), "c71e2493b36b65657073746174652e7265666572656e63650181a46e616d65a166"),
]
"""What is stored of a step's definitions and imports, and its bytes."""


@pytest.mark.parametrize(("record", "written"), RECORDS, ids=lambda part: type(part).__name__)
def test_a_record_of_a_definition_has_the_bytes_that_it_always_had(record: Any, written: str) -> None:
    assert canonical(record).hex() == written
    assert decode(PLAIN + bytes.fromhex(written)) == record


def write(store: Plain) -> None:
    """Make what the file holds."""
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
