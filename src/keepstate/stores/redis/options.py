"""What a Redis URL says: servers, user, database and options."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from keepstate.errors import InvalidError
from keepstate.stores.redis.wire import Access, Address
from keepstate.stores.retries import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl

CLUSTER: Final = "redis+cluster"
_TLS = "rediss"
_PORT = 6379

_Seconds = Annotated[float, msgspec.Meta(gt=0)]


class RedisOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a Redis URL."""

    prefix: Annotated[str, msgspec.Meta(min_length=1, max_length=64, pattern=r"^[^{}\s]+$")] = "keepstate"
    """What all keys begin with: several stores may share a server."""
    timeout_s: _Seconds = 5.0
    """How long to wait for a connection, and for an answer."""
    retry_for_s: Annotated[float, msgspec.Meta(ge=0)] = RETRY_FOR_S
    """How long to ask again while a server is away."""
    max_connections: Annotated[int, msgspec.Meta(ge=1)] = 16
    """To each server; who comes when all are in use waits."""
    unsafe_policy: bool = False
    """Works on a server that may evict state, or does not tell whether it does."""
    tls: bool = False
    """Speaks TLS; `rediss://` always does."""
    tls_ca: str | None = None
    """A file with the certificates to trust, in place of the system's."""
    tls_cert: str | None = None
    """A file with the certificate to show."""
    tls_key: str | None = None
    """A file with its key."""


def addresses(url: StoreUrl) -> list[Address]:
    """Return the servers that a URL names, or raise `InvalidError` that shows how it is written."""
    found: list[Address] = []
    for part in url.host.split(","):
        host, colon, port = part.rpartition(":")
        if not colon or part.endswith("]"):
            host, port = part, str(_PORT)
        host = host.removeprefix("[").removesuffix("]")
        if not host or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise InvalidError(f"{url} names no server in {part!r}; write {url.scheme}://HOST:PORT")
        found.append(Address(host, int(port)))
    if len(found) > 1 and url.scheme != CLUSTER:
        raise InvalidError(f"{url} names several servers; only {CLUSTER}:// has more than one")
    return found


def access(url: StoreUrl, options: RedisOptions) -> Access:
    """Return how to connect to the servers of a URL."""
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
        only = "a cluster has only 0" if url.scheme == CLUSTER else "give a number after the slash"
        raise InvalidError(f"{url} names no database in {text!r}; {only}")
    return int(text)
