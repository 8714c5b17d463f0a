"""Typed keys: a name, the type of what is kept under it, and how that becomes JSON and back.

A key is a class and has no instances. What a class leaves out is found when it is defined, or the definition
fails: a key that exists can be used.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any, ClassVar, Final, Generic, Self, TypeAlias, TypeVar, cast

from keepstate.errors import KeepstateError, StateError
from keepstate.typed import forms
from keepstate.typed.declaration import default_maker, value_type

Value = TypeVar("Value")
Update = TypeVar("Update")
Held_co = TypeVar("Held_co", covariant=True)

Json: TypeAlias = Any
"""None, bool, int, float, str, and lists and dicts with str keys of these."""

NAME_BYTES = 200
UNSAID: Final = 0
"""The version of a value of which nobody has said the version."""


class KeyScope(Enum):
    """How long the value of a key lives."""

    RUN = "run"
    """Until the next run begins."""
    THREAD = "thread"
    """From run to run of one thread."""


class MergeStrategy(Enum):
    """What becomes of updates to one key that were computed in parallel."""

    EXCLUSIVE = "exclusive"
    """They conflict: batches that both touch the key cannot be merged."""
    COMMUTATIVE = "commutative"
    """They can be applied in any order: all are kept."""


class TypedKey(Generic[Value]):
    """What state keys and profile keys have in common.

    A class without `KEY` is a base for others and is not checked.
    """

    KEY: ClassVar[str]
    """The name that values are stored under."""
    VERSION: ClassVar[int] = 1
    """Goes up when stored values change their form; `upgrade` then reads the older ones."""

    _type: ClassVar[Any] = None
    _is_plain: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "KEY" in cls.__dict__ or hasattr(cls, "KEY"):
            cls._declare()

    def __new__(cls, *args: object, **options: object) -> Self:
        """Raise: a key is a class, and is used as one."""
        raise StateError(f"{cls.__name__} is a key and has no instances; use the class itself")

    @classmethod
    def _declare(cls) -> None:
        """Check the class, and completes it.

        Raises:
            StateError: It cannot be used; what is missing is named.
        """
        name, version = cast("object", cls.KEY), cast("object", cls.VERSION)
        if type(name) is not str or not 0 < len(name.encode("utf-8", "replace")) <= NAME_BYTES:
            raise StateError(f"{cls.__qualname__}.KEY is {name!r}; a key is 1 to {NAME_BYTES} bytes of text")
        if not name.isprintable():
            raise StateError(f"{cls.__qualname__}.KEY is {name!r}; a key is printable text", state_key=name)
        if type(version) is not int or version < 1:
            raise StateError(
                f"{cls.__qualname__}.VERSION is {version!r}; versions count from 1", state_key=name
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
                forms.read(forms.written(maker(), cls._type, name), cls._type, name)

    @classmethod
    def is_plain(cls) -> bool:
        """Return whether values are encoded and decoded by their type alone."""
        return cls._is_plain

    @classmethod
    def _has_own(cls, method: str) -> bool:
        """Whether a class of the application says how this is done."""
        return next(base for base in cls.__mro__ if method in base.__dict__).__module__ != __name__

    @classmethod
    def default(cls) -> Value:
        """Return the value of a key that was never touched: what the type makes by itself, a fresh one."""
        raise StateError(f"{cls.__qualname__} has no KEY, and no default")

    @classmethod
    def encode(cls, value: Value) -> Json:
        """Return a value as JSON types.

        Raises:
            StateError: The value would not come back equal; the path of what is at fault is named.
        """
        return forms.written(value, cls._type, cls.KEY)

    @classmethod
    def decode(cls, raw: Json) -> Value:
        """Return the value that has this form, validated.

        Raises:
            StateError: It is no value of this key; the path of what is at fault is named.
        """
        return cast("Value", forms.read(raw, cls._type, cls.KEY))

    @classmethod
    def upgrade(cls, raw: Json, from_version: int) -> Json:
        """Return the present form of what an earlier version has encoded.

        A class with a `VERSION` over 1 says here how; without, older values cannot be read.
        """
        raise StateError(
            f"a value of {cls.KEY!r} is stored in version {from_version} and {cls.__qualname__} is version "
            f"{cls.VERSION}; give it an `upgrade`",
            state_key=cls.KEY,
            stored_version=from_version,
        )


class ReadableKey(Generic[Held_co]):
    """What a type checker knows of a key that is only read: what holds ints also holds numbers."""


class StateKey(TypedKey[Value], ReadableKey[Value], Generic[Value, Update]):
    """A typed slot of an agent's state: `class Steps(StateKey[int, int])` with a `KEY` and an `apply`."""

    MERGE: ClassVar[MergeStrategy] = MergeStrategy.EXCLUSIVE
    """What becomes of parallel updates."""
    SCOPE: ClassVar[KeyScope] = KeyScope.RUN
    """How long the value lives."""
    PERSISTENT: ClassVar[bool] = True
    """Whether the value is stored; else it lives in the memory of one process."""
    RETAIN_ON_UNINSTALL: ClassVar[bool] = False
    """Whether the value outlives the plugin that has registered the key."""

    @classmethod
    def _declare(cls) -> None:
        super()._declare()
        for name, kind in _KINDS.items():
            if not isinstance(getattr(cls, name), kind):
                raise StateError(
                    f"{cls.__qualname__}.{name} is {getattr(cls, name)!r}; give a {kind.__name__}",
                    state_key=cls.KEY,
                )
        if inspect.iscoroutinefunction(cls.apply):
            raise StateError(
                f"{cls.__qualname__}.apply is a coroutine function; an update is applied without waiting",
                state_key=cls.KEY,
            )
        if not cls._has_own("apply"):
            raise StateError(
                f"{cls.__qualname__} does not say how an update is applied; give it `apply(value, update)`",
                state_key=cls.KEY,
            )

    @classmethod
    def apply(cls, value: Value, update: Update) -> Value:
        """Return the new value.

        It is given a copy of the value, which it may change and return. It may raise: nothing of the batch
        that the update is part of is then applied. It may be called again, on a newer value.
        """
        raise StateError(f"{cls.__qualname__} does not say how an update is applied", state_key=cls.KEY)


