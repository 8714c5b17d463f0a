"""Typed keys: the name of a value, its type, and its conversion to JSON and back.

A key is a class without instances. Omitted parts are derived when the class is defined, or the definition
fails, so a key that exists can be used. A value is encoded once and decoded for each reader, so that all
readers can share its encoded form.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, cast

from keepstate.errors import InvalidError, KeepstateError, StateError
from keepstate.typed import forms
from keepstate.typed.declaration import default_maker, value_type
from keepstate.typed.forms import require_json
from keepstate.values import codec

Value = TypeVar("Value")
Update = TypeVar("Update")
Readable_co = TypeVar("Readable_co", covariant=True)

Json: TypeAlias = Any
"""None, bool, int, float, str, and lists and str-keyed dicts of these."""

NAME_BYTES = 200
UNKNOWN_VERSION: Final = 0
"""The version of a value whose version was not given."""


class KeyScope(Enum):
    """The lifetime of a key's value."""

    RUN = "run"
    """Until the next run begins."""
    THREAD = "thread"
    """Across the runs of one thread."""


class MergeStrategy(Enum):
    """The handling of updates to one key that were computed in parallel."""

    EXCLUSIVE = "exclusive"
    """They conflict: batches that both touch the key cannot be merged."""
    COMMUTATIVE = "commutative"
    """They are all applied, in any order."""


class TypedKey(Generic[Value]):
    """The base of state keys and profile keys.

    A class without `KEY` is a base class and is not checked.
    """

    KEY: ClassVar[str]
    """The name that values are stored under."""
    VERSION: ClassVar[int] = 1
    """Increase it when the stored form changes; `upgrade` then converts older values."""

    _type: ClassVar[Any] = None
    _is_plain: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "KEY" in cls.__dict__ or hasattr(cls, "KEY"):
            cls._declare()

    def __new__(cls, *args: object, **options: object) -> Self:
        """Raise `StateError`, because a key is used as a class."""
        raise StateError(f"{cls.__name__} is a key and has no instances. Use the class itself.")

    @classmethod
    def _declare(cls) -> None:
        """Validate the class and derive its omitted parts.

        Raises:
            StateError: The class cannot be used; the error names the missing part.
        """
        name, version = cast("object", cls.KEY), cast("object", cls.VERSION)
        if type(name) is not str or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES:
            raise StateError(
                f"{cls.__qualname__}.KEY is {name!r}. It must have 1 to {NAME_BYTES} bytes of text."
            )
        if not name.isprintable():
            raise StateError(f"{cls.__qualname__}.KEY is {name!r}. It must be printable.", state_key=name)
        if type(version) is not int or version < 1:
            raise StateError(
                f"{cls.__qualname__}.VERSION is {version!r}. It must be an integer from 1.", state_key=name
            )
        own = cls._has_own("encode"), cls._has_own("decode")
        cls._is_plain = own == (False, False)
        makes_default = not cls._has_own("default")
        if makes_default or not all(own):
            cls._type = value_type(cls, TypedKey)
        if makes_default:
            maker = default_maker(cls, cls._type)
            # each class has its own maker
            cls.default = classmethod(lambda _: maker())  # type: ignore[assignment,method-assign]
            if cls._is_plain:
                forms.from_json(forms.to_json(maker(), cls._type, name), cls._type, name)

    @classmethod
    def is_plain(cls) -> bool:
        """Return whether values are converted by their type alone."""
        return cls._is_plain

    @classmethod
    def _has_own(cls, method: str) -> bool:
        """Return whether the application's class defines this method."""
        return next(base for base in cls.__mro__ if method in base.__dict__).__module__ != __name__

    @classmethod
    def default(cls) -> Value:
        """Return the value of a key that was never updated: a new default of its type."""
        raise StateError(f"{cls.__qualname__} has no KEY, and no default")

    @classmethod
    def encode(cls, value: Value) -> Json:
        """Return a value as JSON types.

        Raises:
            StateError: The value would not come back equal; the error names the path.
        """
        return forms.to_json(value, cls._type, cls.KEY)

    @classmethod
    def decode(cls, raw: Json) -> Value:
        """Return the validated value of a JSON form.

        Raises:
            StateError: The JSON is not a value of this key; the error names the path.
        """
        return cast("Value", forms.from_json(raw, cls._type, cls.KEY))

    @classmethod
    def upgrade(cls, raw: Json, from_version: int) -> Json:
        """Convert the JSON form of an earlier version to the current one.

        A class with a `VERSION` above 1 overrides this method; otherwise older values cannot be read.
        """
        raise StateError(
            f"A value of {cls.KEY!r} is stored in version {from_version}, but {cls.__qualname__} has version "
            f"{cls.VERSION}. Define `upgrade`.",
            state_key=cls.KEY,
            stored_version=from_version,
        )


