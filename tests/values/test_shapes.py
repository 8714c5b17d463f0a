from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.values.schema import Registry

T = TypeVar("T")


@dataclass
class Profile:
    name: str
    tags: list[Any] = field(default_factory=list)
    boss: Profile | None = None


@dataclass(frozen=True, slots=True)
class Frozen:
    a: int
    b: tuple[int, ...] = ()


@dataclass
class Derived:
    width: int
    area: int = field(init=False)
    unit: InitVar[str] = "m"

    def __post_init__(self, unit: str) -> None:
        self.area = self.width * self.width


@dataclass
class Lazy:
    width: int
    area: int = field(init=False)


@dataclass
class Cached:
    a: int

    @cached_property
    def double(self) -> int:
        return 2 * self.a


class Point(NamedTuple):
    x: int
    y: int = 0


class Packed(msgspec.Struct, frozen=True, tag="packed", rename="camel"):
    first_name: str
    unset: int | msgspec.UnsetType = msgspec.UNSET


class Counting(msgspec.Struct):
    count: int

    def __post_init__(self) -> None:
        self.count += 1


@attrs.define
class Account:
    owner: str
    _balance: int = attrs.field(default=0, converter=int)
    limit: int = attrs.field(init=False, default=5)


@attrs.frozen
class Simple:
    a: int
    _b: int = 1


class Message(pydantic.BaseModel):
    role: str
    content: str = ""
    sent: int = pydantic.Field(default=0, alias="sentAt")
    _seen: int = pydantic.PrivateAttr(default=0)


class Open(pydantic.BaseModel, extra="allow", frozen=True):
    a: int


class Stamped(pydantic.BaseModel):
    text: str
    length: int = 0
    _calls: int = pydantic.PrivateAttr(default=0)

    def model_post_init(self, context: Any, /) -> None:
        self.length = len(self.text)
        self._calls += 1


class Names(pydantic.RootModel[list[str]]):
    pass


class Box(pydantic.BaseModel, Generic[T]):
    item: T


class Colour(enum.Enum):
    RED = enum.auto()
    CRIMSON = RED
    BLUE = enum.auto()


class Level(enum.StrEnum):
    LOW = "low"


class Rank(enum.IntEnum):
    FIRST = 1


class Right(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    ALL = READ | WRITE


class Loose(enum.IntFlag, boundary=enum.KEEP):
    A = 1


KINDS: list[Any] = [
    *(
        Profile,
        Frozen,
        Derived,
        Lazy,
        Cached,
        Point,
        Packed,
        Counting,
        Account,
        Simple,
        Message,
        Open,
        Stamped,
        Names,
        Box[int],
    ),
    *(Colour, Level, Rank, Right, Loose),
]


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    for kind in KINDS:
        registry.register(kind, kind.__name__)
    return registry


@pytest.fixture
def codec(registry: Registry) -> Codec:
    return Codec(registry)


def message_with_state() -> Message:
    message = Message(role="user", sentAt=5)
    message._seen = 3
    return message


def altered(value: Any, **attributes: Any) -> Any:
    for name, attribute in attributes.items():
        object.__setattr__(value, name, attribute)
    return value


@pytest.mark.parametrize(
    "value",
    [
        Profile("Ann", ["x", (1,)], Profile("Bo")),
        Frozen(1, (2, 3)),
        Derived(3),
        altered(Derived(3), area=7),
        Point(1, 2),
        Packed("a"),
        Packed("a", 5),
        Counting(1),
        Account("Ann", "7"),
        altered(Account("Ann"), limit=9),
        Simple(1, 2),
        Message(role="user"),
        message_with_state(),
        Open(a=1, b={2: [Point(1)]}),  # type: ignore[call-arg]
        Box[int](item=5),
        Stamped(text="abc"),
        altered(Stamped(text="abc"), length=1),
        Names(["a", "b"]),
        *(Colour.RED, Colour.CRIMSON, Level.LOW, Rank.FIRST, Loose.A),
        *(Right.READ, Right.ALL, Right(0), Right.READ | Right.WRITE),
    ],
    ids=lambda value: f"{type(value).__name__}-{value!r:.30}",
)
def test_objects_of_registered_classes_come_back(codec: Codec, value: Any) -> None:
    for held in (value, [value], {"a": (value, value)}):
        back = codec.decode(codec.encode(held))

        assert back == held
        assert type(back) is type(held)


def test_objects_in_objects_come_back_as_their_classes(codec: Codec) -> None:
    value = Profile("Ann", [Point(1), {Colour.RED: Message(role="user")}, {Frozen(1)}])

    back = codec.decode(codec.encode(value))

    assert back == value
    assert type(back.tags[0]) is Point
    assert type(back.tags[1][Colour.RED]) is Message


def test_what_only_a_cache_holds_is_not_stored(codec: Codec) -> None:
    value = Cached(2)
    assert value.double == 4

    back = codec.decode(codec.encode(value))

    assert "double" not in vars(back)


def test_a_model_keeps_account_of_the_fields_that_were_set(codec: Codec) -> None:
    back = codec.decode(codec.encode(Message(role="user")))

    assert back.model_fields_set == {"role"}
    assert back.model_dump(exclude_unset=True) == {"role": "user"}


def test_an_object_with_a_field_that_is_not_set_is_refused(codec: Codec) -> None:
    bare = object.__new__(Profile)
    bare.name = "Ann"

    with pytest.raises(InvalidError, match=r"^\[0\]: its fields \['tags'\] are not set"):
        codec.encode([bare])
    with pytest.raises(InvalidError, match=r"^\[0\]: its fields \['role'\] are not set"):
        codec.encode([Message.model_construct()])


def test_a_field_that_the_constructor_does_not_take_may_be_unset(codec: Codec) -> None:
    back = codec.decode(codec.encode(Lazy(3)))

    assert back.width == 3
    assert not hasattr(back, "area")


def test_a_flag_with_a_bit_that_has_no_name_is_refused(codec: Codec) -> None:
    with pytest.raises(InvalidError, match=r"^\[0\]: .* bits without a name"):
        codec.encode([Loose(5)])


class NotPlain(dict[str, Any]):
    pass


class Bare:
    pass


@dataclass
class Listed(list[Any]):
    a: int = 1


@dataclass
class Needy:
    a: int
    secret: InitVar[str]

    def __post_init__(self, secret: str) -> None:
        self.a = len(secret)


@pytest.mark.parametrize("kind", [NotPlain, Bare, Listed, Needy, int, Profile("x")])
def test_a_class_whose_objects_do_not_come_back_is_not_registered(kind: Any) -> None:
    with pytest.raises(InvalidError):
        Registry().register(kind, "kind")
