"""A store of one file is made of nothing but a file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import InvalidError
from keepstate.stores.urls import StoreUrl, store_class

OPENS_WITHOUT_RIGHTS = """
import os, sys
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import KeepstateError
from keepstate.stores.urls import StoreUrl, store_class
import keepstate.stores.file, keepstate.stores.sqlite
keepstate.stores.sqlite.pages.file_system()  # from folders which are out of reach afterwards
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

    with pytest.raises(InvalidError, match="keeps nothing; name a file"):
        finish(store_class(scheme).from_url(url, runner=ThreadRunner()).open())

    assert [found.name for found in tmp_path.iterdir()] == ["place"]
