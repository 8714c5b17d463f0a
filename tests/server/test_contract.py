"""The contract with clients: the document, the status of each error, and the conditions of requests."""

from __future__ import annotations

import json
from collections.abc import Iterator

import msgspec
import pytest

from keepstate import errors
from keepstate.errors import KeepstateError
from keepstate.server.app import OPERATIONS, document
from keepstate.server.conditions import Conditions, conditions_of
from keepstate.server.problems import RefusedError, problem_of, status_of
from tools.openapi import PAGE

STATUS = {
    "already_exists": 409, "approval_closed": 409, "attempts_exhausted": 503, "budget_exceeded": 507,
    "clock": 503, "closed": 503, "compacted": 410, "conflict": 409, "corrupt": 500, "full": 507,
    "history_lost": 410, "invalid": 422, "keepstate": 500, "lease_lost": 409, "merge_conflict": 409,
    "missing_extra": 501, "not_allowed": 403, "not_found": 404, "not_loaded": 422, "not_owner": 403,
    "outcome_unknown": 504, "pruned": 410, "quota_exceeded": 507, "state": 422, "state_conflict": 409,
    "step_unknown": 409, "storage": 500, "task_cancelled": 409, "task_failed": 409, "transition": 409,
    "unavailable": 503, "unsupported": 501,
}  # fmt: skip
HIDDEN = (
    errors.StoreUnavailableError,
    errors.StoreFullError,
    errors.CorruptError,
    errors.ClockError,
    errors.MissingExtraError,
)


def all_errors(kind: type[KeepstateError] = KeepstateError) -> Iterator[type[KeepstateError]]:
    if kind.__module__ == errors.__name__:
        yield kind
        for inner in kind.__subclasses__():
            yield from all_errors(inner)


# ---- the document


def test_the_document_that_is_checked_in_is_that_of_the_table() -> None:
    assert PAGE.read_bytes() == document(), "run: python tools/openapi.py"


def test_the_document_describes_each_row() -> None:
    found = json.loads(document())

    for row in OPERATIONS:
        entry = found["paths"][row.path][row.method.lower()]
        names = {each["name"] for each in entry["parameters"] if each["in"] == "query"}
        assert entry["operationId"] == row.name and entry["x-right"] == row.right
        assert names == {each.encode_name for each in msgspec.structs.fields(row.query)}
        assert ("requestBody" in entry) == (row.body is not None)
        assert all("null" not in json.dumps(each["schema"]) for each in entry["parameters"])
    assert sum(len(path) for path in found["paths"].values()) == len(OPERATIONS)


def test_every_reference_in_the_document_leads_somewhere() -> None:
    text = document().decode()
    schemas = json.loads(text)["components"]["schemas"]

    named = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert named <= {*schemas}
    assert all("." not in name for name in schemas)


def test_each_field_that_takes_a_text_is_bounded() -> None:
    """A schema without a bound promises more than the server takes."""
    unbounded = [
        (row.name, each.name)
        for row in OPERATIONS
        for each in msgspec.structs.fields(row.query)
        if _is_unbounded(msgspec.json.schema(each.type))
    ]

    assert unbounded == []


def _is_unbounded(schema: dict[str, object]) -> bool:
    parts = schema.get("anyOf", [schema])
    assert isinstance(parts, list)
    return any(
        part.get("type") == "string" and not {"maxLength", "format", "enum"} & {*part} for part in parts
    )


# ---- errors


def test_each_error_has_its_status() -> None:
    assert {kind.code: status_of(kind()) for kind in all_errors()} == STATUS


@pytest.mark.parametrize("kind", [*all_errors()], ids=lambda kind: kind.__name__)
def test_each_error_becomes_a_problem(kind: type[KeepstateError]) -> None:
    error = kind("what happened")

    problem = problem_of(error)

    assert (problem.code, problem.retryable) == (kind.code, kind.retryable)
    is_hidden = issubclass(kind, HIDDEN)
    assert ("the log of the server" in problem.detail) is is_hidden
    assert (problem.detail == "what happened") is not is_hidden
    assert problem.type == f"urn:keepstate:error:{kind.code}"
    assert json.loads(msgspec.json.encode(problem))["status"] == status_of(error)


def test_an_error_of_an_application_has_the_status_of_its_base() -> None:
    class OwnError(errors.LeaseLostError):
        code = "own"

    assert (status_of(OwnError()), problem_of(OwnError()).code) == (409, "own")


def test_a_problem_does_not_tell_where_the_store_is() -> None:
    error = errors.StoreUnavailableError(
        "sqlite:////srv/secret/keepstate.db cannot be opened",
        url="sqlite:////srv/secret/keepstate.db",
        space="x",
    )

    assert "secret" not in msgspec.json.encode(problem_of(error)).decode()


# ---- conditions


def test_lists_of_tags_are_read_as_the_standard_says() -> None:
    assert conditions_of([], []) == Conditions()
    assert conditions_of(["*"], [" * "]) == Conditions("*", "*")
    assert conditions_of(['"a", "b,c"', 'W/"d"'], ['W/"d"']) == Conditions(
        frozenset({"a", "b,c"}), frozenset({"d"})
    )
    assert conditions_of(['""'], []) == Conditions(frozenset({""}))


@pytest.mark.parametrize("text", ["a", '"a', '"a" "b"', "W/a", '*, "a"', '"a\nb"', '"' * 9, '"a", ' * 4_000])
def test_what_is_not_a_list_of_tags_is_refused(text: str) -> None:
    with pytest.raises(RefusedError) as raised:
        conditions_of([text], [])

    assert (raised.value.status, raised.value.code) == (400, "malformed")


@pytest.mark.parametrize(
    ("conditions", "version", "of_read", "of_write"),
    [
        (Conditions(), "a", False, False),
        (Conditions(match=frozenset({"a", "b"})), "a", False, False),
        (Conditions(match=frozenset({"b"})), "a", 412, 412),
        (Conditions(match=frozenset({"a"})), None, 412, 412),
        (Conditions(match="*"), "a", False, False),
        (Conditions(match="*"), None, 412, 412),
        (Conditions(none_match="*"), None, False, False),
        (Conditions(none_match="*"), "a", True, 412),
        (Conditions(none_match=frozenset({"a"})), "a", True, 412),
        (Conditions(none_match=frozenset({"b"})), "a", False, False),
        (Conditions(match=frozenset({"a"}), none_match=frozenset({"a"})), "a", True, 412),
    ],
)
def test_conditions_are_judged_as_the_standard_says(
    conditions: Conditions, version: str | None, of_read: bool | int, of_write: bool | int
) -> None:
    def judged(*, is_read: bool) -> bool | int:
        try:
            return conditions.check(version, is_read=is_read)
        except RefusedError as refused:
            return refused.status

    assert (judged(is_read=True), judged(is_read=False)) == (of_read, of_write)
