"""What registering a key may say of it, over what its class says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keepstate.errors import StateError
from keepstate.typed.key import AnyKey, KeyScope, is_same


@dataclass(frozen=True, slots=True)
class StateKeyOptions:
    """Options of one registration; None is as the class of the key says.

    Attributes:
        persistent: Whether the value is stored; classes say True.
        retain_on_uninstall: Whether the value outlives the plugin; classes say False.
        scope: How long the value lives; classes say `KeyScope.RUN`.
    """

    persistent: bool | None = None
    retain_on_uninstall: bool | None = None
    scope: KeyScope | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """A key in use, with what holds for it.

    Attributes:
        key: The class.
        persistent: Whether its value is stored.
        retain_on_uninstall: Whether its value outlives the plugin.
        scope: How long its value lives.
        owner: The plugin that has registered it.
    """

    key: AnyKey
    persistent: bool
    retain_on_uninstall: bool
    scope: KeyScope
    owner: str

    @classmethod
    def of(cls, key: AnyKey, options: StateKeyOptions | None, owner: str) -> Registered:
        """Return what holds for a key with these options."""
        given: Any = StateKeyOptions() if options is None else options
        if not isinstance(given, StateKeyOptions):
            raise StateError(
                f"{key.KEY!r} is registered with {options!r}; give StateKeyOptions", state_key=key.KEY
            )
        for name, kind in (("persistent", bool), ("retain_on_uninstall", bool), ("scope", KeyScope)):
            if not isinstance(value := getattr(given, name), kind | None):
                raise StateError(
                    f"{key.KEY!r} is registered with {name}={value!r}; give a {kind.__name__}",
                    state_key=key.KEY,
                )
        return cls(
            key,
            key.PERSISTENT if given.persistent is None else given.persistent,
            key.RETAIN_ON_UNINSTALL if given.retain_on_uninstall is None else given.retain_on_uninstall,
            key.SCOPE if given.scope is None else given.scope,
            owner,
        )

    def is_like(self, other: Registered) -> bool:
        """Whether both say the same of the same class."""
        mine, theirs = ((each.persistent, each.retain_on_uninstall, each.scope) for each in (self, other))
        return is_same(self.key, other.key) and mine == theirs
