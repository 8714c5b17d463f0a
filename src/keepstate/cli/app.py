"""Entry point and table of the `keepstate` command: run one command, report its error, return its exit code.

Importing this module needs no package of the `cli` extra.
"""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from inspect import iscoroutine
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final

from keepstate._deferral import defer_imports
from keepstate.cli import exits
from keepstate.errors import KeepstateError

if TYPE_CHECKING:
    from cyclopts import App, CycloptsError

    from keepstate.cli import display as _display
else:
    defer_imports(globals(), _display="keepstate.cli.display")


COMMANDS: Final = {
    "blame": (
        "history",
        "Show which commit last set a value. Without a path, show it for each key of the state.",
    ),
    "branch": ("branches", "List the branches of a space, or make or delete one."),
    "completion": ("completion", "Print the script that completes commands and options in a shell."),
    "demo": (
        "demo",
        "Let worker processes share one store, kill one, resume it, and count everything again.",
    ),
    "diagram": ("work", "Print a state machine as a Mermaid state diagram."),
    "diff": ("history", "Print the changes from one commit's state to another's."),
    "doctor": (
        "doctor",
        "Report what the store really offers. Exit with 1 if one of its settings could lose data.",
    ),
    "drop": ("tenants", "Delete a space with everything in it, its history and its log."),
    "erase": (
        "tenants",
        "Erase the tenant: delete all its spaces, and rewrite the files of the store without them.",
    ),
    "erase-owner": (
        "tenants:erase_owner",
        "Erase the sessions and the memories of one owner, and the state of that user, in the whole tenant.",
    ),
    "events": ("events", "Print the events of a stream in order."),
    "export": (
        "maintenance",
        "Write the whole history of a space into one file; import reads it into any store.",
    ),
    "export-owner": (
        "tenants:export_owner",
        "Write the sessions, memories and state of one owner into a new file; import-tenant reads it.",
    ),
    "export-tenant": (
        "tenants:export_tenant",
        "Write all spaces of the tenant into a new file of JSON lines; import-tenant reads it.",
    ),
    "expunge": (
        "tenants",
        "Remove everything whose name begins with a prefix from a space, with its log and its history.",
    ),
    "find": (
        "find",
        ("List sessions, agents, workflows, queues and other subjects, the latest change first."),
    ),
    "get": ("documents", "Print a document."),
    "import": (
        "imports:import_",
        "Import chat transcripts, one commit for each message, or a history that export wrote.",
    ),
    "import-tenant": (
        "tenants:import_tenant",
        "Write what export-tenant wrote into a tenant without data.",
    ),
    "keys": ("serve:app", "Add, list, audit and revoke the keys of the server."),
    "langgraph": ("langgraph:app", "Import LangGraph's checkpoints, and prune old ones."),
    "log": ("history", "List a commit and those before it."),
    "ls": ("documents", "List the documents of a space."),
    "make-room": (
        "room:make_room",
        "Delete the reserve file next to the store, so that a full disk has room for deletions.",
    ),
    "mcp": (
        "serve:mcp",
        "Serve tools for models by the Model Context Protocol, over standard input and output.",
    ),
    "merge": (
        "branches",
        "Merge the changes of another branch into a branch. Exit with 4 if both changed the same value.",
    ),
    "migrate": (
        "maintenance",
        "Rewrite documents in the versions that --app writes, newer or older.",
    ),
    "prune": (
        "maintenance",
        "Delete old commits and the data that only they use. Remaining commits are unchanged.",
    ),
    "put": ("documents", "Write a document, and print its new version."),
    "queue": (
        "queue:app",
        "Count, list and show tasks; pause, resume and requeue queues; cancel and rerun tasks.",
    ),
    "reindex": (
        "find:reindex",
        "Compare the index of find with all spaces, and correct it. Writers need not stop.",
    ),
    "repair": (
        "damage",
        "Copy all readable data of a store into a new one. Exit with 5 if some data was damaged.",
    ),
    "replay": (
        "events",
        "Print the state that a reducer computes from the events of a stream. Writes nothing.",
    ),
    "restored": (
        "maintenance",
        "Pause all queues, and end all claims and leases, after a backup was restored.",
    ),
    "rm": (
        "documents",
        "Delete documents. Exit with 1 if one of them does not exist; the others are deleted.",
    ),
    "rollback": ("branches", "Commit an earlier state of a branch again. Nothing is erased."),
    "schedules": (
        "schedules",
        "List the schedules of a space, or show, pause, resume, run or delete one.",
    ),
    "serve": (
        "serve",
        "Serve the store over HTTP until SIGTERM or Ctrl-C, for clients that have a key.",
    ),
    "show": ("history", "Print the state of a commit, or a part of it; messages in readable form."),
    "size": (
        "tenants",
        (
            "Print the number of entries of a space, or of all spaces of the tenant, and their size "
            "without logs."
        ),
    ),
    "spaces": ("documents", "List the spaces that hold data."),
    "sweep": (
        "maintenance",
        "Remove expired entries and unused parts of large values, and print the number of entries.",
    ),
    "tag": ("branches", "List the tags of a space, or make or delete one."),
    "tenants": ("tenants", "List the tenants that have data."),
    "verify": (
        "maintenance",
        "Compare every byte of a history with its hash. Exit with 5 if data is damaged.",
    ),
    "watch": ("documents", "Print changes of documents as they happen, until Ctrl-C."),
    "worker": (
        "work",
        "Work on the tasks of a space, or of many, until SIGTERM or Ctrl-C, and print what was done.",
    ),
}
"""The module of each command, with the name of the function if that differs, and the command's summary."""
GROUPS: Final = {
    "Spaces and documents": (
        *("spaces", "find", "ls", "get", "put", "rm", "watch", "events", "replay", "size", "drop"),
    ),
    "Histories": (
        *("log", "show", "diff", "blame", "branch", "tag", "merge", "rollback", "prune", "verify"),
        *("export", "import"),
    ),
    "Tasks and agents": ("queue", "worker", "schedules", "langgraph", "diagram"),
    "Tenants and owners": (
        *("tenants", "export-tenant", "import-tenant", "erase", "export-owner", "erase-owner", "expunge"),
    ),
    "Servers": ("serve", "keys", "mcp"),
    "Care of a store": ("doctor", "repair", "restored", "make-room", "sweep", "migrate", "reindex"),
    "This command": ("demo", "completion"),
}
"""The commands by subject, as the overview lists them."""
_PAGES: Final = (
    *("completion", "demo", "doctor", "import", "make-room", "mcp", "migrate", "restored", "serve"),
)
"""Commands whose description is longer than the summary."""


