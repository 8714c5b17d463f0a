"""Registered classes: the closed list of classes that stored bytes may become, and their versions.

A stored object carries `name@version`. No module is ever imported because stored bytes name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar, overload

from keepstate.errors import InvalidError, UnsupportedError
from keepstate.values import limits
from keepstate.values.shapes import Shape, shape_of

Fields = dict[str, Any]
"""The builtin form of one object without its `@type`: its fields by name."""
Upcaster = Callable[[Fields], Fields]
Downcaster = Callable[[Fields], Fields]

_Class = TypeVar("_Class", bound=type)
_Function = TypeVar("_Function", bound=Upcaster)


@dataclass(frozen=True, slots=True)
class Registration:
    """A class, with the name and version that its objects are stored under."""

    name: str
    version: int
    kind: type
    shape: Shape
    older: tuple[Downcaster, ...] = ()
    """The downcasters, in order, if objects are stored as an older version."""

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    @property
    def written(self) -> int:
        """The version that objects are stored as."""
        return self.version - len(self.older)

    def parts(self, value: object) -> list[Any]:
        """Return the stored form of an object: name, version, fields, and unset fields if there are any."""
        unset, fields = self.shape.unset(value), self.shape.fields(value)
        if self.older:
            for downcaster in self.older:
                fields = _cast(fields, downcaster, "downcaster")
            unset = [name for name in unset if name in fields]
        parts: list[Any] = [self.name, self.written, fields]
        return [*parts, unset] if unset else parts

    def build(self, fields: Fields, unset: Collection[str] = ()) -> object:
        """Return the object with these fields.

        Raises:
            InvalidError: The class rejects the fields.
        """
        try:
            return self.shape.build(fields, unset)
        except Exception as error:
            raise InvalidError(
                f"what is stored as {self} does not fit {_qualified(self.kind)}: {error!r}; give the class "
                "a new version and write an upcaster"
            ) from error


class Registry:
    """Names, classes and upcasters. Lookups take no lock; register classes at import time."""

    def __init__(self) -> None:
        self._by_name: dict[str, Registration] = {}
        self._by_class: dict[type, Registration] = {}
        self._upcasters: dict[tuple[str, int], Upcaster] = {}
        self._downcasters: dict[tuple[str, int], Downcaster] = {}
        self._losses: dict[tuple[str, int], str] = {}
        self._write_versions: dict[str, int] = {}

    @overload
    def register(self, kind: str, /, *, version: int = 1) -> Callable[[_Class], _Class]: ...

    @overload
    def register(self, kind: _Class, name: str, /, *, version: int = 1) -> _Class: ...

    def register(self, kind: Any, name: str | None = None, /, *, version: int = 1) -> Any:
        """Make a class storable: `@register("profile", version=2)` or `register(Profile, "profile")`.

        Takes dataclasses, named tuples, Enums, msgspec Structs, attrs and pydantic classes. The version goes
        up when the fields change their meaning or names; `upcast` then says how the older ones are read.

        Raises:
            InvalidError: The name belongs to another class, the class has another name, or it is of no kind
                whose objects come back. A class of the same module and qualified name replaces the earlier
                one; what `register_write_version` has asked for stays, and needs its downcasters before.
        """
        if not isinstance(kind, str):
            return self._add(kind, name, version)

        def add(decorated: _Class) -> _Class:
            return self._add(decorated, kind, version)

        return add

    def upcast(self, name: str, version: int, /) -> Callable[[_Function], _Function]:
        """Register the decorated function as the upcaster from a version of a class to the next.

        The function gets the fields of one stored object by name and returns those of the next version.
        Objects of registered classes in the fields are in builtin form, dicts with an `@type`.

        Raises:
            InvalidError: Another function is registered for this version.
        """
        return self._casting(self._upcasters, "upcast", name, version)

    def downcast(self, name: str, version: int, /, *, loses: str = "") -> Callable[[_Function], _Function]:
        """Register the decorated function as the downcaster from a version of a class to the one before.

        It is needed only while `register_write_version` asks for older versions. The function gets the fields
        of one object by name, with objects in them unchanged, and returns those of the version before.

        Args:
            name: What the class is registered as.
            version: The version of the fields that the function gets.
            loses: What the version before cannot hold, in a few words. `keepstate migrate` upcasts each
                object that it has downcast and compares; without this text it refuses one that changed.

        Raises:
            InvalidError: Another function is registered for this version.
        """
        if not isinstance(loses, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"`loses` is {type(loses).__name__}; say in a few words what is lost")
        adding = self._casting(self._downcasters, "downcast", name, version)

        def add(function: _Function) -> _Function:
            function = adding(function)
            self._losses[name, version] = loses
            return function

        return add

    def _casting(
        self, casters: dict[tuple[str, int], Upcaster], what: str, name: str, version: int
    ) -> Callable[[_Function], _Function]:
        _checked_name(name, version)

        def add(function: _Function) -> _Function:
            known = casters.get((name, version))
            if known is not None and _qualified(known) != _qualified(function):
                raise InvalidError(f"{name}@{version} is {what} by {_qualified(known)} already")
            casters[name, version] = function
            return function

        return add

    def register_write_version(self, name: str, version: int | None, /) -> None:
        """Store objects of a class as an older version, which processes of older code can read.

        For a rolling deploy: new code reads both versions and writes the old one until all run it. It holds
        for what this process writes from now on; None is the newest version again.

        Args:
            name: What the class is registered as.
            version: The version to write.

        Raises:
            InvalidError: No class has that name, it has no such version, or a downcaster on the way is
                missing.
        """
        known = self._by_name.get(name)
        if known is None:
            raise InvalidError(f"no class is registered as {name!r}; register it first")
        wanted = known.version if version is None else version
        _checked_name(name, wanted)
        if wanted > known.version:
            raise InvalidError(f"{name}@{wanted} cannot be written: this application knows {known}")
        changed = replace(known, older=self._older(name, known.version, wanted))
        self._by_name[name] = self._by_class[known.kind] = changed
        if version is None:
            self._write_versions.pop(name, None)
        else:
            self._write_versions[name] = version

    def _older(self, name: str, version: int, wanted: int) -> tuple[Downcaster, ...]:
        """Return the downcasters from a version to the one to be written."""
        older: list[Downcaster] = []
        for step in range(version, wanted, -1):
            downcaster = self._downcasters.get((name, step))
            if downcaster is None:
                raise InvalidError(
                    f"{name}@{wanted} cannot be written: nothing takes {name}@{step} to the version before; "
                    f"write a downcaster: @downcast({name!r}, {step})"
                )
            older.append(downcaster)
        return tuple(older)

    def of(self, kind: type) -> Registration | None:
        """Return the registration of a class, or None."""
        return self._by_class.get(kind)

    def is_replaced(self, kind: type) -> bool:
        """Return whether a later definition of the class, by its qualified name, is registered."""
        return any(_qualified(known) == _qualified(kind) for known in self._by_class if known is not kind)

    def named(self, name: str, version: int) -> Registration:
        """Return the class of objects stored as `name@version`.

        Raises:
            InvalidError: No class is registered under this name.
            UnsupportedError: The class is registered in an older version.
        """
        known = self._by_name.get(name)
        if known is None:
            raise InvalidError(
                f"{name}@{version} is stored here and no class is registered as {name!r}; import the module "
                "that registers it, or read the builtin form"
            )
        if version > known.version:
            raise UnsupportedError(
                f"{name}@{version} is stored here and this application knows {known}; it was written by a "
                "newer version of the application: upgrade this one"
            )
        return known

    def upcast_fields(self, fields: Fields, known: Registration, version: int) -> Fields:
        """Upcast the fields of a stored version to the registered one.

        Raises:
            InvalidError: An upcaster is missing or failed.
        """
        for step in range(version, known.version):
            upcaster = self._upcasters.get((known.name, step))
            if upcaster is None:
                raise InvalidError(
                    f"{known.name}@{version} is stored here and nothing takes {known.name}@{step} to the "
                    f"next version; write an upcaster: @upcast({known.name!r}, {step})"
                )
            fields = _cast(fields, upcaster)
        return fields

    def is_due(self, name: str, version: int) -> bool:
        """Return whether this process would store an object stored as `name@version` as another version.

        Raises:
            UnsupportedError: The version is newer than the registered class.
        """
        return name in self._by_name and self.named(name, version).written != version

    def written_as(self, name: str) -> str:
        """Return `name@version` as objects of a registered class are stored."""
        return f"{name}@{self._by_name[name].written}"

    def losses(self, name: str, version: int) -> list[str]:
        """Return the declared losses of the downcasters from a version to the written one."""
        steps = range(version, self._by_name[name].written, -1)
        return [f"{name}@{step}: {lost}" for step in steps if (lost := self._losses.get((name, step)))]

    def newest(self) -> Registry:
        """Return a registry of the same classes that stores their newest versions, to compare objects by."""
        copy = Registry()
        copy._upcasters = self._upcasters
        copy._by_name = {name: replace(known, older=()) for name, known in self._by_name.items()}
        copy._by_class = {known.kind: known for known in copy._by_name.values()}
        return copy

    def knows(self, name: str, version: int) -> bool:
        """Return whether objects stored as `name@version` can be created here."""
        known = self._by_name.get(name)
        return known is not None and version <= known.version

    def upcast_unknown(self, fields: Fields, name: str, version: int) -> tuple[Fields, int]:
        """Upcast fields without a class to the newest version that upcasters lead to.

        Raises:
            InvalidError: An upcaster failed.
        """
        while (upcaster := self._upcasters.get((name, version))) is not None:
            fields, version = _cast(fields, upcaster), version + 1
        return fields, version

    def _add(self, kind: _Class, name: str | None, version: int) -> _Class:
        if not isinstance(kind, type):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidError(f"{kind!r} is not a class. Call register(Class, 'name', version=1).")
        name = _checked_name(name, version)
        known, other = self._by_name.get(name), self._by_class.get(kind)
        if known is not None and known.kind is not kind and _qualified(known.kind) != _qualified(kind):
            raise InvalidError(
                f"{name!r} is the name of {_qualified(known.kind)} already; choose another one"
            )
        if other is not None and other.name != name:
            raise InvalidError(
                f"{_qualified(kind)} is registered as {other.name!r} already; a class has one name"
            )
        wanted = version if known is None else self._write_versions.get(name, version)
        registration = Registration(name, version, kind, shape_of(kind), self._older(name, version, wanted))
        if known is not None and known.kind is not kind:
            del self._by_class[known.kind]
        self._by_name[name] = self._by_class[kind] = registration
        return kind


def _cast(fields: Fields, caster: Upcaster, what: str = "upcaster") -> Fields:
    try:
        fields = caster(fields)
    except Exception as error:
        raise InvalidError(f"the {what} {_qualified(caster)} failed: {error!r}") from error
    if not isinstance(fields, dict):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InvalidError(f"the {what} {_qualified(caster)} returned no dict of fields")
    return fields


def _checked_name(name: object, version: object) -> str:
    if not isinstance(name, str) or not 0 < len(name.encode("utf-8", "replace")) <= limits.TYPE_NAME_BYTES:
        raise InvalidError(f"{name!r} names no class; a name is 1 to {limits.TYPE_NAME_BYTES} bytes of text")
    if "@" in name or not name.isprintable():
        raise InvalidError(f"{name!r} names no class; a name is printable and has no @")
    if type(version) is not int or not 0 < version < 1 << 31:
        raise InvalidError(f"{name!r} has version {version!r}; versions count from 1")
    return name


def _qualified(thing: Any) -> str:
    return f"{thing.__module__}.{getattr(thing, '__qualname__', thing)}"


CLASSES: Final = Registry()
"""The default registry of `register` and `upcast`, which every store reads by."""

register = CLASSES.register
upcast = CLASSES.upcast
downcast = CLASSES.downcast
register_write_version = CLASSES.register_write_version
