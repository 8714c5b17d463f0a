"""A store of one file is made of nothing but a file."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import InvalidError
from keepstate.stores.urls import StoreUrl, store_class


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
