"""Which files SQLite opens, under which names, and what it says of the others."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import apsw
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, InvalidError, StoreUnavailableError, UnsupportedError
from keepstate.opening import store_class
from keepstate.stores import local_files
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Durability, Put
from keepstate.stores.sqlite import SqliteStore, schema
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.sqlite.connection import is_safe, library_version
from keepstate.stores.urls import StoreUrl
from tests.stores.sqlite.conftest import Opens

A = b"\x01a"

linux = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="other systems do not list mounts in a file"
)

MOUNTS = r"""
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /mnt/team\040share rw shared:2 - nfs4 server:/x rw
31 22 0:27 / /mnt/host rw - fuse.sshfs host: rw
32 31 254:1 / /mnt/host/disk rw - xfs /dev/sdb rw
""".strip()


OPENS_WITHOUT_RIGHTS = """
import os, sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import KeepstateError
from keepstate.stores.sqlite import SqliteStore
from keepstate.stores.sqlite import connection as connections
connections.file_system()  # from the interpreter's own folders, which are out of reach afterwards
if os.getuid() == 0:
    os.setgroups([]), os.setgid(65534), os.setuid(65534)
try:
    finish(SqliteStore(sys.argv[1], runner=ThreadRunner()).open())
except KeepstateError as error:
    print(type(error).__name__, error)
"""

MAKES_DATABASES = """
import sys
import tempfile
from pathlib import Path
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.sqlite import SqliteStore
folder, number = Path(sys.argv[1]), sys.argv[2]
for turn in range(15):
    (folder / f"{turn} {number}").touch()
    while len(list(folder.glob(f"{turn} *"))) < 8:
        pass
    store = finish(SqliteStore(folder / f"{turn}.db", runner=ThreadRunner()).open())
    finish(store.apply([Batch("s", [Put(b"\\1log", b"", stamp=True)])]))
    finish(store.close())
