"""The parts of a Redis URL: servers, user, database and options."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from keepstate.errors import InvalidError
from keepstate.stores.redis.wire import Access, Address
from keepstate.stores.retries import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl

CLUSTER: Final = "redis+cluster"
_TLS = "rediss"
_PORT = "6379"

_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Redis URL."""

    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^{}\s]+$")] = "keepstate"
    """Prefix of all keys, so that several stores can share a server."""
    timeout_s: _Seconds = 5.0
    """Seconds to wait for a connection, and for a reply."""
    retry_for_s: Annotated[float, msgspec.Meta(ge=0)] = RETRY_FOR_S
    """Seconds for which calls are retried while a server is unavailable."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 16
    """Maximum number of connections to each server; further calls wait for one."""
    unsafe_policy: bool = False
    """Accept a server that may evict state, or does not report whether it does."""
    tls: bool = False
    """Use TLS; `rediss://` always does."""
    tls_ca: str | None = None
    """A file with the trusted certificates, instead of the system's."""
    tls_cert: str | None = None
    """A file with the certificate of this client."""
    tls_key: str | None = None
    """A file with the key of that certificate."""


def addresses(url: StoreUrl) -> list[Address]:
    """Return the servers that a URL names; an `InvalidError` shows the syntax."""
    found: list[Address] = []
    for host, port in url.servers():
        address = Address(host, int(port or _PORT))
        if not host or not 0 < address.port < 65_536:
            where = f" in '{address}'" if host else ""
            raise InvalidError(f"{url} does not name a server{where}. Write {url.scheme}://HOST:PORT")
        found.append(address)
    if len(found) > 1 and url.scheme != CLUSTER:
        raise InvalidError(f"{url} names several servers. Only {CLUSTER}:// has more than one.")
    return found


def access(url: StoreUrl, options: RedisOptions) -> Access:
    """Return the settings of connections to the servers of a URL."""
    return Access(
        url=str(url),
        user=url.user or None,
        password=url.password,
        database=_database(url),
        timeout_s=options.timeout_s,
        tls=options.tls or url.scheme == _TLS,
        tls_ca=options.tls_ca,
        tls_cert=options.tls_cert,
        tls_key=options.tls_key,
    )


def _database(url: StoreUrl) -> int:
    text = url.path or "0"
    if not text.isdecimal() or (url.scheme == CLUSTER and int(text) != 0):
        only = "A cluster has only 0." if url.scheme == CLUSTER else "Write a number after the slash."
        raise InvalidError(f"{url} does not name a database in {text!r}. {only}")
    return int(text)
