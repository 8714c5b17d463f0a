"""Store URLs: what they look like, and which backend a scheme names.

`scheme://[user[:password]@][host[:port][,host[:port]…]][/path][?option=value&…]`. A path after three slashes
is relative, after four absolute; `#`, `?` and `%` inside one are written `%23`, `%3F` and `%25`. Backends are
imported when their scheme is first used. `tiered+` before a scheme puts memory in front of its store. Other
packages add theirs by the entry point group `keepstate.stores`, whose names are schemes and whose objects are
`StoreBase` classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args, get_origin
from urllib.parse import parse_qsl, quote, unquote

import msgspec

from keepstate.errors import InvalidError, MissingExtraError

if TYPE_CHECKING:
    from keepstate._runner import Runner
    from keepstate.stores.base import StoreBase

T = TypeVar("T", bound=msgspec.Struct)

BACKENDS: Final[Mapping[str, tuple[str, str]]] = {
    "memory": ("keepstate.stores.memory", "MemoryStore"),
    "file": ("keepstate.stores.file", "FileStore"),
    "sqlite": ("keepstate.stores.sqlite", "SqliteStore"),
    "redis": ("keepstate.stores.redis", "RedisStore"),
    "rediss": ("keepstate.stores.redis", "RedisStore"),
    "redis+cluster": ("keepstate.stores.redis", "RedisStore"),
    "postgresql": ("keepstate.stores.postgres", "PostgresStore"),
}

_ALIASES: Final[Mapping[str, str]] = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}
"""Schemes that other programs and hosts give for the same."""

TIERED: Final = "tiered+"
"""Stands before the scheme of a store that has memory in front of it."""

_ENTRY_POINTS = "keepstate.stores"
_PATH = re.compile(r"(?=.*[./])[\w./-]+")
"""What is most likely meant as a path, and needs no quoting in a URL; a password would not show."""


class OpensUrls(Protocol):
    """What a backend's class offers to be found by its URL."""

    def from_url(self, url: StoreUrl, *, runner: Runner) -> StoreBase:
        """Returns the store that the URL names, or a wrapper that does the same, not yet opened."""
        ...


class StoreUrl(msgspec.Struct, frozen=True):
    """A store URL in its parts, unquoted."""

    scheme: str
    user: str | None
    password: str | None
    host: str
    """Everything between the user and the path: one host and port, or several with commas."""
    path: str
    """What follows the slash after the host: `app.db` or `/var/app.db`."""
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Returns the parts of a URL, or raises `InvalidError` that shows how one looks."""
        scheme, found, rest = text.partition("://")
        shown = repr(_redacted(text))
        if not found or not scheme:
            raise InvalidError(f"{shown} is no store URL; {_suggested(text)}")
        if "#" in rest:
            raise InvalidError(f"a store URL has no part after a '#'; write %23 where {shown} means one")
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        login, at, host = place.rpartition("@")
        user, colon, password = login.partition(":")
        options = dict[str, str]()
        for name, value in parse_qsl(query, keep_blank_values=True):
            if name in options:
                raise InvalidError(f"option {name!r} stands twice in {shown}")
            options[name] = value
        return cls(
            _scheme_of(text),
            unquote(user) if at else None,
            unquote(password) if colon else None,
            host,
            unquote(path),
            options,
        )

    def __repr__(self) -> str:
        return f"<StoreUrl {self}>"

    def __str__(self) -> str:
        login = f"{quote(self.user)}@" if self.user else ""
        path = f"/{quote(self.path)}" if self.path else ""
        options = [(name, _shown(value)) for name, value in self.options.items() if not _is_secret(name)]
        query = "&".join(f"{name}={value}" for name, value in options)
        return f"{self.scheme}://{login}{self.host}{path}" + (f"?{query}" if query else "")

    @property
    def backend(self) -> str:
        """Returns the scheme of the store that keeps what is written."""
        return self.scheme.removeprefix(TIERED)

    def options_as(self, kind: type[T], *, beside: frozenset[str] = frozenset()) -> T:
        """Returns the options as a struct of typed fields.

        Args:
            kind: A `msgspec.Struct` whose fields are the known options.
            beside: Names that the caller reads by itself.

        Raises:
            InvalidError: An option is unknown or no value of its type; the known ones are listed.
        """
        fields = msgspec.structs.fields(kind)
        known = sorted({field.encode_name for field in fields} | beside)
        given = {name: value for name, value in self.options.items() if name not in beside}
        for name in given:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise InvalidError(f"{self.scheme}:// knows no option {name!r}; it knows {listed}")
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            wrong = next(field for field in fields if not _fits(given, field))
            shown = "…" if _is_secret(wrong.encode_name) else given[wrong.encode_name]
            wanted = _wanted(wrong.type) or str(error).partition(" - at ")[0]
            raise InvalidError(
                f"{self.scheme}:// cannot take the option {wrong.encode_name}={shown}: {wanted}"
            ) from error

    def refuse_options(self) -> None:
        """Raises `InvalidError` if any option is given."""
        if self.options:
            raise InvalidError(f"{self.scheme}:// has no options, but {', '.join(self.options)} was given")


def _shown(value: str) -> str:
    """Returns an option's value; one that is a URL itself without its password."""
    return str(StoreUrl.parse(value)) if "://" in value else value


