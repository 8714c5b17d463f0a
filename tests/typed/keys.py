"""Keys and plugins that the tests share."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepstate import (
    CounterKey,
    KeyScope,
    ListKey,
    MergeStrategy,
    PluginRegistrar,
    RegisterKey,
    StateKey,
)


class Visits(CounterKey):
    KEY = "visits"
    SCOPE = KeyScope.THREAD


class Steps(CounterKey):
    KEY = "steps"


class Notes(ListKey[str]):
    KEY = "notes"
    SCOPE = KeyScope.THREAD


class Plan(RegisterKey[str]):
    KEY = "plan"
    SCOPE = KeyScope.THREAD


class Draft(RegisterKey[str]):
    KEY = "draft"


@dataclass
class Profile:
    name: str = ""
    tags: list[str] = field(default_factory=list)


class Person(StateKey[Profile, str]):
    KEY = "person"
    SCOPE = KeyScope.THREAD
    MERGE = MergeStrategy.EXCLUSIVE

    @classmethod
    def apply(cls, value: Profile, update: str) -> Profile:
        value.tags.append(update)
        return value


class Evens(StateKey[int, int]):
    """Refuses what is odd."""

    KEY = "evens"
    SCOPE = KeyScope.THREAD

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        if update % 2:
            raise ValueError(f"{update} is odd")
        return value + update


KEYS = (Visits, Steps, Notes, Plan, Draft, Person, Evens)


class Diary:
    """A plugin with one key."""

    name = "diary"

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.register_key(Notes)
