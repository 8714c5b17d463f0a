"""Bugs of usage and budgets, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import date
from typing import Any

import msgspec
import pytest

from keepstate.engine.usage import account, ceilings, ledger, records, spends
from keepstate.engine.usage.account import Account
from keepstate.engine.usage.spends import Spend
from tests.engine import test_usage, test_usage_ledgers
from tests.engine.conftest import Turned

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[Any], Awaitable[None]]


def ceiling_checked_before_the_batch_only(planting: pytest.MonkeyPatch) -> None:
    """Judge the ledger that was read, and let the batch not check it."""
    read = Account.read

    async def unchecked(self: Account, unit: Any, *also: bytes) -> Any:
        found = await read(self, unit, *also)
        unit._found.pop(records.ledger_key(self.name), None)
        return found

    planting.setattr(Account, "read", unchecked)


def reservation_stays_after_a_kill(planting: pytest.MonkeyPatch) -> None:
    """Let no time end a reservation."""
    bring_to = ceilings.bring_to

    def timeless(found: records.LedgerRecord, now_ms: int) -> records.LedgerRecord:
        return msgspec.structs.replace(bring_to(found, now_ms), reservations=found.reservations)

    planting.setattr(ceilings, "bring_to", timeless)


def reservation_not_returned(planting: pytest.MonkeyPatch) -> None:
    """Count the use, and keep the reservation."""
    planting.setattr(ceilings, "release", lambda found, _: (found, True))


def counted_twice_on_a_retry(planting: pytest.MonkeyPatch) -> None:
    """Know no id of a use."""
    at_random = iter(range(1_000_000))
    planting.setattr(account, "spent_key", lambda name, _: records.spent_key(name, str(next(at_random))))


def border_of_a_day_off_by_one(planting: pytest.MonkeyPatch) -> None:
    """Begin a day a millisecond late."""
    day_of = records.day_of
    for module in (account, ceilings, ledger):
        planting.setattr(module, "day_of", lambda now_ms, zone: day_of(now_ms - 1, zone))


def border_of_a_month_off_by_one(planting: pytest.MonkeyPatch) -> None:
    """Take the first day of a month for one of the last month."""

    def first_day(per: str | None, day: int) -> int:
        return records.first_day(per, day - 1) if per == "month" else records.first_day(per, day)  # type: ignore[arg-type]

    assert first_day("month", date(2024, 3, 1).toordinal()) == date(2024, 2, 1).toordinal()
    for module in (ceilings, ledger):
        planting.setattr(module, "first_day", first_day)


def days_of_the_wrong_zone(planting: pytest.MonkeyPatch) -> None:
    """Count days in UTC."""
    day_of = records.day_of
    for module in (account, ceilings, ledger):
        planting.setattr(module, "day_of", lambda now_ms, _: day_of(now_ms, "UTC"))


def sum_of_a_model_missing(planting: pytest.MonkeyPatch) -> None:
    """Add all uses of a batch to the sums of the last model."""
    used_key = records.used_key
    planting.setattr(account, "used_key", lambda name, day, _, share: used_key(name, day, "large", share))


def narrow_ledger_first(planting: pytest.MonkeyPatch) -> None:
    """Write the narrowest ledger first."""
    made = Spend.__init__

    def turned_round(self: Any, id: str, model: Any, accounts: Any, **options: Any) -> None:
        made(self, id, model, tuple(reversed(accounts)), **options)

    planting.setattr(Spend, "__init__", turned_round)


def id_known_in_all_parts(planting: pytest.MonkeyPatch) -> None:
    """Take the same id in two parts of a wider ledger for one use."""
    planting.setattr(spends, "scoped_id", lambda _space, _account, id: id)


def other_amounts_hidden(planting: pytest.MonkeyPatch) -> None:
    """Take any use with a known id for the first one."""
    planting.setattr(account, "digest_of", lambda _: b"")


def over_use_dropped(planting: pytest.MonkeyPatch) -> None:
    """Count at most what the budget allows."""
    use = ceilings.use

    def capped(found: Any, model: str, amounts: Any) -> Any:
        try:
            ceilings.require_room(found, model, amounts, "")
        except Exception:  # noqa: BLE001 - there is no room
            return found
        return use(found, model, amounts)

    planting.setattr(ceilings, "use", capped)


def on_space(test: Callable[[Any], Awaitable[None]]) -> Test:
    """Return a test of a space as one of a space with its clock."""
    return lambda turned: test(turned.space)


PLANTED: list[tuple[Plant, Test]] = [
    (
        ceiling_checked_before_the_batch_only,
        test_usage.test_what_another_process_spends_between_read_and_batch_counts,
    ),
    (
        reservation_stays_after_a_kill,
        test_usage.test_a_reservation_of_a_killed_process_ends_by_the_time_of_the_store,
    ),
    (
        reservation_not_returned,
        on_space(test_usage.test_a_reservation_takes_room_until_its_use_is_counted),
    ),
    (counted_twice_on_a_retry, on_space(test_usage.test_a_use_is_counted_once_and_summed_by_model)),
    (
        border_of_a_day_off_by_one,
        test_usage.test_a_day_begins_at_midnight_of_the_zone_also_when_the_clocks_change,
    ),
    (border_of_a_month_off_by_one, test_usage.test_a_month_is_a_month_of_the_calendar),
    (
        days_of_the_wrong_zone,
        test_usage.test_a_day_begins_at_midnight_of_the_zone_also_when_the_clocks_change,
    ),
    (sum_of_a_model_missing, on_space(test_usage.test_a_use_is_counted_once_and_summed_by_model)),
    (id_known_in_all_parts, test_usage_ledgers.test_the_same_id_in_two_parts_of_a_wider_ledger_counts_twice),
    (other_amounts_hidden, on_space(test_usage.test_an_id_that_has_counted_other_amounts_is_refused)),
    (
        narrow_ledger_first,
        test_usage_ledgers.test_the_widest_ledger_is_written_first_though_a_process_is_killed,
    ),
    (
        over_use_dropped,
        on_space(test_usage.test_a_use_above_its_reservation_is_counted_and_refuses_what_follows),
    ),
]


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Test
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        await test(turned)
