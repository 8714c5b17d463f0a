"""The stores of the Agent Framework: real agents and workflows, and what their contract does not ask."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from agent_framework import (
    Agent,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    Content,
    Executor,
    FileCheckpointStorage,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowCheckpoint,
    WorkflowContext,
    handler,
    response_handler,
)
from agent_framework.exceptions import WorkflowCheckpointException

import keepstate
from keepstate.adapters.agent_framework import (
    KeepstateApprovalStore,
    KeepstateCheckpointStorage,
    KeepstateHistoryProvider,
    KeepstateSessionStore,
)
from keepstate.errors import ConflictError, InvalidError

MINE = f"{__name__}:Order"


@pytest.fixture
def url() -> str:
    return f"memory://{uuid.uuid4().hex}"


@pytest.fixture
def storage(url: str) -> Iterator[KeepstateCheckpointStorage]:
    storage = KeepstateCheckpointStorage(url, allowed_checkpoint_types=[MINE])
    yield storage
    storage.close()


@dataclass
class Order:
    item: str
    count: int


@dataclass
class Evil:
    path: str

    def __reduce__(self) -> Any:
        return Path.touch, (Path(self.path),)


def checkpoint(state: Any = None, **fields: Any) -> WorkflowCheckpoint:
    return WorkflowCheckpoint("flow", "hash", state={"value": state}, **fields)


async def ids(storage: KeepstateCheckpointStorage) -> list[str]:
    return await storage.list_checkpoint_ids(workflow_name="flow")


# ---- checkpoints


async def test_a_checkpoint_costs_what_changed(tmp_path: Path) -> None:
    files = FileCheckpointStorage(tmp_path / "files")
    sizes, texts, previous = dict[int, int](), list[str](), None
    async with keepstate.open("memory://") as ks, KeepstateCheckpointStorage(ks) as storage:
        for n in range(1, 161):
            texts.append(uuid.uuid4().hex * 16)
            saved = checkpoint(texts, previous_checkpoint_id=previous)
            previous = await storage.save(saved)
            await files.save(saved)
            sizes[n] = (await ks.space(storage.name).size()).size_bytes

    of_files = sum(file.stat().st_size for file in (tmp_path / "files").iterdir())
    assert sizes[160] < 3 * sizes[80]  # it would be 4 times as much if each had the whole state
    assert sizes[160] * 20 < of_files


async def test_a_checkpoint_that_is_saved_again_is_stored_once_and_a_changed_one_replaces_it(
    url: str, storage: KeepstateCheckpointStorage
) -> None:
    saved = checkpoint("first")
    await storage.save(saved)
    following = checkpoint("next", previous_checkpoint_id=saved.checkpoint_id)
    await storage.save(following)
    async with keepstate.open(url) as ks:
        space = ks.space(storage.name)
        before = await space.revision()
        await storage.save(replace(saved))
        assert await space.revision() == before

    changed = replace(saved, state={"value": "changed"}, timestamp="2026-01-01T12:00:00+00:00")
    for _ in range(2):
        await storage.save(changed)
        changed = replace(changed, state={"value": [changed.state["value"]]})

    assert (await storage.load(saved.checkpoint_id)).state == {"value": ["changed"]}
    assert await storage.load(following.checkpoint_id) == following
    assert len(await ids(storage)) == 2


async def test_two_runs_from_one_checkpoint_and_deletions_leave_the_others_whole(
    url: str, storage: KeepstateCheckpointStorage
) -> None:
    first = checkpoint(["a"])
    await storage.save(first)
    forks = [checkpoint(["a", n], previous_checkpoint_id=first.checkpoint_id) for n in range(4)]
    await asyncio.gather(*map(storage.save, forks))
    tips = [
        checkpoint(["a", n, n], previous_checkpoint_id=fork.checkpoint_id) for n, fork in enumerate(forks)
    ]
    await asyncio.gather(*map(storage.save, tips))

    for gone in (first, forks[0], tips[1]):
        assert await storage.delete(gone.checkpoint_id)
        assert not await storage.delete(gone.checkpoint_id)
    async with keepstate.open(url) as ks:
        await ks.space(storage.name).history.prune(keep_last=1)

    for left in (*forks[1:], tips[0], *tips[2:]):
        assert await storage.load(left.checkpoint_id) == left
    again = checkpoint("again", previous_checkpoint_id=forks[1].checkpoint_id)
    await storage.save(again)
    assert await storage.load(again.checkpoint_id) == again
    with pytest.raises(WorkflowCheckpointException, match="No checkpoint found with ID"):
        await storage.load(first.checkpoint_id)


async def test_the_latest_is_found_by_time_and_in_its_chain_and_not_by_text(
    storage: KeepstateCheckpointStorage,
) -> None:
    times = ("2026-01-01T12:00:00+02:00", "2026-01-01T11:00:00+00:00", "2026-01-01T10:30:00")
    for n, time in enumerate(times):
        await storage.save(checkpoint(n, checkpoint_id=str(n), timestamp=time))
    assert await ids(storage) == ["0", "2", "1"]

    previous = "1"
    for name in ("z", "y", "x"):  # a clock that stands still
        saved = checkpoint(0, checkpoint_id=name, timestamp=times[1], previous_checkpoint_id=previous)
        previous = await storage.save(saved)

    latest = await storage.get_latest(workflow_name="flow")
    assert latest is not None and latest.checkpoint_id == "x"
    assert [one.checkpoint_id for one in await storage.list_checkpoints(workflow_name="flow")][2:] == [
        *"1zyx"
    ]
    assert await storage.get_latest(workflow_name="flow/x") is None


async def test_no_class_comes_back_but_the_allowed_ones(tmp_path: Path, url: str) -> None:
    touched = tmp_path / "touched"
    async with KeepstateCheckpointStorage(url) as storage:
        saved = await storage.save(checkpoint(Order("pen", 2)))
        evil = await storage.save(checkpoint([Evil(str(touched))]))
        for id in (saved, evil):
            with pytest.raises(WorkflowCheckpointException, match="blocked for"):
                await storage.load(id)
        with pytest.raises(WorkflowCheckpointException, match="blocked for"):
            await storage.get_latest(workflow_name="flow")
        assert not touched.exists()

        async with KeepstateCheckpointStorage(url, allowed_checkpoint_types=[MINE]) as allowing:
            assert (await allowing.load(saved)).state == {"value": Order("pen", 2)}


async def test_prune_keeps_the_last_ones_and_frees_the_room(
    url: str, storage: KeepstateCheckpointStorage
) -> None:
    previous = None
    for _ in range(12):
        previous = await storage.save(checkpoint(uuid.uuid4().hex * 200, previous_checkpoint_id=previous))
    async with keepstate.open(url) as ks:
        space = ks.space(storage.name)
        before = (await space.size()).size_bytes
        last = (await ids(storage))[-2:]

        assert await storage.prune(workflow_name="flow", keep_last=2) == 10
        assert await ids(storage) == last
        assert (await space.size()).size_bytes < before / 3
        assert await storage.prune(workflow_name="flow", keep_last=0) == 2
        assert (await space.history.stats()).commits == 0
    with pytest.raises(InvalidError, match="keep_last"):
        await storage.prune(workflow_name="flow", keep_last=-1)


async def test_what_cannot_be_stored_is_rejected_as_a_whole(storage: KeepstateCheckpointStorage) -> None:
    bad = checkpoint(lambda: None)
    for wrong in (bad, checkpoint(timestamp="yesterday"), checkpoint(float, timestamp=None)):
        with pytest.raises(WorkflowCheckpointException, match=wrong.checkpoint_id):
            await storage.save(wrong)
    assert await ids(storage) == []
    for types in ("my_app.Order", ["x:"], [7]):
        with pytest.raises(InvalidError, match="module:qualname"):
            KeepstateCheckpointStorage("memory://", allowed_checkpoint_types=types)  # type: ignore[arg-type]


class Ask(Executor):
    @handler
    async def begin(self, topic: str, ctx: WorkflowContext[str]) -> None:
        ctx.set_state("order", Order(topic, 1))
        await ctx.request_info(f"Write on {topic}?", str)

    @response_handler
    async def answered(self, original: str, answer: str, ctx: WorkflowContext[str]) -> None:
        order = ctx.get_state("order")
        await ctx.send_message(f"{order.item}: {answer}")


class Shout(Executor):
    @handler
    async def shout(self, text: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(text.upper())


def workflow(storage: KeepstateCheckpointStorage) -> Workflow:
    ask, shout = Ask("ask"), Shout("shout")
    builder = WorkflowBuilder(start_executor=ask, checkpoint_storage=storage, name="flow")
    return builder.add_edge(ask, shout).build()


async def test_a_workflow_that_waits_for_an_answer_goes_on_after_opening_again(tmp_path: Path) -> None:
    place = tmp_path / "state.db"
    async with KeepstateCheckpointStorage(
        place, context_id="run/1", allowed_checkpoint_types=[MINE]
    ) as storage:
        [asked] = (await workflow(storage).run("Rome")).get_request_info_events()

    async with KeepstateCheckpointStorage(
        place, context_id="run/1", allowed_checkpoint_types=[MINE]
    ) as storage:
        assert await storage.other("run/2").get_latest(workflow_name="flow") is None
        latest = await storage.get_latest(workflow_name="flow")
        assert latest is not None
        run = await workflow(storage).run(
            checkpoint_id=latest.checkpoint_id, responses={asked.request_id: "yes"}
        )

        assert run.get_outputs() == ["ROME: YES"]
        for id in await ids(storage):
            assert (await storage.load(id)).checkpoint_id == id


# ---- messages


class Scripted(BaseChatClient):
    """A client whose answer says how many messages it was given."""

    async def _inner_get_response(self, *, messages: Any, stream: Any, options: Any, **kwargs: Any) -> Any:
        return ChatResponse(messages=[Message("assistant", [f"{len(messages)} messages"])])


@pytest.mark.filterwarnings("ignore::FutureWarning")
async def test_an_agent_remembers_its_sessions_each_with_its_owner(url: str) -> None:
    async with KeepstateHistoryProvider(url) as provider:
        agent = Agent(client=Scripted(), name="clerk", context_providers=[provider])
        ann, bob = (agent.create_session(session_id="1") for _ in range(2))
        bob.state["keepstate"] = {"owner": "bob"}
        for session, expected in ((ann, 1), (ann, 3), (bob, 1), (ann, 5)):
            answer = await agent.run("Hello.", session=session)
            assert answer.text == f"{expected} messages"

        await provider.erase("bob")
        assert await provider.get_messages("1", state={"owner": "bob"}) == []
        assert len(await provider.get_messages("1")) == 6


async def test_messages_need_a_session(url: str) -> None:
    async with KeepstateHistoryProvider(url) as provider:
        for call in (provider.get_messages(None), provider.save_messages(None, [Message("user", ["a"])])):
            with pytest.raises(InvalidError, match=r"session=agent\.create_session"):
                await call


async def test_the_repeated_end_of_a_session_is_not_stored_again_but_a_repeated_question_is(url: str) -> None:
    def said(*texts: str) -> list[Message]:
        return [Message("user" if n % 2 == 0 else "assistant", [text]) for n, text in enumerate(texts)]

    async with KeepstateHistoryProvider(url) as provider:
        for texts in (("a", "b"), ("a", "b"), ("a", "b", "c", "d"), ("c", "d", "e", "f"), ("c", "d")):
            await provider.save_messages("1", said(*texts))
        assert [one.text for one in await provider.get_messages("1")] == [*"abcdef", "c", "d"]

        for _ in range(2):
            await provider.save_messages("2", said("hi"))
        assert [one.text for one in await provider.get_messages("2")] == ["hi", "hi"]


async def test_messages_of_the_past_and_those_a_compaction_excluded(url: str) -> None:
    async with KeepstateHistoryProvider(url, record=True, skip_excluded=True) as provider:
        await provider.save_messages("1", [Message("user", ["a"])])
        excluded = Message("assistant", ["b"], additional_properties={"_excluded": True})
        await provider.save_messages("1", [excluded, Message("user", ["c"])])
        assert [one.text for one in await provider.get_messages("1")] == ["a", "c"]
        assert [one.text for one in await provider.get_messages("1", at="main~1")] == ["a"]
        await provider.clear("1")
        assert await provider.get_messages("1") == []


# ---- sessions


async def test_the_second_of_two_writers_of_a_session_gets_a_conflict(url: str) -> None:
    async with KeepstateSessionStore(url) as store, KeepstateSessionStore(url) as elsewhere:
        session = AgentSession(session_id="1")
        session.state["n"] = 0
        await store.set("1", session)
        one, two = await store.get("1"), await elsewhere.get("1")
        assert one is not None and two is not None and one is not two
        for each in (one, two):
            each.state["n"] += 1
        await store.set("1", one)
        one.state["n"] += 1
        await store.set("1", one)  # which knows the version that it was stored as
        with pytest.raises(ConflictError, match=r"session '1' was stored or deleted.*update\(\)"):
            await elsewhere.set("1", two)
        await elsewhere.set("2", two)  # a copy

        await store.delete("1")
        for stale in (one, two):
            with pytest.raises(ConflictError):
                await (store if stale is one else elsewhere).set("1", stale)
        assert await store.get("1") is None
        await store.set("1", AgentSession(session_id="1"))
        with pytest.raises(ConflictError):
            await store.set("1", one)  # of a session that has ended, whatever its version


async def test_updates_of_one_session_at_once_lose_nothing(url: str) -> None:
    async with KeepstateSessionStore(url) as store:

        async def count(session: AgentSession) -> None:
            await asyncio.sleep(0)
            session.state["n"] = session.state.get("n", 0) + 1

        await asyncio.gather(*(store.update("1", count) for _ in range(8)))
        found = await store.get("1")
        assert found is not None and found.state == {"n": 8}


async def test_a_session_comes_back_with_registered_types_only(url: str) -> None:
    async with KeepstateSessionStore(url) as store:
        session = AgentSession(session_id="1", service_session_id={"id": "x"})
        session.state["messages"] = [Message("user", ["hi"])]
        await store.set("1", session)
        found = await store.get("1")
        assert found is not None and found.service_session_id == {"id": "x"}
        assert found.state["messages"][0].text == "hi"

        session.state["order"] = Order("pen", 1)
        with pytest.raises(TypeError, match="register_state_type"):
            await store.set("1", session)
        session.state["order"] = float("nan")
        with pytest.raises(ValueError, match="not JSON compliant"):
            await store.set("1", session)
        with pytest.raises(TypeError, match="AgentSession itself"):
            await store.set("1", type("Mine", (AgentSession,), {})())
        with pytest.raises(ValueError, match="non-empty"):
            await store.get("")


async def test_a_session_of_the_past_and_the_log_of_a_long_one(tmp_path: Path) -> None:
    async with KeepstateSessionStore("memory://", record=True) as store:
        for n in range(3):
            await store.update("1", lambda session, n=n: session.state.update(n=n))  # type: ignore[misc]
        past = await store.get("1", at="main~1")
        assert past is not None and past.state == {"n": 1}

    place = tmp_path / "state.db"
    async with KeepstateSessionStore(f"sqlite:///{place}?durability=normal") as store:

        def grow(session: AgentSession) -> None:
            session.state[str(len(session.state))] = [uuid.uuid4().hex for _ in range(100)]

        for _ in range(80):
            await store.update("1", grow)
    assert place.stat().st_size < 8_000_000  # 12 MB with all that the log would have


# ---- approvals


async def test_a_request_for_approval_is_stored_once_and_never_changes(url: str) -> None:
    call = Content.from_function_call("call_1", "pay", arguments={"amount": 7})
    request = Content.from_function_approval_request("request_1", call)
    async with KeepstateApprovalStore(url, owner="ann") as store, KeepstateApprovalStore(url) as other:
        for _ in range(2):
            await store.save_approval_request("request_1", request)
        loaded = await store.load_approval_request("request_1")
        assert loaded.to_dict() == request.to_dict()
        assert loaded.to_function_approval_response(True).function_call.arguments == {"amount": 7}  # type: ignore[union-attr]

        call.arguments = {"amount": 7_000}
        with pytest.raises(ValueError, match="already exists"):
            await store.save_approval_request("request_1", request)
        for absent in (other, store):
            with pytest.raises(KeyError, match="does not exist"):
                await absent.load_approval_request("request_1" if absent is other else "request_2")

        await store.erase("ann")
        with pytest.raises(KeyError):
            await store.load_approval_request("request_1")
