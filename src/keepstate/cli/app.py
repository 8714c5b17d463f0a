"""Where the `keepstate` command begins."""

from __future__ import annotations

import codecs
import os
import sys
from io import TextIOWrapper


def main() -> None:
    """Run one command and exits with its code."""
    _open_output()
    try:
        code = _ended()
    except KeyboardInterrupt:
        from keepstate.cli.exits import INTERRUPTED

        code = INTERRUPTED
    sys.exit(code)


def _open_output() -> None:
    """Let output go nowhere that was closed, and write what its encoding lacks as JSON escapes it."""
    codecs.register_error("keepstate", _escaped)
    # A closed one is opened before any store: else its number would be given to the file of a store.
    sys.stdout = sys.stdout or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="keepstate")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    signs = (units[at : at + 2].hex() for at in range(0, len(units), 2))
    return "".join(f"\\u{sign}" for sign in signs), error.end


def _ended() -> int:
    try:
        from keepstate.cli.commands import run
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("keepstate"):
            raise
        sys.stderr.write(
            f"keepstate: the command line needs a package ({error}): pip install 'keepstate[cli]'\n"
        )
        from keepstate.cli.exits import USAGE

        return USAGE
    return run(sys.argv[1:])
