"""The keys in use, the options of each registration, and the plugin that registered it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from inspect import isfunction
from types import ModuleType
from typing import Any, Protocol

from keepstate.engine.kernel.executor import is_coroutine_function
from keepstate.errors import StateError
from keepstate.typed.key import (
    AnyKey,
    KeyScope,
    ProfileKey,
    check_key,
    check_list,
    is_same,
    path_of,
    require_same_key,
)


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
        chosen: dict[str, Any] = {}
        for name, kind in (("persistent", bool), ("retain_on_uninstall", bool), ("scope", KeyScope)):
            if not isinstance(value := getattr(given, name), kind | None):
                raise StateError(
                    f"Key {key.KEY!r} is registered with {name}={value!r}. Pass a {kind.__name__}.",
                    state_key=key.KEY,
                )
            chosen[name] = getattr(key, name.upper()) if value is None else value
        return cls(key, **chosen, owner=owner)

    def is_like(self, other: Registered) -> bool:
        """Return whether both register the same class with the same options."""
        mine, theirs = ((each.persistent, each.retain_on_uninstall, each.scope) for each in (self, other))
        return is_same(self.key, other.key) and mine == theirs


class Plugin(Protocol):
    """Registers keys. Any object with a `register` method; its name is its `name`, or that of its class."""

    def register(self, registrar: PluginRegistrar) -> None:
        """Register the plugin's keys."""
        ...


class Registry:
    """The keys in use.

    Attributes:
        keys: The keys by name; the mapping is replaced on every change.
    """

    def __init__(self) -> None:
        self.keys: Mapping[str, Registered] = {}
        self._profile_keys: dict[str, tuple[type[ProfileKey[Any]], str]] = {}
        self._plugins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, keys: Iterable[AnyKey], plugins: Iterable[Plugin]) -> Registry:
        """Return a registry with these keys and plugins."""
        registry, own = cls(), check_list("keys", keys)
        for plugin in [*([Keys(own)] if own else []), *check_list("plugins", plugins)]:
            registry.add(registry.collect(plugin))
        return registry

    def make_restorer(self) -> Callable[[], None]:
        """Return a function that restores the current registrations."""
        before = self.keys, self._profile_keys, self._plugins

        def restore() -> None:
            self.keys, self._profile_keys, self._plugins = before

        return restore

    def find(self, name: str) -> Registered | None:
        """Return the registered key of this name, or None."""
        return self.keys.get(name)

    def require(self, key: AnyKey) -> Registered:
        """Return the registration of a key.

        Raises:
            StateError: The key is not registered.
        """
        found = self.keys.get(key.KEY)
        if found is None:
            raise StateError(
                f"Key {key.KEY!r} is not registered, so nothing of the batch was applied. Install the plugin "
                "that registers it.",
                state_key=key.KEY,
            )
        require_same_key(found.key, key)
        return found

    @property
    def profile_keys(self) -> list[type[ProfileKey[Any]]]:
        """The profile keys in use."""
        return [key for key, _ in self._profile_keys.values()]

    def collect(self, plugin: Plugin) -> PluginRegistrar:
        """Collect the keys of a plugin, without registering them yet.

        Raises:
            StateError: The plugin is installed already, or one of its keys is rejected.
        """
        _check_plugin(plugin)
        owner = plugin_name(plugin)
        if owner in self._plugins:
            raise StateError(f"Plugin {owner} is already installed. Uninstall it first.")
        registrar = PluginRegistrar(owner, self)
        plugin.register(registrar)
        return registrar

    def add(self, registrar: PluginRegistrar) -> None:
        """Register the keys that a plugin has given."""
        self._plugins |= {registrar.owner}
        self.keys = {**self.keys, **{each.key.KEY: each for each in registrar.keys}}
        profile_keys = {key.KEY: (key, registrar.owner) for key in registrar.profile_keys}
        self._profile_keys = {**self._profile_keys, **profile_keys}

    def keys_of(self, owner: str) -> list[Registered]:
        """Return the keys of a plugin.

        Raises:
            StateError: The plugin is not installed.
        """
        if owner not in self._plugins:
            raise StateError(f"Plugin {owner} is not installed.")
        return [each for each in self.keys.values() if each.owner == owner]

    def remove(self, owner: str) -> None:
        """Unregister the keys of a plugin."""
        self._plugins -= {owner}
        self.keys = {name: each for name, each in self.keys.items() if each.owner != owner}
        self._profile_keys = {name: each for name, each in self._profile_keys.items() if each[1] != owner}

    def is_new(self, new: Registered, pending: Iterable[Registered]) -> bool:
        """Return whether a registration is new; False if it repeats an existing one.

        Raises:
            StateError: The name is registered by another plugin, or with other options; the error names both.
        """
        name = new.key.KEY
        known = next((each for each in pending if name == each.key.KEY), self.keys.get(name))
        if known is None:
            return True
        if known.owner != new.owner:
            raise StateError(
                f"Key {name!r} is registered by plugin {known.owner} and by plugin {new.owner}. Rename one "
                "of the keys.",
                state_key=name,
            )
        if not known.is_like(new):
            raise StateError(
                f"Key {name!r} is registered twice by plugin {new.owner}, as {_describe(known)} and as "
                f"{_describe(new)}",
                state_key=name,
            )
        return False

    def is_new_profile(
        self, key: type[ProfileKey[Any]], owner: str, pending: list[type[ProfileKey[Any]]]
    ) -> bool:
        """Return whether the registration of a profile key is new; False if it repeats an existing one."""
        here = next((each for each in pending if each.KEY == key.KEY), None)
        known = (here, owner) if here is not None else self._profile_keys.get(key.KEY)
        if known is None:
            return True
        if known[1] != owner or not is_same(known[0], key):
            raise StateError(
                f"Profile key {key.KEY!r} is registered by plugin {known[1]} as {path_of(known[0])} and by "
                f"plugin {owner} as {path_of(key)}. Rename one of the keys.",
                state_key=key.KEY,
            )
        return False


