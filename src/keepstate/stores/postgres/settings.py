"""The settings of a server that decide whether acknowledged writes are durable. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from keepstate.stores.protocol import Setting

_NO_SYNC: Final = {
    "fsync": "nothing is forced to the disk: a power cut may lose anything, and destroy the rest",
    "full_page_writes": "a page torn by a power cut cannot be mended, unless the file system never tears one",
    "synchronous_commit": "acknowledged commits just before a crash of the server are gone",
}
_RELOAD: Final = "; SELECT pg_reload_conf();"


class Told(NamedTuple):
    """A setting's value, and its source: a file, a database, a user, a connection."""

    value: str
    source: str


def judged(told: Mapping[str, Told], *, has_standby: bool) -> list[Setting]:
    """Return the settings, each with the writes that it can lose."""
    found: list[Setting] = []
    for name, loses in _NO_SYNC.items():
        if name in told:
            is_off = told[name].value == "off"
            found.append(Setting(name, told[name].value, loses if is_off else None, _on(name, told[name])))
    if has_standby and "synchronous_standby_names" in told:
        found.append(_of_standbys(told["synchronous_standby_names"], told.get("synchronous_commit")))
    return found


def _of_standbys(names: Told, commit: Told | None) -> Setting:
    if not names.value:
        loses = "a standby that missed acknowledged writes may take over"
    elif commit is not None and commit.value in ("local", "off"):
        loses = f"synchronous_commit = {commit.value} does not wait for the standby, which may take over"
    else:
        return Setting("synchronous_standby_names", names.value, None, "")
    mend = "name a standby: ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'" + _RELOAD
    if names.value:
        mend = "let commits wait for it: ALTER SYSTEM SET synchronous_commit = 'on'" + _RELOAD
    return Setting("synchronous_standby_names", names.value, loses, mend)


def _on(name: str, told: Told) -> str:
    """Return the instruction for turning a setting on at the source that turned it off."""
    match told.source:
        case "command line":
            return f"start the server without {name} = {told.value} on its command line"
        case "database" | "database user" | "user" | "global":
            return f"run ALTER ROLE or ALTER DATABASE … SET {name} = on, for who says {told.value} there"
        case "client" | "session" | "environment variable":
            return f"connect without {name} = {told.value}"
        case _:
            return f"run ALTER SYSTEM SET {name} = 'on'{_RELOAD}"
