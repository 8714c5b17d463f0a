"""Plays the deploy forward and back, and counts afterwards that every dollar is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from keepstate import sync

ADDED = 5
"""Dollars that each process adds to each trip."""


def say(line: str) -> None:
    """Print a line before the processes print theirs."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def start(code: str, url: str, *words: str) -> subprocess.Popen[bytes]:
    """Start a version of the application."""
    return subprocess.Popen([sys.executable, "-m", f"examples.rollback.{code}", url, str(ADDED), *words])


def finish(*processes: subprocess.Popen[bytes]) -> int:
    """Wait for processes, and return the dollars that they have added to each trip."""
    for process in processes:
        if process.wait() != 0:
            raise SystemExit("a version of the application failed")
    return ADDED * len(processes)


def migrate(url: str, version: str) -> None:
    """Bring all trips to a version, with the newer code, which knows both."""
    words = ["--app", "examples.rollback.newer", "--to-version", f"trip={version}", "--url", url]
    subprocess.run([sys.executable, "-m", "keepstate", "migrate", *words], check=True)


def versions(url: str) -> set[str]:
    """Return the versions in which the trips are stored."""
    with sync.open(url, values="builtin") as ks:
        return {trip["@type"] for _, trip in ks.space("trips").documents.items()}


def play(url: str) -> None:
    """Play the deploy forward, back and forward again."""
    say("The older code runs.")
    dollars = finish(start("older", url))
    say("Deploy 1: the newer code reads both versions, and writes version 1. The older code still runs.")
    dollars += finish(start("newer", url, "1"), start("older", url))
    assert versions(url) == {"trip@1"}
    say("Deploy 2: the newer code writes version 2. No older code runs.")
    dollars += finish(start("newer", url, "2"))
    assert versions(url) == {"trip@2"}
    say("Rollback 1: the trips go back to version 1, while newer code that writes version 1 runs.")
    writer = start("newer", url, "1")
    migrate(url, "1")
    dollars += finish(writer)
    assert versions(url) == {"trip@1"}
    say("Rollback 2: the older code runs alone.")
    dollars += finish(start("older", url))
    say("Forward again.")
    migrate(url, "newest")
    dollars += finish(start("newer", url))
    with sync.open(url, values="builtin") as ks:
        found = [trip["cents"] for _, trip in ks.space("trips").documents.items()]
    assert found == [100 * dollars] * 3, (found, dollars)
    say(f"Three trips, each with all of the {dollars} dollars.")


if __name__ == "__main__":
    if sys.argv[1:]:
        play(sys.argv[1])
    else:
        with TemporaryDirectory() as folder:
            play(f"sqlite:///{Path(folder)}/trips.db")