class PluginRegistrar:
    """Collects the keys of a plugin.

    Attributes:
        owner: The name of the plugin.
        keys: The state keys collected so far.
        profile_keys: The profile keys collected so far.
    """

    def __init__(self, owner: str, registry: Registry) -> None:
        self.owner, self._registry = owner, registry
        self.keys: list[Registered] = []
        self.profile_keys: list[type[ProfileKey[Any]]] = []

    def __repr__(self) -> str:
        return f"<PluginRegistrar of {self.owner}>"

    def register_key(self, key: AnyKey, options: StateKeyOptions | None = None) -> None:
        """Register a state key.

        Raises:
            StateError: Its name is registered by another plugin, or with other options.
        """
        check_key(key)
        new = Registered.of(key, options, self.owner)
        if self._registry.is_new(new, self.keys):
            self.keys.append(new)

    def register_profile_key(self, key: type[ProfileKey[Any]]) -> None:
        """Register a profile key, for profiles and shared state.

        Raises:
            StateError: Its name is registered by another plugin, or for another class.
        """
        check_key(key, ProfileKey)
        if self._registry.is_new_profile(key, self.owner, self.profile_keys):
            self.profile_keys.append(key)


class Keys:
    """A plugin that only registers state keys.

    Attributes:
        name: Its name in errors.
    """

    def __init__(self, keys: Iterable[AnyKey], name: str = "keys") -> None:
        self._keys, self.name = list(keys), name

    def register(self, registrar: PluginRegistrar) -> None:
        """Register the keys."""
        for key in self._keys:
            registrar.register_key(key)


def _check_plugin(plugin: object) -> None:
    register = getattr(plugin, "register", None)
    is_bound = not isinstance(plugin, type) or not isfunction(vars(plugin).get("register"))
    if not callable(register) or not is_bound or is_coroutine_function(register):
        raise StateError(
            f"{plugin!r} is not a plugin. Pass an object with a plain method `register(registrar)`."
        )


def plugin_name(plugin: object) -> str:
    """Return the name of a plugin: its own, or that of its class or module.

    A string is returned unchanged.
    """
    if isinstance(plugin, str):
        return plugin
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return path_of(plugin if isinstance(plugin, type) else type(plugin))


def _describe(each: Registered) -> str:
    return (
        f"{path_of(each.key)} (persistent={each.persistent}, retain_on_uninstall={each.retain_on_uninstall}, "
        f"scope={each.scope.value})"
    )
