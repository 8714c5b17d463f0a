"""Store URLs: their syntax, and the backend of each scheme.

`scheme://[user[:password]@][host[:port][,host[:port]…]][/path][?option=value&…]`. A path after three slashes
is relative, after four slashes absolute; `#`, `?` and `%` in a path are written `%23`, `%3F` and `%25`.
Backends are imported when their scheme is first used. `tiered+` before a scheme puts memory in front of its
store. Other packages add backends by the entry point group `keepstate.stores`, whose names are schemes and
whose objects are `StoreBase` classes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar, get_args, get_origin
from urllib.parse import quote, unquote, unquote_plus

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
    "http": ("keepstate.stores.http.store", "HttpStore"),
    "https": ("keepstate.stores.http.store", "HttpStore"),
}

_ALIASES: Final[Mapping[str, str]] = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}
"""Other programs' schemes for the same backends."""

TIERED: Final = "tiered+"
"""Prefix of the scheme of a store with memory in front of it."""

_FILES: Final = frozenset({"file", "sqlite"})
"""Backends whose path may hold any character, because it names a file."""

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,40}")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%]*\]|[^:\[\]]*)(:[0-9]{0,9})?")
_HALF_QUOTED: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER: Final = re.compile(r"[\w.-]+")
_OPTION: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]*")
_NO_TEXT: Final = re.compile("[\ud800-\udfff]")
_SECRET: Final = re.compile(r"pas|pwd|pw$|secret|key|token|auth|cred")
"""Matches the names of options whose values are not shown, misspelled names included."""
_QUOTING: Final = "Quote special characters of a user or password, such as %40 for @, %2F for / and %3F for ?"

_ENTRY_POINTS = "keepstate.stores"
_PATH = re.compile(r"(?=.*[./])[\w./-]{1,400}")
"""A text that is most likely a path and needs no quoting in a URL. A URL with a password does not match."""
_WORD: Final = re.compile(r"[\w-]{1,60}")
"""A text without the characters that delimit a user or password."""


class OpensUrls(Protocol):
    """A backend's class, which opens URLs."""

    def from_url(self, url: StoreUrl, *, runner: Runner) -> StoreBase:
        """Return the unopened store that the URL names, or a wrapper of it."""
        ...


class StoreUrl(msgspec.Struct, frozen=True):
    """A store URL in its parts, unquoted."""

    scheme: str
    user: str | None
    password: str | None
    host: str
    """The part between the user and the path: one host and port, or several, separated by commas."""
    path: str
    """The part after the slash that follows the host: `app.db` or `/var/app.db`."""
    options: Mapping[str, str]

    @classmethod
    def parse(cls, text: str) -> StoreUrl:
        """Parse a URL.

        Raises:
            InvalidError: The URL is malformed. The message shows only its scheme, because any other part may
                be a password that was not quoted.
        """
        scheme, separator, rest = text.partition("://")
        if not separator or not _SCHEME.fullmatch(scheme):
            raise InvalidError(_not_a_url_message(text))
        if not text.isascii() and _NO_TEXT.search(text):
            raise InvalidError(
                f"{_visible_start(text)} holds a character that UTF-8 cannot encode. Write the URL again."
            )
        if "#" in rest:
            raise InvalidError(
                f"A store URL cannot have a part after '#'. Write %23 for a '#' in {_visible_start(text)}"
            )
        rest, _, query = rest.partition("?")
        authority, _, path = rest.partition("/")
        login, at, host = authority.rpartition("@")
        user, colon, password = login.partition(":")
        scheme = _scheme_of(text)
        if not all(_HOST.fullmatch(each) for each in host.split(",")):
            raise InvalidError(
                f"{_visible_start(text)} has no valid host and port before its path, such as "
                f"db.example:5432 or [::1]:5432. {_QUOTING}"
            )
        if _HALF_QUOTED.search(login):
            raise InvalidError(
                f"{_visible_start(text)} has a % that quotes nothing. {_QUOTING} and %25 for %"
            )
        if "@" in path and (authority or scheme.removeprefix(TIERED) not in _FILES):
            raise InvalidError(f"{_visible_start(text)} has an @ in its path. {_QUOTING}")
        return cls(
            scheme,
            unquote(user) if at else None,
            unquote(password) if colon else None,
            host,
            unquote(path),
            _options_of(text, query),
        )

    def __repr__(self) -> str:
        return f"<StoreUrl {self}>"

    def __str__(self) -> str:
        login = f"{self._visible_user}@" if self.user else ""
        path = f"/{quote(self.path)}" if self.path else ""
        options = {name: value for name, value in self.options.items() if not _SECRET.search(name.lower())}
        query = "&".join(f"{name}={_format_option(value)}" for name, value in options.items())
        return f"{self.scheme}://{login}{self.host}{path}" + (f"?{query}" if query else "")

    @property
    def _visible_user(self) -> str:
        """The user, unless it is more likely a password: Redis has no user without a password."""
        user = self.user or ""
        is_user = self.password or (self.backend == "postgresql" and _USER.fullmatch(user))
        return quote(user) if is_user else "…"

    @property
    def backend(self) -> str:
        """The scheme of the store behind the tier."""
        return self.scheme.removeprefix(TIERED)

    def servers(self) -> list[tuple[str, str]]:
        """Return the host of each server, without brackets, and its port; empty where the URL has none."""
        found = [match.groups("") for each in self.host.split(",") if (match := _HOST.fullmatch(each))]
        return [(host.strip("[]"), port[1:]) for host, port in found]

    def parse_options(self, kind: type[T], *, others: frozenset[str] = frozenset()) -> T:
        """Parse the options into a struct of typed fields.

        Args:
            kind: A `msgspec.Struct` whose fields are the known options.
            others: Names of options that the caller parses itself.

        Raises:
            InvalidError: An option is unknown, or its value is not of the option's type.
        """
        fields = msgspec.structs.fields(kind)
        known = sorted({field.encode_name for field in fields} | others)
        given = {name: value for name, value in self.options.items() if name not in others}
        for name in given:
            if name not in known:
                listed = ", ".join(known) or "none"
                raise InvalidError(
                    f"{self.scheme}:// does not have an option {name!r}. Its options: {listed}"
                )
        try:
            return msgspec.convert(given, kind, strict=False)
        except msgspec.ValidationError as error:
            wrong = next(field for field in fields if not _fits(given, field))
            value = "…" if _SECRET.search(wrong.encode_name) else given[wrong.encode_name]
            expected = _describe_type(wrong.type) or str(error).partition(" - at ")[0]
            raise InvalidError(
                f"Invalid option {wrong.encode_name}={value} of {self.scheme}://: {expected}"
            ) from error

    def reject_options(self) -> None:
        """Raise `InvalidError` if any option is given."""
        if self.options:
            raise InvalidError(
                f"{self.scheme}:// has no options, but the URL has {', '.join(self.options)}. Remove them."
            )


