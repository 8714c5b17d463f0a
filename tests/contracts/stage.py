"""The base of contracts of objects that open a store: one place, and everything that was opened there."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstate._runner import Mode
from keepstate.engine.space.keepstate import Keepstate
from keepstate.opening import source_of
from keepstate.testing.store_contract.stage import Stage


class PlacedStage(Stage):
    """Has an empty store for each test, and closes in the end what was opened there."""

    _url: str | None = None
    _closing: list[Any]

    def make_url(self, tmp_path: Path) -> str:
        """Return the URL of a store in which there is nothing yet; asked once a test."""
        raise NotImplementedError(f"{type(self).__name__} does not say where its store is")

    @property
    def url(self) -> str:
        """The URL of the place."""
        if self._url is None:
            self._url = self.make_url(self._folder)
        return self._url

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, mode: Mode) -> Iterator[None]:
        """Close in the end what was made in the place."""
        self._folder, self._closing = tmp_path, []
        yield
        for made in reversed(self._closing):
            self.drive(made.close())

    def handle(self) -> Keepstate:
        """Return a handle on the place's store."""
        handle = Keepstate(source_of(self.url, self.mode_name))
        self._closing.append(handle)
        return handle
