"""The page of commands says what the command line says."""

from __future__ import annotations

import inspect
import re

from keepstate.cli.app import COMMANDS, commands
from tests.docs.pages import ROOT, tables

PAGE = ROOT / "docs" / "reference" / "commands.md"
APP = commands()
COMMON = {"--url", "--json", "--app"}
OWN = {
    " ".join(words)
    for name in APP
    if not name.startswith("-")
    for words in ([(name, inner) for inner in APP[name] if not inner.startswith("-")] or [(name,)])
}
"""Each command, those of a group behind its name."""


def test_each_command_has_a_row_and_no_other_has() -> None:
    rows = [name for name in tables(PAGE, under="Commands") if not name.startswith("-")]
    told = {own for own in OWN for row in rows if f"{row} ".startswith(f"{own} ")}

    assert told == OWN
    assert [row for row in rows if not any(f"{row} ".startswith(f"{own} ") for own in OWN)] == []


def test_each_summary_is_that_of_its_page() -> None:
    commands = {name: APP[name].default_command for name in COMMANDS}
    pages = {
        name: APP[name].help if command is None else inspect.getdoc(command)
        for name, command in commands.items()
    }

    assert {name: " ".join(str(page).split("\n\n")[0].split()) for name, page in pages.items()} == {
        name: summary for name, (_, summary) in COMMANDS.items()
    }


def test_each_option_has_a_row_that_names_its_command() -> None:
    told = {
        (option, command)
        for row in tables(PAGE, under="Commands").values()
        for option in re.findall(r"`(--[\w-]+)", row[0])
        for command in re.findall(r"`([\w-]+(?: \w+)?)`", row[1])
    }

    missing = [
        (option, name) for name in sorted(OWN) for option in options(name) if (option, name) not in told
    ]

    assert missing == []


def options(name: str) -> list[str]:
    """Return a command's own options as they are typed."""
    command = APP
    for word in name.split():
        command = command[word]
    parameters = inspect.signature(command.default_command).parameters.values()  # type: ignore[arg-type]
    own = [
        one.name.strip("_") for one in parameters if one.kind is one.KEYWORD_ONLY and one.name != "session"
    ]
    return [option for option in (f"--{one.replace('_', '-')}" for one in own) if option not in COMMON]
