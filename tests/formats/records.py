"""Two small stores whose every record has known bytes: the vectors of the page on the stored format."""

from __future__ import annotations

import operator
import random
from collections.abc import Sequence
from decimal import Decimal
from typing import Any
from unittest.mock import patch

from keepstate import Budget, Event, Limit, Projection, Quota, Retry, Session, Transaction, Usage
from keepstate._runner import TaskRunner
from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.engine.history.archive import Before, put_path
from keepstate.engine.history.bundle import Bundle
from keepstate.engine.kernel import grants, layout
from keepstate.engine.kernel.blobs import Blobs
from keepstate.engine.space.keepstate import Keepstate
from keepstate.managers import WorkflowState, WorkflowStateManager, WorkflowStatus
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import ABSENT, Batch, Outcome, Put, Store
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource

PREFIXES: dict[str, bytes] = {
    name: value
    for name, value in vars(layout).items()
    if name.isupper() and isinstance(value, bytes) and not name.startswith("_") and name != "LINED"
}
"""The prefixes of the keys of all parts of a space, by their names in the code."""


Records = dict[str, list[tuple[bytes, bytes]]]
"""Keys and values by the stored name of their space."""


class NotingStore(MemoryStore):
    """Notes the last value that was written to each key, because some entries are there for a moment only."""

    def __init__(self) -> None:
        self.turned = ManualClock()
        super().__init__(runner=TaskRunner(), clock=self.turned)
        self.written: dict[tuple[str, bytes], bytes] = {}

    async def apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        for batch in batches:
            for write in batch.writes:
                if isinstance(write, Put) and not write.stamp:
                    self.written[batch.space, write.key] = write.value
        return await super().apply(batches)


def handle_on(store: NotingStore, source: TurnedSource, tenant: str | None = None) -> TurnedKeepstate:
    """Return a handle that tells the time by the clock of its store."""
    ks = TurnedKeepstate(source, author="ann", tenant=tenant)
    ks.turned = store.turned
    return ks


async def make_store() -> Records:
    """Write the first store, and return its entries."""
    store = NotingStore()
    async with handle_on(store, TurnedSource(store)) as ks:
        await _fill(ks)
        await ks.find()
        found = {name: await _entries(ks.store, name) for name in await ks.store.spaces()}
        await ks.space("run/1").queue.put("y", id="t9", kind="late")
        found["run/1"] += await _entries(ks.store, "run/1", layout.OUTBOX)
    return found


async def _fill(ks: Keepstate) -> None:
    space = ks.space("run/1")
    await space.documents.put("plan", {"step": 1})
    await space.events.append({"said": "hello"}, id="e1")
    await space.leases.acquire("leader", ttl_s=30)
    queue = space.queue
    await queue.put("a", id="t1", kind="mail")
    await queue.put("b", id="t2", kind="mail", delay_s=60)
    await queue.put("c", id="t3", after=["t1"])
    await queue.put("d", id="t4", priority=5)
    [task] = await queue.claim("worker", lease_s=60)
    await task.complete("done")
    await queue.put("f", id="t5", kind="report", priority=9)
    await queue.claim("worker", lease_s=60, kinds=["report"])
    await space.schedules.put("nightly", every_s=3_600, kind="report")
    await space.approvals.ask("Send it?", id="a1", subject={"to": "all"}, to=["bob"], expires_s=3_600)
    await WorkflowStateManager(persistence=ks).create(WorkflowState("w1", status=WorkflowStatus.RUNNING))
    usage = ks.space("spending").usage
    await usage.set_budget("money", Budget(cost=Decimal(10), per="month"))
    await usage.record(
        Usage(model="large", input_tokens=900, output_tokens=80, cost=Decimal("0.0125")), id="u1"
    )


async def make_parts() -> Records:
    """Write the second store, and return its entries, and those of a moment after the others of their space.

    It has what the first one lacks.
    """
    store = NotingStore()
    source = TurnedSource(store)
    tenant = handle_on(store, source, "acme")
    async with handle_on(store, source) as ks:
        await _fill_histories(ks)
        await _fill_events(ks)
        await _end_tasks(ks, store.turned)
        await _fill_lines(ks)
        await _fill_graph(ks)
        await tenant.set_quota(Quota(spaces=100))
        with patch.object(grants, "SYSTEM_CLOCK", store.turned):  # for its randomness
            await tenant.space("run/6").documents.put("plan", 1)
        await Session("s1", user_id="bob", persistence=ks).update({"said": "hello"})
        await ks.find()
        await ks.erase_owner("bob")
        found = {name: await _entries(ks.store, name) for name in await ks.store.spaces()}
    for (space, key), value in store.written.items():
        if key not in dict(found.setdefault(space, [])):
            found[space].append((key, value))
    return found


