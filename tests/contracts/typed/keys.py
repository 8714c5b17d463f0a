"""The keys that the contract is told with."""

from __future__ import annotations

from types import new_class
from typing import Any

from keepstate.typed.key import KeyScope, MergeStrategy, ProfileKey, StateKey
from keepstate.typed.ready_keys import CounterKey, ListKey, MaximumKey, RegisterKey, SetKey


class Visits(CounterKey):
    """Counts as long as the thread lives."""

    KEY = "visits"
    SCOPE = KeyScope.THREAD


class Steps(CounterKey):
    """Counts in a run."""

    KEY = "steps"


class Notes(ListKey[str]):
    """A list of the thread."""

    KEY = "notes"
    SCOPE = KeyScope.THREAD


class Seen(SetKey[str]):
    """A set of the thread."""

    KEY = "seen"
    SCOPE = KeyScope.THREAD


class Peak(MaximumKey[int]):
    """A maximum of the thread."""

    KEY = "peak"
    SCOPE = KeyScope.THREAD


class Plan(RegisterKey[str]):
    """One value of the thread; exclusive."""

    KEY = "plan"
    SCOPE = KeyScope.THREAD


class Goal(RegisterKey[str]):
    """Another one."""

    KEY = "goal"
    SCOPE = KeyScope.THREAD


class Draft(RegisterKey[str]):
    """One value of a run; exclusive."""

    KEY = "draft"


class Socket(CounterKey):
    """Not stored."""

    KEY = "socket"
    SCOPE = KeyScope.THREAD
    PERSISTENT = False


class Evens(StateKey[int, int]):
    """Refuses odd updates."""

    KEY = "evens"
    SCOPE = KeyScope.THREAD
    MERGE = MergeStrategy.COMMUTATIVE

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        """Return the sum."""
        if update % 2:
            raise ValueError(f"{update} is odd")
        return value + update


class Forgetful(StateKey[int, int]):
    """Forgets to return."""

    KEY = "forgetful"

    @classmethod
    def apply(cls, value: int, update: int) -> int:
        """Return nothing."""
        return None  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


class FirstName(RegisterKey[str]):
    """A name as text."""

    KEY = "name"
    SCOPE = KeyScope.THREAD


class SplitName(StateKey[dict[str, str], str]):
    """The same name in parts, and how the text becomes that."""

    KEY = "name"
    SCOPE = KeyScope.THREAD
    VERSION = 2

    @classmethod
    def apply(cls, value: dict[str, str], update: str) -> dict[str, str]:
        """Return the name with another first part."""
        return {**value, "first": update}

    @classmethod
    def upgrade(cls, raw: Any, from_version: int) -> Any:
        """Return the text in parts."""
        first, _, last = raw.partition(" ")
        return {"first": first, "last": last}


class NumberedName(RegisterKey[int]):
    """Something else by that name, without an upgrade."""

    KEY = "name"
    SCOPE = KeyScope.THREAD
    VERSION = 2


class Locale(ProfileKey[str]):
    """A language."""

    KEY = "locale"

    @classmethod
    def default(cls) -> str:
        """Return English."""
        return "en"


class Score(ProfileKey[int]):
    """A number."""

    KEY = "score"


class Tags(ProfileKey[list[str]]):
    """Words."""

    KEY = "tags"


def many(count: int, scope: KeyScope = KeyScope.THREAD) -> list[Any]:
    """Return so many counters, of the thread or of a run."""

    def named(number: int) -> Any:
        members = {"KEY": f"key {number}", "SCOPE": scope}
        return new_class(f"Key{number}", (CounterKey,), {}, lambda names: names.update(members))

    return [named(number) for number in range(count)]


KEYS = (Visits, Steps, Notes, Seen, Peak, Plan, Goal, Draft, Socket, Evens, Forgetful)
