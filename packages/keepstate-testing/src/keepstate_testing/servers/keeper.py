"""Starts and ends server processes; also the program that does it for a test process, and outlives it.

The program makes one folder for all servers of the test process that runs it, prints the folder's path, and
then starts servers on request. End of file on its standard input means that the test process has ended, in
whatever way. The keeper then kills every server with all its children and removes the folder. The servers are
its own children, so none ever runs unwatched. Orphans of a killed server become its children, so none stays
as a zombie in containers whose init collects none.

It needs the standard library only: no state of the test process (its path, its environment) can keep it
from starting.
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_GONE_AFTER_S = 60.0
_LOOK_EVERY_S = 0.001
_IPC_RMID = 0
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table. `born` distinguishes a process from a later one with the same pid."""

    pid: int
    parent: int
    born: str

    @property
    def is_running(self) -> bool:
        """Return whether it is still there.

        A zombie is: its other threads may still be ending, and hold its ports until its status is collected.
        """
        now = find_process(self.pid)
        return now is not None and now.born == self.born

    def signal(self, number: int) -> None:
        """Send a signal, if the process runs."""
        if self.is_running:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as the process runs no more, False after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > until:
                return False
            time.sleep(_LOOK_EVERY_S)
        return True


def find_process(pid: int) -> Process | None:
    """Return the row of `pid`, from /proc or else from ps; None if there is no such process."""
    if not Path("/proc/self/stat").exists():
        return _ask_ps("-p", str(pid)).get(pid)
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    # The second field is the program's name in parentheses, and may itself hold blanks and parentheses.
    fields = stat[stat.rindex(")") + 2 :].split()
    return Process(pid, parent=int(fields[1]), born=fields[19])


def kill_tree(root: Process) -> None:
    """Kill a process and all its descendants as a power cut would, and return when none of them runs.

    The process is stopped before its children are counted, so that it can neither start another one nor
    notice that one died. Killing by process group would miss PostgreSQL's backends: each is one by itself.

    Raises:
        TimeoutError: One lives on 60 s after SIGKILL.
    """
    root.signal(signal.SIGSTOP)
    tree = [root, *_descendants(root)]
    for process in tree:
        process.signal(signal.SIGKILL)
    for process in tree:
        if not process.wait(_GONE_AFTER_S):
            raise TimeoutError(f"process {process.pid} lives on {_GONE_AFTER_S:.0f} s after SIGKILL")


def remove_folder(folder: Path) -> None:
    """Remove a folder of servers that no longer run, and the shared memory that killed ones left behind."""
    for left in folder.glob("**/postmaster.pid"):
        _free_shared_memory(left)
    shutil.rmtree(folder, ignore_errors=True)


def _descendants(root: Process) -> list[Process]:
    if Path("/proc/self/stat").exists():
        rows = (find_process(int(name)) for name in os.listdir("/proc") if name.isdigit())
        table = [process for process in rows if process is not None]
    else:
        table = list(_ask_ps("-A").values())
    family = [root]
    for ancestor in family:
        family += [process for process in table if process.parent == ancestor.pid]
    return family[1:]


def _ask_ps(*which: str) -> dict[int, Process]:
    command = ["ps", *which, "-o", "pid=,ppid=,lstart="]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()
    rows = (line.split(None, 2) for line in lines if line.strip())
    return {int(pid): Process(int(pid), int(parent), born) for pid, parent, born in rows}


def _free_shared_memory(postmaster_pid: Path) -> None:
    """Free the System V segment that a killed PostgreSQL keeps for its next start, which will not come.

    The file's seventh line is "key id"; the file is there only if the server did not end by itself.
    """
    with suppress(OSError, IndexError, ValueError):
        segment = int(postmaster_pid.read_text().splitlines()[6].split()[1])
        ctypes.CDLL(None).shmctl(segment, _IPC_RMID, None)


def main() -> None:
    """Make the folder, start servers on request, and remove everything at the end of input."""
    signal.signal(signal.SIGCHLD, _collect_the_dead)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix="keepstate-servers-"))
    # Servers under another account have to pass through to their own folders.
    folder.chmod(0o711)
    _answer({"folder": str(folder)})
    for line in sys.stdin:
        _answer(_start(json.loads(line)))

    for child in _descendants(Process(os.getpid(), parent=0, born="")):
        with suppress(TimeoutError):
            kill_tree(child)
    remove_folder(folder)


def _start(request: Mapping[str, Any]) -> Mapping[str, object]:
    """Start `request["command"]` in a session of its own, out of Ctrl-C's way."""
    try:
        with open(request["log"], "ab") as log:
            # Held in no variable: `_collect_the_dead` collects it.
            pid = subprocess.Popen(
                request["command"],
                cwd=request["folder"],
                env={**os.environ, **request["environment"]},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                **request["credentials"],
            ).pid
    except OSError as error:
        return {"error": str(error)}
    return {"pid": pid}


def _collect_the_dead(_number: int, _frame: FrameType | None) -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _answer(answer: Mapping[str, object]) -> None:
    with suppress(BrokenPipeError):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
