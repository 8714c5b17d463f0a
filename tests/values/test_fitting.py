from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, Protocol, TypedDict

import msgspec
import pydantic
import pytest

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.values.schema import Registry


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Profile:
    name: str
    colour: Colour = Colour.RED
    callback: Callable[[], None] | None = None


class Packed(msgspec.Struct):
    count: int


class Message(pydantic.BaseModel):
    role: str
    sent: int = pydantic.Field(default=0, alias="sentAt")


class Unknown:
    pass


class Speaking(Protocol):
    def speak(self) -> None: ...


class State(TypedDict):
    colour: Colour
    n: NotRequired[int]


class Plain(TypedDict):
    name: str


Positive = Annotated[int, msgspec.Meta(gt=0)]


@pytest.fixture
def codec() -> Codec:
    registry = Registry()
    for kind in (Colour, Profile, Packed, Message):
        registry.register(kind, kind.__name__)
    return Codec(registry)


NOW = datetime(2020, 1, 2)
FITS: list[tuple[Any, Any, Any]] = [
    (5, int, 5),
    (5, float, 5.0),
    ({"a": 1}, dict[str, int], {"a": 1}),
    ([1, 2], tuple[int, ...], (1, 2)),
    ({1, 2}, set[int], {1, 2}),
    (NOW, datetime, NOW),
    (Path("x"), Path, Path("x")),
    (None, int | None, None),
    ("a", Literal["a", "b"], "a"),
    ({"name": "Ann"}, Plain, {"name": "Ann"}),
    ({"name": "Ann", "colour": "blue"}, Profile, Profile("Ann", Colour.BLUE)),
    ({"count": 1}, Packed, Packed(1)),
    ({"role": "user"}, Message, Message(role="user")),
    ([{"role": "user"}], list[Message], [Message(role="user")]),
    (Profile("Ann"), Profile, Profile("Ann")),
    ([Profile("Ann")], list[Profile], [Profile("Ann")]),
    (Profile("Ann", "blue"), Profile, Profile("Ann", Colour.BLUE)),  # type: ignore[arg-type]
    (Message(role="user", sentAt=3), Message, Message(role="user", sentAt=3)),
    (Colour.RED, Colour, Colour.RED),
    ("red", Colour, Colour.RED),
    ([Colour.RED, "blue"], list[Colour], [Colour.RED, Colour.BLUE]),
    ([Colour.RED], Sequence[Colour], [Colour.RED]),
    ({Colour.RED: 1}, dict[Colour, int], {Colour.RED: 1}),
    ({"a": Colour.RED}, Mapping[str, Colour], {"a": Colour.RED}),
    ({Colour.RED}, set[Colour], {Colour.RED}),
    ((Colour.RED, 1), tuple[Colour, int], (Colour.RED, 1)),
    ((Colour.RED,), tuple[Colour, ...], (Colour.RED,)),
    (Colour.RED, Colour | None, Colour.RED),
    (None, Colour | None, None),
    (Colour.RED, Annotated[Colour, "paint"], Colour.RED),
    ({"colour": Colour.RED}, State, {"colour": Colour.RED}),
    ({"any": Colour.RED}, dict[str, Any], {"any": Colour.RED}),
]


@pytest.mark.parametrize(("value", "wanted", "fitted"), FITS, ids=lambda part: type(part).__name__)
def test_a_value_is_read_as_the_type_that_is_asked_for(
    codec: Codec, value: Any, wanted: Any, fitted: Any
) -> None:
    back = codec.decode(codec.encode(value), type=wanted)

    assert back == fitted
    assert type(back) is type(fitted)


MISFITS: list[tuple[Any, Any, str]] = [
    ("5", int, r"^the value: Expected `int`, got `str`"),
    ({"a": ["x"]}, dict[str, list[int]], r"^\[\.\.\.\]\[0\]: Expected `int`"),
    ({"a": {1: 2}}, dict[str, dict[str, int]], r"^\[\.\.\.\] key: Expected `str`, got `int`$"),
    ({1: 2}, dict[str, Any], r"^key: Expected `str`, got `int`$"),
    ({}, Plain, r"^the value: .*missing required field `name`"),
    ({"role": 5}, Message, r"(?s)^the value: .*role"),
    (5, Message, r"^the value: expected Message, got int"),
    (-1, Positive, r"^the value: Expected `int` >= 1"),
    (Profile(5), Profile, r"^Profile@1\.name: Expected `str`, got `int`"),  # type: ignore[arg-type]
    ([Profile("x", "green")], list[Profile], r"^Profile@1\.colour: 'green'"),  # type: ignore[arg-type]
    (Message.model_construct(role=5), Message, "Profile|Message@1"),
    (Packed("x"), Any, r"^Packed@1\.count"),  # type: ignore[arg-type]
    ("green", Colour, r"^the value: 'green' is not a valid"),
    (["red", "green"], list[Colour], r"^\[1\]: 'green'"),
    ({"a": "green"}, dict[str, Colour], r"^\['a'\]: 'green'"),
    ((1, 2), tuple[Colour, ...], r"^\[0\]: 1 is not"),
    ((Colour.RED, 2), tuple[Colour], r"^the value: expected tuple"),
    ("red", list[Colour], r"^the value: expected list.* got str"),
    ("green", Colour | None, r"^the value: expected Colour \| NoneType, got str"),
    ({"n": 1}, State, r"^the value: State needs \['colour'\]"),
    ({"colour": "green"}, State, r"^colour: 'green'"),
    (5, Callable[[], None], "expected .*Callable.* got int"),
    (5, Speaking, "cannot be asked for"),
    (5, Unknown, "expected Unknown, got int"),
]


@pytest.mark.parametrize(("value", "wanted", "reason"), MISFITS, ids=lambda part: type(part).__name__)
def test_a_value_that_does_not_fit_is_refused_with_its_path(
    codec: Codec, value: Any, wanted: Any, reason: str
) -> None:
    stored = codec.encode(value)

    with pytest.raises(InvalidError, match=reason):
        codec.decode(stored, type=wanted)


def test_an_object_is_not_looked_into_when_no_type_is_asked_for(codec: Codec) -> None:
    stored = codec.encode(Profile(5))  # type: ignore[arg-type]

    assert codec.decode(stored) == Profile(5)  # type: ignore[arg-type]


def test_checking_an_object_does_not_change_it(codec: Codec) -> None:
    class Trimmed(pydantic.BaseModel):
        text: str

        @pydantic.field_validator("text")
        @classmethod
        def trim(cls, text: str) -> str:
            return text[1:]

    registry = Registry()
    registry.register(Trimmed, "trimmed")
    stored = Codec(registry).encode(Trimmed(text="abc"))

    assert Codec(registry).decode(stored, type=Trimmed).text == "bc"


class Point(NamedTuple):
    x: int


def test_a_named_tuple_that_nobody_registered_is_told_to_be(codec: Codec) -> None:
    with pytest.raises(InvalidError, match=r"^at\[0\]: .*Point, .*; register it, or store tuple\(…\)"):
        codec.encode({"at": [Point(1)]})