async def _fill_histories(ks: Keepstate) -> None:
    recorded = ks.space("history", record=True)
    await recorded.documents.put("plan", {"step": 1})
    noise = random.Random(1)
    await recorded.documents.put("plan", {"step": 2, "photos": [noise.randbytes(1_500) for _ in range(4)]})
    await recorded.history.tag("second")
    await recorded.documents.put("note", "short-lived", ttl_s=60)
    await recorded.history.prune(keep_last=1)
    archived = ks.space("archived")
    nothing = Before(Bundle(), ABSENT, None)
    await archived.queue.executor.run(lambda unit: put_path(unit, "/srv/moments", nothing))
    large = ks.space("large")
    await large.documents.put("noise", random.Random(0).randbytes(1_100_000))
    await Blobs(large.queue.executor, 1_000).put({"face": b":-)"})
    orders = large.collection("orders", dict, index={"by_city": lambda order: (order["city"],)})
    await orders.put("o1", {"city": "Oslo"})
    async with large.transaction(token="request 7") as tx:
        await tx.documents.put("plan", 1)


async def _fill_events(ks: Keepstate) -> None:
    space = ks.space("events")
    for stream in ("orders", "old"):
        await space.events.append("hello", stream=stream)
    await space.events.drop("old")
    orders = space.events.stream("orders")
    await orders.fold(operator.is_not, name="any", cache_every=1)
    await Projection(orders, "copies", _copy, documents="copy/*").run()


async def _copy(tx: Transaction, event: Event) -> None:
    await tx.documents.put("copy/last", event.data)


async def _end_tasks(ks: Keepstate, clock: ManualClock) -> None:
    queue = ks.space("ends").queue
    await queue.put("a", id="failed", max_attempts=1)
    await queue.put("b", id="stepped")
    failed, stepped = await queue.claim("worker", lease_s=60, count=2)
    await failed.fail(ValueError("no"))
    await stepped.step("small", str, 1)
    await stepped.step("large", random.Random(0).randbytes, 17_000)
    await queue.put("c", id="cancelled")
    await queue.cancel("cancelled", by="ann", reason="enough")
    await queue.put("d", id="told")
    await queue.send("told", "go", 1, send_id="m1")
    await queue.put("e", id="late", expires_s=1)
    await queue.put("f", id="after", after=["late"])
    clock.advance(2_000)
    await queue.claim("worker", lease_s=60, count=9)


async def _fill_lines(ks: Keepstate) -> None:
    retry = Retry(first_s=5, never=(ValueError,), rules={TimeoutError: Retry(first_s=1)})
    for name, limit in (
        ("running", Limit(running=1, each_key=True)),
        ("starting", Limit(starts=1, per_s=60, each_key=True)),
    ):
        queue = ks.space(name).queue
        await queue.configure(limits=[limit], retry=retry)
        for number in range(3):
            await queue.put(number, id=f"t{number}", key="ann")
        [task] = await queue.claim("worker", lease_s=60, count=3)
        await task.complete()
        await queue.claim("worker", lease_s=60, count=3)


async def _fill_graph(ks: Keepstate) -> None:
    saver = KeepstateSaver(ks)
    config: Any = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}
    for number in (1, 2):
        checkpoint: Any = {
            "v": 4, "id": f"1f0e3f5c-0000-6000-8000-00000000000{number}", "ts": "2026-01-01T00:00:00+00:00",
            "channel_values": {"said": number}, "channel_versions": {"said": number}, "versions_seen": {},
        }  # fmt: skip
        config = await saver.aput(config, checkpoint, {"step": number}, {"said": number})
    await saver.aput_writes(config, [("said", 3)], "node")
    await saver.aprune(["t"])


async def _entries(store: Store, space: str, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    return [
        (entry.key, entry.value)
        for section in range(3)
        for entry in (await store.scan(space, bytes((section,)))).entries
        if entry.key.startswith(prefix)
    ]
