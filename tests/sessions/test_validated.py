"""Validated states: nothing wrong is kept or acted on, and nothing is anybody else's."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from keepstate import Space, ValidatedState
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError
from tests.engine.conftest import Turned


@dataclass
class Order:
    amount: Annotated[float, msgspec.Meta(gt=0)]
    items: list[str] = field(default_factory=list[str])


class OrderStruct(msgspec.Struct):
    amount: Annotated[float, msgspec.Meta(gt=0)]
    items: list[str] = []


class OrderModel(pydantic.BaseModel):
    amount: float = pydantic.Field(gt=0)
    items: list[str] = []


@dataclass
class Preferences:
    seat: str = "aisle"
    since: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def __post_init__(self) -> None:
        if self.seat not in {"aisle", "window"}:
            raise ValueError(f"there is no seat {self.seat!r}")


MODELS = [Order, OrderStruct, OrderModel]


@pytest.mark.parametrize("model", MODELS)
async def test_a_bad_amount_is_a_value_error_before_anybody_is_charged(
    ks: Keepstate, model: type[Any]
) -> None:
    state = ValidatedState("1", model, persistence=ks)
    await state.put({"amount": 5})

    for wrong in ({"amount": -5}, {"amount": None}, {"amount": "5 EUR"}, {}, {"amount": 5, "amuont": 1}):
        with pytest.raises(ValueError, match="in state of session '1'"):
            await state.put(wrong)
    for change in ({"amount": 0}, {"items": 3}, {"colour": "red"}, lambda order: {"amount": -1}):
        with pytest.raises(InvalidError):
            await state.update(change)
    assert (await state.get()).amount == 5


@pytest.mark.parametrize("model", MODELS)
async def test_what_stands_there_wrong_is_not_read_either(ks: Keepstate, model: type[Any]) -> None:
    await ks.space("session/1").documents.put(f"state/{model.__name__}", {"amount": -1})

    with pytest.raises(ValueError, match="Invalid"):
        await ValidatedState("1", model, persistence=ks).get()


@pytest.mark.parametrize("model", MODELS)
async def test_a_value_comes_back_as_one_of_its_model(ks: Keepstate, model: type[Any]) -> None:
    state = ValidatedState("1", model, persistence=ks)
    order = model(amount=2.5, items=["seat"])

    assert await state.put(order) == order
    assert await state.get() == order
    assert await state.update({"amount": 3}) == model(amount=3, items=["seat"])
    assert (await state.update(lambda old: model(amount=old.amount * 2))).amount == 6
    assert await state.delete()
    with pytest.raises(NotFoundError, match="does not exist"):
        await state.get()


async def test_an_absent_value_is_that_of_the_defaults_and_a_class_may_ask_for_more(ks: Keepstate) -> None:
    state = ValidatedState("1", Preferences, persistence=ks)

    assert await state.get() == Preferences()
    assert await state.update({"seat": "window"}) == Preferences(seat="window")
    with pytest.raises(ValueError, match="there is no seat 'roof'"):
        await state.update({"seat": "roof"})
    assert await state.get() == Preferences(seat="window")


async def test_fields_that_a_newer_version_wrote_are_kept(ks: Keepstate) -> None:
    document = ks.space("session/1").documents
    await document.put("state/Order", {"amount": 1, "currency": "EUR"})

    await ValidatedState("1", Order, persistence=ks).update({"amount": 2})

    assert await document.get("state/Order") == {"amount": 2.0, "items": [], "currency": "EUR"}


async def test_nothing_is_shared_between_sessions(ks: Keepstate, space: Space) -> None:
    ids = ["1", "10", "a/b", "a%2Fb", "1/state", "naïve 🦜"]
    for number, id in enumerate(ids, start=1):
        await ValidatedState(id, Order, persistence=ks).put({"amount": number})
        await ValidatedState(id, Order, space=space).put({"amount": number * 10})

    for number, id in enumerate(ids, start=1):
        assert (await ValidatedState(id, Order, persistence=ks).get()).amount == number
        assert (await ValidatedState(id, Order, space=space).get()).amount == number * 10


async def test_updates_of_many_at_once_are_all_kept(ks: Keepstate) -> None:
    states = [ValidatedState("1", Order, persistence=ks) for _ in range(4)]
    await states[0].put({"amount": 1})

    async def more(state: ValidatedState[Order]) -> None:
        for _ in range(5):
            await state.update(lambda order: Order(order.amount + 1, [*order.items, "x"]))

    await asyncio.gather(*map(more, states))
    assert await states[0].get() == Order(21, ["x"] * 20)


async def test_a_state_expires_and_joins_a_transaction(turned: Turned) -> None:
    state = ValidatedState("1", Order, space=turned.space, ttl_s=60)
    with pytest.raises(RuntimeError):
        async with turned.space.transaction() as tx:
            await ValidatedState("1", Order, space=tx).put({"amount": 1})
            raise RuntimeError
    await state.put({"amount": 2})
    turned.clock.advance(50_000)
    await state.update({"amount": 3})
    turned.clock.advance(50_000)

    assert (await state.get()).amount == 3
    turned.clock.advance(11_000)
    with pytest.raises(NotFoundError):
        await state.get()


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": int},
        {"model": 1},
        {"model": Order(1)},
        {"name": ""},
        {"ttl_s": 0},
        {"session_id": ""},
        {"space": 1},
    ],
    ids=repr,
)
def test_what_makes_no_state_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidError):
        ValidatedState(**{"session_id": "1", "model": Order, **wrong})
