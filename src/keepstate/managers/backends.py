"""Storage of managers, given as a name, a URL, or a description of a backend.

A description opens nothing. It is converted to a URL, which the first call opens.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from os import PathLike
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode

from keepstate.engine.kernel.arguments import check_choice, check_flag, check_text
from keepstate.errors import InvalidError
from keepstate.opening import check_file, check_url, shown_url
from keepstate.values import limits

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

SHARED_MEMORY: Final = "memory://default"
"""The default storage, shared by all managers of the process."""
REDIS: Final = "redis://localhost:6379"
_FOLDER: Final = "./state"
_SQLITE: Final = "./state/keepstate.db"


@dataclass(frozen=True, slots=True)
class MemoryBackend:
    """Memory of this process, shared by all managers that use the same name.

    Attributes:
        name: Name of the memory; empty for a private one.
    """

    name: str = "default"

    @property
    def store_url(self) -> str:
        """The store's URL."""
        return f"memory://{quote(check_text('name', self.name))}"


@dataclass(frozen=True, slots=True)
class FileBackend:
    """A journal in a folder, used by one process at a time.

    Attributes:
        base_path: The folder, created if it is missing. The journal in it is `keepstate.journal`.
        format: `msgpack`, or `json` for people to read.
        compression: Compress each write to the journal if that saves a tenth, in either format. A compressed
            JSON journal is not text. Without this option, only values over 4 KiB are compressed.
    """

    base_path: str | PathLike[str] = _FOLDER
    format: Literal["json", "msgpack"] = "msgpack"
    compression: bool = False

    def __post_init__(self) -> None:
        check_file("base_path", self.base_path)
        check_choice("format", self.format, "json", "msgpack")
        check_flag("compression", self.compression)

    @property
    def store_url(self) -> str:
        """The store's URL."""
        form = f"{self.format}-zstd" if self.compression else self.format
        return _url_of_file("file", os.path.join(self.base_path, ""), {"format": form})


@dataclass(frozen=True, slots=True)
class SQLiteBackend:
    """An SQLite file, for many processes of one machine.

    Attributes:
        path: The file; its folder is created if it is missing.
        durability: `full`: acknowledged writes survive a power cut. `normal`: they survive a process crash.
    """

    path: str | PathLike[str] = _SQLITE
    durability: Literal["full", "normal"] = "full"

    def __post_init__(self) -> None:
        check_file("path", self.path)
        check_choice("durability", self.durability, "full", "normal")

    @property
    def store_url(self) -> str:
        """The store's URL."""
        return _url_of_file("sqlite", self.path, {"durability": self.durability})


@dataclass(frozen=True, slots=True, repr=False)
class RedisBackend:
    """A Redis or Valkey server, for a fleet.

    Attributes:
        url: URL of the server.
        db: Number of the database; with 0, the number in the URL is used.
        key_prefix: Prefix of all keys, so that several applications can share a server.
        connection_pool_size: Maximum number of connections of this process.
    """

    url: str = REDIS
    db: int = 0
    key_prefix: str = "keepstate"
    connection_pool_size: int = 16

    def __post_init__(self) -> None:
        _check_scheme("url", self.url, ("redis", "rediss", "redis+cluster", "valkey", "valkeys"))
        check_text("key_prefix", self.key_prefix)
        limits.admit_count("connection_pool_size", self.connection_pool_size)
        limits.admit_count("db", self.db, 0)
        if self.db and self.url.partition("://")[2].partition("?")[0].partition("/")[2]:
            raise InvalidError(f"the URL names a database, and `db` is {self.db}. Give the number once.")

    def __repr__(self) -> str:
        return format_settings(self)

    @property
    def store_url(self) -> str:
        """The store's URL."""
        server, _, query = self.url.partition("?")
        if self.db:
            server = f"{server.rstrip('/')}/{self.db}"
        options = {"prefix": self.key_prefix, "max_connections": str(self.connection_pool_size)}
        return _add_options(server, query, options)


@dataclass(frozen=True, slots=True, repr=False)
class PostgresBackend:
    """A PostgreSQL database, for a fleet.

    Attributes:
        url: URL of the database: `postgresql://user@host:5432/database`.
        schema: Schema of the tables, created if it is missing.
        connection_pool_size: Maximum number of connections of this process.
    """

    url: str
    schema: str = "keepstate"
    connection_pool_size: int = 8

    def __post_init__(self) -> None:
        _check_scheme("url", self.url, ("postgresql", "postgres"))
        check_text("schema", self.schema)
        limits.admit_count("connection_pool_size", self.connection_pool_size)

    def __repr__(self) -> str:
        return format_settings(self)

    @property
    def store_url(self) -> str:
        """The store's URL."""
        server, _, query = self.url.partition("?")
        options = {"schema": self.schema, "max_connections": str(self.connection_pool_size)}
        return _add_options(server, query, options)


Backend: TypeAlias = MemoryBackend | FileBackend | SQLiteBackend | RedisBackend | PostgresBackend
"""A description of a backend."""