"""


def from_url(url: str) -> StoreBase:
    place = StoreUrl.parse(url)
    return store_class(place.scheme).from_url(place, runner=ThreadRunner())


def revision(store: StoreBase) -> int:
    return finish(store.read("s", [])).revision


def test_three_slashes_are_relative_to_the_folder_that_it_was_opened_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    store = finish(from_url("sqlite:///app.db").open())
    monkeypatch.chdir(tmp_path / "elsewhere")

    finish(store.apply([Batch("s", [Put(A, b"1")])]))
    twin = finish(store.twin(ThreadRunner()).open())

    assert revision(twin) == 1
    assert (tmp_path / "app.db").exists()
    finish(twin.close())
    finish(store.close())


def test_four_slashes_are_absolute(tmp_path: Path) -> None:
    store = finish(from_url(f"sqlite:///{tmp_path}/with%20blank.db").open())

    assert (tmp_path / "with blank.db").exists()
    assert store.url == f"sqlite:///{tmp_path}/with%20blank.db"
    finish(store.close())


@pytest.mark.parametrize(
    ("option", "durability"), [("", Durability.POWER), ("?durability=full", Durability.POWER),
                               ("?durability=normal", Durability.PROCESS)],
)  # fmt: skip
def test_durability_is_what_the_url_says(path: Path, option: str, durability: Durability) -> None:
    store = finish(from_url(f"sqlite:///{path}{option}").open())

    assert store.capabilities.durability is durability
    assert store.capabilities.shared
    finish(store.close())


@pytest.mark.parametrize(
    "option", ["durability=some", "wait_s=0", "wait_s=soon", "unsafe_fs=perhaps", "mode=wal"]
)
def test_an_unknown_option_or_value_is_refused(option: str) -> None:
    with pytest.raises(InvalidError) as caught:
        from_url(f"sqlite:///app.db?{option}")

    assert option.partition("=")[0] in str(caught.value)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://app.db", "sqlite:///folder/", "sqlite://me@/x"]
)
def test_a_url_without_a_file_shows_how_one_looks(url: str) -> None:
    with pytest.raises(InvalidError, match=r"sqlite:///app\.db"):
        from_url(url)


@pytest.mark.parametrize("name", [":memory:", "a\x00b"])
def test_what_names_no_file_is_refused(name: str) -> None:
    with pytest.raises(InvalidError, match="memory://"):
        finish(SqliteStore(name, runner=ThreadRunner()).open())


def test_a_folder_is_no_file(tmp_path: Path, opened: Opens) -> None:
    with pytest.raises(InvalidError, match="is a folder"):
        opened(tmp_path)


def test_a_missing_folder_is_not_made(tmp_path: Path, opened: Opens) -> None:
    with pytest.raises(StoreUnavailableError, match="Create it"):
        opened(tmp_path / "typo" / "app.db")

    assert list(tmp_path.iterdir()) == []


def test_garbage_is_corrupt_and_left_alone(path: Path, opened: Opens) -> None:
    path.write_bytes(garbage := os.urandom(10_000))

    with pytest.raises(CorruptError) as caught:
        opened()

    assert caught.value.place == str(path)
    assert path.read_bytes() == garbage


def test_somebody_else_s_database_is_refused_and_left_alone(path: Path, opened: Opens) -> None:
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE accounts (id INTEGER PRIMARY KEY)")
    other.close()
    before = path.read_bytes()

    with pytest.raises(CorruptError, match="a database of another program"):
        opened()

    assert path.read_bytes() == before


def test_an_empty_file_becomes_a_database(path: Path, opened: Opens) -> None:
    path.touch()

    assert revision(opened()) == 0


def test_a_newer_layout_is_refused(path: Path, opened: Opens) -> None:
    finish(opened().close())
    newer = apsw.Connection(str(path), vfs=connections.file_system())
    newer.execute(f"PRAGMA user_version = {schema.LAYOUT + 1}")
    newer.close()

    with pytest.raises(UnsupportedError, match="Upgrade"):
        opened()


def test_one_file_has_one_durability_in_a_process_under_any_name(path: Path, opened: Opens) -> None:
    opened(durability="normal")
    link = path.with_name("link.db")
    link.symlink_to(path)

    for name in (path, link):
        with pytest.raises(InvalidError, match="with durability=normal"):
            opened(name, durability="full")


def test_what_cannot_be_written_to_is_not_opened() -> None:
    """By a process of its own without rights, because root writes wherever it likes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "keepstate.db")
        finish(finish(SqliteStore(path, runner=ThreadRunner()).open()).close())
        for file in Path(folder).iterdir():
            file.chmod(0o444)
        Path(folder).chmod(0o755)

        said = subprocess.run(
            [sys.executable, "-c", OPENS_WITHOUT_RIGHTS, path],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    assert said.startswith("StorageError")
    assert f"{path} cannot be written to" in said


@pytest.mark.slow
def test_8_processes_may_make_one_database_at_once(tmp_path: Path) -> None:
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKES_DATABASES, tmp_path, str(number)], stderr=subprocess.PIPE, text=True
        )
        for number in range(8)
    ]

    complaints = [worker.communicate(timeout=100)[1] for worker in workers]

    assert complaints == [""] * 8
    for turn in range(15):
        store = finish(SqliteStore(tmp_path / f"{turn}.db", runner=ThreadRunner()).open())
        assert revision(store) == 8
        finish(store.close())


@pytest.mark.parametrize(
    ("folder", "kind"),
    [("/var", "ext4"), ("/mnt/team share", "nfs4"), ("/mnt/team share/a/b", "nfs4"), ("/mnt/team", "ext4"),
     ("/mnt/host/x", "fuse.sshfs"), ("/mnt/host/disk", "xfs"), ("/mnt/host/disks", "fuse.sshfs")],
)  # fmt: skip
@linux
def test_a_folder_s_file_system_is_that_of_the_nearest_mount(mounts: Path, folder: str, kind: str) -> None:
    mounts.write_text(MOUNTS)

    assert local_files.file_system_type(folder) == kind


@linux
def test_a_network_file_system_is_refused_unless_it_is_said_to_be_safe(
    mounts: Path, path: Path, opened: Opens
) -> None:
    mounts.write_text(f"22 1 0:26 / {path.parent} rw shared:1 - nfs4 server:/x rw")

    with pytest.raises(UnsupportedError, match="unsafe_fs=1"):
        opened()

    assert revision(opened(unsafe_fs=True)) == 0


@linux
def test_a_machine_that_lists_no_mounts_is_trusted(mounts: Path, opened: Opens) -> None:
    assert not mounts.exists()

    assert revision(opened()) == 0


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which the system lists what is mounted."""
    mounts = tmp_path / "mountinfo"
    monkeypatch.setattr(local_files, "MOUNTS", str(mounts))
    return mounts


def test_the_library_in_use_is_free_of_the_checkpoint_fault() -> None:
    assert is_safe()
    assert library_version().startswith("3.")
