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
}

_ALIASES: Final[Mapping[str, str]] = {"postgres": "postgresql", "valkey": "redis", "valkeys": "rediss"}
"""Schemes that other programs and hosts give for the same."""

TIERED: Final = "tiered+"
"""Stands before the scheme of a store that has memory in front of it."""

_FILES: Final = frozenset({"file", "sqlite"})
"""Backends whose path may hold any sign, for it names a file."""

_SCHEME: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]{0,40}")
_HOST: Final = re.compile(r"(\[[0-9a-fA-F:.%]*\]|[^:\[\]]*)(:\d*)?")
_HALF_QUOTED: Final = re.compile(r"%(?![0-9a-fA-F]{2})")
_USER: Final = re.compile(r"[\w.-]+")
_OPTION: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9_.-]*")
_NO_TEXT: Final = re.compile("[\ud800-\udfff]")
_SECRET: Final = re.compile(r"pas|pwd|pw$|secret|key|token|auth|cred")
"""Found in the names of options whose values are not shown; misspelled ones too."""
_QUOTING: Final = "signs of a user or password are quoted there, such as %40 for @, %2F for / and %3F for ?"

_ENTRY_POINTS = "keepstate.stores"
_PATH = re.compile(r"(?=.*[./])[\w./-]{1,400}")
"""What is most likely meant as a path, and needs no quoting in a URL; a password would not show."""
_WORD: Final = re.compile(r"[\w-]{1,60}")
"""A text without the signs that stand around a user or password."""


