"""Places where a store of one file opens, and the permissions of what it makes there."""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import InvalidError, KeepstateError, UnsupportedError
from keepstate.opening import store_class
from keepstate.stores import local_files
from keepstate.stores.base import StoreBase
from keepstate.stores.file.io import SYSTEM_FILES
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.urls import StoreUrl

OPENS_WITHOUT_RIGHTS = """
import os, sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import KeepstateError
from keepstate.opening import store_class
from keepstate.stores.urls import StoreUrl
import keepstate.stores.file, keepstate.stores.sqlite
keepstate.stores.sqlite.connection.file_system()  # from folders which are out of reach afterwards
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
url = StoreUrl.parse(sys.argv[1])
try:
    finish(store_class(url.scheme).from_url(url, runner=ThreadRunner()).open())
except KeepstateError as error:
    print(type(error).__name__, error)
"""


@pytest.mark.parametrize("is_there", [True, False], ids=["read-only file", "read-only folder"])
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_where_nothing_may_be_written_the_error_is_one_that_no_retry_mends(
    scheme: str, is_there: bool
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"{scheme}:///{folder}/store"
        if is_there:
            store = store_class(scheme).from_url(StoreUrl.parse(url), runner=ThreadRunner())
            finish(store.open())
            finish(store.close())
        for file in Path(folder).iterdir():
            file.chmod(0o444)
        Path(folder).chmod(0o555)

        command = [sys.executable, "-c", OPENS_WITHOUT_RIGHTS, url]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    assert said.startswith("StorageError"), said
    assert f"{folder}/store" in said
    assert "writ" in said


def _made(place: Path, kind: str) -> None:
    if kind == "pipe":
        os.mkfifo(place)
    else:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(place))


