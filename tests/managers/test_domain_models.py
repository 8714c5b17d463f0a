"""Teams, tools, knowledge bases and speech behave as plain dicts do, whatever is asked of them in what order.

The machines use the blocking twins, two managers on one store each, so that nothing is kept in a manager.
"""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from keepstate import (
    AgentCoordinationState,
    AlreadyExistsError,
    AudioSessionStatus,
    ConflictError,
    EffectStatus,
    LeaseLostError,
    NotFoundError,
    RetryState,
    TaskQueueState,
    TeamState,
    ToolExecution,
    ToolExecutionStatus,
    TransitionError,
)
from keepstate.managers.speech.records import SESSION_STEPS
from keepstate.managers.tools.records import EXECUTION_STEPS
from keepstate.sync import (
    KnowledgeStateManager,
    OrchestrationStateManager,
    SpeechStateManager,
    ToolStateManager,
)

WHICH = st.sampled_from([0, 1])
NAMES = st.sampled_from(["1", "10", "1/0", "é"])
AGENTS = st.sampled_from(["a", "b"])
RESULTS = st.sampled_from([None, 1, 1.0, True, (1,), [1], {"x": None}])
RUNNING, COMPLETED = ToolExecutionStatus.RUNNING, ToolExecutionStatus.COMPLETED


def memory() -> str:
    return f"memory://{uuid.uuid4().hex}"


class TeamMachine(RuleBasedStateMachine):
    """By task: its status, who holds it or did, its token, how often it was given out, and its result."""

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.teams = [OrchestrationStateManager(persistence=url) for _ in range(2)]
        self.tasks: dict[str, dict[str, Any]] = {}

    @initialize()
    def create(self) -> None:
        agents = {name: AgentCoordinationState(name) for name in ("a", "b")}
        self.teams[0].create_team(TeamState("t", agents, TaskQueueState()))

    @rule(which=WHICH, name=NAMES)
    def enqueue(self, which: int, name: str) -> None:
        self.teams[which].enqueue_task("t", {"id": name}, max_attempts=2)
        self.tasks.setdefault(
            name, {"status": "pending", "holder": None, "token": 0, "attempt": 0, "result": None}
        )

    @rule(which=WHICH, name=NAMES, agent=AGENTS)
    def assign(self, which: int, name: str, agent: str) -> None:
        task = self.tasks.get(name)
        try:
            given = self.teams[which].assign_task("t", name, agent)
        except NotFoundError:
            assert task is None
        except TransitionError:
            assert task is not None and task["status"] in ("completed", "dead")
        except ConflictError:
            assert task is not None and task["status"] == "in_progress" and task["holder"] != agent
        else:
            assert task is not None
            if task["status"] == "pending":
                self.give(task, agent, given.token)
            assert (given.agent_id, given.token, given.attempt) == (agent, task["token"], task["attempt"])

    @rule(which=WHICH, agent=AGENTS)
    def claim(self, which: int, agent: str) -> None:
        pending = [name for name, task in self.tasks.items() if task["status"] == "pending"]
        given = self.teams[which].claim_task("t", agent)

        assert (given is None) is (not pending)
        if given is not None:
            assert given.id in pending
            self.give(self.tasks[given.id], agent, given.token)

    def give(self, task: dict[str, Any], agent: str, token: int) -> None:
        assert token > task["token"]
        task |= {
            "status": "in_progress",
            "holder": agent,
            "token": token,
            "attempt": task["attempt"] + 1,
        }

    @rule(which=WHICH, name=NAMES, agent=AGENTS | st.none(), result=RESULTS)
    def complete(self, which: int, name: str, agent: str | None, result: Any) -> None:
        task = self.tasks.get(name)
        try:
            self.teams[which].complete_task("t", name, result, agent_id=agent)
        except NotFoundError:
            assert task is None
        except LeaseLostError:
            assert task is not None and agent not in (None, task["holder"])
        except TransitionError:
            assert task is not None
            differs = task["status"] == "completed" and repr(task["result"]) != repr(result)
            assert differs or task["status"] == "dead" or task["holder"] is None
        else:
            assert task is not None and agent in (None, task["holder"])
            if task["status"] == "pending":  # its last holder had done it after all
                task["attempt"] += 1
            task |= {"status": "completed", "result": result}

    @rule(which=WHICH, name=NAMES, agent=AGENTS | st.none(), fails=st.booleans())
    def give_back(self, which: int, name: str, agent: str | None, fails: bool) -> None:
        task, teams = self.tasks.get(name), self.teams[which]
        try:
            if fails:
                teams.fail_task("t", name, "no", agent_id=agent, retry_in_s=0)
            else:
                teams.release_task("t", name, agent_id=agent)
        except NotFoundError:
            assert task is None
        except LeaseLostError:
            assert task is not None and agent not in (None, task["holder"])
        except TransitionError:
            assert task is not None and task["status"] != "in_progress"
        else:
            assert task is not None and task["status"] == "in_progress"
            task["status"] = "dead" if fails and task["attempt"] >= 2 else "pending"
            task["attempt"] -= not fails

    @rule(which=WHICH, name=NAMES)
    def requeue(self, which: int, name: str) -> None:
        try:
            self.teams[which].requeue_task("t", name)
        except NotFoundError:
            assert self.tasks.get(name, {}).get("status") != "dead"
        else:
            self.tasks[name] |= {"status": "pending", "attempt": 0}

    @invariant()
    def shows_what_the_model_has(self) -> None:
        queue = self.teams[1].get_queue_status("t")
        shown = [*queue.pending, *queue.in_progress, *queue.completed, *queue.dead]
        told = {task.id: (task.status, task.attempt, repr(task.result)) for task in shown}
        wanted = {
            name: (task["status"], task["attempt"], repr(task["result"])) for name, task in self.tasks.items()
        }

        assert told == wanted
        assert {task.id: task.agent_id for task in queue.in_progress} == {
            name: each["holder"] for name, each in self.tasks.items() if each["status"] == "in_progress"
        }

    @invariant()
    def an_agent_works_on_what_it_holds(self) -> None:
        for agent in self.teams[0].get_available_agents("t"):
            assert agent.current_task is None
        team = self.teams[0].get_team("t", tasks=False)
        for agent in team.agents.values() if team else ():
            if agent.current_task is not None:
                task = self.tasks[agent.current_task]
                assert (task["status"], task["holder"]) == ("in_progress", agent.agent_id)

    def teardown(self) -> None:
        for each in self.teams:
            each.close()


