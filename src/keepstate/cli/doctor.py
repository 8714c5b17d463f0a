"""The command `doctor`: what a store really offers."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import msgspec
from cyclopts import Parameter
from rich.text import Text

from keepstate import names
from keepstate._clock import Clock
from keepstate.cli import damage, exits
from keepstate.cli.display import counted, plain, shown, write_json
from keepstate.cli.room import reserve_path, reserved_bytes
from keepstate.cli.session import FILES, PLAIN, Session, check_url
from keepstate.cli.tenants import each_tenant
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
from keepstate.stores.urls import StoreUrl

_PACKAGES = ("keepstate", "apsw", "redis", "psycopg", "msgspec", "ormsgpack")

_SERVERS_THAT_EVICT = ("redis", "rediss", "redis+cluster")

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


async def doctor(
    url: str | None = None,
    *,
    verify: Annotated[
        bool, Parameter(negative="", help="Read every record, and list the damaged ones.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Report what the store really offers. Exit with 1 if one of its settings could lose data.

    With --verify, read all stored data instead. Exit with 5 if data is damaged.

    Args:
        url: The store, instead of --url.
    """
    if url is not None:
        session = replace(session, url=url)
    session.reject_tenant()
    if verify:
        return await damage.verify(session)
    shown_url = check_url(session.chosen_url())
    async with replace(session, url=_accept_unsafe(session.chosen_url())).opened() as ks:
        findings = [*_of_machine(), *await _of_store(shown_url, ks.store)]
        findings.append(await _of_time(ks.store, ks.clock))
        findings.append(await _of_index(ks, session))
    well = all(finding.well for finding in findings)
    if session.json:
        write_json({"well": well, "findings": msgspec.to_builtins(findings)})
    else:
        for finding in findings:
            mark = Text("ok  ", "green") if finding.well else Text("risk", "bold red")
            shown().print(mark, plain(str(finding)))
    return exits.OK if well else exits.FAILED


def _of_machine() -> list[Finding]:
    found = [Finding("Python", True, platform.python_version())]
    for package in _PACKAGES:
        try:
            text = version(package)
        except PackageNotFoundError:
            text = "not installed"
        found.append(Finding(package, True, text))
    return found


def _accept_unsafe(url: str) -> str:
    """Return the URL with the option that accepts a server with unsafe settings."""
    parsed = StoreUrl.parse(url)
    if parsed.scheme not in _SERVERS_THAT_EVICT or "unsafe_policy" in parsed.options:
        return url
    return f"{url}{'&' if '?' in url else '?'}unsafe_policy=1"


async def _of_store(url: StoreUrl, store: Store) -> list[Finding]:
    offers, scheme = store.capabilities, url.scheme
    found = [
        Finding("store", True, str(url)),
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
    if scheme == "sqlite":
        found += _of_sqlite()
    if url.backend in FILES:
        found.append(_of_reserve(url))
    return found


async def _of_index(ks: Keepstate, session: Session) -> Finding:
    """Compare the index of each tenant with its spaces. Cost: a few reads for each subject and each space."""
    if isinstance(ks.store, LacksKeys):
        return Finding("index", True, "it is encrypted; ks.reindex() of a handle with the keys verifies it")
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
    mend = f"correct it: {session.command('reindex', '--tenants')}"
    return Finding("index", False, f"{counted(len(wrong), 'error')}, such as: {wrong[0]}", mend=mend)


async def _of_time(store: Store, clock: Clock) -> Finding:
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


def _of_reserve(url: StoreUrl) -> Finding:
    path = reserve_path(url)
    size_bytes = reserved_bytes(path)
    text = (
        "none: a full disk could not be cleaned by deletions" if not size_bytes else f"{size_bytes:,} bytes"
    )
    return Finding("reserve", True, text, mend="" if size_bytes else "keepstate make-room --reserve 64")


def _of_sqlite() -> list[Finding]:
    from keepstate.stores.sqlite.connection import is_safe, library_version

    text = "no known fault that loses commits"
    if not is_safe():
        text = "may lose commits when two checkpoints race; keepstate checkpoints in a way that avoids this"
    return [
        Finding("SQLite", True, text, library_version()),
        Finding(
            "other programs", True, "must not open the file: their library may drop the locks of this one"
        ),
    ]
