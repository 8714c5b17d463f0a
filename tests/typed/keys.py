"""A key whose values are objects of a class; all others stand in the contract."""

from __future__ import annotations

from dataclasses import dataclass, field

from keepstate import KeyScope, MergeStrategy, StateKey


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