class OpensUrls(Protocol):
    """What a backend's class offers to be found by its URL."""

    def from_url(self, url: StoreUrl, *, runner: Runner) -> StoreBase:
        """Return the store that the URL names, or a wrapper that does the same, not yet opened."""
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
        """Return the parts of a URL.

        Raises:
            InvalidError: It is malformed. The message says how one looks, and shows only its scheme, because
                any other part may be a password that was not quoted.
        """
        scheme, found, rest = text.partition("://")
        if not found or not _SCHEME.fullmatch(scheme):
            raise InvalidError(_not_a_url(text))
        if not text.isascii() and _NO_TEXT.search(text):
            raise InvalidError(f"{_start(text)} holds a character that UTF-8 cannot hold; write the URL anew")
        if "#" in rest:
            raise InvalidError(
                f"a store URL has no part after a '#'; write %23 where {_start(text)} means one"
            )
        rest, _, query = rest.partition("?")
        place, _, path = rest.partition("/")
        login, at, host = place.rpartition("@")
        user, colon, password = login.partition(":")
        scheme = _scheme_of(text)
        if not all(_HOST.fullmatch(each) for each in host.split(",")):
            raise InvalidError(
                f"{_start(text)} names no server: no host and port stand before the path, such as "
                f"db.example:5432 or [::1]:5432; {_QUOTING}"
            )
        if _HALF_QUOTED.search(login):
            raise InvalidError(f"{_start(text)} has a % that quotes nothing; {_QUOTING} and %25 for %")
        if "@" in path and (place or scheme.removeprefix(TIERED) not in _FILES):
            raise InvalidError(f"{_start(text)} has an @ in its path; {_QUOTING}")
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
        login = f"{self._shown_user}@" if self.user else ""
        path = f"/{quote(self.path)}" if self.path else ""
        options = {name: value for name, value in self.options.items() if not _SECRET.search(name.lower())}
        query = "&".join(f"{name}={_shown_option(value)}" for name, value in options.items())
        return f"{self.scheme}://{login}{self.host}{path}" + (f"?{query}" if query else "")

    @property
    def _shown_user(self) -> str:
        """The user, unless it is more likely a password: Redis knows no user without one."""
        user = self.user or ""
        is_user = self.password or (self.backend == "postgresql" and _USER.fullmatch(user))
        return quote(user) if is_user else "…"

    @property
    def backend(self) -> str:
        """The scheme of the store that keeps what is written."""
        return self.scheme.removeprefix(TIERED)

    def options_as(self, kind: type[T], *, beside: frozenset[str] = frozenset()) -> T:
        """Return the options as a struct of typed fields.

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
            value = "…" if _SECRET.search(wrong.encode_name) else given[wrong.encode_name]
            wanted = _wanted(wrong.type) or str(error).partition(" - at ")[0]
            raise InvalidError(
                f"{self.scheme}:// cannot take the option {wrong.encode_name}={value}: {wanted}"
            ) from error

    def refuse_options(self) -> None:
        """Raise `InvalidError` if any option is given."""
        if self.options:
            raise InvalidError(f"{self.scheme}:// has no options, but {', '.join(self.options)} was given")


def refuse_as_path(what: str, path: str) -> None:
    """Raise `InvalidError` for a URL that was given as the path of a file; the message does not show it.

    `pathlib.Path` makes one slash of the two after the scheme.
    """
    scheme, found, _ = path.partition(":/")
    if "://" in path or (found and _backend_of(scheme) in BACKENDS):
        raise InvalidError(
            f"`{what}` is the path of a file, and a URL was given; give that as a str where a URL is taken"
        )


def shown(url: str) -> str:
    """Return what may be shown of a text that was given as a URL: no password, however it is misspelled."""
    try:
        return str(StoreUrl.parse(url))
    except InvalidError:
        return _start(url)


def _shown_option(value: str) -> str:
    return shown(value) if "://" in value else value


def _start(text: str) -> str:
    """Return the scheme of a text that is no URL, if it has one."""
    scheme, found, _ = text.partition("://")
    return f"{scheme}://…" if found and _SCHEME.fullmatch(scheme) else "…"


def _options_of(text: str, query: str) -> dict[str, str]:
    options = dict[str, str]()
    for part in filter(None, query.split("&")):
        name, equals, value = part.partition("=")
        if not equals or not _OPTION.fullmatch(name) or ("@" in value and "://" not in unquote(value)):
            raise InvalidError(f"{_start(text)} has a part after its '?' that is not NAME=VALUE; {_QUOTING}")
        if name in options:
            raise InvalidError(f"option {name!r} stands twice in {_start(text)}")
        options[name] = unquote_plus(value)
    return options


def _fits(given: Mapping[str, str], field: msgspec.structs.FieldInfo) -> bool:
    try:
        msgspec.convert(given.get(field.encode_name, field.default), field.type, strict=False)
    except msgspec.ValidationError:
        return False
    return True


def _wanted(kind: Any) -> str | None:
    """Return which values an option may have, where they are few."""
    if kind is bool:
        return "it is 1 or 0, true or false"
    if get_origin(kind) is Literal:
        return f"it is {' or '.join(get_args(kind))}"
    return next((wanted for part in get_args(kind) if (wanted := _wanted(part))), None)


def _scheme_of(text: str) -> str:
    """Return the scheme that a URL begins with, by the name that a store has here."""
    scheme = text.partition("://")[0]
    tier = TIERED if scheme.lower().startswith(TIERED) else ""
    return tier + _backend_of(scheme)


def _backend_of(scheme: str) -> str:
    backend = scheme.lower().removeprefix(TIERED)
    return _ALIASES.get(backend, backend)


def _not_a_url(text: str) -> str:
    """Return what to write instead of a text that is no URL: most often it is a path."""
    names_backend = text.partition("//")[0].lower() in {*BACKENDS, *_ALIASES}
    if not names_backend and _WORD.fullmatch(text):
        return f"{text!r} is no store URL; one looks like sqlite:///agents.db or memory://"
    if names_backend or not _PATH.fullmatch(text):
        return f"this text is no store URL; one looks like sqlite:///agents.db or memory://; {_QUOTING}"
    return f"{text!r} is no store URL; {_suggested(text)}"


def _suggested(text: str) -> str:
    path = text.removeprefix("./")
    if path.endswith("/"):
        return f"write file:///{path} for a folder (three slashes, then the path)"
    return f"write sqlite:///{path} (three slashes, then the path), or give pathlib.Path({text!r})"


def backend_class(scheme: str) -> OpensUrls:
    """Return the class that opens a scheme's URLs.

    Raises:
        InvalidError: No backend has this scheme; the known ones are listed.
        MissingExtraError: The backend's driver is not installed.
    """
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
    """Return the error that names the command to install a driver."""
    install = f"pip install 'keepstate[{extra}]'"
    made = MissingExtraError(f"{scheme}:// needs {package}: {install}", install=install)
    made.__cause__ = error
    return made
