"""The options of a `postgresql://` URL: keepstate's own, and the ones that are passed on to libpq."""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from keepstate.errors import InvalidError
from keepstate.stores.retries import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl

PASSED_ON: Final = frozenset({
    "application_name", "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr",
    "keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval", "krbsrvname",
    "load_balance_hosts", "options", "passfile", "port", "require_auth", "service",
    "ssl_max_protocol_version", "ssl_min_protocol_version", "sslcert", "sslcrl", "sslkey", "sslmode",
    "sslnegotiation", "sslpassword", "sslrootcert", "target_session_attrs", "tcp_user_timeout",
})  # fmt: skip
"""Options that libpq reads; see PostgreSQL's documentation."""

_DEFAULTS: Final = {"application_name": "keepstate", "connect_timeout": "10"}
_SCHEMA_NAME = re.compile(r"[a-z_][a-z0-9_]{0,62}")


class PostgresOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The options of a `postgresql://` URL that configure the store itself."""

    schema: str = "keepstate"
    """The schema of the tables, created at the first open."""
    max_connections: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 8
    """Maximum number of connections that calls share; a watch has one more of its own."""
    timeout_s: Annotated[float, msgspec.Meta(gt=0)] = 10.0
    """Seconds to wait for one answer before the connection is given up."""
    retry_for_s: Annotated[float, msgspec.Meta(ge=0)] = RETRY_FOR_S
    """Seconds for which calls are retried while the server is unavailable."""


def read_options(url: StoreUrl) -> PostgresOptions:
    """Parse keepstate's own options; an `InvalidError` lists the known ones."""
    options = url.parse_options(PostgresOptions, others=PASSED_ON)
    if not _SCHEMA_NAME.fullmatch(options.schema) or options.schema.startswith("pg_"):
        raise InvalidError(
            f"Schema {options.schema!r} cannot be used. Use up to 63 lower-case letters, digits and _."
        )
    return options


def connection_parameters(url: StoreUrl) -> dict[str, str]:
    """Return the connection parameters for libpq; several hosts are tried in turn."""
    parameters = {**_DEFAULTS, **{name: value for name, value in url.options.items() if name in PASSED_ON}}
    if url.host:
        for name in ("host", "port"):
            if name in url.options:
                raise InvalidError(f"{url} names its {name} twice. Write it before the path or as an option.")
        parameters["host"] = ",".join(host for host, _ in url.servers())
        parameters["port"] = ",".join(port for _, port in url.servers())
    if url.user:
        parameters["user"] = url.user
    if url.password is not None:
        parameters["password"] = url.password
    if url.path:
        parameters["dbname"] = url.path
    return parameters