TestTeams = pytest.mark.searched(TeamMachine.TestCase)


class ToolMachine(RuleBasedStateMachine):
    """By execution: its status, attempt, result; how often it was tried; and what effects were done."""

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.tools = [ToolStateManager(persistence=url, cache_results=True) for _ in range(2)]
        self.runs: dict[str, dict[str, Any]] = {}
        self.cached: dict[str, Any] = {}
        self.retries: dict[str, int] = {}
        self.effects: dict[str, tuple[EffectStatus, Any]] = {}

    @rule(which=WHICH, name=NAMES)
    def start(self, which: int, name: str) -> None:
        run = self.runs.get(name)
        try:
            self.tools[which].start_execution(ToolExecution(name, "t", parameters={"of": name}))
        except AlreadyExistsError:
            assert run is not None and run["status"] is RUNNING
        except TransitionError:
            assert run is not None and not EXECUTION_STEPS.allows(run["status"], RUNNING)
        else:
            attempt = run["attempt"] + 1 if run else 1
            self.runs[name] = {"status": RUNNING, "attempt": attempt, "result": None}

    @rule(which=WHICH, name=NAMES, result=RESULTS)
    def complete(self, which: int, name: str, result: Any) -> None:
        run = self.runs.get(name)
        try:
            self.tools[which].complete_execution(name, result, 2)
        except NotFoundError:
            assert run is None
        except TransitionError:
            assert run is not None and (run["status"], repr(run["result"])) != (COMPLETED, repr(result))
            assert run["status"] is not RUNNING
        else:
            assert run is not None
            if run["status"] is RUNNING:
                self.cached[name] = result
                self.retries.pop(name, None)
            run |= {"status": COMPLETED, "result": result}

    @rule(
        which=WHICH,
        name=NAMES,
        end=st.sampled_from(
            [ToolExecutionStatus.FAILED, ToolExecutionStatus.TIMED_OUT, ToolExecutionStatus.CANCELLED]
        ),
    )
    def end(self, which: int, name: str, end: ToolExecutionStatus) -> None:
        run, tools = self.runs.get(name), self.tools[which]
        try:
            if end is ToolExecutionStatus.CANCELLED:
                tools.cancel_execution(name)
            else:
                tools.fail_execution(name, "no", timed_out=end is ToolExecutionStatus.TIMED_OUT)
        except NotFoundError:
            assert run is None
        except TransitionError:
            assert run is not None and not EXECUTION_STEPS.allows(run["status"], end)
        else:
            assert run is not None
            if end is ToolExecutionStatus.CANCELLED and run["status"] is not end:
                self.retries.pop(name, None)
            run["status"] = end

    @rule(which=WHICH, name=NAMES, attempts=st.integers(0, 3))
    def retry(self, which: int, name: str, attempts: int) -> None:
        status = self.runs.get(name, {}).get("status")
        try:
            self.tools[which].update_retry_state(RetryState(name, attempts, 3))
        except TransitionError:
            assert status is not None and EXECUTION_STEPS.is_final(status)
        else:
            assert status is None or not EXECUTION_STEPS.is_final(status)
            self.retries[name] = attempts

    @rule(which=WHICH, name=NAMES, result=RESULTS, fails=st.sampled_from([None, OSError, KeyError]))
    def perform(self, which: int, name: str, result: Any, fails: type[Exception] | None) -> None:
        done = False

        def effect() -> Any:
            nonlocal done
            done = True
            if fails is not None:
                raise fails
            return result

        status, known = self.effects.get(name, (EffectStatus.NOT_DONE, None))
        try:
            answer = self.tools[which].perform_effect(name, effect, harmless=(OSError,))
        except TransitionError:
            assert status is EffectStatus.UNKNOWN and not done
        except (OSError, KeyError):
            assert done and status is EffectStatus.NOT_DONE
            unknown = EffectStatus.UNKNOWN if fails is KeyError else EffectStatus.NOT_DONE
            self.effects[name] = (unknown, None)
        else:
            assert done is (status is EffectStatus.NOT_DONE)
            self.effects[name] = (EffectStatus.DONE, result if done else known)
            assert repr(answer) == repr(self.effects[name][1])

    @precondition(lambda self: any(status is EffectStatus.UNKNOWN for status, _ in self.effects.values()))
    @rule(which=WHICH, is_done=st.booleans())
    def settle(self, which: int, is_done: bool) -> None:
        unknown = [name for name, (status, _) in self.effects.items() if status is EffectStatus.UNKNOWN]
        assert [each.execution_id for each in self.tools[which].get_unknown_effects()] == sorted(unknown)
        self.tools[which].settle_effect(unknown[0], is_done=is_done, result="settled")
        self.effects[unknown[0]] = (
            (EffectStatus.DONE, "settled") if is_done else (EffectStatus.NOT_DONE, None)
        )

    @invariant()
    def shows_what_the_model_has(self) -> None:
        tools = self.tools[1]
        shown = {each.execution_id: each for each in tools.get_execution_history("t")}
        stats = tools.get_tool_stats("t")
        ends = [run["status"] for run in self.runs.values()]

        assert {name: (each.status, each.attempt) for name, each in shown.items()} == {
            name: (run["status"], run["attempt"]) for name, run in self.runs.items()
        }
        assert (stats.total_executions, stats.completed, stats.running) == (
            len(ends),
            ends.count(COMPLETED),
            ends.count(RUNNING),
        )
        pending = {retry.execution_id: retry.attempts for retry in tools.get_pending_retries()}
        assert pending == {name: attempts for name, attempts in self.retries.items() if attempts < 3}
        for name, result in self.cached.items():
            entry = tools.get_cached_result("t", {"of": name})
            assert entry is not None and repr(entry.result) == repr(result)

    def teardown(self) -> None:
        for each in self.tools:
            each.close()


