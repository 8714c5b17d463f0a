"""The page on the stored format says what the code stores: each part, field and byte of its examples."""

from __future__ import annotations

import asyncio
import re
from hashlib import sha256
from pathlib import Path
from typing import Any

import apsw

import keepstate.sync
from keepstate.engine.approvals.records import ApprovalRecord, LineRecord
from keepstate.engine.documents.write_rules import WriteRules
from keepstate.engine.events.folds import FoldRecord
from keepstate.engine.events.record import Cursor, EventRecord
from keepstate.engine.history.record import CommitRecord, Graft, Head
from keepstate.engine.index.carrier import DropMark, Mark, OwnerErasure
from keepstate.engine.index.rows import MetaRecord, Row
from keepstate.engine.kernel.grants import TenantRecord
from keepstate.engine.kernel.subjects import ChangeTime
from keepstate.engine.queue.attempts import AttemptRecord
from keepstate.engine.queue.lines import Turn
from keepstate.engine.queue.rules import QueueRules
from keepstate.engine.queue.step_records import StepRecord
from keepstate.engine.queue.tasks import IndexRecord, TaskRecord
from keepstate.engine.queue.ticks import ScheduleRecord
from keepstate.engine.usage.records import LedgerRecord, UsedRecord
from keepstate.names import stored_name
from keepstate.stores.file import items
from keepstate.values import codec
from tests.docs.pages import ROOT
from tests.formats.records import PREFIXES, make_parts, make_store

PAGE = (ROOT / "docs" / "reference" / "format.md").read_text("utf-8")
RECORDS: dict[str, Any] = {
    "APPROVALS": ApprovalRecord, "ATTEMPTS": AttemptRecord, "BLOCKED": Turn, "BRANCHES": Head,
    "CANCELLED": IndexRecord, "CARRIED": ChangeTime, "CARRYING": Mark, "CLAIMED": IndexRecord,
    "COMMITS": CommitRecord, "CURSORS": Cursor, "DEAD": IndexRecord, "DECIDED": LineRecord,
    "DONE": IndexRecord, "DROPPING": DropMark, "ERASING": OwnerErasure, "EVENTS": EventRecord,
    "FOLDS": FoldRecord,
    "GRAFTS": Graft, "HELD": Turn, "INDEX_META": MetaRecord, "LEDGERS": LedgerRecord,
    "OUTBOX": ChangeTime, "QUEUE_RULES": QueueRules, "READY": IndexRecord, "ROWS": Row, "RULES": WriteRules,
    "SCHEDULES": ScheduleRecord, "STEPS": StepRecord, "TAGS": Head, "TASKS": TaskRecord,
    "TENANT": TenantRecord, "TURNS": Turn, "USED": UsedRecord, "WAITING": IndexRecord,
}  # fmt: skip
"""The record of each part whose value is one, or is made of ones."""
ROW = re.compile(r"^\| `(0[0-2] .+?)` \| `([0-9a-f]+)` \| (.+?) \| (?:`([a-z_ ]+)`)? \|$", re.MULTILINE)
BLOCK = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_part_has_a_row_with_its_prefix_and_the_fields_of_its_record() -> None:
    rows = {bytes.fromhex(prefix): fields for _, prefix, _, fields in ROW.findall(PAGE)}

    assert rows == {
        prefix: " ".join(_fields(RECORDS[name])) if name in RECORDS else ""
        for name, prefix in PREFIXES.items()
    }


def _fields(record: Any) -> tuple[str, ...]:
    return record.__struct_fields__ if hasattr(record, "__struct_fields__") else record._fields


def test_each_path_begins_as_its_prefix_says() -> None:
    for path, prefix, _, _ in ROW.findall(PAGE):
        section, *words = path.split(" ")
        fixed = [word.strip('"') for word in words if word.startswith('"')]
        assert bytes.fromhex(section) + b"".join(b"\x02" + word.encode() + b"\0" for word in fixed) == (
            bytes.fromhex(prefix)
        )


def test_the_example_stores_have_exactly_these_bytes() -> None:
    stores = [asyncio.run(make_store()), asyncio.run(make_parts())]
    examples = [_examples(block) for block in BLOCK.findall(PAGE.partition("## Examples")[2])]

    assert [len(example) > 35 for example in examples] == [True, True]
    for store, example in zip(stores, examples, strict=True):
        told = {(space, key): _told(value) for space, entries in store.items() for key, value in entries}
        assert {place: told.get(place) for place in example} == example


def _examples(block: str) -> dict[tuple[str, bytes], str]:
    """Return the values of an example by their space and key."""
    found: dict[tuple[str, bytes], str] = {}
    space = ""
    for line in block.splitlines():
        first, second = line.split(" ", 1)
        if first == "#":
            name, _, tenant = second.partition(" of ")
            space = stored_name(tenant or None, name)
        else:
            found[space, bytes.fromhex(first)] = second
    return found


def _told(value: bytes) -> str:
    if len(value) > 260:
        return f"sha256:{sha256(value).hexdigest()}"
    return value.hex() or "-"


def test_each_part_has_an_example() -> None:
    blocks = BLOCK.findall(PAGE.partition("## Examples")[2])
    keys = [key for block in blocks for _, key in _examples(block)]

    without = {name for name, prefix in PREFIXES.items() if not any(key.startswith(prefix) for key in keys)}
    assert without == {"UNUSED"}  # which no entry ever has


def test_the_tables_of_sqlite_are_those_of_the_page(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/format.db") as ks:
        ks.space("run").documents.put("plan", 1)
    database = apsw.Connection(f"{tmp_path}/format.db", flags=apsw.SQLITE_OPEN_READONLY)
    for (table,) in database.execute("select name from sqlite_schema where type = 'table'"):
        columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
        assert f"| `{table}` | `{' '.join(columns)}` |" in PAGE
    database.close()


def test_the_tables_of_postgresql_are_those_of_the_page() -> None:
    schema = (ROOT / "src/keepstate/stores/postgres/schema.sql").read_text("utf-8")
    for table, body in re.findall(r"CREATE TABLE \{schema\}\.(\w+) \((.*?)\)(?: WITH|;)", schema, re.DOTALL):
        columns = re.findall(r"^    ([a-z_]+) ", body, re.MULTILINE) or [body.split()[0]]
        assert f"| `{table}` | `{' '.join(columns)}` |" in PAGE, table


def test_the_items_of_a_journal_are_those_of_the_page() -> None:
    for kind in (items.Revision, items.RetryOutcome, items.SpaceHead, items.Entries, items.Logged):
        tag = kind.__struct_config__.tag
        assert f"| `{tag}` | `{' '.join(kind.__struct_fields__)}` |" in PAGE


def test_the_keys_of_redis_are_those_of_the_page() -> None:
    from keepstate.stores.redis.encoding import keys_of, registry_key

    for key in keys_of("PREFIX", "SPACE").keys:
        assert f"`{key.decode()}`" in PAGE
    assert f"`{registry_key('PREFIX', 0).decode().replace('{0}', '{N}')}`" in PAGE


def test_a_document_is_read_by_the_rules_of_the_page() -> None:
    assert codec.decode(bytes.fromhex("0181a47374657001")) == {"step": 1}
    assert "0202646f6300706c616e 0181a47374657001" in PAGE
