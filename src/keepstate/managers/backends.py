"""Where managers keep things, said by a name, a URL, or the description of a backend.

A description opens nothing: it stands for a URL, which the first call opens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from keepstate.engine.kernel.arguments import check_flag, check_text
from keepstate.errors import InvalidError
from keepstate.opening import admit_file, admit_url, shown_url
from keepstate.values import limits

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHARED_MEMORY: Final = "memory://default"
"""Where managers keep things that were told no place: shared by all of them in the process."""
REDIS: Final = "redis://localhost:6379"
_FOLDER: Final = "./state"
_SQLITE: Final = "./state/keepstate.db"


@dataclass(frozen=True, slots=True)
class MemoryBackend:
    """Memory of this process, shared by all who give the same name.

    Attributes:
        name: Which; empty for one that nobody else has.
    """

    name: str = "default"

    @property
    def store_url(self) -> str:
        """The URL that it stands for."""
        return f"memory://{quote(check_text('name', self.name))}"


@dataclass(frozen=True, slots=True)
class FileBackend:
    """A journal in a folder, used by one process at a time.

    Attributes:
        base_path: The folder, made if it is not there; the journal in it is `keepstate.journal`.
        format: `msgpack`, or `json` for people who read it.
        compression: Compress each write to the journal where that saves a tenth, whatever the format. A JSON
            journal is then no text any more. Without it, values over 4 KiB are compressed alone.
    """

    base_path: str | PathLike[str] = _FOLDER
    format: Literal["json", "msgpack"] = "msgpack"
    compression: bool = False

    def __post_init__(self) -> None:
        admit_file("base_path", self.base_path)
        if self.format not in ("json", "msgpack"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`format` is {self.format!r}; it is 'json' or 'msgpack'")
        check_flag("compression", self.compression)

    @property
    def store_url(self) -> str:
        """The URL that it stands for."""
        form = f"{self.format}-zstd" if self.compression else self.format
        return _of_file("file", os.path.join(self.base_path, ""), {"format": form})


@dataclass(frozen=True, slots=True)
class SQLiteBackend:
    """An SQLite file, for many processes of one machine.

    Attributes:
        path: The file; its folder is made if it is not there.
        durability: What an acknowledged write survives: `full` a power cut, `normal` a crash of the process.
    """

    path: str | PathLike[str] = _SQLITE
    durability: Literal["full", "normal"] = "full"

    def __post_init__(self) -> None:
        admit_file("path", self.path)
        if self.durability not in ("full", "normal"):  # pyright: ignore[reportUnnecessaryContains]
            raise InvalidError(f"`durability` is {self.durability!r}; it is 'full' or 'normal'")

    @property
    def store_url(self) -> str:
        """The URL that it stands for."""
        return _of_file("sqlite", self.path, {"durability": self.durability})


@dataclass(frozen=True, slots=True, repr=False)
class RedisBackend:
    """A Redis or Valkey server, for a fleet.

    Attributes:
        url: The server.
        db: The number of its database; the one in the URL if it is left at 0.
        key_prefix: What all keys there begin with: several applications may share a server.
        connection_pool_size: How many connections this process may use at once.
    """

    url: str = REDIS
    db: int = 0
    key_prefix: str = "keepstate"
    connection_pool_size: int = 16

    def __post_init__(self) -> None:
        _admit_scheme("url", self.url, ("redis", "rediss", "redis+cluster", "valkey", "valkeys"))
        check_text("key_prefix", self.key_prefix)
        limits.admit_count("connection_pool_size", self.connection_pool_size)
        if type(self.db) is not int or self.db < 0:
            raise InvalidError(f"`db` is {self.db!r}; it is the number of a database, 0 or more")
        if self.db and self.url.partition("://")[2].partition("?")[0].partition("/")[2]:
            raise InvalidError(f"the URL names a database, and `db` is {self.db}; give one of them")

    def __repr__(self) -> str:
        return described(self)

    @property
    def store_url(self) -> str:
        """The URL that it stands for."""
        server, _, query = self.url.partition("?")
        if self.db:
            server = f"{server.rstrip('/')}/{self.db}"
        options = {"prefix": self.key_prefix, "max_connections": str(self.connection_pool_size)}
        return _with_options(server, query, options)


@dataclass(frozen=True, slots=True, repr=False)
class PostgresBackend:
    """A PostgreSQL database, for a fleet.

    Attributes:
        url: The database: `postgresql://user@host:5432/database`.
        schema: Where its tables are, made if it is not there.
        connection_pool_size: How many connections this process may use at once.
    """

    url: str
    schema: str = "keepstate"
    connection_pool_size: int = 8

    def __post_init__(self) -> None:
        _admit_scheme("url", self.url, ("postgresql", "postgres"))
        check_text("schema", self.schema)
        limits.admit_count("connection_pool_size", self.connection_pool_size)

    def __repr__(self) -> str:
        return described(self)

    @property
    def store_url(self) -> str:
        """The URL that it stands for."""
        server, _, query = self.url.partition("?")
        options = {"schema": self.schema, "max_connections": str(self.connection_pool_size)}
        return _with_options(server, query, options)


Backend: TypeAlias = MemoryBackend | FileBackend | SQLiteBackend | RedisBackend | PostgresBackend
"""The description of a backend."""

_URL_FIELDS: Final = frozenset({"url", "redis_url", "backend"})
NAMES: Final = ("memory", "file", "sqlite", "redis", "postgres")


def described(settings: DataclassInstance) -> str:
    """Return the repr of settings with no password in their URLs, however these are misspelled."""
    parts: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        parts.append(f"{field.name}={_shown_field(field.name, value)}")
    return f"{type(settings).__name__}({', '.join(parts)})"


def _shown_field(name: str, value: object) -> str:
    # A URL may be meant; `Path` makes one slash of its two.
    if isinstance(value, bytes) or (isinstance(value, PurePath) and ":/" in str(value)):
        return f"<{type(value).__name__}>"
    if isinstance(value, str) and (name in _URL_FIELDS or "://" in value):
        return _shown_place(value)
    return repr(value)


def _shown_place(text: str) -> str:
    """Return the repr of a place that a caller gave: a backend's name, or a URL without its password."""
    return repr(text if text in NAMES else shown_url(text))


