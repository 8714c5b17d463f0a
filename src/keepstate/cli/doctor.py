"""The command `doctor`: a report of the guarantees that a store really gives."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from shutil import disk_usage
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from rich.text import Text

from keepstate.cli import damage, exits
from keepstate.cli.display import plain, shown, write_json
from keepstate.cli.room import reserve_path, reserved_bytes, store_file
from keepstate.cli.session import FILES, PLAIN, Session, check_url
from keepstate.engine.space.health import Finding, index_finding, store_findings, time_finding
from keepstate.stores.protocol import Store
from keepstate.stores.urls import StoreUrl

_PACKAGES = ("keepstate", "apsw", "redis", "psycopg", "msgspec", "ormsgpack")

_LITTLE_BYTES: Final = 64 << 20
_SERVERS_THAT_EVICT = ("redis", "rediss", "redis+cluster")


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
        findings.append(await time_finding(ks.store, ks.clock))
        findings.append(await index_finding(ks, session.command("reindex", "--tenants")))
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
    found = [Finding("store", True, str(url)), *await store_findings(store, url.scheme)]
    if url.scheme == "sqlite":
        found += _of_sqlite()
    if url.backend in FILES:
        found += [_of_disk(url), _of_reserve(url)]
    return found


def _of_disk(url: StoreUrl) -> Finding:
    """Return how much room the disk of a store in a file has, and how large the store's files are."""
    path = store_file(url)
    files = [file for file in path.parent.iterdir() if file.name.startswith(path.name) and file.is_file()]
    size_bytes = sum(file.lstat().st_size for file in files)
    free_bytes = disk_usage(path.parent).free
    mend = "" if free_bytes >= _LITTLE_BYTES else "make room, or the next writes fail"
    return Finding(
        "disk", True, f"{free_bytes:,} bytes free; the store's files have {size_bytes:,}", mend=mend
    )


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
