"""Options of a registration, which override those of the key's class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keepstate.errors import StateError
from keepstate.typed.key import AnyKey, KeyScope, is_same


@dataclass(frozen=True, slots=True)
class StateKeyOptions:
    """Options of one registration; None means the default of the key's class.

    Attributes:
        persistent: Whether the value is stored; True in the base class.
        retain_on_uninstall: Whether the value outlives the plugin; False in the base class.
        scope: The lifetime of the value; `KeyScope.RUN` in the base class.
    """

    persistent: bool | None = None
    retain_on_uninstall: bool | None = None
    scope: KeyScope | None = None


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered key with its options.

    Attributes:
        key: The class.
        persistent: Whether the value is stored.
        retain_on_uninstall: Whether the value outlives the plugin.
        scope: The lifetime of the value.
        owner: The plugin that registered the key.
    """

    key: AnyKey
    persistent: bool
    retain_on_uninstall: bool
    scope: KeyScope
    owner: str

    @classmethod
    def of(cls, key: AnyKey, options: StateKeyOptions | None, owner: str) -> Registered:
        """Return a registration of a key with these options."""
        given: Any = StateKeyOptions() if options is None else options
        if not isinstance(given, StateKeyOptions):
            raise StateError(
                f"Key {key.KEY!r} is registered with {options!r}. Pass StateKeyOptions.", state_key=key.KEY
            )
        for name, kind in (("persistent", bool), ("retain_on_uninstall", bool), ("scope", KeyScope)):
            if not isinstance(value := getattr(given, name), kind | None):
                raise StateError(
                    f"Key {key.KEY!r} is registered with {name}={value!r}. Pass a {kind.__name__}.",
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
        """Return whether both register the same class with the same options."""
        mine, theirs = ((each.persistent, each.retain_on_uninstall, each.scope) for each in (self, other))
        return is_same(self.key, other.key) and mine == theirs
