from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pydantic
import pytest

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.values.codec import Codec
from keepstate.values.schema import CLASSES, Registry, register, upcast


@dataclass
class Profile:
    name: str
    tags: list[Any] = field(default_factory=list)
    boss: Profile | None = None


class Point(NamedTuple):
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = 1


@pytest.fixture
def registry() -> Registry:
    registry = Registry()
    registry.register(Point, "Point")
    return registry


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


def written_back() -> Registry:
    """Return a registry whose class is written as its version before."""
    registry = Registry()
    registry.register(cell(1), "cell", version=2)
    registry.downcast("cell", 2)(lambda fields: {"b": fields["a"]})
    registry.register_write_version("cell", 1)
    return registry


def test_a_class_defined_again_is_written_in_the_version_that_was_asked_for() -> None:
    registry = written_back()
    again = registry.register(cell(2), "cell", version=2)

    assert Codec(registry).to_builtin(Codec(registry).encode(again(5))) == {"@type": "cell@1", "b": 5}
    registry.register_write_version("cell", None)
    again = registry.register(cell(3), "cell", version=2)
    assert Codec(registry).to_builtin(Codec(registry).encode(again(5))) == {"@type": "cell@2", "a": 5}


def test_a_class_defined_again_in_a_later_version_needs_a_way_back_to_the_one_asked_for() -> None:
    registry = written_back()
    with pytest.raises(InvalidError, match=r"cell@1 cannot be written: .*@downcast\('cell', 3\)"):
        registry.register(cell(2), "cell", version=3)

    assert str(registry.named("cell", 1)) == "cell@2"
    registry.downcast("cell", 3)(lambda fields: {"a": fields["a"] + 1})
    again = registry.register(cell(2), "cell", version=3)
    assert Codec(registry).to_builtin(Codec(registry).encode(again(5))) == {"@type": "cell@1", "b": 6}


@pytest.mark.parametrize("name", ["", "a@b", "a\nb", "x" * 201, 5, None])
def test_a_name_is_short_printable_text_without_a_version(name: Any) -> None:
    with pytest.raises(InvalidError, match="names no class"):
        Registry().register(Profile, name)


@pytest.mark.parametrize("version", [0, -1, 1.5, True, "2", 1 << 31])
def test_a_version_counts_from_one(version: Any) -> None:
    with pytest.raises(InvalidError, match="versions count from 1"):
        Registry().register(Profile, "profile", version=version)


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
