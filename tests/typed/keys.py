"""Keys and plugins that the tests share: those of the contract, one of a dataclass, and a plugin."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepstate import KeyScope, MergeStrategy, PluginRegistrar, StateKey
from keepstate.testing.typed_contract.keys import Draft, Evens, Notes, Plan, Steps, Visits

__all__ = ["KEYS", "Diary", "Draft", "Evens", "Notes", "Person", "Plan", "Profile", "Steps", "Visits"]


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


KEYS = (Visits, Steps, Notes, Plan, Draft, Person, Evens)


class Diary:
    """A plugin with one key."""

    name = "diary"

    def register(self, registrar: PluginRegistrar) -> None:
        registrar.register_key(Notes)
