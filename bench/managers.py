"""What managers cost a call, on each kind of store, beside agenticaiframework where it can do the same.

It can: save and list, in memory, files and Redis, and tasks of a team in memory and files; it syncs nothing
to disk, loses updates of concurrent callers, and has no `update`. Ours records every moment, unless it says
otherwise. Both are called without a loop, in turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from keepstate_testing.servers import Postgres, Redis

from bench import others
from bench.harness import Pace, Table, apart
from keepstate import AgentCoordinationState, StateConfig, TeamState
from keepstate.sync import OrchestrationStateManager, StateManager

MANY = 100_000
CALLS, ROUNDS = 50, 5
LONGEST_BLOCK_S = 0.4
"""Of what takes long, such as a scan of all keys, fewer calls are measured."""
VALUE = {"status": "running", "current_task": "analyze_data", "progress": 0.45}
TEAM = TeamState(
    team_id="team", agents={"agent": AgentCoordinationState(agent_id="agent", capabilities=["research"])}
)

Call = Callable[[int], object]
"""Does one operation, the how-manieth it is told."""


def managers(table: Table) -> None:
    """Show what each call costs everywhere."""
    if "agenticaiframework" in others.missing():
        table.show(f"agenticaiframework is not installed, and not measured: {others.INSTALL}")
    with TemporaryDirectory() as folder:
        _measure(table, "memory", "memory://bench", theirs=("memory", {}))
        files = ("file", {"persist_path": f"{folder}/theirs"})
        _measure(table, "file", f"file:///{folder}/ours/", theirs=files)
        _measure(table, "SQLite normal", f"sqlite:///{folder}/normal.db?durability=normal")
        _measure(table, "SQLite full", f"sqlite:///{folder}/full.db")
    with apart(Redis()) as server:
        _measure(table, "Redis", server.url, theirs=("redis", {"redis_url": server.url}))
    with apart(Postgres(durable=True)) as server:
        _measure(table, "PostgreSQL", server.url)


def _measure(table: Table, store: str, url: str, *, theirs: tuple[str, dict[str, Any]] | None = None) -> None:
    with ExitStack() as stack:
        sides = {"keepstate": _ours(stack, url, table.scaled(MANY, least=1_000))}
        if theirs is not None and "agenticaiframework" not in others.missing():
            # Its files are one a key, and 100,000 of them take minutes to write.
            many = 2_000 if theirs[0] == "file" else MANY
            sides["agenticaiframework"] = _theirs(*theirs, table.scaled(many, least=1_000))
        for call in dict.fromkeys(call for calls in sides.values() for call in calls):
            _pace(
                table, store, {keeper: calls[call] for keeper, calls in sides.items() if call in calls}, call
            )


def _pace(table: Table, store: str, calls: dict[str, Call], name: str) -> None:
    """Let all who can do it do it, in turn, block by block, after some calls that warm up."""
    counts = {keeper: _warmed_up(call, table.scaled(CALLS, least=10)) for keeper, call in calls.items()}
    times: dict[str, list[float]] = {keeper: [] for keeper in calls}
    for block in range(1, ROUNDS + 1):
        for keeper, call in calls.items():
            begun = time.perf_counter()
            for number in range(counts[keeper]):
                call(block * CALLS + number)
            times[keeper].append((time.perf_counter() - begun) / counts[keeper])
    for keeper, found in times.items():
        table.time(Pace(store, name, keeper, round(median(found) * 1e6, 1), counts[keeper] * ROUNDS))


def _warmed_up(call: Call, most: int) -> int:
    """Call it as often as a block does, or for as long as that may take, and return how often that was."""
    begun = time.perf_counter()
    for number in range(most):
        call(number)
        if time.perf_counter() - begun > LONGEST_BLOCK_S:
            return number + 1
    return most


# ---- ours


def _ours(stack: ExitStack, url: str, many: int) -> dict[str, Call]:
    state = stack.enter_context(StateManager(StateConfig(backend=url, key_prefix="recorded")))
    plain = stack.enter_context(StateManager(StateConfig(backend=url, key_prefix="plain", record=False)))
    team = stack.enter_context(OrchestrationStateManager(persistence=url))
    team.create_team(TEAM)
    crowd = StateConfig(backend=url, key_prefix="crowd", record=False, auto_save=False)
    with StateManager(crowd) as filling:
        for key in _keys(many):
            filling.save(key, VALUE)
    full = stack.enter_context(StateManager(StateConfig(backend=url, key_prefix="crowd", record=False)))

    def task(number: int) -> None:
        team.enqueue_task("team", {"id": f"task {number}", "data": VALUE})
        claimed = team.claim_task("team", "agent")
        assert claimed is not None
        team.complete_task("team", claimed.id, {"done": number}, agent_id="agent")

    return {
        "save": lambda number: state.save(f"agent:{number}", {**VALUE, "n": number}),
        "save, not recorded": lambda number: plain.save(f"agent:{number}", {**VALUE, "n": number}),
        "update": lambda number: state.update(f"agent:{number}", {"progress": number}),
        "update, not recorded": lambda number: plain.update(f"agent:{number}", {"progress": number}),
        f"list 10 of {many:,}": lambda number: _ten(full.list_keys(f"agent:{number % 90 + 10:04}?*")),
        "enqueue, claim, complete": task,
    }


def _keys(many: int) -> Iterator[str]:
    """Yield keys of which ten begin alike."""
    return (f"agent:{number // 10:04}{number % 10}" for number in range(many))


def _ten(keys: list[str]) -> None:
    assert len(keys) == 10


# ---- theirs


def _theirs(kind: str, options: dict[str, Any], many: int) -> dict[str, Call]:
    others.admit()
    state_of, team_of, config_of = others.agentic_managers()
    state = state_of(kind, config=config_of(backend=kind, **options))
    full = (
        state_of(
            kind, config=config_of(backend=kind, **{name: f"{value}/full" for name, value in options.items()})
        )
        if kind == "file"
        else state
    )
    for key in _keys(many):
        full.save(f"crowd{key}", VALUE)
    calls: dict[str, Call] = {
        "save": lambda number: state.save(f"agent:{number}", {**VALUE, "n": number}),
        f"list 10 of {many:,}": lambda number: _ten(full.list(f"crowdagent:{number % 90 + 10:04}")),
    }
    if kind == "redis":
        return calls
    team = team_of(state)
    id = team.create_team("team").team_id
    team.add_agent(id, "agent", "agent")

    def task(number: int) -> None:
        team.add_task(id, f"task {number}", VALUE)
        claimed = team.assign_task(id, "agent")
        team.complete_task(id, "agent", claimed["task_id"], {"done": number})

    return {**calls, "enqueue, claim, complete": task}
