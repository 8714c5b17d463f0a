"""Which keys are in use, and which plugin has brought each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from inspect import isfunction
from types import ModuleType
from typing import Any, Protocol

from keepstate.engine.kernel.executor import is_coroutine_function
from keepstate.errors import StateError
from keepstate.typed.admission import admit_many
from keepstate.typed.key import AnyKey, ProfileKey, admit_key, is_same, path_of, refuse_other
from keepstate.typed.options import Registered, StateKeyOptions


class Plugin(Protocol):
    """What brings keys. Any object will do; its name is its `name`, or that of its class."""

    def register(self, registrar: PluginRegistrar) -> None:
        """Register the keys that it needs."""
        ...


class Registry:
    """The keys in use.

    Attributes:
        keys: By name; replaced as a whole when that changes.
    """

    def __init__(self) -> None:
        self.keys: Mapping[str, Registered] = {}
        self._profile_keys: dict[str, tuple[type[ProfileKey[Any]], str]] = {}
        self._plugins: frozenset[str] = frozenset()

    @classmethod
    def of(cls, keys: Iterable[AnyKey], plugins: Iterable[Plugin]) -> Registry:
        """Return these keys and those of these plugins, in use."""
        registry, own = cls(), admit_many("keys", keys)
        for plugin in [*([Keys(own)] if own else []), *admit_many("plugins", plugins)]:
            registry.add(registry.asked(plugin))
        return registry

    def saved(self) -> Callable[[], None]:
        """Return what puts back what is in use now."""
        before = self.keys, self._profile_keys, self._plugins

        def put_back() -> None:
            self.keys, self._profile_keys, self._plugins = before

        return put_back

    def find(self, name: str) -> Registered | None:
        """Return the key of this name that is in use, or None."""
        return self.keys.get(name)

    def named(self, key: AnyKey) -> Registered:
        """Return what holds for a key.

        Raises:
            StateError: It is not in use.
        """
        found = self.keys.get(key.KEY)
        if found is None:
            raise StateError(
                f"{key.KEY!r} is not registered, so nothing of the batch was applied; install the plugin "
                "that registers it",
                state_key=key.KEY,
            )
        refuse_other(found.key, key)
        return found

    @property
    def profile_keys(self) -> list[type[ProfileKey[Any]]]:
        """The profile keys in use."""
        return [key for key, _ in self._profile_keys.values()]

    def asked(self, plugin: Plugin) -> PluginRegistrar:
        """Return what a plugin registers; nothing is in use yet.

        Raises:
            StateError: It is installed already, or registers what it cannot.
        """
        _admit_plugin(plugin)
        owner = plugin_name(plugin)
        if owner in self._plugins:
            raise StateError(f"plugin {owner} is installed already; uninstall it first")
        registrar = PluginRegistrar(owner, self)
        plugin.register(registrar)
        return registrar

    def add(self, registrar: PluginRegistrar) -> None:
        """Put in use what a plugin has registered."""
        self._plugins |= {registrar.owner}
        self.keys = {**self.keys, **{each.key.KEY: each for each in registrar.keys}}
        profile_keys = {key.KEY: (key, registrar.owner) for key in registrar.profile_keys}
        self._profile_keys = {**self._profile_keys, **profile_keys}

    def owned(self, owner: str) -> list[Registered]:
        """Return the keys that a plugin has brought.

        Raises:
            StateError: It is not installed.
        """
        if owner not in self._plugins:
            raise StateError(f"plugin {owner} is not installed")
        return [each for each in self.keys.values() if each.owner == owner]

    def remove(self, owner: str) -> None:
        """Take out of use what a plugin has brought."""
        self._plugins -= {owner}
        self.keys = {name: each for name, each in self.keys.items() if each.owner != owner}
        self._profile_keys = {name: each for name, each in self._profile_keys.items() if each[1] != owner}

    def admit(self, new: Registered, pending: Iterable[Registered]) -> bool:
        """Return whether a registration says something new.

        Raises:
            StateError: The name is in use by another plugin, or otherwise; both are named.
        """
        name = new.key.KEY
        known = next((each for each in pending if name == each.key.KEY), self.keys.get(name))
        if known is None:
            return True
        if known.owner != new.owner:
            raise StateError(
                f"{name!r} is registered by plugin {known.owner} and by plugin {new.owner}; give one of the "
                "keys another name",
                state_key=name,
            )
        if not known.is_like(new):
            raise StateError(
                f"{name!r} is registered twice by plugin {new.owner}, as {_told(known)} and as {_told(new)}",
                state_key=name,
            )
        return False

    def admit_profile(
        self, key: type[ProfileKey[Any]], owner: str, pending: list[type[ProfileKey[Any]]]
    ) -> bool:
        """Return whether a registration of a profile key says something new."""
        here = next((each for each in pending if each.KEY == key.KEY), None)
        known = (here, owner) if here is not None else self._profile_keys.get(key.KEY)
        if known is None:
            return True
        if known[1] != owner or not is_same(known[0], key):
            raise StateError(
                f"profile key {key.KEY!r} is registered by plugin {known[1]} as {path_of(known[0])} and by "
                f"plugin {owner} as {path_of(key)}; give one of the keys another name",
                state_key=key.KEY,
            )
        return False


class PluginRegistrar:
    """What a plugin registers its keys with.

    Attributes:
        owner: The name of the plugin.
        keys: What it has registered.
        profile_keys: The profile keys that it has registered.
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
            StateError: Its name is in use by another plugin, or with other options.
        """
        admit_key(key)
        new = Registered.of(key, options, self.owner)
        if self._registry.admit(new, self.keys):
            self.keys.append(new)

    def register_profile_key(self, key: type[ProfileKey[Any]]) -> None:
        """Register a profile key, for profiles and shared state.

        Raises:
            StateError: Its name is in use by another plugin, or for another class.
        """
        admit_key(key, ProfileKey)
        if self._registry.admit_profile(key, self.owner, self.profile_keys):
            self.profile_keys.append(key)


class Keys:
    """A plugin of nothing but state keys.

    Attributes:
        name: What it is called in errors.
    """

    def __init__(self, keys: Iterable[AnyKey], name: str = "keys") -> None:
        self._keys, self.name = list(keys), name

    def register(self, registrar: PluginRegistrar) -> None:
        """Register the keys."""
        for key in self._keys:
            registrar.register_key(key)


def _admit_plugin(plugin: object) -> None:
    register = getattr(plugin, "register", None)
    is_bound = not isinstance(plugin, type) or not isfunction(vars(plugin).get("register"))
    if not callable(register) or not is_bound or is_coroutine_function(register):
        raise StateError(f"{plugin!r} is no plugin; give an object with a plain method `register(registrar)`")


def plugin_name(plugin: object) -> str:
    """Return what a plugin is called: by itself, by its class or module, or by the caller."""
    if isinstance(plugin, str):
        return plugin
    name = getattr(plugin, "name", None)
    if isinstance(name, str) and name:
        return name
    if isinstance(plugin, ModuleType):
        return plugin.__name__
    return path_of(plugin if isinstance(plugin, type) else type(plugin))


def _told(each: Registered) -> str:
    return (
        f"{path_of(each.key)} (persistent={each.persistent}, retain_on_uninstall={each.retain_on_uninstall}, "
        f"scope={each.scope.value})"
    )
