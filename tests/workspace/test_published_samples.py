"""The samples that agex published for such states run here, read from their page.

The page's text has lost its indentation: a table restores it. Imports and the path of the storage are other
ones, the empty bodies of the custom store are a dict's, and `agent` and `state` are given. All else is as it
stands there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from keepstate import Disk, Live, NotFoundError, Versioned, events
from keepstate.workspace import ActionEvent, Agent, AgentTask, PastState, TaskStartEvent

pytestmark = pytest.mark.shared("spec/002_96cd61c89548302b.txt")

IMPORTS = {
    "from agex import ": "from keepstate import ",
    "from agex.state.kv import ": "from keepstate.kv import ",
}


@dataclass(frozen=True)
class Sample:
    """Lines of the page, from the first to the last: how far each is indented, and which are put in place."""

    first: int
    last: int
    depths: dict[int, int] = field(default_factory=dict[int, int])
    bodies: dict[int, str] = field(default_factory=dict[int, str])


NO_STATE = Sample(11, 17, {13: 1, 14: 1})
IN_MEMORY = Sample(26, 34, {29: 1, 30: 1})
PERSISTENT = Sample(44, 52, {47: 1, 48: 1})
INSPECTING = Sample(76, 86)
DISK = Sample(95, 99)
CACHED = Sample(102, 104)
CUSTOM = Sample(
    108,
    122,
    {line: 1 if line in (111, 114, 117, 120) else 2 for line in range(111, 121)},
    {
        113: "self.values = {}",
        116: "return self.values.get(key)",
        119: "self.values[key] = value",
        120: "delete = lambda self, key: self.values.pop(key, None)\n"
        "    keys = lambda self, prefix='': [key for key in self.values if key.startswith(prefix)]",
    },
)
ALL = {
    "no state": NO_STATE,
    "in memory": IN_MEMORY,
    "persistent": PERSISTENT,
    "inspecting": INSPECTING,
    "disk": DISK,
    "cached": CACHED,
    "custom": CUSTOM,
}


def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
    """Write the code of every task: it counts what it has seen, prints, and end with the next step."""
    return _SECOND if "  is_seen = True" in shown.splitlines() else _FIRST


_FIRST = """
seen = [*globals().get('seen', []), *data]
calls = globals().get('calls', 0) + 1
is_seen = True
print(seen)
"""
_SECOND = """
is_seen = False
task_success({'seen': list(seen), 'calls': calls})
"""


@pytest.fixture
def agent() -> Agent:
    return Agent("ana", policy=policy)


@pytest.fixture
def names(agent: Agent, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """What the samples find, and leave."""
    state = Versioned(Disk(tmp_path / "state"))
    _carry_out(agent, state)
    found: dict[str, Any] = {"agent": agent, "state": state}
    yield found
    for value in [*found.values(), state]:
        if isinstance(value, Versioned):
            value.close()


def _carry_out(agent: Agent, state: Versioned) -> None:
    @agent.task
    def look(data: list[int]) -> dict[str, Any]:  # type: ignore[empty-body]
        """Look at the data."""

    look([1], state=state)


def run(sample: Sample, page: Path, names: dict[str, Any], storage: Path) -> dict[str, Any]:
    """Execute a sample, and return what it has named."""
    exec(compile(source_of(sample, page, storage), str(page), "exec"), names)
    return names


def source_of(sample: Sample, page: Path, storage: Path) -> str:
    lines = page.read_text().splitlines()
    source: list[str] = []
    for number in range(sample.first, sample.last + 1):
        line = sample.bodies.get(number, lines[number - 1])
        for theirs, ours in IMPORTS.items():
            line = line.replace(theirs, ours)
        line = line.replace("/path/to/storage", str(storage))
        source.append("    " * sample.depths.get(number, 0) + line)
    return "\n".join(source)


def test_without_state_each_call_is_independent(
    shared_data: Path, names: dict[str, Any], tmp_path: Path
) -> None:
    run(NO_STATE, shared_data, names, tmp_path)

    assert names["result1"] == {"seen": [1, 2, 3], "calls": 1}
    assert names["result2"] == {"seen": [4, 5, 6], "calls": 1}


def test_a_live_state_remembers(shared_data: Path, names: dict[str, Any], tmp_path: Path) -> None:
    run(IN_MEMORY, shared_data, names, tmp_path)

    assert names["result1"] == {"seen": [1, 2, 3], "calls": 1}
    assert names["result2"] == {"seen": [1, 2, 3, 4, 5, 6], "calls": 2}
    assert isinstance(names["shared_state"], Live)


def test_a_versioned_state_remembers_and_has_a_commit_a_step(
    shared_data: Path, names: dict[str, Any], tmp_path: Path
) -> None:
    run(PERSISTENT, shared_data, names, tmp_path)

    assert names["result2"] == {"seen": [1, 2, 3, 4, 5, 6], "calls": 2}
    state = names["shared_state"]
    steps = [event.commit_hash for event in events(state) if isinstance(event, ActionEvent)]
    assert len(steps) == 4 and set(steps) <= set(state.history())
    assert state.checkout(steps[0])["seen"] == [1, 2, 3]


def test_an_event_s_commit_is_looked_into(
    shared_data: Path, names: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(INSPECTING, shared_data, names, tmp_path)

    head, shown = capsys.readouterr().out.splitlines()
    assert head == f"--- Inspecting state at {names['commit_to_inspect'][:7]} ---"
    assert shown == "{'seen': [1], 'calls': 1, 'is_seen': True}"
    past = names["historical_state"]
    assert isinstance(past, PastState)
    with pytest.raises(ValueError, match="read-only"):
        past["seen"] = []  # type: ignore[index]
    assert isinstance(names["all_events"][0], TaskStartEvent)


@pytest.mark.parametrize("sample", [DISK, CACHED], ids=["disk", "cached"])
def test_a_state_on_disk_outlives_its_process(
    sample: Sample, shared_data: Path, names: dict[str, Any], tmp_path: Path
) -> None:
    storage = tmp_path / "storage"
    state = run(sample, shared_data, names, storage)["state"]
    state["x"] = [1]
    commit = state.commit()
    state.close()

    again = run(sample, shared_data, names, storage)["state"]
    assert dict(again) == {"x": [1]} and again.current_commit == commit.id


def test_a_store_of_ones_own_keeps_commits(shared_data: Path, names: dict[str, Any], tmp_path: Path) -> None:
    state = run(CUSTOM, shared_data, names, tmp_path)["state"]
    _carry_out(names["agent"], state)

    assert state["seen"] == [1]
    assert len(state.history()) == 3  # one before the task, and one a step
    with pytest.raises(NotFoundError):
        state.checkout("0" * 40)


@pytest.mark.parametrize(
    ("line", "state"),
    [(129, None), (130, Live), (131, Versioned)],
)
def test_the_quick_reference_s_calls_work(line: int, state: Any, shared_data: Path, agent: Agent) -> None:
    call = shared_data.read_text().splitlines()[line - 1].removeprefix("Usage | ").removesuffix(" |")
    given: list[Any] = []

    @agent.task
    def my_task(data: list[int], state: Any) -> int:
        given.append(state)
        return len(data)

    assert eval(call, {"my_task": my_task, "data": [1, 2], "Live": Live, "Versioned": Versioned}) == 2
    assert type(given[0]) is (state or type(None))


def test_the_table_has_all_code_of_the_page(shared_data: Path) -> None:
    lines = shared_data.read_text().splitlines()
    code = {
        number
        for number, line in enumerate(lines, 1)
        if line.startswith(
            ("@agent", "def ", "class ", "from ", "state = ", "result", "shared_state = ", "pass")
        )
    }

    told = {number for sample in ALL.values() for number in range(sample.first, sample.last + 1)}
    assert code <= told