def url_of(
    persistence: str | Backend | None,
    *,
    url: str | None = None,
    redis_url: str | None = None,
    file_path: str | PathLike[str] | None = None,
) -> str:
    """Return the URL that the arguments of a manager stand for.

    Raises:
        InvalidError: They name nothing, or one of them would have no effect; the right ones are named.
    """
    given = {
        name: value
        for name, value in (("url", url), ("redis_url", redis_url), ("file_path", file_path))
        if value is not None
    }
    if persistence is None:
        _refuse_beside(given, "no `persistence`", allowed=("url",))
        return SHARED_MEMORY if url is None else admit_url("url", url)
    if not isinstance(persistence, str):
        _refuse_beside(given, f"{type(persistence).__name__}(…)")
        return persistence.store_url
    if "://" in persistence:
        _refuse_beside(given, "a URL")
        return persistence
    return _of_name(persistence, given)


def _of_name(name: str, given: Mapping[str, str | PathLike[str]]) -> str:
    if name not in NAMES:
        raise InvalidError(
            f"`persistence` is {_shown_place(name)}; it is one of {', '.join(NAMES)}, a URL, a description "
            "such as RedisBackend(…), or an open store"
        )
    beside = f"persistence={name!r}"
    if name == "memory":
        _refuse_beside(given, beside)
        return SHARED_MEMORY
    if name in ("file", "sqlite"):
        _refuse_beside(given, beside, allowed=("file_path", "url"))
        if "url" in given:
            return _admit_scheme("url", given["url"], (name,))
        path = given.get("file_path")
        if path is not None:
            admit_file("file_path", path)
        if name == "sqlite":
            return SQLiteBackend(_SQLITE if path is None else path).store_url
        return FileBackend().store_url if path is None else _of_journal(path)
    if name == "redis":
        _refuse_beside(given, beside, allowed=("redis_url", "url"))
        server = given.get("redis_url", given.get("url", REDIS))
        return _admit_scheme("redis_url", server, ("redis", "rediss", "redis+cluster", "valkey", "valkeys"))
    _refuse_beside(given, beside, allowed=("url",))
    if "url" not in given:
        raise InvalidError(f"{beside} needs `url`, such as postgresql://user@host:5432/database")
    return _admit_scheme("url", given["url"], ("postgresql", "postgres"))


def _of_journal(path: str | PathLike[str]) -> str:
    """Return the URL of a journal; one whose name ends in `.json` is kept as JSON."""
    name = admit_file("file_path", path)
    return _of_file("file", name, {"format": "json"} if name.endswith(".json") else {})


def _of_file(scheme: str, path: str | PathLike[str], options: Mapping[str, str]) -> str:
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}:///{quote(os.fspath(path))}{query}"


def _with_options(server: str, query: str, options: Mapping[str, str]) -> str:
    """Return the URL with options, where it does not say them itself."""
    named = {part.partition("=")[0] for part in query.split("&")}
    added = urlencode({name: value for name, value in options.items() if name not in named})
    return f"{server}?{'&'.join(part for part in (query, added) if part)}"


def _refuse_beside(given: Mapping[str, object], beside: str, *, allowed: tuple[str, ...] = ()) -> None:
    needless = [name for name in given if name not in allowed]
    if needless:
        right = {"redis_url": "persistence='redis'", "file_path": "persistence='file' or 'sqlite'"}
        wanted = right.get(needless[0], "persistence='postgres', or alone")
        raise InvalidError(f"`{needless[0]}` has no effect beside {beside}; it goes with {wanted}")
    if len(given) > 1:
        raise InvalidError(f"{' and '.join(f'`{name}`' for name in given)} are two places; give one of them")


def _admit_scheme(what: str, url: object, schemes: tuple[str, ...]) -> str:
    text = admit_url(what, url)
    if text.partition("://")[0].lower() not in schemes:
        raise InvalidError(f"`{what}` is no URL of {' or '.join(schemes)}: {shown_url(text)!r}")
    return text