def reject_url_as_path(what: str, path: str) -> None:
    """Raise `InvalidError` for a URL that was passed as the path of a file; the message does not show it.

    `pathlib.Path` turns the two slashes after the scheme into one.
    """
    scheme, separator, _ = path.partition(":/")
    if "://" in path or (separator and _backend_of(scheme) in BACKENDS):
        raise InvalidError(
            f"`{what}` takes the path of a file, but a URL was passed. Pass it as a str where a URL is "
            f"expected."
        )


def shown(url: str) -> str:
    """Format a text that was passed as a URL for display, without its password even if it is misspelled."""
    try:
        return str(StoreUrl.parse(url))
    except InvalidError:
        return _visible_start(url)


def _format_option(value: str) -> str:
    return shown(value) if "://" in value else value


def _visible_start(text: str) -> str:
    """Return the scheme of a text that is not a URL, if it has one."""
    scheme, separator, _ = text.partition("://")
    return f"{scheme}://…" if separator and _SCHEME.fullmatch(scheme) else "…"


def _options_of(text: str, query: str) -> dict[str, str]:
    options = dict[str, str]()
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not _OPTION.fullmatch(name) or ("@" in value and "://" not in unquote(value)):
            raise InvalidError(
                f"{_visible_start(text)} has a part after its '?' that is not NAME=VALUE. {_QUOTING}"
            )
        if name in options:
            raise InvalidError(f"Option {name!r} is given twice in {_visible_start(text)}")
        options[name] = unquote_plus(value)
    return options


def _fits(given: Mapping[str, str], field: msgspec.structs.FieldInfo) -> bool:
    try:
        msgspec.convert(given.get(field.encode_name, field.default), field.type, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _describe_type(kind: Any) -> str | None:
    """Return the values that an option may have, if they are few."""
    if kind is bool:
        return "use 1 or 0, true or false"
    if get_origin(kind) is Literal:
        return f"use {' or '.join(get_args(kind))}"
    return next((expected for part in get_args(kind) if (expected := _describe_type(part))), None)


def _scheme_of(text: str) -> str:
    """Return the scheme of a URL, with aliases replaced."""
    scheme = text.partition("://")[0]
    tier = TIERED if scheme.lower().startswith(TIERED) else ""
    return tier + _backend_of(scheme)


def _backend_of(scheme: str) -> str:
    backend = scheme.lower().removeprefix(TIERED)
    return _ALIASES.get(backend, backend)


def _not_a_url_message(text: str) -> str:
    """Return the error message for a text that is not a URL, which is most often a path."""
    names_backend = text.partition("//")[0].lower() in {*BACKENDS, *_ALIASES}
    if not names_backend and _WORD.fullmatch(text):
        return f"{text!r} is not a store URL. Use a URL such as sqlite:///agents.db or memory://"
    if names_backend or not _PATH.fullmatch(text):
        return f"The text is not a store URL. Use a URL such as sqlite:///agents.db or memory://. {_QUOTING}"
    return f"{text!r} is not a store URL. {_suggest_url(text)}"


def _suggest_url(text: str) -> str:
    path = text.removeprefix("./")
    if path.endswith("/"):
        return f"Write file:///{path} for a folder (three slashes, then the path)."
    return f"Write sqlite:///{path} (three slashes, then the path), or pass pathlib.Path({text!r})."


def backend_class(scheme: str) -> OpensUrls:
    """Return the class that opens a scheme's URLs.

    Raises:
        InvalidError: No backend has this scheme. The message lists the known schemes.
        MissingExtraError: The backend's driver is not installed.
    """
    if scheme in BACKENDS:
        module, name = BACKENDS[scheme]
        loaded: Any = import_module(module)
        found: OpensUrls = getattr(loaded, name)
        return found
    from importlib.metadata import entry_points  # the package that parses them is large

    plugins = {point.name: point for point in entry_points(group=_ENTRY_POINTS)}
    if scheme in plugins:
        opens: OpensUrls = plugins[scheme].load()
        return opens
    known = ", ".join(f"{name}://" for name in sorted({*BACKENDS, *plugins}))
    raise InvalidError(f"No store has the scheme {scheme!r}. Known schemes: {known}")


def missing_extra(scheme: str, package: str, extra: str, error: ImportError) -> MissingExtraError:
    """Return the error that names the command for installing a driver."""
    install = f"pip install 'keepstate[{extra}]'"
    made = MissingExtraError(f"{scheme}:// needs {package}: {install}", install=install)
    made.__cause__ = error
    return made
