"""Entry point and table of the `keepstate` command: run one command, report its error, return its exit code.

Importing this module needs no package of the `cli` extra.
"""

from __future__ import annotations

import asyncio
import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from io import TextIOWrapper
from typing import TYPE_CHECKING

from keepstate.cli import exits
from keepstate.errors import KeepstateError

if TYPE_CHECKING:
    from cyclopts import App


def main() -> None:
    """Run one command and exit with its code."""
    _prepare_output()
    try:
        code = _run_if_installed()
    except KeyboardInterrupt:
        code = exits.INTERRUPTED
    sys.exit(code)


def _prepare_output() -> None:
    """Send closed output nowhere, and write characters that its encoding lacks as JSON escapes."""
    codecs.register_error("keepstate", _escape)
    # Replace closed streams before a store is opened: its file would get the number of the stream.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="keepstate")


def _escape(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    signs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{sign}" for sign in signs), error.end


def _run_if_installed() -> int:
    try:
        return run(sys.argv[1:])
    except ModuleNotFoundError as error:
        if error.name not in ("cyclopts", "rich"):
            raise
        sys.stderr.write(
            f"keepstate: the command line needs a package ({error}): pip install 'keepstate[cli]'\n"
        )
        return exits.USAGE


@cache
def commands() -> App:
    """Return the commands; their modules are imported on the first call."""
    from cyclopts import App

    from keepstate.cli import documents, events, history, imports, langgraph, maintenance, tenants, work
    from keepstate.cli.damage import repair
    from keepstate.cli.demo import demo
    from keepstate.cli.display import Terminal
    from keepstate.cli.doctor import doctor

    app = App(
        name="keepstate",
        help="Look into a store: its spaces, documents, tasks and histories.",
        help_epilogue=exits.HELP,
        version=version("keepstate"),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
        error_console=Terminal(stderr=True, color_system=None),  # it shows what was typed
    )
    for command in (
        *(demo, documents.spaces, documents.ls, documents.get, documents.put, documents.rm, documents.watch),
        *(tenants.tenants, tenants.size, tenants.drop),
        *(work.queue, events.events, events.replay, work.diagram),
        *(history.log, history.show, history.diff, history.blame),
        *(history.branch, history.tag, history.merge, history.rollback),
        *(maintenance.prune, maintenance.export, maintenance.verify, maintenance.migrate, maintenance.sweep),
        *(doctor, repair),
    ):
        app.command(command)
    app.command(imports.import_, name="import")
    app.command(langgraph.app)
    return app


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    from cyclopts import CycloptsError

    from keepstate.cli.display import discard_output, said

    app = commands()
    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        if _hide_passwords(text := str(error), arguments) != text:
            said().print(f"keepstate: {_hide_passwords(text, arguments)}", markup=False)
            return exits.USAGE
        with suppress(CycloptsError):
            app.parse_args(arguments, exit_on_error=False, print_error=True)
        return exits.USAGE
    try:
        answer = command(*bound.args, **bound.kwargs)
        if asyncio.iscoroutine(answer):
            answer = asyncio.run(answer)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else exits.OK
    except KeepstateError as error:
        text = _hide_passwords(str(error), arguments)
        said().print(f"keepstate: {' '.join(text.split())}", markup=False)
        return exits.code_of(error)
    except BrokenPipeError:  # the reader of the output has closed it
        discard_output()
        return exits.OK
    except OSError as error:  # a full disk behind the output, or a file that may not be read
        what = f"{error.filename}: " if error.filename else "the output was not written: "
        said().print(f"keepstate: {what}{error.strerror or error}", markup=False)
        discard_output()
        return exits.FAILED


def _hide_passwords(text: str, arguments: Sequence[str]) -> str:
    """Return a message in which the URLs among the arguments have no passwords."""
    from keepstate.opening import shown_url

    for word in arguments:
        url = word.partition("=")[2] if word.startswith("--") else word
        if "://" in url:
            text = text.replace(url, shown_url(url))
    return text
