"""The stores of A2A keep the contract of adapters, and the promises of the SDK's cluster interfaces."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from a2a.auth.user import User
from a2a.helpers.proto_helpers import new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor
from a2a.server.cluster.event_stream import VersionedEvent
from a2a.server.cluster.task_store import ConcurrentTaskModificationError
from a2a.server.cluster.version import TaskVersion
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.tasks import TaskUpdater
from a2a.server.tasks.inmemory_task_store import InMemoryTaskStore
from a2a.types import (
    AgentCapabilities,
    AgentCard,
    Artifact,
    CancelTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from a2a.utils.errors import InvalidParamsError

from keepstate.adapters.a2a import KeepstateEventStream, KeepstatePushConfigs, KeepstateTaskStore
from keepstate.testing.adapter_contract import IDS, AdapterContract

WORKING, CANCELED = TaskState.TASK_STATE_WORKING, TaskState.TASK_STATE_CANCELED


class Named(User):
    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._name


def of(owner: str) -> ServerCallContext:
    return ServerCallContext(user=Named(owner))


ANYONE = ServerCallContext()


def said(n: int, text: str = "x") -> Message:
    return Message(message_id=f"m{n}", role="ROLE_AGENT", parts=[Part(text=text)])


def task_of(id: str = "t", state: Any = WORKING, **fields: Any) -> Task:
    return Task(id=id, context_id="c", status=TaskStatus(state=state), **fields)


async def save(
    store: KeepstateTaskStore, task: Task, version: TaskVersion, context: Any = ANYONE
) -> TaskVersion:
    return await store.save(task, prev_version=version, context=context)


class TestTaskStore(AdapterContract):
    """A conversation is the history of a task, which a writer reads, extends and saves."""

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateTaskStore:
        return KeepstateTaskStore(url)

    async def add(self, adapter: KeepstateTaskStore, id: str, items: Sequence[Any]) -> None:
        await self.add_owned(adapter, "", id, items)

    async def read(self, adapter: KeepstateTaskStore, id: str) -> list[Any]:
        return await self.read_owned(adapter, "", id)

    def item(self, n: int) -> Any:
        return said(n)

    def rich_item(self) -> Any:
        message = said(1, "ünï\n🦜\x00")
        message.metadata.update({"a": [1.5, None, True, {"ünï": "🦜"}]})
        message.parts.append(Part(raw=b"\0\xff", media_type="image/png"))
        return message

    async def clear(self, adapter: KeepstateTaskStore, id: str) -> None:
        await adapter.delete(id, ANYONE)

    async def add_owned(self, adapter: KeepstateTaskStore, owner: str, id: str, items: Sequence[Any]) -> None:
        while True:
            stored = await adapter.get(id, of(owner))
            task = task_of(id) if stored is None else stored.task
            task.history.extend(items)
            try:
                version = TaskVersion.MISSING if stored is None else stored.version
                await adapter.save(task, prev_version=version, context=of(owner))
            except ConcurrentTaskModificationError:
                await asyncio.sleep(0)
            else:
                return

    async def read_owned(self, adapter: KeepstateTaskStore, owner: str, id: str) -> list[Any]:
        stored = await adapter.get(id, of(owner))
        return [] if stored is None else list(stored.task.history)

    async def erase(self, adapter: KeepstateTaskStore, owner: str) -> None:
        assert (await adapter.erase(owner)).spaces == 1


# ---- tasks


async def test_of_two_saves_at_one_version_one_is_told(any_url: str) -> None:
    async with KeepstateTaskStore.from_url(any_url) as store:
        task = task_of()
        made = await asyncio.gather(
            *(save(store, task, TaskVersion.MISSING) for _ in range(2)), return_exceptions=True
        )
        (first,) = [each for each in made if isinstance(each, TaskVersion)]
        assert sum(isinstance(each, ConcurrentTaskModificationError) for each in made) == 1
        saved = await asyncio.gather(*(save(store, task, first) for _ in range(2)), return_exceptions=True)
        (second,) = [each for each in saved if isinstance(each, TaskVersion)]

        assert sum(isinstance(each, ConcurrentTaskModificationError) for each in saved) == 1
        assert second.is_after(first)
        stored = await store.get("t", ANYONE)
        assert stored is not None
        assert (stored.task, stored.version) == (task, second)
        with pytest.raises(ConcurrentTaskModificationError):
            await save(store, task_of("absent"), first)


async def test_a_cancellation_wins_until_the_task_has_ended(any_url: str) -> None:
    async with KeepstateTaskStore.from_url(any_url) as store:
        with pytest.raises(ConcurrentTaskModificationError):
            await save(store, task_of(state=CANCELED), TaskVersion.MISSING)
        old = await save(store, task_of(), TaskVersion.MISSING)
        new = await save(store, task_of(history=[said(1)]), old)

        canceled = await save(store, task_of(state=CANCELED), old)
        assert canceled.is_after(new)
        for version in (old, canceled):
            with pytest.raises(ConcurrentTaskModificationError):
                await save(store, task_of(state=CANCELED), version)


def changed(task: Task, n: int) -> Task:
    """Change a task as agents do, each time in another way."""
    match n % 9:
        case 0:
            task.artifacts.append(Artifact(artifact_id=f"a{n}", name="new"))
        case 1 | 2:
            task.artifacts[-1].parts.append(Part(text=f"part {n}"))
        case 3:
            task.artifacts[0].parts.append(Part(text=f"earlier {n}"))
            task.artifacts[0].metadata.update({"n": n})
        case 4:
            task.history[-1].parts[0].text = "edited"
        case 5:
            task.artifacts[-1].CopyFrom(Artifact(artifact_id=f"a{n}", parts=[Part(raw=b"\0")]))
        case 6 if len(task.artifacts) > 2:
            del task.artifacts[1]
        case 7:
            del task.history[: n % 3]
        case _:
            task.metadata.update({"n": n})
    task.history.append(said(n))
    task.status.message.CopyFrom(said(n, "status"))
    return task


async def test_a_task_that_changes_in_any_way_comes_back_equal(any_url: str) -> None:
    async with KeepstateTaskStore.from_url(any_url) as store:
        task, version = task_of(), TaskVersion.MISSING
        for n in range(60):
            version = await save(store, changed(task, n), version)
            stored = await store.get("t", ANYONE)
            assert stored is not None
            assert stored.task == task, n

        assert await _names(store, "run/*", live=False) == []
        await store.delete("t", ANYONE)
        assert await _names(store, "*", live=True) == ["lives"]


async def _names(store: KeepstateTaskStore, pattern: str, *, live: bool) -> list[str]:
    """Return the names of documents; without `live`, only those of runs that no task has."""

    async def work(space: Any) -> list[str]:
        names = [name async for name in space.documents.keys(pattern)]
        if live:
            return names
        records = [record async for _, record in space.documents.items("task/*")]
        used = {
            f"run/{record['life']}/{name}/{run[0]}/"
            for record in records
            for name, run in record["runs"].items()
        }
        return [name for name in names if not name.startswith(tuple(used))]

    return await store.space("tasks").call(work)


async def test_a_save_writes_what_changed_and_not_the_task(tmp_path: Path) -> None:
    async def written(store: KeepstateTaskStore) -> int:
        async def work(space: Any) -> int:
            entries = await space.documents.page(limit=1_000, values=False)
            newest = max(entry.version for entry in entries)
            return sum(entry.size_bytes for entry in entries if entry.version == newest)

        return await store.space("tasks").call(work)

    async with KeepstateTaskStore.from_url(tmp_path / "tasks.db") as store:
        task, version, sizes = task_of(), TaskVersion.MISSING, []
        task.artifacts.append(Artifact(artifact_id="a"))
        for n in range(200):
            task.history.append(said(n, "h" * 500))
            task.artifacts[0].parts.append(Part(text="a" * 500))
            version = await save(store, task, version)
            sizes.append(await written(store))

    assert max(sizes) < 2_000
    assert max(sizes) - min(sizes[1:]) < 50


async def test_deleted_tasks_begin_anew_and_leftovers_are_swept(any_url: str) -> None:
    async with KeepstateTaskStore.from_url(any_url) as store:
        version = await save(store, task_of(history=[said(n) for n in range(3)]), TaskVersion.MISSING)
        await save(store, task_of("kept", history=[said(1)]), TaskVersion.MISSING)

        async def interrupt(space: Any) -> None:
            await space.documents.delete("task/t")  # as a deletion whose process was killed

        await store.space("tasks").call(interrupt)
        await save(store, task_of(history=[said(9)]), TaskVersion.MISSING)
        with pytest.raises(ConcurrentTaskModificationError):
            await save(store, task_of(), TaskVersion(7))

        assert await store.sweep() == 1
        assert await store.sweep() == 0
        for id, history in (("t", [said(9)]), ("kept", [said(1)])):
            stored = await store.get(id, ANYONE)
            assert stored is not None
            assert list(stored.task.history) == history
        assert version == TaskVersion(1)


async def test_listings_are_those_of_the_store_in_memory(any_url: str) -> None:
    theirs = InMemoryTaskStore()
    async with KeepstateTaskStore.from_url(any_url) as ours:
        for n in range(25):
            task = Task(
                id=f"t{n:02}", context_id=f"c{n % 3}", status=TaskStatus(state=1 + n % 4), history=[said(n)]
            )
            task.artifacts.append(Artifact(artifact_id="a", parts=[Part(text=str(n))]))
            if n % 5:
                task.status.timestamp.FromSeconds(1_000_000 + n % 7)
            for owner in ("ann", "bob") if n % 2 else ("ann",):
                await theirs.save(task, of(owner))
                await ours.save(task, prev_version=TaskVersion.MISSING, context=of(owner))
        since = ListTasksRequest()
        since.status_timestamp_after.FromSeconds(1_000_003)
        requests = [
            ListTasksRequest(),
            since,
            ListTasksRequest(context_id="c1"),
            ListTasksRequest(status=2, page_size=2),
            ListTasksRequest(page_size=4),
        ]
        for owner in ("ann", "bob", "eve"):
            for request in requests:
                while True:
                    expected = await theirs.list(request, of(owner))
                    assert await ours.list(request, of(owner)) == expected
                    if not expected.next_page_token:
                        break
                    request.page_token = expected.next_page_token
                request.page_token = ""
        with pytest.raises(InvalidParamsError):
            await ours.list(ListTasksRequest(page_token="t01"), of("ann"))


async def test_an_erasure_takes_the_events_of_the_owner_s_tasks(any_url: str) -> None:
    event = VersionedEvent(task_of("a"), TaskVersion(1))
    async with (
        KeepstateTaskStore.from_url(any_url) as store,
        KeepstateEventStream.from_url(any_url) as stream,
    ):
        for owner, id in (("ann", "a"), ("bob", "b")):
            await save(store, task_of(id), TaskVersion.MISSING, of(owner))
            await stream.publish(id, event)

        await store.erase("ann")
        assert await _heard(stream, "b") == [event]
        assert await _heard(stream, "a", wait_s=0.2) == []


# ---- events


async def _heard(
    stream: KeepstateEventStream,
    id: str,
    after: TaskVersion = TaskVersion.MISSING,
    count: int = 1,
    wait_s: float = 5,
) -> list[VersionedEvent]:
    heard: list[VersionedEvent] = []

    async def listen() -> None:
        async with aclosing(stream.subscribe(id, after=after)) as events:
            async for event in events:
                heard.append(event)
                if len(heard) == count:
                    return

    listening = asyncio.ensure_future(listen())
    await asyncio.wait([listening], timeout=wait_s)
    listening.cancel()
    await asyncio.wait([listening])
    return heard


async def test_a_follower_hears_each_later_event_in_order(any_url: str) -> None:
    events = [
        VersionedEvent(task_of(), TaskVersion(1)),
        VersionedEvent(TaskStatusUpdateEvent(task_id="t", context_id="c"), TaskVersion(2)),
        VersionedEvent(TaskArtifactUpdateEvent(task_id="t", append=True), TaskVersion(3)),
        VersionedEvent(said(1, "done"), TaskVersion(4)),
    ]
    async with (
        KeepstateEventStream.from_url(any_url) as here,
        KeepstateEventStream.from_url(any_url) as there,
    ):
        await there.publish("t", events[0])
        await there.publish("other", events[1])
        listening = asyncio.create_task(_heard(here, "t", TaskVersion(1), 3))
        for event in events[1:]:
            await asyncio.sleep(0.05)
            await there.publish("t", event)

        assert await listening == events[1:]
        assert await _heard(here, "t", count=4) == events
        for n in range(5, 300):
            await there.publish("t", VersionedEvent(said(n), TaskVersion(n)))
        late = await _heard(here, "t", TaskVersion(100), 199)
        assert [event.version for event in late] == [TaskVersion(n) for n in range(101, 300)]
        await there.destroy("t")
        assert await _heard(here, "t", wait_s=0.2) == []
        assert await _heard(here, "other") == [events[1]]


# ---- push configurations


def config_of(id: str, **fields: Any) -> TaskPushNotificationConfig:
    return TaskPushNotificationConfig(id=id, url="https://example.org/hook", **fields)


async def test_push_configurations_belong_to_their_owner_and_are_all_dispatched(any_url: str) -> None:
    async with KeepstatePushConfigs.from_url(any_url) as store:
        for id in IDS:
            for owner in ("ann", "bob", ""):
                await store.set_info(id, config_of(f"of {owner}", token=id), of(owner))
        given = config_of("")
        assert (await store.set_info("t", given, of("ann"))).id == "t"
        assert given == config_of("")
        await store.set_info("t", config_of("t", token="new"), of("ann"))
        await store.set_info("t", config_of("more"), of("ann"))
        await store.set_info("t", config_of("t"), of("bob"))

        for id in IDS:
            assert await store.get_info(id, of("ann")) == [config_of("of ann", token=id, task_id=id)]
            assert len(await store.get_info_for_dispatch(id)) == 3
        mine = await store.get_info("t", of("ann"))
        assert sorted((each.id, each.token) for each in mine) == [("more", ""), ("t", "new")]
        await store.delete_info("t", of("ann"), "more")
        await store.delete_info("t", of("ann"), "unknown")
        assert len(await store.get_info_for_dispatch("t")) == 2
        await store.delete_info("t", of("ann"))
        assert [each.id for each in await store.get_info_for_dispatch("t")] == ["t"]
        assert await store.get_info("t", of("eve")) == []

        await store.erase("ann")
        for id in IDS:
            assert await store.get_info(id, of("ann")) == []
            assert len(await store.get_info_for_dispatch(id)) == 2


# ---- replicas


class Pausing(AgentExecutor):
    """An agent that waits after its first artifact until the test lets it go on."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()

    async def execute(self, context: Any, event_queue: Any) -> None:
        await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.start_work()
        await self.go_on.wait()
        await updater.add_artifact([Part(text="Take the train.")])
        await updater.complete()

    async def cancel(self, context: Any, event_queue: Any) -> None:
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


