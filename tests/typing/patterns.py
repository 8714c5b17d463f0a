"""What type checkers make of event sourcing and of the patterns of sessions, in both modes; never run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, assert_type

import keepstate
from keepstate import (
    AgentStateMachine,
    BoundedState,
    Event,
    EventStream,
    Fold,
    FoldEntry,
    Projection,
    Space,
    Transaction,
    Transition,
    ValidatedState,
    VersionedState,
    sync,
)


@dataclass
class Order:
    amount: float


async def apply(tx: Transaction, event: Event) -> None:
    await tx.documents.put("last", event.data)


def apply_blocking(tx: sync.Transaction, event: Event) -> None:
    tx.documents.put("last", event.data)


def total(state: int, event: Event) -> int:
    return state + 1


async def event_sourcing(space: Space, tx: Transaction) -> None:
    stream = EventStream(space, "orders")
    assert_type(EventStream(tx).name, str)
    assert_type(await stream.append({"n": 1}, id="a", type="added@1", cause="b"), int)
    assert_type(await stream.fold_entry(Fold(total, 0)), FoldEntry)
    assert_type(stream.at(1), EventStream)
    assert_type(await stream.truncate(1, Fold(total, 0)), int)
    assert_type(await Projection(stream, "p", apply, documents="p/*").run(), int)


def event_sourcing_blocking(space: sync.Space) -> None:
    stream = sync.EventStream(space, "orders")
    assert_type(stream.at(1), sync.EventStream)
    assert_type(sync.Projection(stream, "p", apply_blocking, documents="p/*").run(), int)
    sync.Projection(stream, "p", apply, documents="p/*")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Door(AgentStateMachine):
    STATES = ("open", "shut")
    WORK: ClassVar = {"open": "push"}

    async def push(self) -> str:
        return str(self.data["by"])


class BlockingDoor(sync.AgentStateMachine):
    STATES = ("open", "shut")
    WORK: ClassVar = {"open": "push"}

    def push(self) -> str:
        return str(self.data["by"])


async def sessions(space: Space) -> None:
    machine = AgentStateMachine("1", space=space)
    assert_type(await machine.transition("new_task", goal="x"), str)
    assert_type(await machine.history(), list[Transition])
    assert_type(await BoundedState("1", space=space).get_context(), list[dict[str, Any]])
    state = ValidatedState("1", Order, space=space)
    assert_type(await state.get(), Order)
    assert_type(await state.update(lambda order: Order(order.amount + 1)), Order)
    versions = VersionedState("1", space=space)
    assert_type(await versions.checkpoint({"a": 1}), int)
    assert_type(await versions.fork("f"), VersionedState)


def sessions_blocking(ks: sync.Keepstate, asynchronous: keepstate.Keepstate) -> None:
    assert_type(sync.AgentStateMachine("1", persistence=ks).transition("new_task"), str)
    assert_type(sync.BoundedState("1", persistence=ks).count_tokens(), int)
    assert_type(sync.ValidatedState("1", Order, persistence=ks).get(), Order)
    assert_type(sync.VersionedState("1", persistence=ks).fork("f"), sync.VersionedState)
    sync.VersionedState(persistence=asynchronous)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
