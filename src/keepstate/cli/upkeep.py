"""The store itself: sweep, doctor."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from rich.text import Text

from keepstate.cli import exits
from keepstate.cli.session import Session, plain, shown, write_json
from keepstate.stores.protocol import Capabilities, Durability
from keepstate.stores.urls import StoreUrl

_PLAIN = Session()
_PACKAGES = ("keepstate", "apsw", "redis", "psycopg", "msgspec", "ormsgpack")

_SURVIVES = {
    Durability.NONE: "nothing: acknowledged writes are gone when the process or server ends",
    Durability.PROCESS: "a crash of the process or server, not a power cut",
    Durability.POWER: "a power cut",
}


_MENDS = {
    "memory": "use sqlite:/// to keep anything",
    "sqlite": "open it with durability=full to survive that too",
    "redis": "set appendonly yes and appendfsync always to survive that too",
    "rediss": "set appendonly yes and appendfsync always to survive that too",
    "redis+cluster": "set appendonly yes and appendfsync always on every node to survive that too",
    "postgresql": "set fsync and synchronous_commit on to survive that too",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that doctor says of a store."""

    subject: str
    is_well: bool
    text: str


async def sweep(*, session: Session = _PLAIN) -> int:
    """Remove what has expired and parts of large values that nothing names; print how many entries went."""
    async with session.opened() as ks:
        removed = await ks.sweep()
    write_json({"removed": removed}) if session.json else shown().print(removed)
    return exits.OK


async def doctor(*, session: Session = _PLAIN) -> int:
    """Say what the store really offers; exit 1 if something in its settings could lose data."""
    async with session.opened() as ks:
        findings = [*_of_machine(), *_of_store(ks.url, ks.store.capabilities)]
    well = all(finding.is_well for finding in findings)
    if session.json:
        write_json(
            {
                "well": well,
                "findings": [{"subject": f.subject, "well": f.is_well, "text": f.text} for f in findings],
            }
        )
    else:
        for finding in findings:
            mark = Text("ok  ", "green") if finding.is_well else Text("risk", "bold red")
            shown().print(mark, plain(f"{finding.subject}: {finding.text}"))
    return exits.OK if well else exits.FAILED


def _of_machine() -> list[Finding]:
    found = [Finding("Python", True, platform.python_version())]
    for package in _PACKAGES:
        try:
            found.append(Finding(package, True, version(package)))
        except PackageNotFoundError:
            found.append(Finding(package, True, "not installed"))
    return found


def _of_store(url: str, offers: Capabilities) -> list[Finding]:
    scheme = StoreUrl.parse(url).scheme
    text = _SURVIVES[offers.durability]
    if offers.durability is not Durability.POWER:
        text += f"; {_MENDS.get(scheme, 'choose a durable store')}"
    found = [
        Finding("store", True, url),
        Finding("an acknowledged write survives", offers.durability is Durability.POWER, text),
        Finding("processes", True, "several may share it" if offers.shared else "one at a time"),
    ]
    if offers.fails_over:
        found.append(
            Finding(
                "replicas",
                False,
                "one that missed acknowledged writes may take over; the loss is detected, not prevented",
            )
        )
    if scheme == "sqlite":
        found += _of_sqlite()
    return found


def _of_sqlite() -> list[Finding]:
    from keepstate.stores.sqlite.library import is_safe, library_version

    fixed, text = is_safe(), library_version()
    if not fixed:
        text += (
            " may lose commits when two checkpoints race; keepstate's own way of checkpointing avoids that"
        )
    return [
        Finding("SQLite", True, text),
        Finding(
            "other programs", True, "must not open the file: their library may drop the locks of this one"
        ),
    ]
