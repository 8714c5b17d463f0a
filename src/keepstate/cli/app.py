"""Where the `keepstate` command begins."""

from __future__ import annotations

import sys


def main() -> None:
    """Runs one command and exits with its code."""
    try:
        code = _ended()
    except KeyboardInterrupt:
        from keepstate.cli.exits import INTERRUPTED

        code = INTERRUPTED
    sys.exit(code)


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