assert settings.default is not None
ToolMachine.TestCase.settings = settings(max_examples=settings.default.max_examples // 2)
TestTools = pytest.mark.searched(ToolMachine.TestCase)


class KnowledgeMachine(RuleBasedStateMachine):
    """By base: how many documents were added, which were indexed, which have failed, and how often."""

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.bases = [KnowledgeStateManager(persistence=url) for _ in range(2)]
        self.added: dict[str, int] = {}
        self.indexed: dict[str, set[str]] = {}
        self.failed: dict[str, dict[str, int]] = {}

    @rule(which=WHICH, base=NAMES, number=st.integers(1, 5))
    def add(self, which: int, base: str, number: int) -> None:
        self.bases[which].add_indexing_progress(base, processed=number)
        self.added[base] = self.added.get(base, 0) + number

    @rule(which=WHICH, base=NAMES, document=NAMES)
    def fail(self, which: int, base: str, document: str) -> None:
        self.bases[which].fail_document(base, document, "no")
        failed = self.failed.setdefault(base, {})
        failed[document] = failed.get(document, 0) + 1
        self.indexed.get(base, set()).discard(document)

    @rule(which=WHICH, base=NAMES, document=NAMES)
    def complete(self, which: int, base: str, document: str) -> None:
        self.bases[which].complete_document(base, document)
        self.indexed.setdefault(base, set()).add(document)
        self.failed.get(base, {}).pop(document, None)

    @invariant()
    def shows_what_the_model_has(self) -> None:
        for base in self.added.keys() | self.indexed.keys() | self.failed.keys():
            progress = self.bases[1].get_indexing_progress(base)
            listed = self.bases[0].get_failed_documents(base)
            failed = self.failed.get(base, {})

            assert progress is not None
            indexed = self.indexed.get(base, set())
            assert progress.processed_documents == self.added.get(base, 0) + len(indexed)
            assert progress.failed_documents == len(failed)
            assert {each.document_id: each.attempts for each in listed} == failed

    def teardown(self) -> None:
        for each in self.bases:
            each.close()


TestKnowledge = pytest.mark.searched(KnowledgeMachine.TestCase)


class SpeechMachine(RuleBasedStateMachine):
    """By session: its status and its turns."""

    def __init__(self) -> None:
        super().__init__()
        url = memory()
        self.speech = [SpeechStateManager(persistence=url) for _ in range(2)]
        self.sessions: dict[str, tuple[AudioSessionStatus, list[str]]] = {}

    @rule(which=WHICH, name=NAMES)
    def create(self, which: int, name: str) -> None:
        try:
            self.speech[which].create_session("voice", session_id=name)
        except AlreadyExistsError:
            assert name in self.sessions
        else:
            assert name not in self.sessions
            self.sessions[name] = (AudioSessionStatus.CREATED, [])

    @rule(which=WHICH, name=NAMES, status=st.sampled_from(AudioSessionStatus))
    def go_on(self, which: int, name: str, status: AudioSessionStatus) -> None:
        now, turns = self.sessions.get(name, (None, []))
        try:
            self.speech[which].update_session_status(name, status)
        except NotFoundError:
            assert now is None
        except TransitionError:
            assert now is not None and now is not status and not SESSION_STEPS.allows(now, status)
        else:
            self.sessions[name] = (status, turns)

    @rule(which=WHICH, name=NAMES, text=st.text(max_size=3))
    def say(self, which: int, name: str, text: str) -> None:
        now, turns = self.sessions.get(name, (None, []))
        try:
            self.speech[which].add_turn(name, "user", text)
        except NotFoundError:
            assert now is None
        except TransitionError:
            assert now is not None and SESSION_STEPS.is_final(now)
        else:
            turns.append(text)

    @invariant()
    def shows_what_the_model_has(self) -> None:
        for name, (status, turns) in self.sessions.items():
            session = self.speech[1].get_session(name)
            assert session is not None and session.status is status
            assert [turn["content"] for turn in self.speech[0].get_transcript(name)] == turns

    def teardown(self) -> None:
        for each in self.speech:
            each.close()


TestSpeech = pytest.mark.searched(SpeechMachine.TestCase)
