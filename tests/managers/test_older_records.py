"""What an older version stored is read: a record needs no field that was added with a default."""

from __future__ import annotations

import dataclasses
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate.errors import CorruptError, InvalidError, UnsupportedError
from keepstate.managers.records import from_fields, to_fields
from keepstate.values import codec
from keepstate.values.schema import CLASSES, Registration
from keepstate.values.types import OBJECT

for name in dir(keepstate):  # all managers are imported, and have registered their records
    getattr(keepstate, name)

RECORDS: list[Registration] = [
    known
    for known in CLASSES._by_name.values()  # pyright: ignore[reportPrivateUsage]
    if known.kind.__module__.startswith("keepstate.managers.") and dataclasses.is_dataclass(known.kind)
]


def needed(kind: Any) -> dict[str, Any]:
    """Return the fields that every version has."""
    return {
        each.name: f"some {each.name}"
        for each in dataclasses.fields(kind)
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }


def stored(name: str, version: int, fields: dict[str, Any]) -> bytes:
    """Return what stands for such an object in a value."""
    encoded = codec.encode([name, version, fields])
    return encoded[:1] + msgspec.msgpack.encode(msgspec.msgpack.Ext(OBJECT, encoded[1:]))


def test_all_records_of_managers_are_known() -> None:
    assert {"keepstate.AgentCheckpoint", "keepstate.WorkflowRecord", "keepstate.TeamState"} <= {
        known.name for known in RECORDS
    }


@pytest.mark.parametrize("known", RECORDS, ids=str)
def test_a_record_without_what_was_added_later_is_read(known: Registration) -> None:
    fields = needed(known.kind)
    made = codec.decode(stored(known.name, known.version, fields))
    apart = from_fields(str(known), fields)

    assert type(made) is known.kind and made == apart
    assert {name: getattr(made, name) for name in fields} == fields


@pytest.mark.parametrize("known", RECORDS, ids=str)
def test_a_record_says_its_name_and_version_and_is_frozen(known: Registration) -> None:
    made: Any = from_fields(str(known), needed(known.kind))

    assert to_fields(made)[0] == f"{known.name}@{known.version}"
    with pytest.raises(AttributeError):
        setattr(made, dataclasses.fields(made)[0].name, 1)


def test_a_form_that_nobody_wrote_is_told() -> None:
    for form in ("", "keepstate.Moment", "@1", "keepstate.Moment@x"):
        with pytest.raises(CorruptError):
            from_fields(form, {})
    with pytest.raises(InvalidError, match="no class is registered"):
        from_fields("keepstate.Unknown@1", {})
    with pytest.raises(UnsupportedError, match="newer version"):
        from_fields("keepstate.Moment@9", {})
