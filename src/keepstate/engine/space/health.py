"""Health of a store: the findings on its settings, its time and its index.

Nothing is changed. The command `doctor` and the server report the same findings.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from datetime import timedelta

import msgspec

from keepstate import names
from keepstate._clock import Clock
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import ClockError, CorruptError
from keepstate.stores.clock_leaps import LEAP_MS, format_time
from keepstate.stores.protocol import (
    Capabilities,
    Durability,
    Inspected,
    LacksKeys,
    ReportsLeaps,
    Setting,
    Store,
)

_AT_ONCE = 100

_SURVIVES = {
    Durability.NONE: "nothing: acknowledged writes are gone when the process or server ends",
    Durability.PROCESS: "a crash of the process or server, not a power cut",
    Durability.POWER: "a power cut",
}

_MENDS = {
    "memory": "use sqlite:/// to keep anything",
    "sqlite": "open it with durability=full to survive that too",
}


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the report."""

    subject: str
    well: bool
    text: str
    value: str | None = None
    mend: str = ""

    def __str__(self) -> str:
        subject = self.subject if self.value is None else f"{self.subject} = {self.value}"
        return f"{subject}: {self.text}{f'; {self.mend}' if self.mend else ''}"


async def store_findings(store: Store, scheme: str) -> list[Finding]:
    """Return the meaning of a store's settings for its data; `scheme` is the scheme of its URL."""
    offers = store.capabilities
    found = [
        _of_durability(offers, scheme),
        Finding("processes", True, "several may share it" if offers.shared else "one at a time"),
    ]
    if offers.fails_over:
        found.append(
            Finding(
                "replicas",
                False,
                "a replica without the last writes may take over; the loss is detected, not prevented",
            )
        )
    if isinstance(store, Inspected):
        found += _of_settings(await store.settings())
    return found


async def index_finding(ks: Keepstate, command: str) -> Finding:
    """Compare the index of each tenant with its spaces. Cost: a few reads for each subject and each space.

    Args:
        ks: The administrator's handle.
        command: The command that corrects the index.
    """
    if isinstance(ks.store, LacksKeys):
        return Finding("index", True, "it is encrypted; a reindex by a program that has the keys verifies it")
    wrong: list[str] = []
    try:
        wrong += [what async for what in ks.index.findings(None)]
        async for tenant in each_tenant(ks):
            of = f" of tenant {tenant.tenant_id!r}"
            wrong += [what + of async for what in ks.index.findings(tenant.tenant_id)]
    except (ClockError, CorruptError) as error:
        return Finding("index", False, str(error))
    if not wrong:
        return Finding("index", True, "it lists what the spaces hold, or is made by the first find")
    number = "1 error" if len(wrong) == 1 else f"{len(wrong):,} errors"
    return Finding("index", False, f"{number}, such as: {wrong[0]}", mend=f"correct it: {command}")


async def each_tenant(ks: Keepstate) -> AsyncGenerator[Keepstate]:
    """Yield the handle of each tenant that has data."""
    after: str | None = None
    while True:
        page = await ks.tenants(after=after, limit=_AT_ONCE)
        for tenant in page:
            yield ks.tenant(tenant.id)
        if (after := page.next) is None:
            return


async def time_finding(store: Store, clock: Clock) -> Finding:
    """Compare the time of each space with the clock of this process. Cost: one read for each space.

    The finding names the space that is furthest ahead, and its last leap if that left the right time.
    """
    ahead: dict[str, int] = {}
    after: str | None = None
    try:
        while page := await store.spaces(after=after):
            for name in page:
                ahead_ms = (await store.read(name, [])).now_ms - clock.now_ms()
                if ahead_ms > LEAP_MS:
                    ahead[name] = ahead_ms
            after = page[-1]
    except ClockError as error:
        return Finding("time", False, str(error))
    if not ahead:
        return Finding("time", True, "no space is ahead of the clock of this process")
    furthest = max(ahead, key=lambda name: ahead[name])
    leap = await store.last_leap(furthest) if isinstance(store, ReportsLeaps) else None
    since = ""
    if leap is not None and leap.to_ms - clock.now_ms() > LEAP_MS:
        times = f"from {format_time(leap.from_ms)} to {format_time(leap.to_ms)}"
        since = f" since revision {leap.revision}, which moved its time {times}"
    return Finding(
        "time",
        False,
        f"{len(ahead)} spaces are over an hour ahead of the clock of this process, {names.shown(furthest)!r} "
        f"by {timedelta(milliseconds=ahead[furthest])}{since}: new entries there expire too late, or seem "
        "expired",
        mend='see docs/how-to/operate.md, "When a clock was wrong"',
    )


def _of_durability(offers: Capabilities, scheme: str) -> Finding:
    is_durable = offers.durability is Durability.POWER
    mend = "" if is_durable else _MENDS.get(scheme, "the settings below show the reason")
    return Finding("an acknowledged write survives", is_durable, _SURVIVES[offers.durability], mend=mend)


def _of_settings(settings: Sequence[Setting]) -> list[Finding]:
    found: list[Finding] = []
    for setting in settings:
        subject = f"{setting.where} {setting.name}".strip()
        value = "not known" if setting.value is None else setting.value or "''"
        if setting.loses is None:
            found.append(Finding(subject, True, "loses nothing", value))
        else:
            found.append(Finding(subject, False, setting.loses, value, setting.mend))
    return found
