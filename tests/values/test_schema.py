from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field
from functools import cached_property
from typing import Any, Generic, NamedTuple, TypeVar

import attrs
import msgspec
import pydantic
import pytest

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.values.codec import Codec
from keepstate.values.schema import CLASSES, Registry, register, upcast

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


def test_a_class_that_is_not_registered_is_refused_by_its_name() -> None:
    with pytest.raises(InvalidError, match=r"^a: .*\.Profile is not registered; register the class"):
        Codec(Registry()).encode({"a": Profile("Ann")})


def test_a_decorator_and_a_call_register_alike() -> None:
    registry = Registry()

    @registry.register("point", version=3)
    class Decorated(NamedTuple):
        x: int = 1

    registry.register(Profile, "profile", version=2)

    assert str(registry.of(Decorated)) == "point@3"
    assert str(registry.of(Profile)) == "profile@2"


def test_a_name_belongs_to_one_class(registry: Registry) -> None:
    with pytest.raises(InvalidError, match=r"'Point' is the name of .*Point already"):
        registry.register(Profile, "Point")

    assert registry.of(Point) is registry.named("Point", 1)


def test_a_class_has_one_name(registry: Registry) -> None:
    with pytest.raises(InvalidError, match="registered as 'Point' already"):
        registry.register(Point, "place")


def cell(default: int) -> type:
    @dataclass
    class Cell:
        a: int = default

    return Cell


def test_a_class_defined_again_replaces_the_earlier_one() -> None:
    registry = Registry()
    codec = Codec(registry)
    first, second = registry.register(cell(1), "cell"), registry.register(cell(2), "cell")
    stored = codec.encode(second(5))

    assert type(codec.decode(stored)) is second
    with pytest.raises(InvalidError, match="an earlier definition"):
        codec.encode([first(5)])


@pytest.mark.parametrize("name", ["", "a@b", "a\nb", "x" * 201, 5, None])
def test_a_name_is_short_printable_text_without_a_version(name: Any) -> None:
    with pytest.raises(InvalidError, match="names no class"):
        Registry().register(Profile, name)


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "2", 1 << 31])
def test_a_version_counts_from_one(version: Any) -> None:
    with pytest.raises(InvalidError, match="versions count from 1"):
        Registry().register(Profile, "profile", version=version)


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


def versions(*steps: Any, at: int, kind: Any = Profile) -> Codec:
    registry = Registry()
    registry.register(kind, "profile", version=at)
    for version, step in steps:
        registry.upcast("profile", version)(step)
    return Codec(registry)


class Old(NamedTuple):
    title: str


def test_an_older_version_is_upcast_step_by_step() -> None:
    stored = versions(at=1, kind=Old).encode([Old("Ann")])
    codec = versions(
        (1, lambda fields: {"full_name": fields["title"]}),
        (2, lambda fields: {"name": fields["full_name"], "tags": ["old"]}),
        at=3,
    )

    assert codec.decode(stored) == [Profile("Ann", ["old"])]


def test_an_upcaster_gets_objects_in_builtin_form_and_their_own_versions_are_upcast_after() -> None:
    old = Registry()
    old.register(Profile, "profile")
    old.register(Old, "place")
    stored = Codec(old).encode(Profile("Ann", [Old("here"), (Old("there"),)]))
    seen: list[Any] = []

    def mark(fields: dict[str, Any]) -> dict[str, Any]:
        seen.append(fields)
        return fields

    new = Registry()
    new.register(Profile, "profile", version=2)
    new.register(Point, "place", version=2)
    new.upcast("profile", 1)(mark)
    new.upcast("place", 1)(lambda fields: {"x": len(fields["title"])})
    back = Codec(new).decode(stored)

    assert seen[0]["tags"] == [
        {"@type": "place@1", "title": "here"},
        ({"@type": "place@1", "title": "there"},),
    ]
    assert back == Profile("Ann", [Point(4), (Point(5),)])


def test_a_dict_of_the_application_is_not_taken_for_an_object() -> None:
    old = Registry()
    old.register(Profile, "profile")
    lookalike = {"@type": "profile@1", "name": "Bo"}
    stored = Codec(old).encode(Profile("Ann", [lookalike]))

    assert versions((1, lambda fields: fields), at=2).decode(stored) == Profile("Ann", [lookalike])


def test_an_upcaster_may_drop_objects_whose_class_is_gone() -> None:
    old = Registry()
    old.register(Profile, "profile")
    old.register(Point, "gone")
    stored = Codec(old).encode(Profile("Ann", [Point(1)]))

    assert versions((1, lambda fields: {"name": fields["name"]}), at=2).decode(stored) == Profile("Ann")


def test_a_missing_upcaster_is_named() -> None:
    stored = versions(at=1).encode(Profile("Ann"))

    with pytest.raises(InvalidError, match=r"write an upcaster: @upcast\('profile', 2\)"):
        versions((1, lambda fields: fields), at=3).decode(stored)


def fails(fields: dict[str, Any]) -> dict[str, Any]:
    raise KeyError("title")


@pytest.mark.parametrize(
    ("step", "what"), [(fails, r"fails failed: KeyError\('title'\)"), (lambda _: None, "no dict")]
)
def test_an_upcaster_that_fails_is_named(step: Any, what: str) -> None:
    stored = versions(at=1).encode(Profile("Ann"))

    with pytest.raises(InvalidError, match=what):
        versions((1, step), at=2).decode(stored)


def test_a_version_has_one_upcaster_and_its_own_again_replaces_it() -> None:
    registry = Registry()
    registry.upcast("profile", 1)(fails)
    registry.upcast("profile", 1)(fails)

    with pytest.raises(InvalidError, match=r"upcast by .*fails already"):
        registry.upcast("profile", 1)(lambda fields: fields)


def test_a_newer_version_asks_for_an_upgrade() -> None:
    stored = versions(at=2).encode(Profile("Ann"))

    with pytest.raises(
        UnsupportedError, match=r"profile@2 is stored here and this application knows profile@1.*upgrade"
    ):
        versions(at=1).decode(stored)


def test_a_class_that_is_not_registered_any_more_is_named() -> None:
    stored = versions(at=2).encode(Profile("Ann"))

    with pytest.raises(
        InvalidError, match="profile@2 is stored here and no class is registered as 'profile'"
    ):
        Codec(Registry()).decode(stored)


class Renamed(NamedTuple):
    fore: str
    tags: Any = None
    boss: Any = None


class Strict(pydantic.BaseModel):
    name: str
    tags: list[Any]
    boss: Any
    more: int


@pytest.mark.parametrize("kind", [Renamed, Strict, Colour, Point])
def test_a_class_changed_without_a_new_version_is_an_error_that_says_so(kind: Any) -> None:
    stored = versions(at=1).encode(Profile("Ann"))

    with pytest.raises(
        InvalidError, match=r"stored as profile@1 does not fit .* new version and write an upcaster"
    ):
        versions(at=1, kind=kind).decode(stored)


def test_a_new_field_with_a_default_needs_no_new_version() -> None:
    stored = versions(at=1, kind=Point).encode(Point(1))

    class Wider(NamedTuple):
        x: int
        y: int
        z: int = 9

    assert versions(at=1, kind=Wider).decode(stored) == Wider(1, 0, 9)


def test_the_module_has_a_registry_of_its_own() -> None:
    assert register.__self__ is CLASSES  # type: ignore[attr-defined]
    assert upcast.__self__ is CLASSES  # type: ignore[attr-defined]
