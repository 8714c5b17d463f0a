"""Removal of the rows of dropped spaces, a few at a time, so that no writer waits long for a large space."""

from __future__ import annotations

from typing import Any, Final

from keepstate.stores.sqlite import schema
from keepstate.stores.sqlite.statements import Execute

_ENTRIES: Final = "DELETE FROM entries WHERE id IN (SELECT id FROM entries WHERE space = ? LIMIT ?)"
_LOG: Final = "DELETE FROM log WHERE id IN (SELECT id FROM log WHERE id BETWEEN ? AND ? LIMIT ?)"


def collect(execute: Execute, limit: int) -> int:
    """Remove up to `limit` rows of a number without a name, and return the count; 0 when none are left."""
    number: Any = execute("SELECT id FROM spaces WHERE name IS NULL LIMIT 1").get
    if number is None:
        return 0
    removed = 0
    for statement, bindings in ((_ENTRIES, (number,)), (_LOG, schema.log_range(number))):
        if removed < limit:
            execute(statement, (*bindings, limit - removed))
            removed += execute("SELECT changes()").get
    if removed < limit:
        execute("DELETE FROM spaces WHERE id = ?", (number,))
        removed += 1
    return removed
