"""What a key's class says, and what it must say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from types import new_class
from typing import Annotated, Any, Generic, NewType, TypedDict, TypeVar
from uuid import UUID

import msgspec
import pytest
from pydantic import BaseModel

from keepstate import KeyScope, MaximumKey, MergeStrategy, ProfileKey, RegisterKey, StateError, StateKey
from tests.typed.keys import Profile

T = TypeVar("T")
Name = NewType("Name", str)


class Options(TypedDict, total=False):
    colour: str


class Needed(TypedDict):
    colour: str


class Mood(Enum):
    CALM = "calm"


class Model(BaseModel):
    title: str = "untitled"


class Struct(msgspec.Struct):
    size: int = 3


@dataclass
class NeedsName:
    name: str


def key_of(kind: Any, **members: Any) -> Any:
    """Return a key `k` whose values are of this type and whose updates replace them."""

    def replaced(_: object, __: Any, update: Any) -> Any:
        return update

    body = {"KEY": "k", "apply": classmethod(replaced), **members}
    return new_class("Made", (StateKey[kind, Any],), {}, lambda names: names.update(body))


class Counter(StateKey[int, int]):
    KEY = "counter"

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        return value + update


def test_the_published_counter_needs_a_key_and_apply() -> None:
    assert Counter.default() == 0
    assert Counter.apply(1, 2) == 3


def test_a_key_is_exclusive_and_lives_for_a_run_unless_it_says_otherwise() -> None:
    assert Counter.MERGE is MergeStrategy.EXCLUSIVE
    assert Counter.SCOPE is KeyScope.RUN
    assert Counter.VERSION == 1
    assert {each.name for each in MergeStrategy} == {"EXCLUSIVE", "COMMUTATIVE"}
    assert {each.name for each in KeyScope} == {"RUN", "THREAD"}


def test_a_key_has_no_instances() -> None:
    with pytest.raises(StateError, match="no instances"):
        Counter()


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        (int, 0),
        (str, ""),
        (float, 0.0),
        (bool, False),
        (bytes, b""),
        (list[int], []),
        (dict[str, list[int]], {}),
        (set[str], set()),
        (frozenset[str], frozenset()),
        (tuple[int, ...], ()),
        (int | None, None),
        (None, None),
        (Decimal, Decimal(0)),
        (Name, ""),
        (Annotated[int, "a note"], 0),
        (Options, {}),
        (Profile, Profile()),
        (Model, Model()),
        (Struct, Struct()),
    ],
    ids=str,
)
def test_the_default_is_what_the_type_makes_by_itself(kind: Any, default: Any) -> None:
    key = key_of(kind)

    assert key.default() == default
    assert type(key.default()) is type(default)


def test_each_default_is_a_fresh_one() -> None:
    key = key_of(list[int])
    key.default().append(1)

    assert key.default() == []


@pytest.mark.parametrize(
    "kind", [tuple[int, str], int | str, Needed, Mood, NeedsName, datetime, UUID, Sequence[int], Any, object]
)
def test_a_type_that_makes_no_value_by_itself_fails_the_definition(kind: Any) -> None:
    with pytest.raises(StateError, match="default"):
        key_of(kind)


@pytest.mark.parametrize("kind", [tuple[int, str], Needed, Mood, NeedsName, datetime, UUID])
def test_it_does_not_where_the_class_says_a_default(kind: Any) -> None:
    values = {
        Needed: {"colour": "red"},
        Mood: Mood.CALM,
        NeedsName: NeedsName("x"),
        datetime: datetime(2026, 1, 1, tzinfo=UTC),
        UUID: UUID(int=1),
    }
    value = values.get(kind, (1, "a"))

    key = key_of(kind, default=classmethod(lambda _: value))

    assert key.decode(key.encode(key.default())) == value


def test_a_class_that_no_json_is_made_of_fails_the_definition() -> None:
    class Odd:
        pass

    with pytest.raises(StateError):
        key_of(Odd)


def test_such_a_class_may_say_itself_how() -> None:
    class Odd:
        def __init__(self, size: int = 0) -> None:
            self.size = size

    key = key_of(
        Odd,
        encode=classmethod(lambda _, value: {"size": value.size}),
        decode=classmethod(lambda _, raw: Odd(raw["size"])),
    )

    assert key.decode(key.encode(Odd(3))).size == 3


@pytest.mark.parametrize(
    "members",
    [
        {"KEY": ""},
        {"KEY": 3},
        {"KEY": "x" * 201},
        {"KEY": "line\nbreak"},
        {"VERSION": 0},
        {"VERSION": "1"},
        {"MERGE": "exclusive"},
        {"SCOPE": "run"},
        {"PERSISTENT": None},
    ],
    ids=str,
)
def test_what_a_class_says_wrongly_fails_the_definition(members: dict[str, Any]) -> None:
    with pytest.raises(StateError):
        key_of(int, **members)


def test_a_key_says_how_an_update_is_applied() -> None:
    with pytest.raises(StateError, match="apply"):

        class Silent(StateKey[int, int]):
            KEY = "silent"


def test_apply_is_no_coroutine_function() -> None:
    async def apply(_: object, value: int, update: int) -> int:
        return value + update

    with pytest.raises(StateError, match="coroutine"):
        key_of(int, apply=classmethod(apply))


def test_a_class_without_a_key_is_a_base_for_others() -> None:
    class Pair(StateKey[tuple[T, T], T], Generic[T]):
        @classmethod
        def apply(cls, value: tuple[T, T], update: T) -> tuple[T, T]:
            return value[1], update

        @classmethod
        def default(cls) -> tuple[T, T]:
            raise NotImplementedError

    class Ends(Pair[int]):
        KEY = "ends"

        @classmethod
        def default(cls) -> tuple[int, int]:
            return 0, 0

    assert Ends.decode([1, 2]) == (1, 2)
    with pytest.raises(StateError, match="Expected `int`"):
        Ends.decode([1, "2"])


def test_a_class_that_does_not_say_its_type_fails_the_definition() -> None:
    with pytest.raises(StateError, match="type"):

        class Untyped(StateKey):  # type: ignore[type-arg]
            KEY = "untyped"


def test_a_type_may_be_named_before_it_is_known_by_its_module_only() -> None:
    class Named(StateKey["Profile", str]):
        KEY = "named"

        @classmethod
        def apply(cls, value: Profile, update: str) -> Profile:
            return value

    assert Named.default() == Profile()
    with pytest.raises(StateError, match="Nowhere"):

        class Lost(StateKey["Nowhere", str]):  # type: ignore[name-defined]
            KEY = "lost"

            @classmethod
            def apply(cls, value: Any, update: str) -> Any:
                return value


@pytest.mark.parametrize("base", [MaximumKey, RegisterKey, ProfileKey])
def test_a_key_without_the_type_of_its_values_is_told_how_to_say_it(base: type) -> None:
    with pytest.raises(StateError, match=rf"Untyped has no type argument. Write {base.__name__}\[int\].$"):
        new_class("Untyped", (base,), exec_body=lambda body: body.update(KEY="untyped"))


def test_a_profile_key_needs_a_key_only() -> None:
    class Locale(ProfileKey[str]):
        KEY = "locale"

    assert Locale.default() == ""
    assert Locale.decode(Locale.encode("de")) == "de"
    with pytest.raises(StateError):
        Locale()
