"""Owners of shared state, as strings."""

from __future__ import annotations

from dataclasses import dataclass

from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.errors import InvalidError


@dataclass(frozen=True, slots=True)
class StateScope:
    """The owner of shared state. Scopes with equal strings are the same, and so is the string itself.

    Attributes:
        value: The string.
    """

    value: str

    def __post_init__(self) -> None:
        _check_nonempty("scope", self.value)

    def __str__(self) -> str:
        return self.value

    @classmethod
    def global_(cls) -> StateScope:
        """Return the scope of the whole system."""
        return cls("global")

    @classmethod
    def parent_thread(cls, id: str) -> StateScope:
        """Return the scope that a parent's thread shares with its children."""
        return cls(f"parent_thread::{_escape('id', id)}")

    @classmethod
    def agent_type(cls, name: str) -> StateScope:
        """Return the scope of all agents of a type."""
        return cls(f"agent_type::{_escape('name', name)}")

    @classmethod
    def thread(cls, id: str) -> StateScope:
        """Return the scope of one thread, across its runs."""
        return cls(f"thread::{_escape('id', id)}")

    @classmethod
    def new(cls, s: str) -> StateScope:
        """Return the scope of any other group; the string is used unchanged."""
        return cls(s)

    def as_str(self) -> str:
        """Return the string."""
        return self.value


def owner_of(key: str | StateScope | None, agent: str | None, scope: StateScope | None) -> str:
    """Return the string of an owner.

    Raises:
        InvalidError: The owner was given more than once, or not at all.
    """
    given = [each for each in (key, agent, scope) if each is not None]
    if len(given) != 1:
        raise InvalidError("Pass exactly one owner: the key, agent= or scope=.")
    if agent is not None:
        return f"agent::{_escape('agent', agent)}"
    if scope is not None:
        require_instance("scope", scope, StateScope)
    owner = key if scope is None else scope
    if isinstance(owner, StateScope):
        return owner.value
    return _check_nonempty("key", owner)


def _escape(what: str, id: object) -> str:
    """Return an id with `%` and `:` escaped, so that it cannot end a segment."""
    return _check_nonempty(what, id).replace("%", "%25").replace(":", "%3A")


def _check_nonempty(what: str, text: object) -> str:
    checked = check_text(what, text)
    if not checked:
        raise InvalidError(f"`{what}` is empty. Pass the owner.")
    return checked