_HELP: Final = """\
Look into a store and care for it: its spaces, documents, tasks and histories.

The store is that of --url, or of the variable KEEPSTATE_URL; by default sqlite:///keepstate.db.
`keepstate COMMAND --help` lists the options of a command.
"""


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
def commands(*, is_overview: bool = False) -> App:
    """Return the commands. The module of each is imported when it is looked up.

    Args:
        is_overview: Whether they are only listed, with the summaries that stand here.
    """
    from cyclopts import App, Group, Parameter

    app = App(
        name="keepstate",
        help=_HELP,
        help_epilogue=exits.HELP,
        help_format="plaintext",
        version=_version,
        default_parameter=Parameter(negative_iterable=(), show_default=_default),
        result_action="return_value",
        suppress_keyboard_interrupt=False,
    )
    groups: dict[str, Group] = {}
    for number, (title, names) in enumerate(GROUPS.items()):
        groups |= dict.fromkeys(names, Group(title, sort_key=number))
    for name, (where, summary) in COMMANDS.items():
        module, _, attribute = where.partition(":")
        path = f"keepstate.cli.{module}:{attribute or name}"
        if is_overview:
            app.command(path, name=name, help=summary, group=groups[name])
        else:
            app.command(path, name=name, **({"help_format": "markdown"} if name in _PAGES else {}))
    if is_overview:
        app["--help"].group = app["--version"].group = groups["demo"]
    return app


def _default(value: object) -> object:
    """Return a default that help shows; None for one that says nothing, such as that of a flag."""
    return None if value in (False, "", ()) else value


def _version() -> str:
    from importlib.metadata import version

    return version("keepstate")


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code."""
    from cyclopts import CycloptsError

    app = commands(is_overview=not COMMANDS.keys() & set(arguments))
    try:
        command, bound, _ = app.parse_args(arguments, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        return _reject(app, error, arguments)
    try:
        answer = command(*bound.args, **bound.kwargs)
        if iscoroutine(answer):
            import asyncio

            answer = asyncio.run(answer)
        sys.stdout.flush()
        return answer if isinstance(answer, int) else exits.OK
    except KeepstateError as error:
        text = " ".join(_hide_passwords(str(error), arguments).split())
        return _fail(error.code, text, exits.code_of(error), arguments, is_retryable=error.retryable)
    except BrokenPipeError:  # the reader of the output has closed it
        _display.discard_output()
        return exits.OK
    except OSError as error:  # a full disk behind the output, or a file that may not be read
        what = f"{error.filename}: " if error.filename else "the output was not written: "
        _fail("os", f"{what}{error.strerror or error}", exits.FAILED, arguments)
        _display.discard_output()
        return exits.FAILED


def _reject(app: App, error: CycloptsError, arguments: Sequence[str]) -> int:
    """Print what is wrong with the arguments; in the parser's form, unless that would show a password."""
    text = _hide_passwords(str(error), arguments)
    if "--json" in arguments or text != str(error):
        return _fail("usage", text, exits.USAGE, arguments)
    app.error_console = _display.Terminal(stderr=True, color_system=None)  # it shows what was typed
    with suppress(type(error)):
        app.parse_args(arguments, exit_on_error=False, print_error=True)
    return exits.USAGE


def _fail(
    code: str, message: str, exit_code: int, arguments: Sequence[str], *, is_retryable: bool = False
) -> int:
    """Print an error on standard error, with --json as one line of JSON, and return the exit code."""
    if "--json" in arguments:
        error = {"error": code, "message": message, "retryable": is_retryable, "exit_code": exit_code}
        sys.stderr.write(_display.text_of(error) + "\n")
    else:
        _display.said().print(f"keepstate: {message}", markup=False)
    return exit_code


def _hide_passwords(text: str, arguments: Sequence[str]) -> str:
    """Return a message in which the URLs among the arguments have no passwords."""
    from keepstate.opening import shown_url

    for word in arguments:
        url = word.partition("=")[2] if word.startswith("--") else word
        if "://" in url:
            text = text.replace(url, shown_url(url))
    return text
