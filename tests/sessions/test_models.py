"""Models of states: what comes back is what was given, under whatever names a class has for its fields."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pydantic
import pytest

from keepstate import Session, downcast, register, register_write_version, upcast
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.migration import migrate
from keepstate.errors import InvalidError, UnsupportedError
from keepstate.values.schema import CLASSES
from tests.engine.conftest import Turned


class Renamed(msgspec.Struct, rename="camel"):
    goal_id: int = 0
    step_count: int = 0


class Tagged(msgspec.Struct, tag="tagged"):
    b: int = 0


class Sparse(msgspec.Struct, omit_defaults=True):
    b: int = 0
    kept: int | msgspec.UnsetType = msgspec.UNSET


class Aliased(pydantic.BaseModel):
    amount: float = pydantic.Field(default=0, alias="amt", gt=-1)


class Computed(pydantic.BaseModel):
    a: int = 0

    @pydantic.computed_field
    @property
    def b(self) -> int:
        return self.a + 1


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int = 0


@dataclass(eq=False)
class Part:
    name: str


@dataclass
class Whole:
    parts: list[Part] = field(default_factory=list[Part])
    share: float = 0.0


class Secret(pydantic.BaseModel):
    password: pydantic.SecretStr = pydantic.SecretStr("")


class LeftOut(pydantic.BaseModel):
    a: int = 0
    b: int = pydantic.Field(default=2, exclude=True)


@dataclass
class Loose:
    value: Any = None


class Line(msgspec.Struct, array_like=True):
    a: int = 0


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (Renamed(goal_id=3, step_count=4), {"goal_id": 3, "step_count": 4}),
        (Renamed(goal_id=3, step_count=4), {"goalId": 3, "stepCount": 4}),
        (Tagged(5), {"b": 5}),
        (Sparse(5, 6), {"b": 5, "kept": 6}),
        (Aliased(amt=5), {"amount": 5}),
        (Aliased(amt=5), {"amt": 5}),
        (Computed(a=5), {"a": 5}),
        (Open(a=5, more=[1]), {"a": 5, "more": [1]}),  # type: ignore[call-arg]
    ],
    ids=repr,
)
async def test_a_value_comes_back_whatever_its_fields_are_called(
    turned: Turned, value: Any, told: dict[str, Any]
) -> None:
    state = Session("s", persistence=turned.ks).state(type(value))

    for given in (value, told):
        assert await state.put(given) == value
        assert await state.get() == value
        await state.delete()
        assert await state.update(lambda old, given=value: given) == value
    assert await state.update(told) == value
    assert await state.get() == value


async def test_an_update_changes_its_field_by_either_name_and_leaves_the_others(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks)
    renamed, aliased, sparse = (session.state(kind) for kind in (Renamed, Aliased, Sparse))
    await renamed.put(Renamed(1, 2))
    await renamed.update({"goalId": 7})
    await renamed.update({"step_count": 8})
    await aliased.put({"amount": 1})
    await aliased.update({"amt": 2})
    await sparse.put(Sparse(5, 6))
    await sparse.update(lambda old: Sparse())

    assert await renamed.get() == Renamed(7, 8)
    assert await aliased.get() == Aliased(amt=2)
    assert await sparse.get() == Sparse()  # what is as at first takes the place of what was there


async def test_parts_without_an_equality_and_no_numbers_come_back(turned: Turned) -> None:
    state = Session("s", persistence=turned.ks).state(Whole)
    await state.put(Whole([Part("a"), Part("b")], float("nan")))

    found = await state.get()
    assert [part.name for part in found.parts] == ["a", "b"] and found.share != found.share


@pytest.mark.parametrize(
    ("value", "named"),
    [
        (Secret(password=pydantic.SecretStr("x")), "password"),
        (LeftOut(a=1, b=7), "'b' of LeftOut"),
        (Loose({1, 2}), "'value' of Loose"),
        (Loose(b"raw"), "'value' of Loose"),
    ],
    ids=repr,
)
async def test_what_would_come_back_otherwise_is_refused_and_not_kept(
    turned: Turned, value: Any, named: str
) -> None:
    state = Session("s", persistence=turned.ks).state(type(value))

    for writing in (state.put(value), state.update(lambda old: value)):
        with pytest.raises(InvalidError, match=named):
            await writing
    assert await state.get() == type(value)()


async def test_a_model_without_names_for_its_fields_is_refused(turned: Turned) -> None:
    with pytest.raises(InvalidError, match="named fields"):
        Session("s", persistence=turned.ks).state(Line)


# ---- versions of a model


@pytest.fixture
def versions() -> Iterator[tuple[type[Any], type[Any]]]:
    """Versions 1 and 3 of one model, and the steps between them; at first the application knows version 1."""

    @dataclass
    class Trip:
        city: str
        price: float

    first = register(Trip, "tests.sessions.Trip")

    @dataclass
    class Trip:  # type: ignore[no-redef]
        city: str
        cents: Annotated[int, msgspec.Meta(gt=0)]
        currency: str = "EUR"

    @upcast("tests.sessions.Trip", 1)
    def counted(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "cents": round(fields["price"] * 100)}

    @upcast("tests.sessions.Trip", 2)
    def told(fields: dict[str, Any]) -> dict[str, Any]:
        return {**fields, "currency": "USD"}

    @downcast("tests.sessions.Trip", 3)
    def untold(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "cents": fields["cents"]}

    @downcast("tests.sessions.Trip", 2)
    def in_dollars(fields: dict[str, Any]) -> dict[str, Any]:
        return {"city": fields["city"], "price": fields["cents"] / 100}

    yield first, Trip
    for known in (CLASSES._upcasters, CLASSES._downcasters):
        for step in (1, 2, 3):
            known.pop(("tests.sessions.Trip", step), None)
    kept = CLASSES._by_name.pop("tests.sessions.Trip")
    del CLASSES._by_class[kept.kind]


async def test_an_older_version_of_a_model_is_brought_up_to_date_when_it_is_read(
    ks: Keepstate, versions: tuple[type[Any], type[Any]]
) -> None:
    older, newer = versions
    await Session("s", user_id="u", persistence=ks).state(older, "trip").put(older("NYC", 4.5))
    register(newer, "tests.sessions.Trip", version=3)
    state = Session("s", user_id="u", persistence=ks).state(newer, "trip")

    assert await state.get() == newer("NYC", 450, "USD")
    assert await state.update({"city": "SF"}) == newer("SF", 450, "USD") == await state.get()
    context = await Session("s", user_id="u", persistence=ks).get_context()
    assert context.session["trip"]["cents"] == 450
    for wrong in ({"cents": 0}, {"price": 4.5}):
        with pytest.raises(ValueError, match="Invalid trip"):
            await state.update(wrong)
    assert await state.get() == newer("SF", 450, "USD")


async def test_states_of_older_versions_are_migrated_and_newer_ones_are_refused(
    ks: Keepstate, versions: tuple[type[Any], type[Any]]
) -> None:
    older, newer = versions
    space = ks.space("session/s")
    await Session("s", persistence=ks).state(older, "trip").put(older("NYC", 4.5))
    register(newer, "tests.sessions.Trip", version=3)
    state = Session("s", persistence=ks).state(newer, "trip")

    assert (await migrate(space)).written == 1
    assert (await migrate(space)).written == 0
    register_write_version("tests.sessions.Trip", 1)
    await state.update({"cents": 500})
    register(older, "tests.sessions.Trip")
    assert await Session("s", persistence=ks).state(older, "trip").get() == older("NYC", 5.0)
    register_write_version("tests.sessions.Trip", None)
    register(newer, "tests.sessions.Trip", version=3)
    await state.update({"cents": 600})
    register(older, "tests.sessions.Trip")
    with pytest.raises(UnsupportedError, match=r"Trip@3 is stored here.*Trip@1"):
        await Session("s", persistence=ks).state(older, "trip").get()
