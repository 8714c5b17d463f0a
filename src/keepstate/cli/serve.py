"""Commands of the server: serve runs it, keys adds, lists and revokes its keys, mcp serves tools alone."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Final, Literal

from cyclopts import App, Parameter

from keepstate._clock import SYSTEM_CLOCK
from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.cli.display import (
    answer,
    fields_of,
    log_to_stderr,
    plain,
    said,
    shown,
    utc,
    write_json,
    write_none,
    write_table,
)
from keepstate.cli.maintenance import read_moment
from keepstate.cli.session import PLAIN, Session, import_named
from keepstate.cli.telemetry import begin_telemetry
from keepstate.engine.kernel.stored import to_datetime
from keepstate.errors import InvalidError, MissingExtraError

if TYPE_CHECKING:
    from keepstate.server import app as _app
    from keepstate.server import keys as _keys
    from keepstate.server import limits as _limits
    from keepstate.server import running as _running
    from keepstate.server.mcp import mcp_server as _mcp
else:
    defer_imports(
        globals(),
        _app="keepstate.server.app",
        _keys="keepstate.server.keys",
        _limits="keepstate.server.limits",
        _running="keepstate.server.running",
        _mcp="keepstate.server.mcp.mcp_server",
    )

_PORT: Final = 8484
_BROWSER: Final = "browser"
_MODEL: Final = "mcp"
"""The author of what tools write for a program that started the command."""
_BUILD: Final = "in a clone of keepstate, `make setup` builds it, and wheels have it"
_HEADS: Final = ("name", "rights", "tenant", "under", "expires", "rate")

app = App(name="keys", help="Add, list, audit and revoke the keys of the server.", help_format="markdown")


async def serve(
    *,
    host: Annotated[str, Parameter(help="Listen on this address.")] = "127.0.0.1",
    port: Annotated[int, Parameter(help="Listen on this port; 0 for any free one.")] = _PORT,
    allow_host: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", show_default=False, help="A name that clients may call the server by; repeat it."
        ),
    ] = (),
    open: Annotated[
        bool, Parameter(negative="", help="Print a link that lets one browser in, once, for ten minutes.")
    ] = False,
    open_as: Annotated[
        str, Parameter(help="The person that --open lets in: the author of what is written in the page.")
    ] = _BROWSER,
    signer: Annotated[
        str | None, Parameter(help="MODULE:NAME of the Signer of links to approvals; serves /approvals.")
    ] = None,
    mcp: Annotated[
        Literal["read", "write"] | None,
        Parameter(help="Serve tools for models at /mcp: those that read, or also those that write."),
    ] = None,
    telemetry: Annotated[
        bool, Parameter(negative="", help="Send traces and metrics by OpenTelemetry.")
    ] = False,
    trace_url: Annotated[
        str | None, Parameter(help="The address of a trace with {trace_id}, for links of the inspector.")
    ] = None,
    rate: Annotated[float | None, Parameter(help="Requests a second of a key without a rate.")] = None,
    drain_s: Annotated[
        float, Parameter(help="After SIGTERM, fail /readyz for S seconds before streams end.")
    ] = 1.0,
    session: Session = PLAIN,
) -> int:
    """Serve the store over HTTP until SIGTERM or Ctrl-C, for clients that have a key.

    Without a key only `/healthz`, `/readyz`, `/openapi.json`, the inspector's files, the link of `--open` and
    links to approvals answer. With `--tenant`, the link of `--open` shows the spaces of that tenant.
    """
    if not open:
        session.reject_tenant()
    session.load()
    log_to_stderr()
    _require_extra()
    found = None if signer is None else import_named(signer, "MODULE:SIGNER")
    _require_options(port, drain_s, trace_url)
    limits = _limits.Limits(rate=rate)
    observer = begin_telemetry(session.chosen_url(), is_asked_for=telemetry)
    async with replace(session, tenant=None).opened(makes=True, telemetry=observer) as ks:
        made = _app.create_app(
            ks,
            keys=_keys.Keys(ks),
            signer=found,
            limits=limits,
            allow_hosts=(*allow_host, *_names(host)),
            mcp=mcp,
            tracing=observer is not None,
            trace_url=trace_url,
        )
        await _running.require_keys(made, host)
        person = open_as if open else None
        server = await _serve_at(host, port, made, session, ks.url, person=person, drain_s=drain_s)
    return exits.OK if server.started else exits.FAILED


def _require_options(port: int, drain_s: float, trace_url: str | None) -> None:
    """Raise `InvalidError` for an option that no server can have."""
    _running.require_port(port)
    if drain_s < 0:
        raise InvalidError(f"--drain-s is {drain_s:g}; give seconds")
    if trace_url is not None:
        _app.require_trace_url("--trace-url", trace_url)


async def mcp(
    *,
    write: Annotated[
        bool, Parameter(negative="", help="Also offer the tools that write. None of them answers approvals.")
    ] = False,
    under: Annotated[str, Parameter(help="Reach only this space and those below it.")] = "",
    author: Annotated[str, Parameter(help="The author of what the tools write.")] = _MODEL,
    session: Session = PLAIN,
) -> int:
    """Serve tools for models by the Model Context Protocol, over standard input and output.

    A program such as an editor or an assistant starts this command. The tools read the spaces of one tenant:
    that of `--tenant`, or the spaces without a tenant.
    """
    _require_mcp()
    rights = _keys.rights_of(["read", "write"] if write else ["read"])
    key = _keys.Key(author, rights, session.tenant, under)
    async with replace(session, tenant=None).opened() as ks:
        await _mcp.serve_stdio(ks, key, is_writable=write)
    return exits.OK


async def _serve_at(
    host: str,
    port: int,
    made: _app.Server,
    session: Session,
    store: str,
    *,
    person: str | None,
    drain_s: float,
) -> _running.RunningServer:
    """Serve an application until it is to end. With a person, print a link that lets one browser in."""
    with _running.bind(host, port) as listener:
        place = f"{_shown_host(host)}:{listener.getsockname()[1]}"
        link = None if person is None else f"http://{place}{_make_link(made, person, session.tenant)}"
        tell = partial(_tell, session, f"http://{place}", store, link, has_page=made.has_inspector)
        server = _running.RunningServer(made, drain_s=drain_s, on_start=tell)
        await server.serve([listener])
    return server


def _make_link(made: _app.Server, name: str, tenant: str | None) -> str:
    rights = _keys.rights_of([each for each in _keys.RIGHTS if each != "store"])
    return made.make_link(_keys.Key(name, rights, tenant))


def _tell(session: Session, url: str, store: str, link: str | None, *, has_page: bool) -> None:
    if session.json:
        write_json({"url": url, "store": store, "open": link})
    else:
        shown().print(plain(f"serving {store} at {url}"))
        if link is not None:
            shown().print(plain(f"open once: {link}"))
    if link is not None and not has_page:
        said().print(plain(f"the link shows no page, because the inspector is not built; {_BUILD}"))
    sys.stdout.flush()


@app.command
async def add(
    name: str,
    rights: list[str],
    *,
    under: Annotated[str, Parameter(help="Reach only this space and those below it.")] = "",
    expires: Annotated[
        str | None, Parameter(help="Expire after 90s, 30m, 12h, 30d, 8w, or at a time with its zone.")
    ] = None,
    rate: Annotated[float | None, Parameter(help="Accept at most N requests a second.")] = None,
    session: Session = PLAIN,
) -> int:
    """Add a key, and print its secret, which is not stored and cannot be shown again.

    Args:
        name: The name of the key, which is the author of what is written with it.
        rights: read, write, work, answer, store or admin; admin includes read and write.
    """
    _require_extra()
    chosen = _keys.rights_of(rights)
    key = _keys.Key(name, chosen, session.tenant, under, _read_expiry(expires), rate)
    async with replace(session, tenant=None).opened(makes=True) as ks:
        secret = await _keys.Keys(ks).add(key)
    if session.json:
        write_json({"name": name, "secret": secret})
    else:
        shown().print(plain(secret))
        said().print(plain(f"key {name!r} added; store the secret now, it is not shown again"))
    return exits.OK


@app.command(name="list")
async def list_(*, session: Session = PLAIN) -> int:
    """List the keys, those that have expired too, without their secrets."""
    session.reject_tenant()
    _require_extra()
    rows: list[tuple[object, ...]] = []
    after: str | None = None
    async with session.opened() as ks:
        while True:
            page = await _keys.Keys(ks).list(after=after)
            for key in page:
                rows.append(_row(key))
                if session.json:
                    write_json(_fields(key))
            if (after := page.next) is None:
                break
    if not session.json:
        write_table(_HEADS, rows)
    return exits.OK


@app.command
async def revoke(name: str, *, session: Session = PLAIN) -> int:
    """Revoke a key. Every server refuses it within a second, and ends its streams.

    Args:
        name: The name of the key.
    """
    session.reject_tenant()
    _require_extra()
    async with session.opened() as ks:
        await _keys.Keys(ks).revoke(name)
    session.write({"revoked": name}, f"key {name!r} revoked")
    return exits.OK


@app.command
async def audit(
    *,
    after: Annotated[str | None, Parameter(help="Start after the event with this position.")] = None,
    limit: Annotated[int, Parameter(help="Print at most N events.")] = 100,
    session: Session = PLAIN,
) -> int:
    """Print the audit stream as JSON lines: changed keys, and calls that need the rights admin or answer."""
    session.reject_tenant()
    _require_extra()
    async with session.opened() as ks:
        found = await _keys.Keys(ks).audited(after=after, limit=limit)
    for event in found:
        write_json(answer(event))
    if not found and not session.json:
        write_none()
    return exits.OK


def _require_extra() -> None:
    if any(find_spec(package) is None for package in ("starlette", "uvicorn")):
        install = "pip install 'keepstate[server]'"
        raise MissingExtraError(f"the server needs starlette and uvicorn: {install}", install=install)


def _require_mcp() -> None:
    if find_spec("mcp") is None:
        install = "pip install 'keepstate[mcp]'"
        raise MissingExtraError(f"tools for models need mcp 2: {install}", install=install)


def _read_expiry(text: str | None) -> datetime | None:
    if text is None:
        return None
    moment = read_moment("--expires", text)
    return to_datetime(SYSTEM_CLOCK.now_ms()) + moment if isinstance(moment, timedelta) else moment


def _names(host: str) -> tuple[str, ...]:
    """Return the name of the server that follows from its address; none for all addresses."""
    return () if host in ("0.0.0.0", "::", "") else (_shown_host(host),)


def _shown_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _fields(key: _keys.Key) -> dict[str, object]:
    fields: dict[str, object] = fields_of(key, "name", "rights", "tenant", "under", "expires_at", "rate")
    fields["rights"] = sorted(key.rights)
    return fields


def _row(key: _keys.Key) -> tuple[object, ...]:
    return (
        key.name,
        ",".join(sorted(key.rights)),
        "-" if key.tenant is None else repr(key.tenant),
        key.under,
        "" if key.expires_at is None else utc(key.expires_at),
        "" if key.rate is None else f"{key.rate:g}",
    )
