"""Ctrl-C and a closed pipe end a command quietly, and leave nothing running."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import psutil
import pytest

import keepstate as ks_package
from tests.cli.conftest import COMMAND, Keepstate, Started

INTERRUPTED = 130
INTERRUPTED_AT_ONCE = """
import signal
from keepstate.cli.app import main
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.02)
main()
"""


def _filled(url: str, *, documents: int) -> None:
    async def main() -> None:
        async with ks_package.open(url) as ks, ks.space("run").transaction() as tx:
            for number in range(documents):
                await tx.documents.put(f"plan/{number:04}", "x" * 1000)

    asyncio.run(main())


def _closed_after_one_line(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    assert process.stdout is not None
    assert process.stderr is not None
    line = process.stdout.readline()
    process.stdout.close()
    return process.wait(60), line, process.stderr.read()


def test_ctrl_c_ends_a_watch_quietly(keepstate: Keepstate, started: Started) -> None:
    keepstate("put", "run", "plan", "1")
    process = started("watch", "run")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("watching * in run")

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (INTERRUPTED, "", "")


def test_output_that_cannot_be_written_ends_with_a_line(shell: Keepstate, url: str) -> None:
    _filled(url, documents=1)
    command = " ".join(f"'{word}'" for word in COMMAND)

    def piped(line: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["sh", "-c", line.replace("keepstate", command)],
            env={**os.environ, "KEEPSTATE_URL": url},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )

    full = piped("keepstate ls run >/dev/full")
    assert full.returncode == 1
    assert full.stderr == "keepstate: the output was not written: No space left on device\n"
    assert piped("keepstate ls run >&-").returncode == 0
    assert piped("keepstate put run n 1 >&- 2>&-").returncode == 0
    assert shell("get", "run", "n").json() == 1


def test_what_an_encoding_lacks_is_escaped_as_json_does(shell: Keepstate) -> None:
    shell("put", "run", "plan", '{"a": "é…\U0001f600"}', PYTHONIOENCODING="utf-8")

    for form in ([], ["--json"]):
        seen = shell("get", "run", "plan", *form, PYTHONIOENCODING="ascii")
        assert seen.out.isascii() and "\\u00e9\\u2026\\ud83d\\ude00" in seen.out
    assert shell("get", "run", "plan", PYTHONIOENCODING="ascii").json() == {"a": "é…\U0001f600"}


def test_ctrl_c_while_it_still_starts_is_as_quiet(started: Started) -> None:
    process = started("spaces", command=(sys.executable, "-c", INTERRUPTED_AT_ONCE))

    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (INTERRUPTED, "", "")


@pytest.mark.slow
def test_ctrl_c_ends_the_demo_with_its_workers_and_its_space(
    keepstate: Keepstate, started: Started, url: str
) -> None:
    keepstate("put", "mine", "note", "1")
    process = started("demo", "--workers", "2", "--url", url)
    assert process.stderr is not None
    while "is killed" not in process.stderr.readline():
        assert process.poll() is None
    workers = psutil.Process(process.pid).children(recursive=True)
    assert workers

    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out) == (INTERRUPTED, "")
    assert "Traceback" not in err
    assert not any(worker.is_running() for worker in workers)
    assert keepstate("spaces").out == "mine\n"


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "json"])
def test_who_reads_only_the_first_line_gets_it_and_no_complaint(
    started: Started, url: str, form: tuple[str, ...]
) -> None:
    _filled(url, documents=500)

    code, line, err = _closed_after_one_line(started("ls", "run", *form))

    assert (code, err) == (0, "")
    assert ("plan/0000" if form else "document") in line
