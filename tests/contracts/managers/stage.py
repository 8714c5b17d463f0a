"""What every part of the managers' contract stands on: a place, managers there, and others beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import pytest

from keepstate._runner import Mode
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.managers.manager import Manager
from keepstate.opening import source_of, store_class
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.measured import MeasuredStore
from keepstate.testing.store_contract.stage import Stage
from tests.contracts.managers.trouble import TroubledStore

M = TypeVar("M", bound=Manager)


class ManagerStage(Stage):
    """Makes managers in one place, in both modes, and closes them afterwards."""

    in_passed_space: ClassVar[bool] = False
    """Whether all managers are given one space that they share."""
    _url: str | None = None
    _closing: list[Any]

    # ---- what a backend's test says

    def make_url(self, tmp_path: Path) -> str:
        """Return the URL of a store in which there is nothing yet; asked once a test."""
        raise NotImplementedError(f"{type(self).__name__} does not say where managers are to work")

    # ---- what the contract says it with

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

    def made(self, kind: type[M], *args: Any, **options: Any) -> M:
        """Return a manager of the place; called again, another one that sees the same."""
        where: dict[str, Any] = (
            {"space": self.run_space()} if self.in_passed_space else {"persistence": self.url}
        )
        manager = kind(*args, **where, **options, _mode=self.mode_name)
        self._closing.append(manager)
        return manager

    async def counted(self, kind: type[M], **options: Any) -> tuple[M, list[str]]:
        """Return a manager of the place, and the names of what it asks of the store, as it asks."""
        asked: list[str] = []
        address = StoreUrl.parse(self.url)
        store = store_class(address.scheme).from_url(address, runner=self.runner())
        measured = await MeasuredStore(store, lambda each: asked.append(each.operation)).open()
        self._closing.append(measured)
        where: dict[str, Any] = {"persistence": measured}
        if self.in_passed_space:
            handle = Keepstate(source_of(measured, self.mode_name))
            where = {"space": handle.space("run/42", author="runner", record=True)}
        return kind(**where, **options, _mode=self.mode_name), asked

    async def in_trouble(self, kind: type[M], *args: Any, **options: Any) -> tuple[TroubledStore, M, M]:
        """Return a store that can be in trouble, a manager that works on it, and one that does without."""
        inner: Any = await self.handle().opened()
        store = TroubledStore(inner)
        managers = [kind(*args, persistence=each, **options, _mode=self.mode_name) for each in (store, inner)]
        self._closing += managers
        return store, managers[0], managers[1]

    def handle(self) -> Keepstate:
        """Return a handle on the place's store."""
        handle = Keepstate(source_of(self.url, self.mode_name))
        self._closing.append(handle)
        return handle

    def run_space(self) -> Space:
        """Return a recorded space of the place, the same one each time."""
        return self.handle().space("run/42", author="runner", record=True)


class InPassedSpace(ManagerStage):
    """Lets all managers work in one space that they are given."""

    in_passed_space: ClassVar[bool] = True
