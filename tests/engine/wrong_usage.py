"""The calls of a ledger of usage with one argument left open, and wrong values of it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from math import inf, nan
from typing import Any

from keepstate import Budget, Usage

NO_TEXT = (1, None, b"a", ["a"], "\ud800")
NO_NAME = (*NO_TEXT, "", "a" * 513)
NO_ID = (1, b"a", "", "a" * 513)
NO_LENGTH = ("1", nan, inf, -1, -0.5, 0, True, [1], None)
NO_DAY = (1, "a", datetime(2026, 1, 1))

CALLS: dict[str, tuple[Callable[[Any, Any], Any], tuple[Any, ...]]] = {
    "UsageLedger.account(name)": (lambda u, x: u.account(x), (*NO_TEXT, "a" * 361)),
    "UsageLedger.within(outer)": (lambda u, x: u.within(x), (None, 1, "a")),
    "UsageLedger.set_budget(name)": (lambda u, x: u.set_budget(x, Budget(calls=1)), NO_NAME),
    "UsageLedger.set_budget(budget)": (lambda u, x: u.set_budget("a", x), (None, 1, {"calls": 1})),
    "UsageLedger.delete_budget(name)": (lambda u, x: u.delete_budget(x), NO_NAME),
    "UsageLedger.set_zone(zone)": (lambda u, x: u.set_zone(x), (*NO_TEXT, "", "Moon", "../UTC")),
    "UsageLedger.record(usage)": (lambda u, x: u.record(x), (None, 1, {"calls": 1})),
    "UsageLedger.record(id)": (lambda u, x: u.record(Usage(), id=x), NO_ID),
    "UsageLedger.record(allow_over)": (lambda u, x: u.record(Usage(), allow_over=x), (1, None, "yes")),
    "UsageLedger.reserve(tokens)": (lambda u, x: u.reserve(tokens=x), ("1", 1.0, -1, True, 10**13)),
    "UsageLedger.reserve(cost)": (lambda u, x: u.reserve(cost=x), ("1", 0.1, -1, True, Decimal("nan"))),
    "UsageLedger.reserve(calls)": (lambda u, x: u.reserve(calls=x), ("1", None, 1.0, -1, 10**13)),
    "UsageLedger.reserve(model)": (lambda u, x: u.reserve(model=x), (1, b"a", "\ud800", "m" * 101)),
    "UsageLedger.reserve(lease_s)": (lambda u, x: u.reserve(lease_s=x), NO_LENGTH),
    "UsageLedger.reserve(id)": (lambda u, x: u.reserve(id=x), NO_ID),
    "UsageLedger.settle(spend)": (lambda u, x: u.settle(x), (None, 1, "a")),
    "UsageLedger.totals(per)": (lambda u, x: u.totals(x), (1, "week", ["day"])),
    "UsageLedger.totals(since)": (lambda u, x: u.totals(since=x), NO_DAY),
    "UsageLedger.totals(until)": (lambda u, x: u.totals(until=x), NO_DAY),
}
