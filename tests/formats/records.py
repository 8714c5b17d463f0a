"""A small store whose every record has known bytes: the vectors of the page on the stored format."""

from __future__ import annotations

from decimal import Decimal

from keepstate import Budget, Usage
from keepstate._runner import TaskRunner
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.managers import WorkflowState, WorkflowStateManager, WorkflowStatus
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Store
from keepstate.testing.clocks import ManualClock
from tests.engine.conftest import TurnedKeepstate, TurnedSource

PREFIXES: dict[str, bytes] = {
    name: value
    for name, value in vars(layout).items()
    if name.isupper() and isinstance(value, bytes) and not name.startswith("_") and name != "LINED"
}
"""The prefixes of the keys of all parts of a space, by their names in the code."""


async def make_store() -> dict[str, list[tuple[bytes, bytes]]]:
    """Write the store, and return the keys and values of its entries by the stored name of their space."""
    ks = TurnedKeepstate(
        TurnedSource(MemoryStore(runner=TaskRunner(), clock=(clock := ManualClock()))), author="ann"
    )
    ks.turned = clock
    async with ks:
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


async def _entries(store: Store, space: str, prefix: bytes = b"") -> list[tuple[bytes, bytes]]:
    return [
        (entry.key, entry.value)
        for section in range(3)
        for entry in (await store.scan(space, bytes((section,)))).entries
        if entry.key.startswith(prefix)
    ]