class ReadableKey(Generic[Readable_co]):
    """The read-only type of a key, covariant: a key of int is also a readable key of float."""


class StateKey(TypedKey[Value], ReadableKey[Value], Generic[Value, Update]):
    """A typed slot of an agent's state: `class Steps(StateKey[int, int])` with a `KEY` and an `apply`."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.EXCLUSIVE
    """The handling of parallel updates."""
    SCOPE: ClassVar[KeyScope] = KeyScope.RUN
    """The lifetime of the value."""
    PERSISTENT: ClassVar[bool] = True
    """Whether the value is stored. Otherwise it is only in the memory of one process."""
    RETAIN_ON_UNINSTALL: ClassVar[bool] = False
    """Whether the value outlives the plugin that registered the key."""

    @classmethod
    def _declare(cls) -> None:
        super()._declare()
        for name, kind in _KINDS.items():
            if not isinstance(getattr(cls, name), kind):
                raise StateError(
                    f"{cls.__qualname__}.{name} is {getattr(cls, name)!r}. Use a {kind.__name__}.",
                    state_key=cls.KEY,
                )
        if inspect.iscoroutinefunction(cls.apply):
            raise StateError(
                f"{cls.__qualname__}.apply is a coroutine function. Use a plain function.",
                state_key=cls.KEY,
            )
        if not cls._has_own("apply"):
            raise StateError(
                f"{cls.__qualname__} has no `apply`. Define `apply(value, update)`.",
                state_key=cls.KEY,
            )

    @classmethod
    def apply(cls, value: Value, update: Update) -> Value:
        """Apply an update to a value and return the new value.

        The value is a copy, which `apply` may change and return. `apply` may raise; then nothing of the batch
        is applied. It may be called again, with a newer value.
        """
        raise StateError(f"{cls.__qualname__} has no `apply`.", state_key=cls.KEY)


class ProfileKey(TypedKey[Value], Generic[Value]):
    """The key of a value of an agent or a scope, beyond runs and threads; accessed by `ProfileAccess`."""


AnyKey: TypeAlias = type[StateKey[Any, Any]]

_KINDS = {"MERGE": MergeStrategy, "SCOPE": KeyScope, "PERSISTENT": bool, "RETAIN_ON_UNINSTALL": bool}


def check_key(given: Any, kind: type = StateKey) -> None:
    """Raise `StateError` unless the argument is a usable key of this kind."""
    if not (isinstance(given, type) and issubclass(given, kind) and hasattr(given, "KEY")):
        label = "state key" if kind is StateKey else "profile key"
        raise StateError(f"{given!r} is not a {label}. Pass a subclass of {kind.__name__} with a KEY.")


SINGLE: Final = (str, bytes, bytearray, Mapping)
"""Iterable types that are a single value, not a list of values."""


def check_list(what: str, given: Iterable[Value]) -> list[Value]:
    """Return an iterable of values as a list.

    Raises:
        InvalidError: The argument is a single value.
    """
    asked: Any = given
    if isinstance(asked, SINGLE) or not isinstance(asked, Iterable):
        raise InvalidError(f"`{what}` is {given!r}. Pass a list.")
    return list(given)


Identity: TypeAlias = tuple[object, ...]


def identity(key: type) -> Identity:
    """Return the identity that repeated definitions of one key share, as when a notebook cell runs again.

    Classes made by one function share their name. Those with other values or updates have other identities.
    """
    declared = [getattr(key, name, None) for name in ("KEY", "VERSION", "MERGE")]
    return key.__module__, key.__qualname__, *declared, str(getattr(key, "_type", None))


def is_same(one: type, other: type) -> bool:
    """Return whether two classes are the same, or definitions of the same key."""
    return one is other or identity(one) == identity(other)


def path_of(kind: type) -> str:
    """Return the module and qualified name of a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def require_same_key(known: AnyKey, key: AnyKey) -> None:
    """Raise `StateError` unless a class is the registered one or a redefinition of it."""
    if not is_same(known, key):
        raise StateError(
            f"Key {key.KEY!r} is registered as {path_of(known)} (version {known.VERSION}), but "
            f"{path_of(key)} (version {key.VERSION}) was used. Register the class that you use.",
            state_key=key.KEY,
        )


