"""Spaces and their documents: spaces, ls, get, put, watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from cyclopts import Parameter
from rich.table import Table

from keepstate.cli import exits
from keepstate.cli.session import (
    Session,
    checked,
    plain,
    read_value,
    refuse_memory,
    refuse_nothing,
    said,
    shown,
    text_of,
    write_indented,
    write_json,
)
from keepstate.engine.documents.documents import DocumentEntry, Documents
from keepstate.engine.documents.watch import DocumentChange
from keepstate.errors import InvalidError

_PLAIN = Session()
_READ_AT_ONCE = 100


async def spaces(
    under: str = "",
    *,
    tenants: Annotated[
        bool, Parameter(negative="", help="Those of all tenants, each behind its tenant.")
    ] = False,
    session: Session = _PLAIN,
) -> int:
    """List the spaces that hold something.

    Args:
        under: Only the space of this name and those that continue it after a /: user/1 gives no user/10.
    """
    async with session.opened() as ks:
        if tenants:
            if under or session.tenant is not None:
                raise InvalidError("--tenants lists the spaces of all tenants; give no name and no --tenant")
            async for tenant, space in ks.everywhere():
                _show_space(tenant, space.name, session)
            return exits.OK
        async for name in ks.spaces(under):
            write_json(name) if session.json else shown().print(plain(name))
    return exits.OK


def _show_space(tenant: str | None, name: str, session: Session) -> None:
    if session.json:
        write_json({"tenant": tenant, "space": name})
    else:
        shown().print(plain(f"{'-' if tenant is None else repr(tenant)}  {name}"))


async def ls(space: str, pattern: str = "*", *, session: Session = _PLAIN) -> int:
    r"""List the documents of a space.

    Args:
        space: The space.
        pattern: Names that fit: * any text, ? one character, [a-z] one of a set, \ makes the next one plain.
    """
    async with session.opened() as ks:
        documents = ks.space(space).documents
        table = Table("document", "version", "value", box=None, pad_edge=False)
        found = 0
        async for entry in _entries(documents, pattern):
            found += 1
            if session.json:
                _write(entry)
            else:
                table.add_row(plain(entry.key), str(entry.version), plain(_short(text_of(entry.value))))
        if not session.json and table.row_count:
            shown().print(table)
        if not found:
            await refuse_nothing(ks, space)
    return exits.OK


async def get(space: str, key: str, *, session: Session = _PLAIN) -> int:
    """Print a document.

    Args:
        space: The space.
        key: The document's name.
    """
    async with session.opened() as ks:
        entry = await ks.space(space).documents.entry(key)
    if entry is None:
        see = session.command("ls", space)
        said().print(plain(f"keepstate: there is no document {key!r} in {space!r}; see: {see}"))
        return exits.FAILED
    if session.json:
        _write(entry)
    else:
        write_indented(entry.value)
    return exits.OK


async def put(
    space: str,
    key: str,
    value: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    expected_version: Annotated[
        str | None,
        Parameter(help="Write only over this printed version, as --json shows it; 0 if absent."),
    ] = None,
    ttl_s: Annotated[float | None, Parameter(help="Let it expire after so many seconds.")] = None,
    session: Session = _PLAIN,
) -> int:
    """Write a document, and print its new version.

    Args:
        space: The space.
        key: The document's name.
        value: Plain JSON, or - to read it from standard input. What get shows as a dict with "@type" is none.
    """
    async with session.opened(makes=True) as ks:
        documents = ks.space(space).documents
        expected = 0 if expected_version == "0" else expected_version
        version = await documents.put(key, read_value(value), expected_version=expected, ttl_s=ttl_s)
        entry = await documents.entry(key) if session.json else None
    if session.json:
        is_own = entry is not None and entry.version == version  # else another writer was faster
        printed = entry.printed_version if entry is not None and is_own else None
        write_json({"version": version, "printed_version": printed})
    else:
        shown().print(version)
    return exits.OK


async def watch(
    space: str,
    pattern: str = "*",
    *,
    after: Annotated[
        str | None,
        Parameter(help="Go on behind this position, as --json shows it; 0 for the start of the log."),
    ] = None,
    timeout_s: Annotated[float | None, Parameter(help="End when nothing has changed for so long.")] = None,
    session: Session = _PLAIN,
) -> int:
    """Print changes of documents as they happen, until Ctrl-C.

    Args:
        space: The space.
        pattern: Names that fit, as for ls.
    """
    refuse_memory(checked(session.chosen_url()))
    start = 0 if after == "0" else after
    async with (
        session.opened() as ks,
        ks.space(space).documents.watch(pattern, after=start, timeout_s=timeout_s) as changes,
    ):
        said().print(plain(f"watching {pattern} in {space} after {changes.position}"))
        async for change in changes:
            _show_change(change, session)
    return exits.OK


def _show_change(change: DocumentChange, session: Session) -> None:
    if session.json:
        write_json(
            {
                "revision": change.revision,
                "kind": change.kind,
                "key": change.key,
                "old": change.old,
                "new": change.new,
                "position": change.position,
            }
        )
        return
    value = "" if change.kind == "deleted" else _short(text_of(change.new))
    shown().print(plain(f"{change.revision:>8}  {change.kind:<8} {change.key}  {value}"))


async def _entries(documents: Documents, pattern: str) -> AsyncIterator[DocumentEntry[Any]]:
    """Yield documents in the order of their names, but for those that are deleted while they are listed."""
    names: list[str] = []
    async for name in documents.keys(pattern):
        names.append(name)
        if len(names) == _READ_AT_ONCE:
            for entry in (await documents.entries(*names)).values():
                yield entry
            names.clear()
    for entry in (await documents.entries(*names)).values():
        yield entry


def _write(entry: DocumentEntry[Any]) -> None:
    write_json(
        {
            "key": entry.key,
            "version": entry.version,
            "printed_version": entry.printed_version,
            "created": entry.created,
            "value": entry.value,
        }
    )


def _short(text: str, width: int = 100) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