@pytest.mark.parametrize("kind", ["pipe", "socket"])
@pytest.mark.parametrize("scheme", ["file", "sqlite"])
def test_what_is_no_file_is_refused_and_left_alone(
    tmp_path: Path, scheme: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's name may not be long
    _made(Path("place"), kind)
    url = StoreUrl.parse(f"{scheme}:///place")

    with pytest.raises(InvalidError, match="cannot store data"):
        finish(store_class(scheme).from_url(url, runner=ThreadRunner()).open())

    assert [found.name for found in tmp_path.iterdir()] == ["place"]


# ---- one file under two paths

FILES = pytest.mark.parametrize("scheme", ["file", "sqlite"])
A = b"\x01a"
BOUND = "63 43 254:0 /srv/{name} {place} rw,relatime - ext4 /dev/vda rw"
"""A line of a container's mountinfo in which one file of the host is bound to a path."""
BINDS = """
import ctypes, os, sys
bound = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNS, CLONE_NEWUSER, MS_BIND, MS_REC, MS_PRIVATE = 0x20000, 0x10000000, 4096, 16384, 1 << 18
if (
    bound.unshare(CLONE_NEWNS | (CLONE_NEWUSER if os.geteuid() else 0))
    or bound.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None)
    or bound.mount(sys.argv[1].encode(), sys.argv[2].encode(), None, MS_BIND, None)
):
    print("the system does not let this user mount")
    sys.exit()
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import UnsupportedError
from keepstate.opening import store_class
from keepstate.stores.urls import StoreUrl
url = StoreUrl.parse(sys.argv[3])
try:
    finish(store_class(url.scheme).from_url(url, runner=ThreadRunner()).open())
except UnsupportedError as error:
    print(error)
"""


def opened(scheme: str, path: Path, options: str = "") -> StoreBase:
    url = StoreUrl.parse(f"{scheme}:///{path}{options}")
    return finish(store_class(scheme).from_url(url, runner=ThreadRunner()).open())


def put(store: StoreBase, value: bytes) -> None:
    outcome = finish(store.apply([Batch("s", [Put(A, value)])]))[0]
    assert not isinstance(outcome, KeepstateError), outcome


def revision(store: StoreBase) -> int:
    return finish(store.read("s", [])).revision


@FILES
@pytest.mark.parametrize("name", ["store", "link"])
def test_a_file_with_a_hard_link_is_refused_under_both_names(scheme: str, name: str, tmp_path: Path) -> None:
    first = opened(scheme, tmp_path / "store")
    put(first, b"1")
    (tmp_path / "link").hardlink_to(tmp_path / "store")
    finish(first.close())

    with pytest.raises(UnsupportedError, match=r"2 names \(hard links\).*unsafe_fs=1"):
        opened(scheme, tmp_path / name)


@FILES
def test_a_hard_link_keeps_no_second_writer_beside_the_first(scheme: str, tmp_path: Path) -> None:
    store = opened(scheme, tmp_path / "store")
    put(store, b"1")
    (tmp_path / "link").hardlink_to(tmp_path / "store")

    with pytest.raises(UnsupportedError):
        opened(scheme, tmp_path / "link")

    assert {found.name for found in tmp_path.iterdir()}.isdisjoint({"link.lock", "link-wal"})
    finish(store.close())


@FILES
def test_a_file_that_is_itself_a_mount_point_is_refused(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(local_files, "MOUNTS", str(mounts))
    (tmp_path / "alias").symlink_to(tmp_path / "my store")
    escaped = str(tmp_path / "my store").replace(" ", r"\040")
    mounts.write_text(f"22 1 254:0 / / rw - ext4 /dev/root rw\n{BOUND.format(name='a', place=escaped)}\n")
    (tmp_path / "my store").touch()

    for name in ("my store", "alias"):
        with pytest.raises(UnsupportedError, match="is itself a mount point"):
            opened(scheme, tmp_path / name)


@FILES
def test_a_file_bound_to_another_path_is_refused_there(scheme: str, tmp_path: Path) -> None:
    """By a real mount where the system lets this user make one; its listing is tested above in any case."""
    put(store := opened(scheme, tmp_path / "store"), b"1")
    finish(store.close())
    (tmp_path / "bound").touch()
    url = f"{scheme}:///{tmp_path}/bound"

    command = [sys.executable, "-c", BINDS, str(tmp_path / "store"), str(tmp_path / "bound"), url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    answers = ("is itself a mount point", "the system does not let this user mount")
    assert any(answer in done.stdout for answer in answers), done.stderr
    store = opened(scheme, tmp_path / "store")
    assert revision(store) == 1
    finish(store.close())


@FILES
def test_the_file_system_is_that_of_the_file_s_own_mount(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(local_files, "MOUNTS", str(mounts))
    root = "22 1 254:0 / / rw - ext4 /dev/root rw"
    mounts.write_text(f"{root}\n30 22 0:26 / {tmp_path}/store rw - nfs4 a:/x rw")

    assert local_files.file_system_type(str(tmp_path / "store")) == "nfs4"
    with pytest.raises(UnsupportedError, match="unsafe_fs=1"):
        opened(scheme, tmp_path / "store")


@FILES
def test_unsafe_fs_takes_a_file_with_a_second_name(scheme: str, tmp_path: Path) -> None:
    put(store := opened(scheme, tmp_path / "store"), b"1")
    finish(store.close())
    (tmp_path / "link").hardlink_to(tmp_path / "store")

    store = opened(scheme, tmp_path / "store", "?unsafe_fs=1")

    assert revision(store) == 1
    finish(store.close())


# ---- what stands beside a database

BESIDE: dict[str, Callable[[Path, Path], None]] = {
    "hard link": lambda beside, other: beside.hardlink_to(other),
    "link": lambda beside, other: beside.symlink_to(other),
    "pipe": lambda beside, _: os.mkfifo(beside),
}


@pytest.mark.parametrize("kind", BESIDE)
@pytest.mark.parametrize("name", ["store-wal", "store-shm", "store-journal"])
def test_a_log_that_is_another_file_is_refused_and_left_alone(kind: str, name: str, tmp_path: Path) -> None:
    put(store := opened("sqlite", tmp_path / "store"), b"1")
    finish(store.close())
    (private := tmp_path / "private").write_text("of another program")
    (tmp_path / name).unlink(missing_ok=True)
    BESIDE[kind](tmp_path / name, private)

    with pytest.raises(InvalidError, match=f"{name} is a link, has a second name"):
        opened("sqlite", tmp_path / "store")

    assert private.read_text() == "of another program"


# ---- what is made, and for whom


@pytest.fixture
def generous() -> Iterator[None]:
    """A umask that takes no permission away."""
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@FILES
@pytest.mark.usefixtures("generous")
def test_all_files_of_a_store_are_for_their_owner_alone(scheme: str, tmp_path: Path) -> None:
    put(store := opened(scheme, tmp_path / "store"), b"1")

    assert {found.name: mode(found) for found in tmp_path.iterdir()} == {
        found.name: 0o600 for found in tmp_path.iterdir()
    }
    assert len(list(tmp_path.iterdir())) == (2 if scheme == "file" else 4)
    finish(store.close())


@pytest.mark.usefixtures("generous")
def test_a_folder_that_is_made_is_for_its_owner_alone(tmp_path: Path) -> None:
    finish(opened("file", tmp_path / "a" / "b", "/").close())

    assert [mode(tmp_path / "a"), mode(tmp_path / "a/b"), mode(tmp_path / "a/b/keepstate.journal")] == [
        0o700, 0o700, 0o600,
    ]  # fmt: skip


@FILES
def test_a_store_that_was_given_to_a_group_stays_with_it(scheme: str, tmp_path: Path) -> None:
    put(store := opened(scheme, tmp_path / "store"), b"1")
    finish(store.close())
    (tmp_path / "store").chmod(0o660)
    for beside in tmp_path.glob("store?*"):
        beside.unlink()

    put(store := opened(scheme, tmp_path / "store"), b"2")

    assert {mode(found) for found in tmp_path.iterdir()} == {0o660}
    finish(store.close())


@FILES
def test_a_database_takes_no_permissions_from_a_lock_that_was_there_first(
    scheme: str, tmp_path: Path
) -> None:
    (tmp_path / "store.lock").touch()
    (tmp_path / "store.lock").chmod(0o666)

    finish(opened(scheme, tmp_path / "store").close())

    assert mode(tmp_path / "store") == 0o600


def _symbolic(place: Path, target: Path) -> None:
    place.symlink_to(target)


def _hard(place: Path, target: Path) -> None:
    place.hardlink_to(target)


@FILES
@pytest.mark.parametrize("link", [_symbolic, _hard])
def test_the_lock_is_not_written_through_a_link(
    scheme: str, link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    (tmp_path / "precious").write_bytes(b"what somebody else keeps")
    link(tmp_path / "store.lock", tmp_path / "precious")

    with pytest.raises(InvalidError, match=r"store\.lock .* remove it"):
        opened(scheme, tmp_path / "store")

    assert (tmp_path / "precious").read_bytes() == b"what somebody else keeps"
    assert not (tmp_path / "store").exists()


@FILES
def test_no_file_is_made_through_a_link(scheme: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store").symlink_to(tmp_path / "elsewhere" / "planted")

    with pytest.raises(InvalidError, match="link to a missing file"):
        opened(scheme, tmp_path / "store")

    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_journal_is_not_rewritten_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"what somebody else keeps")
    (tmp_path / "store.new").symlink_to(tmp_path / "precious")

    put(store := opened("file", tmp_path / "store"), b"1")

    assert (tmp_path / "precious").read_bytes() == b"what somebody else keeps"
    assert not (tmp_path / "store").is_symlink()
    finish(store.close())


def test_a_rewritten_journal_keeps_its_permissions(tmp_path: Path) -> None:
    put(store := opened("file", tmp_path / "store"), b"1")
    (tmp_path / "store").chmod(0o640)
    first = (tmp_path / "store").stat().st_ino

    for number in range(100):
        put(store, bytes([number]) * 500_000)
        if (tmp_path / "store").stat().st_ino != first:
            break

    assert (tmp_path / "store").stat().st_ino != first
    assert mode(tmp_path / "store") == 0o640
    finish(store.close())


def test_what_the_journal_opens_is_not_a_link(tmp_path: Path) -> None:
    """A link that is planted after the path was resolved leads nowhere either."""
    (tmp_path / "precious").write_bytes(b"what somebody else keeps")
    (tmp_path / "store").symlink_to(tmp_path / "precious")

    with pytest.raises(OSError, match="symbolic links"):
        SYSTEM_FILES.open(str(tmp_path / "store"), os.O_RDWR)