def decode_stored(key: type[TypedKey[Value]], raw: Json, version: int) -> Value:
    """Upgrade a stored value to the current version, validate it and return it.

    Raises:
        StateError: The value cannot be read; the error names the key, the path and the stored version.
    """
    try:
        if version == UNKNOWN_VERSION and key.VERSION > 1:
            raise StateError(
                f"the version of the value is unknown, and {key.__qualname__} has version {key.VERSION}: "
                "restore it with `versions`"
            )
        if version > key.VERSION:
            raise StateError(
                f"it was written by a newer version of {key.__qualname__}: upgrade the application"
            )
        return key.decode(raw if version in (key.VERSION, UNKNOWN_VERSION) else key.upgrade(raw, version))
    except Exception as error:
        path = getattr(error, "path", None)
        reason = str(error) if isinstance(error, KeepstateError) else repr(error)
        version_text = "an unknown version" if version == UNKNOWN_VERSION else f"version {version}"
        raise StateError(
            f"The stored value of {key.KEY!r} in {version_text} cannot be read: {reason}. Let `upgrade` "
            "convert it, or delete it.",
            state_key=key.KEY,
            path=path if isinstance(path, str) else None,
            stored_version=version,
        ) from error


ATOMS: Final = frozenset({str, int, float, bool, bytes, type(None)})
"""Immutable types, whose values need no copy."""


@dataclass(frozen=True, slots=True)
class EncodedValue:
    """A value in its JSON form, encoded.

    Attributes:
        encoded: The JSON form as encoded by the codec.
        version: The version of the key's class that encoded it.
        revision: The state revision that wrote it.
    """

    encoded: bytes
    version: int
    revision: int = 0

    @property
    def raw(self) -> Json:
        """A copy of the JSON form."""
        return codec.decode(self.encoded)


def encode_value(key: type[TypedKey[Value]], value: Value, revision: int = 0) -> EncodedValue:
    """Return the encoded form of a value.

    Raises:
        StateError: The value does not fit the key, or would not come back equal; the error names the path.
    """
    try:
        raw = key.encode(value)
    except KeepstateError:
        raise
    except Exception as error:
        raise StateError(
            f"Key {key.KEY!r} was not written because its encode() failed: {error!r}", state_key=key.KEY
        ) from error
    if not key.is_plain():
        require_json(raw, key.KEY)
        decode_stored(key, raw, key.VERSION)
    return EncodedValue(codec.encode(raw), key.VERSION, revision)


def decode_value(key: type[TypedKey[Value]], stored: EncodedValue) -> Value:
    """Return the value as an independent copy.

    Raises:
        StateError: The value cannot be read; the error names the key, the path and the stored version.
    """
    return decode_stored(key, stored.raw, stored.version)


def default_value(key: type[TypedKey[Value]]) -> Value:
    """Return an independent copy of a key's default.

    Raises:
        StateError: The default cannot be copied.
    """
    value: Value = copy_value(key.default(), f"the default of {key.KEY!r}")
    return value


def copy_value(thing: Any, what: str) -> Any:
    """Return a copy that shares no mutable object.

    Raises:
        StateError: The value cannot be copied.
    """
    if type(thing) in ATOMS:
        return thing
    try:
        return deepcopy(thing)
    except Exception as error:
        raise StateError(f"Cannot copy {what} ({error!r}). Use plain data.") from error