async def test_a_second_replica_follows_and_cancels_what_the_first_one_runs(any_url: str) -> None:
    card = AgentCard(name="travel", capabilities=AgentCapabilities(streaming=True))
    asked = Message(message_id="1", role="ROLE_USER", parts=[Part(text="To Paris?")])
    async with (
        KeepstateTaskStore.from_url(any_url) as tasks,
        KeepstateEventStream.from_url(any_url) as events,
    ):

        def replica(agent: Pausing) -> DefaultRequestHandlerV2:
            return DefaultRequestHandlerV2(
                agent_executor=agent, agent_card=card, task_store=tasks, event_stream=events
            )

        async def start(agent: Pausing) -> tuple[Any, str]:
            stream = replica(agent).on_message_send_stream(SendMessageRequest(message=asked), ANYONE)
            first = await anext(stream)
            await anext(stream)  # it works
            return stream, first.id

        agent = Pausing()
        stream, id = await start(agent)
        followed = replica(Pausing()).on_subscribe_to_task(SubscribeToTaskRequest(id=id), ANYONE)
        kinds = [type(await anext(followed))]
        agent.go_on.set()
        kinds += [type(event) async for event in followed]
        own = [type(event) async for event in stream]

        assert kinds == [Task, *own] == [Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent]

        stream, id = await start(Pausing())
        canceled = await replica(Pausing()).on_cancel_task(CancelTaskRequest(id=id), ANYONE)
        stored = await tasks.get(id, ANYONE)
        assert canceled is not None
        assert stored is not None
        assert canceled.status.state == stored.task.status.state == CANCELED
        await stream.aclose()
