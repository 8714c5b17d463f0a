"""Commands on spaces and their documents: spaces, ls, get, put, watch."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.display import (
    counted,
    fields_of,
    plain,
    said,
    shortened,
    shown,
    text_of,
    write_indented,
    write_json,
    write_none,
    write_table,
)
from keepstate.cli.session import PLAIN, Session, check_url, read_value, reject_memory, require_space
from keepstate.errors import InvalidError, KeepstateError
from keepstate.names import ALL

if TYPE_CHECKING:
    from keepstate.engine.documents import documents as _documents
else:
    defer_imports(
        globals(),
        _documents="keepstate.engine.documents.documents",
    )


_READ_AT_ONCE = 100
_SHOWN_MISSING = 10
_ENTRY = ("key", "version", "printed_version", "created", "value")
_CHANGE = ("revision", "kind", "key", "old", "new", "position")


async def spaces(
    under: str = "",
    *,
    tenants: Annotated[
        bool, Parameter(negative="", help="List the spaces of all tenants, each after its tenant.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """List the spaces that hold data.

    Args:
        under: List only this space and those below it: user/1 lists user/1 and user/1/…, but not user/10.
    """
    if tenants and session.tenant is not None:
        raise InvalidError("--tenants lists the spaces of all tenants; give no --tenant")
    is_empty = True
    async with session.opened() as ks:
        if tenants:
            async for tenant, name in ks.spaces(under, tenant=ALL):
                is_empty = False
                whose = "-" if tenant is None else repr(tenant)
                session.write({"tenant": tenant, "space": name}, f"{whose}  {name}")
        else:
            async for name in ks.spaces(under):
                is_empty = False
                session.write(name, name)
    if is_empty and not session.json:
        write_none()
    return exits.OK


async def ls(space: str, pattern: str = "*", *, session: Session = PLAIN) -> int:
    r"""List the documents of a space.

    Args:
        space: The space.
        pattern: A pattern of names: * any text, ? one character, [a-z] one of a set, \ before a literal one.
    """
    async with session.opened() as ks:
        rows: list[tuple[object, ...]] = []
        is_empty = True
        async for entry in _entries(ks.space(space).documents, pattern):
            is_empty = False
            if session.json:
                write_json(fields_of(entry, *_ENTRY))
            else:
                rows.append((entry.key, entry.version, shortened(text_of(entry.value))))
        if is_empty:
            await require_space(ks, space)
    if not session.json:
        write_table(("document", "version", "value"), rows)
    return exits.OK


async def get(space: str, key: str, *, session: Session = PLAIN) -> int:
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
        write_json(fields_of(entry, *_ENTRY))
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
        Parameter(help="Write only over this printed_version of --json output; 0 if it must be absent."),
    ] = None,
    ttl_s: Annotated[float | None, Parameter(help="Let the document expire after N seconds.")] = None,
    session: Session = PLAIN,
) -> int:
    """Write a document, and print its new version.

    Args:
        space: The space.
        key: The document's name.
        value: Plain JSON, or - for standard input. A dict with "@type", as get prints it, is rejected.
    """
    async with session.opened(makes=True) as ks:
        documents = ks.space(space).documents
        expected = 0 if expected_version == "0" else expected_version
        version = await documents.put(key, read_value(value), expected_version=expected, ttl_s=ttl_s)
        entry = await documents.entry(key) if session.json else None
    is_own = entry is not None and entry.version == version  # False if another writer came after this one
    printed = entry.printed_version if entry is not None and is_own else None
    session.write({"version": version, "printed_version": printed}, str(version))
    return exits.OK


async def rm(space: str, *keys: str, session: Session = PLAIN) -> int:
    """Delete documents. Exit with 1 if one of them does not exist; the others are deleted.

    Args:
        space: The space.
        keys: The names of the documents.
    """
    if not keys:
        raise InvalidError(f"rm needs the names of documents; `{session.command('ls', space)}` lists them")
    missing: list[str] = []
    async with session.opened() as ks:
        await require_space(ks, space)
        documents = ks.space(space).documents
        for number, key in enumerate(keys):
            try:
                was_there = await documents.delete(key)
            except KeepstateError:
                deleted = counted(number - len(missing), "document")
                said().print(plain(f"keepstate: {deleted} deleted before this error:"))
                raise
            if not was_there:
                missing.append(key)
            if session.json:
                write_json({"key": key, "deleted": was_there})
    see = session.command("ls", space)
    for key in missing[:_SHOWN_MISSING]:
        said().print(plain(f"keepstate: there is no document {key!r} in {space!r}; see: {see}"))
    if (more := len(missing) - _SHOWN_MISSING) > 0:
        said().print(plain(f"keepstate: nor {more:,} more of these names"))
    if not session.json:
        shown().print(f"{counted(len(keys) - len(missing), 'document')} deleted")
    return exits.FAILED if missing else exits.OK


async def watch(
    space: str,
    pattern: str = "*",
    *,
    after: Annotated[
        str | None,
        Parameter(help="Start after this position of --json output; 0 for the start of the log."),
    ] = None,
    timeout_s: Annotated[float | None, Parameter(help="End after N seconds without a change.")] = None,
    session: Session = PLAIN,
) -> int:
    """Print changes of documents as they happen, until Ctrl-C.

    Args:
        space: The space.
        pattern: A pattern of names, such as plan*; see ls.
    """
    reject_memory(check_url(session.chosen_url()))
    start = 0 if after == "0" else after
    async with (
        session.opened() as ks,
        ks.space(space).documents.watch(pattern, after=start, timeout_s=timeout_s) as changes,
    ):
        said().print(plain(f"watching {pattern} in {space} after {changes.position}"))
        async for change in changes:
            value = "" if change.kind == "deleted" or session.json else shortened(text_of(change.new))
            text = f"{change.revision:>8}  {change.kind:<8} {change.key}  {value}"
            session.write(fields_of(change, *_CHANGE), text)
    return exits.OK


async def _entries(
    documents: _documents.Documents, pattern: str
) -> AsyncIterator[_documents.DocumentEntry[Any]]:
    """Yield documents in the order of their names, except documents that are deleted during the listing."""
    names: list[str] = []
    async for name in documents.keys(pattern):
        names.append(name)
        if len(names) == _READ_AT_ONCE:
            for entry in (await documents.entries(*names)).values():
                yield entry
            names.clear()
    for entry in (await documents.entries(*names)).values():
        yield entry