class ProfileKey(TypedKey[Value], Generic[Value]):
    """What is kept of an agent, or shared in a scope, beyond runs and threads; read by `ProfileAccess`."""


AnyKey: TypeAlias = type[StateKey[Any, Any]]

_KINDS = {"MERGE": MergeStrategy, "SCOPE": KeyScope, "PERSISTENT": bool, "RETAIN_ON_UNINSTALL": bool}


def admit_key(given: Any, kind: type = StateKey) -> None:
    """Raise `StateError` for what is no key of this kind that can be used."""
    if not (isinstance(given, type) and issubclass(given, kind) and hasattr(given, "KEY")):
        told = "state key" if kind is StateKey else "profile key"
        raise StateError(
            f"{given!r} is no {told}; give a class with a KEY that descends from {kind.__name__}"
        )


Identity: TypeAlias = tuple[object, ...]


def identity(key: type) -> Identity:
    """Return what definitions of one key have in common, as when a cell of a notebook runs again.

    Classes that one function makes have one name, too: those whose values or updates go otherwise are others.
    """
    said = [getattr(key, name, None) for name in ("KEY", "VERSION", "MERGE")]
    return key.__module__, key.__qualname__, *said, str(getattr(key, "_type", None))


def is_same(one: type, other: type) -> bool:
    """Return whether two classes are one, or definitions of one."""
    return one is other or identity(one) == identity(other)


def path_of(kind: type) -> str:
    """Return where a class stands."""
    return f"{kind.__module__}.{kind.__qualname__}"


def refuse_other(known: AnyKey, key: AnyKey) -> None:
    """Raise `StateError` for a class that is not the one registered by its name, nor defined as that is."""
    if not is_same(known, key):
        raise StateError(
            f"{key.KEY!r} is registered as {path_of(known)} (version {known.VERSION}), and {path_of(key)} "
            f"(version {key.VERSION}) is another one; make the state with the class that is to be used",
            state_key=key.KEY,
        )


def opened(key: type[TypedKey[Value]], raw: Json, version: int) -> Value:
    """Return a stored value, brought to the present version and validated.

    Raises:
        StateError: It cannot be read; names the key, the path and the stored version.
    """
    try:
        if version == UNSAID and key.VERSION > 1:
            raise StateError(
                f"{key.__qualname__} is version {key.VERSION}, and whether this is of it nobody has said: "
                "restore it with `versions`"
            )
        if version > key.VERSION:
            raise StateError(
                f"it was written by a newer one than {key.__qualname__}: upgrade the application"
            )
        return key.decode(raw if version in (key.VERSION, UNSAID) else key.upgrade(raw, version))
    except Exception as error:
        path = getattr(error, "path", None)
        told = str(error) if isinstance(error, KeepstateError) else repr(error)
        said = "an unsaid version" if version == UNSAID else f"version {version}"
        raise StateError(
            f"what is stored of {key.KEY!r} in {said} is no value of it: {told}; let `upgrade` read it, or "
            "delete it",
            state_key=key.KEY,
            path=path if isinstance(path, str) else None,
            stored_version=version,
        ) from error
