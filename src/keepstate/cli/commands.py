"""Which commands there are, and how what they raise ends."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import version

from cyclopts import App, CycloptsError

from keepstate.cli import (
    branches,
    documents,
    events,
    exits,
    history,
    imports,
    langgraph,
    machines,
    maintenance,
    migration,
    tasks,
    upkeep,
)
from keepstate.cli.damage import repair
from keepstate.cli.demo.command import demo
from keepstate.cli.doctor import doctor
from keepstate.cli.session import Terminal, said
from keepstate.errors import KeepstateError
from keepstate.opening import shown_url

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
    demo,
    documents.spaces,
    documents.ls,
    documents.get,
    documents.put,
    documents.watch,
    tasks.queue,
    events.events,
    events.replay,
    machines.diagram,
    history.log,
    history.show,
    history.diff,
    history.blame,
    branches.branch,
    branches.tag,
    branches.merge,
    branches.rollback,
    maintenance.prune,
    maintenance.export,
    maintenance.verify,
    migration.migrate,
    upkeep.sweep,
    doctor,
    repair,
):
    app.command(command)
app.command(imports.import_, name="import")
app.command(langgraph.app)


def run(arguments: Sequence[str]) -> int:
    """Return the exit code of one command."""
    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        if _without_passwords(text := str(error), arguments) != text:
            said().print(f"keepstate: {_without_passwords(text, arguments)}", markup=False)
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
        text = _without_passwords(str(error), arguments)
        said().print(f"keepstate: {' '.join(text.split())}", markup=False)
        return exits.code_of(error)
    except BrokenPipeError:  # who read the output has had enough; what is left of it goes nowhere
        _leave_output()
        return exits.OK
    except OSError as error:  # a full disk behind the output, or a file that may not be read
        what = f"{error.filename}: " if error.filename else "what it shows is not written: "
        said().print(f"keepstate: {what}{error.strerror or error}", markup=False)
        _leave_output()
        return exits.FAILED


def _without_passwords(text: str, arguments: Sequence[str]) -> str:
    """Return a message in which URLs among the words of the command are shown without their passwords."""
    for word in arguments:
        url = word.partition("=")[2] if word.startswith("--") else word
        if "://" in url:
            text = text.replace(url, shown_url(url))
    return text


def _leave_output() -> None:
    """Let what is left of the output go nowhere: the end of the process would write it once more."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