_URL_FIELDS: Final = frozenset({"url", "redis_url", "backend"})
NAMES: Final = ("memory", "file", "sqlite", "redis", "postgres")


def format_settings(settings: DataclassInstance) -> str:
    """Return the repr of settings, without the passwords of their URLs, even of misspelled ones."""
    parts: list[str] = []
    for field in fields(settings):
        value = getattr(settings, field.name)
        parts.append(f"{field.name}={_format_field(field.name, value)}")
    return f"{type(settings).__name__}({', '.join(parts)})"


def _format_field(name: str, value: object) -> str:
    # A path may have been meant as a URL; `Path` turns its two slashes into one.
    if isinstance(value, bytes) or (isinstance(value, PurePath) and ":/" in str(value)):
        return f"<{type(value).__name__}>"
    if isinstance(value, str) and (name in _URL_FIELDS or "://" in value):
        return _format_location(value)
    return repr(value)


def _format_location(text: str) -> str:
    """Return the repr of a location: the name of a backend, or a URL without its password."""
    return repr(text if text in NAMES else shown_url(text))


def url_of(persistence: str | Backend | None, given: Mapping[str, str | PathLike[str]]) -> str:
    """Return the URL that a manager's arguments name.

    Raises:
        InvalidError: They name no backend, or one would have no effect; the message has the right ones.
    """
    if persistence is None:
        _reject_extra(given, "no `persistence`", allowed=("url",))
        return check_url("url", given["url"]) if "url" in given else SHARED_MEMORY
    if not isinstance(persistence, str):
        _reject_extra(given, f"{type(persistence).__name__}(…)")
        return persistence.store_url
    if "://" in persistence:
        _reject_extra(given, "a URL")
        return persistence
    return _url_of_name(persistence, given)


def _url_of_name(name: str, given: Mapping[str, str | PathLike[str]]) -> str:
    if name not in NAMES:
        raise InvalidError(
            f"`persistence` is {_format_location(name)}. Use {', '.join(NAMES)}, a URL, a description "
            "such as RedisBackend(…), or an open store."
        )
    backend_name = f"persistence={name!r}"
    if name == "memory":
        _reject_extra(given, backend_name)
        return SHARED_MEMORY
    if name in ("file", "sqlite"):
        _reject_extra(given, backend_name, allowed=("file_path", "url"))
        if "url" in given:
            return _check_scheme("url", given["url"], (name,))
        path = given.get("file_path")
        if path is not None:
            check_file("file_path", path)
        if name == "sqlite":
            return SQLiteBackend(_SQLITE if path is None else path).store_url
        return FileBackend().store_url if path is None else _url_of_journal(path)
    if name == "redis":
        _reject_extra(given, backend_name, allowed=("redis_url", "url"))
        server = given.get("redis_url", given.get("url", REDIS))
        return _check_scheme("redis_url", server, ("redis", "rediss", "redis+cluster", "valkey", "valkeys"))
    _reject_extra(given, backend_name, allowed=("url",))
    if "url" not in given:
        raise InvalidError(f"{backend_name} needs a URL. Pass url='postgresql://user@host:5432/database'.")
    return _check_scheme("url", given["url"], ("postgresql", "postgres"))


def _url_of_journal(path: str | PathLike[str]) -> str:
    """Return the URL of a journal; a file named `*.json` uses the JSON format."""
    name = check_file("file_path", path)
    return _url_of_file("file", name, {"format": "json"} if name.endswith(".json") else {})


def _url_of_file(scheme: str, path: str | PathLike[str], options: Mapping[str, str]) -> str:
    query = f"?{urlencode(options)}" if options else ""
    return f"{scheme}:///{quote(os.fspath(path))}{query}"


def _add_options(server: str, query: str, options: Mapping[str, str]) -> str:
    """Return the URL with options, except options that it already has."""
    named = {part.partition("=")[0] for part in query.split("&")}
    added = urlencode({name: value for name, value in options.items() if name not in named})
    return f"{server}?{'&'.join(part for part in (query, added) if part)}"


def _reject_extra(given: Mapping[str, object], backend_name: str, *, allowed: tuple[str, ...] = ()) -> None:
    needless = [name for name in given if name not in allowed]
    if needless:
        right = {"redis_url": "persistence='redis'", "file_path": "persistence='file' or 'sqlite'"}
        wanted = right.get(needless[0], "persistence='postgres', or alone")
        raise InvalidError(f"`{needless[0]}` has no effect with {backend_name}. Use it with {wanted}.")
    if len(given) > 1:
        raise InvalidError(f"{' and '.join(f'`{name}`' for name in given)} are two locations. Pass one.")


def _check_scheme(what: str, url: object, schemes: tuple[str, ...]) -> str:
    text = check_url(what, url)
    if text.partition("://")[0].lower() not in schemes:
        raise InvalidError(f"`{what}` is not a URL of {' or '.join(schemes)}: {shown_url(text)!r}")
    return text
