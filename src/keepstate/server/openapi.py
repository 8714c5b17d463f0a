"""The OpenAPI 3.1 document, made from the table of operations. JSON Schema comes from msgspec."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from keepstate.server.problems import PROBLEM_JSON, Problem
from keepstate.server.table import EVENT_STREAM, JSON, Operation

_TEXT: Final = {"type": "string"}
_BOUNDED: Final = {"Idempotency-Key": {**_TEXT, "minLength": 1, "maxLength": 255}}
_VERSION: Final = "1"


def describe(operations: Sequence[Operation]) -> dict[str, Any]:
    """Return the document."""
    kinds = list(dict.fromkeys([Problem, *(kind for row in operations for kind in (row.answer, row.body))]))
    kinds.remove(None)
    schemas, components = msgspec.json.schema_components(kinds, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, Any] = {}
    for row in operations:
        paths.setdefault(row.path, {})[row.method.lower()] = _entry(row, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "keepstate",
            "version": _VERSION,
            "description": "Spaces of state over HTTP: documents, events, tasks, histories, approvals and "
            "conversations. A value without a JSON type is an object with the member `@type`; sent back, it "
            "is the same value.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"key": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _entry(row: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    media = EVENT_STREAM if row.is_stream else JSON
    success: dict[str, Any] = {
        "description": "Events, each with `id` and `data`; an error is an event of the type `problem`."
        if row.is_stream
        else "Done.",
        "content": {media: {"schema": _TEXT if row.is_stream else schema_of[row.answer]}},
    }
    if row.is_stream:
        success["content"][media]["x-event-data"] = schema_of[row.answer]
    if row.has_etag:
        success["headers"] = {"ETag": {"description": "The version.", "schema": _TEXT}}
    responses: dict[str, Any] = {"200": success}
    if row.has_etag and row.is_read:
        responses["304"] = {"description": "The version of `If-None-Match` is current."}
    responses["default"] = {
        "description": "An error.",
        "content": {PROBLEM_JSON: {"schema": schema_of[Problem]}},
    }
    entry: dict[str, Any] = {
        "operationId": row.name,
        "summary": row.summary,
        "tags": [row.path.split("/")[2]],
        "x-right": row.right,
        "parameters": [*_parameters(row), *_headers(row)],
        "responses": responses,
    }
    if row.also:
        entry["x-rights-besides"] = [*row.also]
    if row.body is not None:
        entry["requestBody"] = {"required": True, "content": {row.media: {"schema": schema_of[row.body]}}}
    return entry


def _parameters(row: Operation) -> list[dict[str, Any]]:
    return [
        {
            "name": field.encode_name,
            "in": "query",
            "required": field.required,
            "schema": _schema(field),
        }
        for field in msgspec.structs.fields(row.query)
    ]


def _schema(field: msgspec.structs.FieldInfo) -> dict[str, Any]:
    schema = msgspec.json.schema(field.type)
    if "anyOf" in schema:  # a query has no null: a parameter is left out
        present = [part for part in schema["anyOf"] if part != {"type": "null"}]
        schema = present[0] if len(present) == 1 else {"anyOf": present}
    if field.default is not msgspec.NODEFAULT and field.default is not None:
        schema = {**schema, "default": field.default}
    return schema


def _headers(row: Operation) -> list[dict[str, Any]]:
    names = ["On-Behalf-Of"]
    if row.has_etag:
        names += ["If-Match", "If-None-Match"]
    if row.takes_key:
        names.append("Idempotency-Key")
    if row.is_stream:
        names.append("Last-Event-ID")
    return [
        {"name": name, "in": "header", "required": False, "schema": _BOUNDED.get(name, _TEXT)}
        for name in names
    ]
