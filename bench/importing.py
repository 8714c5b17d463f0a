"""How long it takes to import keepstate and to begin, and how much memory that takes.

Modules are compiled once, before the first measured start, as they are where packages are installed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.harness import Table

BLOCKS = 11
BEGIN = "import keepstate\nwith keepstate.sync.open('memory://') as ks: ks.space('a').documents.put('b', 1)"
PEAK = """
import pathlib, re, resource
status = pathlib.Path("/proc/self/status")
if status.exists():
    print(re.search(r"VmHWM:\\s+(\\d+) kB", status.read_text())[1])
else:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
"""Prints the peak of memory in KiB. On Linux `getrusage` also counts the parent process."""


def importing(table: Table) -> None:
    """Add the rows, each from new interpreters: an import, a first put, and a command."""
    times: list[tuple[float, float]] = []
    begun: list[float] = []
    helped: list[float] = []
    peaks: list[float] = []
    command = str(Path(sys.executable).with_name("keepstate"))
    with TemporaryDirectory() as folder:
        environment = compiling(folder)
        for _ in range(table.scaled(BLOCKS, least=3) + 1):
            bare = _ran(environment, "-c", "pass")
            ours = _ran(environment, "-c", "import keepstate") - bare
            times.append((ours, _ran(environment, "-c", "import msgspec, asyncio") - bare))
            begun.append(_ran(environment, "-c", BEGIN) * 1e3)
            helped.append(_ran(environment, command, "--help") * 1e3)
            peaks.append(_peak_mb(environment, BEGIN))
    for measured in (times, begun, helped, peaks):
        del measured[0]  # it compiled the modules
    table.add("import keepstate", 2, times)
    table.limit("import, open memory, one put", 200, "ms", begun)
    table.limit("the same, peak of memory", 28, "MB", peaks)
    table.limit("keepstate --help", 250, "ms", helped)


def compiling(folder: str) -> dict[str, str]:
    """Return the environment of processes that keep compiled modules in a folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return environment | {"PYTHONPYCACHEPREFIX": folder}


def _ran(environment: dict[str, str], *arguments: str) -> float:
    """Return how many seconds a new interpreter takes with these arguments."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        check=True,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    return time.perf_counter() - start


def _peak_mb(environment: dict[str, str], code: str) -> float:
    told = subprocess.run(
        [sys.executable, "-c", code + PEAK], check=True, capture_output=True, text=True, env=environment
    )
    return int(told.stdout) * 1024 / 1e6
