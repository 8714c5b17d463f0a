"""Whom shared state belongs to, as the string that it is kept under."""

from __future__ import annotations

from dataclasses import dataclass

from keepstate.engine.kernel.arguments import check_text, require_instance
from keepstate.errors import InvalidError


@dataclass(frozen=True, slots=True)
class StateScope:
    """The owner of shared state. Two scopes with one string are one, and so is that string given as it is.

    Attributes:
        value: The string.
    """

    value: str

    def __post_init__(self) -> None:
        _admitted("scope", self.value)

    def __str__(self) -> str:
        return self.value

    @classmethod
    def global_(cls) -> StateScope:
        """Return the scope of the whole system."""
        return cls("global")

    @classmethod
    def parent_thread(cls, id: str) -> StateScope:
        """Return the scope that a parent's thread and its children share."""
        return cls(f"parent_thread::{_quoted('id', id)}")

    @classmethod
    def agent_type(cls, name: str) -> StateScope:
        """Return the scope of all agents of a type."""
        return cls(f"agent_type::{_quoted('name', name)}")

    @classmethod
    def thread(cls, id: str) -> StateScope:
        """Return the scope of one thread, beyond its runs."""
        return cls(f"thread::{_quoted('id', id)}")

    @classmethod
    def new(cls, s: str) -> StateScope:
        """Return the scope of any other group; the string is taken as it is."""
        return cls(s)

    def as_str(self) -> str:
        """Return the string."""
        return self.value


def owner_of(key: str | StateScope | None, agent: str | None, scope: StateScope | None) -> str:
    """Return the string that something is kept under.

    Raises:
        InvalidError: It was said twice, or not at all.
    """
    given = [each for each in (key, agent, scope) if each is not None]
    if len(given) != 1:
        raise InvalidError("say once whose it is: by the key, by `agent=`, or by `scope=`")
    if agent is not None:
        return f"agent::{_quoted('agent', agent)}"
    if scope is not None:
        require_instance("scope", scope, StateScope)
    owner = key if scope is None else scope
    if isinstance(owner, StateScope):
        return owner.value
    return _admitted("key", owner)


def _quoted(what: str, id: object) -> str:
    """Return an id in which nothing can be taken for the end of a segment."""
    return _admitted(what, id).replace("%", "%25").replace(":", "%3A")


def _admitted(what: str, text: object) -> str:
    admitted = check_text(what, text)
    if not admitted:
        raise InvalidError(f"`{what}` is empty; say whose it is")
    return admitted
