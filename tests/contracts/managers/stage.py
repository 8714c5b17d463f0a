"""What every part of the managers' contract stands on: a place, managers there, and others beside them."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.managers.manager import Manager
from keepstate.opening import source_of, store_class
from keepstate.stores.urls import StoreUrl
from keepstate.stores.wrappers.measured import MeasuredStore
from tests.contracts.managers.trouble import TroubledStore
from tests.contracts.stage import PlacedStage

M = TypeVar("M", bound=Manager)


class ManagerStage(PlacedStage):
    """Makes managers in one place, in both modes, and closes them afterwards."""

    in_passed_space: ClassVar[bool] = False
    """Whether all managers are given one space that they share."""

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

    def run_space(self) -> Space:
        """Return a recorded space of the place, the same one each time."""
        return self.handle().space("run/42", author="runner", record=True)


class InPassedSpace(ManagerStage):
    """Lets all managers work in one space that they are given."""

    in_passed_space: ClassVar[bool] = True
