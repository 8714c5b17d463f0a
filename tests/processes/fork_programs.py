"""Fork a process for each Python program that is asked for: `python fork_programs.py SOCKET MODULE...`.

What programs need is imported once, before the first of them. Each one then runs in a fork as a fresh
interpreter would run it: its words, environment, folder, streams and exit status are its own.

A request is one message on the socket: JSON with `words`, `environment`, `folder` and `modules`, and four
descriptors: stdin, stdout, stderr and a pipe for the end. The answer is the process id. When the program has
ended, the pipe gets one line: the exit status, and the seconds of processor time.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import types
import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

REQUEST_BYTES = 1 << 20


def main(channel_fd: int, modules: Sequence[str]) -> dict[str, Any] | None:
    """Serve requests until the socket is closed; in a fork, return its request instead."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    imported(modules)
    channel = socket.socket(fileno=channel_fd)
    woken, wakes = os.pipe()
    for fd in (woken, wakes):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends: dict[int, int] = {}
    while True:
        readable, _, _ = select.select([channel, woken], [], [])
        if woken in readable:
            os.read(woken, 4096)
            report_ends(ends)
        if channel not in readable:
            continue
        message, fds, _, _ = socket.recv_fds(channel, REQUEST_BYTES, 4)
        if not message:
            return None
        request: dict[str, Any] = json.loads(message)
        imported(request["modules"])
        if (pid := os.fork()) == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for stream in range(3):
                os.dup2(fds[stream], stream)
            channel.close()
            for fd in (*fds, *ends.values(), woken, wakes):
                os.close(fd)
            return request
        ends[pid] = fds[3]
        for fd in fds[:3]:
            os.close(fd)
        channel.send(str(pid).encode())


def imported(modules: Sequence[str]) -> None:
    """Import modules, and hide their objects from the garbage collector: it would copy them in each fork."""
    if missing := [module for module in modules if module not in sys.modules]:
        for module in missing:
            importlib.import_module(module)
        gc.collect()
        gc.freeze()


def report_ends(ends: dict[int, int]) -> None:
    """Write how each ended process ended into its pipe."""
    while ends:
        pid, status, usage = os.wait4(-1, os.WNOHANG)
        if pid == 0:
            return
        line = f"{os.waitstatus_to_exitcode(status)} {usage.ru_utime + usage.ru_stime}\n"
        end = ends.pop(pid)
        with suppress(BrokenPipeError):  # the test no longer asks
            os.write(end, line.encode())
        os.close(end)


def run(request: dict[str, Any]) -> None:
    """Run a program as the interpreter runs it: `[-W error] (-m MODULE | -c SOURCE | FILE) WORD...`."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    words: list[str] = request["words"]
    if words[0] == "-W":
        warnings.simplefilter(words[1])  # type: ignore[arg-type]
        words = words[2:]
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(words[1], "<string>", "exec"), program.__dict__)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    asked = main(int(sys.argv[1]), sys.argv[2:])
    if asked is not None:
        run(asked)