def _fits(given: Mapping[str, str], field: msgspec.structs.FieldInfo) -> bool:
    try:
        msgspec.convert(given.get(field.encode_name, field.default), field.type, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _wanted(kind: Any) -> str | None:
    """Returns which values an option may have, where they are few."""
    if kind is bool:
        return "it is 1 or 0, true or false"
    if get_origin(kind) is Literal:
        return f"it is {' or '.join(get_args(kind))}"
    return next((wanted for part in get_args(kind) if (wanted := _wanted(part))), None)


def _scheme_of(text: str) -> str:
    """Returns the scheme that a URL begins with, by the name that a store has here."""
    scheme = text.partition("://")[0].lower()
    tier = TIERED if scheme.startswith(TIERED) else ""
    backend = scheme.removeprefix(TIERED)
    return tier + _ALIASES.get(backend, backend)


def _redacted(text: str) -> str:
    """Returns what of a URL may be shown even if it is malformed: neither a login nor an option's value."""
    place = text.partition("?")[0]
    head, at, tail = place.rpartition("@")
    return f"{head.partition('://')[0]}://…@{tail}" if at else place


def _suggested(text: str) -> str:
    """Returns what to write instead of a text that is no URL: most often it is a path."""
    if not _PATH.fullmatch(text):
        return "one looks like sqlite:///agents.db or memory://"
    path = text.removeprefix("./")
    if path.endswith("/"):
        return f"write file:///{path} for a folder (three slashes, then the path)"
    return f"write sqlite:///{path} (three slashes, then the path), or give pathlib.Path({text!r})"


def _is_secret(name: str) -> bool:
    return any(word in name.lower() for word in ("password", "secret", "key"))


def store_class(scheme: str) -> OpensUrls:
    """Returns the class that opens a scheme's URLs.

    Raises:
        InvalidError: No backend has this scheme; the known ones are listed.
        MissingExtraError: The backend's driver is not installed.
    """
    if scheme.startswith(TIERED):
        store_class(scheme.removeprefix(TIERED))
        tiered: Any = import_module("keepstate.stores.wrappers.tiered")
        wrapper: OpensUrls = tiered.TieredStore
        return wrapper
    if scheme in BACKENDS:
        module, name = BACKENDS[scheme]
        loaded: Any = import_module(module)
        found: OpensUrls = getattr(loaded, name)
        return found
    plugins = {point.name: point for point in entry_points(group=_ENTRY_POINTS)}
    if scheme in plugins:
        opens: OpensUrls = plugins[scheme].load()
        return opens
    known = ", ".join(f"{name}://" for name in sorted({*BACKENDS, *plugins}))
    raise InvalidError(f"no store has the scheme {scheme!r}; known are {known}")


def missing_extra(scheme: str, package: str, extra: str, error: ImportError) -> MissingExtraError:
    """Returns the error that names the command to install a driver."""
    install = f"pip install 'keepstate[{extra}]'"
    made = MissingExtraError(f"{scheme}:// needs {package}: {install}", install=install)
    made.__cause__ = error
    return made
