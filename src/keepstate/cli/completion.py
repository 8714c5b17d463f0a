"""Command that prints the completion script of a shell, made from the commands themselves."""

from __future__ import annotations

import sys
from typing import Literal

from keepstate.cli import exits
from keepstate.cli.display import write_json
from keepstate.cli.session import PLAIN, Session


async def completion(shell: Literal["bash", "zsh", "fish"], *, session: Session = PLAIN) -> int:
    """Print the script that completes commands and options in a shell.

    For bash, put `source <(keepstate completion bash)` into ~/.bashrc. For zsh, write the output into a file
    `_keepstate` in a folder of `$fpath`; for fish, into ~/.config/fish/completions/keepstate.fish.

    Args:
        shell: The shell.
    """
    from keepstate.cli.app import commands

    script = commands().generate_completion(prog_name="keepstate", shell=shell)
    write_json({"shell": shell, "script": script}) if session.json else sys.stdout.write(script)
    return exits.OK
