"""The SQL of this folder, by name: each statement in a file follows a line `-- name: …`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from keepstate.values.key import stamp_suffix

_NAME = "-- name: "
_OFTEN = frozenset({"begin", "commit", "put", "apply", "get", "read", "scan", "changes"})
_SETTINGS = (
    "SET search_path = pg_catalog SET plan_cache_mode = force_generic_plan SET jit = off "
    "SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off "
    "SET enable_hashjoin = off SET enable_mergejoin = off"
)


class Query(NamedTuple):
    """A statement; a frequent one has a name under which a connection may prepare `kept`."""

    text: bytes
    name: bytes
    kept: bytes


class Statements(NamedTuple):
    """The statements for one schema; functions and tables in the order of their creation."""

    queries: Mapping[str, Query]
    tables: Mapping[str, bytes]
    functions: Mapping[str, bytes]


@cache
def statements_of(schema: str) -> Statements:
    """Return the statements for a schema."""
    texts = _read("queries.sql", schema)
    queries = {
        name: Query(
            text,
            f"keepstate_{schema}_{name}"[:63].encode() if name in _OFTEN else b"",
            texts.get(f"{name}, kept", text),
        )
        for name, text in texts.items()
    }
    return Statements(
        queries, _read("schema.sql", schema), {**_read("applying.sql", schema), **_read("asking.sql", schema)}
    )


def _read(file: str, schema: str) -> dict[str, bytes]:
    text = files("keepstate.stores.postgres").joinpath(file).read_text("utf-8")
    words = {"{schema}": f'"{schema}"', "{settings}": _SETTINGS, "{stamp}": stamp_suffix(0, 0)[:1].hex()}
    named: dict[str, bytes] = {}
    for part in text.split(_NAME)[1:]:
        name, _, statement = part.partition("\n")
        body = "\n".join(line for line in statement.splitlines() if not line.startswith("--")).strip()
        for word, meaning in words.items():
            body = body.replace(word, meaning)
        named[name] = body.encode()
    return named
