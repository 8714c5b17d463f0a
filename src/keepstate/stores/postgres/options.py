"""The options of a `postgresql://` URL: our own, and those of libpq that are passed on as they are."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from keepstate.errors import InvalidError
from keepstate.stores.base import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl

PASSED_ON: Final = frozenset({
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr",
    "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname",
    "load_balance_hosts", "options", "passfile", "port", "require_auth", "service",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
})  # fmt: skip
"""Options that libpq reads; what they mean stands in PostgreSQL's own documentation."""

_DEFAULTS: Final = {"application_name": "keepstate", "connect_timeout": "10"}
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a `postgresql://` URL can say of the store itself."""

    schema: str = "keepstate"
    """Where its tables are; made at the first open."""
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """How many connections calls may share; a watch has one more of its own."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """How long to wait for one answer before the server is held for dead."""
    retry_for_s: Annotated[float, msgspec.Meta(ge=0)] = RETRY_FOR_S
    """How long to ask again while the server is away."""


def read_options(url: StoreUrl) -> PostgresOptions:
    """Return our own options, or raise `InvalidError` that lists the known ones."""
    options = url.parse_options(PostgresOptions, others=PASSED_ON)
    if not _SCHEMA_NAME.fullmatch(options.schema) or options.schema.startswith("pg_"):
        raise InvalidError(
            f"schema {options.schema!r} cannot be used: take up to 63 lower-case letters, digits and _"
        )
    return options


def connection_parameters(url: StoreUrl) -> dict[str, str]:
    """Return what libpq connects with; several hosts are tried in turn."""
    parameters = {**_DEFAULTS, **{name: value for name, value in url.options.items() if name in PASSED_ON}}
    if url.host:
        for name in ("host", "port"):
            if name in url.options:
                raise InvalidError(f"{url} names its {name} twice; give it before the path or as an option")
        places = [_place(place, url) for place in url.host.split(",")]
        parameters["host"] = ",".join(host for host, _ in places)
        parameters["port"] = ",".join(port for _, port in places)
    if url.user:
        parameters["user"] = url.user
    if url.password is not None:
        parameters["password"] = url.password
    if url.path:
        parameters["dbname"] = url.path
    return parameters


def _place(text: str, url: StoreUrl) -> tuple[str, str]:
    host, bracket, rest = text.removeprefix("[").partition("]")
    if bracket:
        colon, port = rest[:1], rest[1:]
    else:
        host, colon, port = text.partition(":")
    if (colon and colon != ":") or (port and not port.isdigit()):
        raise InvalidError(
            f"{text!r} in {url} is no host and port; one looks like db.example:5432 or [::1]:5432"
        )
    return host, port
