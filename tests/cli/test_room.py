"""A full disk, and the reserve file that lets it be cleaned."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Keepstate

MIB = 1 << 20
SMALL_DISK = '''
import asyncio, ctypes, os, sys
system = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 16384, 1 << 18
folder, url = sys.argv[1:]
user, group = os.geteuid(), os.getegid()


def become_root_of_a_namespace():
    """Map this user to root: a file system refuses to note a user whom its namespace does not know."""
    for name, line in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(line)


if (
    system.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0))
    or (user and become_root_of_a_namespace())
    or system.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    or system.mount(b"none", folder.encode(), b"tmpfs", 0, b"size=8m")
):
    print("the system does not let this user mount")
    sys.exit()
import keepstate
from keepstate.cli.app import run


async def put(count):
    async with keepstate.open(url) as ks:
        for number in range(count):
            await ks.space(f"run/{number}").documents.put("data", os.urandom(5_000))


def drop(numbers):
    codes = set()
    for number in numbers:
        codes.add(run(["drop", f"run/{number}", "--yes", "--url", url]))
        if codes != {0}:
            break
    print("dropped", sorted(codes))


def room(*words):
    print("make-room", *words, run(["make-room", *words, "--url", url]))


asyncio.run(put(100))
room("--reserve", "2")
with open(f"{folder}/log of another program", "wb", buffering=0) as log:
    for size in (1 << 20, 1 << 12, 1):
        try:
            while log.write(bytes(size)) == size:
                pass
        except OSError:
            pass
room("--reserve", "3")
drop(range(99, -1, -1))  # a few may fit into the last page of a journal
room()
drop(range(9))
asyncio.run(put(5))
room()
'''


@pytest.mark.parametrize("store", ["sqlite:///{}/cli.db", "file:///{}/journal"])
def test_a_full_disk_is_cleaned_after_its_reserve_was_deleted(store: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", SMALL_DISK, str(tmp_path), store.format(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    if "does not let this user mount" in done.stdout:
        return

    assert "There is no room for" in done.stderr
    assert "there is no reserve file" in done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("make-room", "dropped"))]
    first = [line for line in said if line in ("dropped [5]", "dropped [0, 5]")]
    assert said == [
        *("make-room --reserve 2 0", "make-room --reserve 3 5", *first),
        *("make-room 0", "dropped [0]", "make-room 1"),
    ]
    assert first


def test_a_reserve_is_filled_resized_and_deleted(keepstate: Keepstate, tmp_path: Path) -> None:
    absent = keepstate("make-room", "--reserve", "1")
    keepstate("put", "run", "plan", "1")
    path = tmp_path / "cli.db-reserve"
    before = keepstate("doctor", "--json").json()["findings"]

    filled = keepstate("make-room", "--reserve", "3", "--json").json()
    kept = os.stat(path)
    smaller = keepstate("make-room", "--reserve", "2")
    found = next(
        each for each in keepstate("doctor", "--json").json()["findings"] if each["subject"] == "reserve"
    )

    assert (absent.code, "there is no store" in absent.err) == (1, True)
    assert filled == {"file": str(path), "freed": 0, "reserved": 3 * MIB}
    assert (kept.st_size, kept.st_mode & 0o777) == (3 * MIB, 0o600)
    assert kept.st_blocks * 512 >= 3 * MIB
    assert (smaller.code, path.stat().st_size) == (0, 2 * MIB)
    assert next(each["text"] for each in before if each["subject"] == "reserve").startswith("none")
    assert (found["text"], found["well"]) == (f"{2 * MIB:,} bytes", True)
    assert keepstate("make-room", "--json").json() == {"file": str(path), "freed": 2 * MIB, "reserved": 0}
    assert not path.exists()
    assert (keepstate("make-room").code, keepstate("get", "run", "plan").out) == (1, "1\n")


def test_a_reserve_that_does_not_fit_leaves_what_was_there(keepstate: Keepstate, tmp_path: Path) -> None:
    keepstate("put", "run", "plan", "1")
    path, (soft, hard) = tmp_path / "cli.db-reserve", resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * MIB, hard))
    try:
        new = keepstate("make-room", "--reserve", "4")
        is_left = path.exists()
        keepstate("make-room", "--reserve", "2")
        larger = keepstate("make-room", "--reserve", "4")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert (new.code, larger.code, is_left) == (5, 5, False)
    assert path.stat().st_size == 2 * MIB


@pytest.mark.parametrize("kind", ["link", "second name"])
def test_a_reserve_that_is_another_file_is_neither_written_nor_deleted(
    keepstate: Keepstate, tmp_path: Path, kind: str
) -> None:
    keepstate("put", "run", "plan", "1")
    path, other = tmp_path / "cli.db-reserve", tmp_path / "other"
    other.write_text("data")
    path.symlink_to(other) if kind == "link" else path.hardlink_to(other)

    refused = [keepstate("make-room", "--reserve", "1"), keepstate("make-room")]

    assert [each.code for each in refused] == [2, 2]
    assert (other.read_text(), path.exists()) == ("data", True)


def test_the_reserve_of_a_folder_is_next_to_its_journal(keepstate: Keepstate, tmp_path: Path) -> None:
    url = f"file:///{tmp_path}/folder/"
    keepstate("put", "run", "plan", "1", "--url", url)

    assert keepstate("make-room", "--reserve", "1", "--url", url).code == 0
    assert (tmp_path / "folder" / "keepstate.journal-reserve").stat().st_size == MIB


def test_stores_without_a_file_have_no_reserve(keepstate: Keepstate) -> None:
    for url in ("memory://", "redis://127.0.0.1:1/0", "postgresql://127.0.0.1:1/none"):
        refused = keepstate("make-room", "--url", url)
        assert (refused.code, "not a file of this machine" in refused.err) == (2, True)
    keepstate("put", "run", "plan", "1")
    assert keepstate("make-room", "--reserve", "0").code == 2
    assert keepstate("make-room", "--tenant", "acme").code == 2
