"""What every part of the typed contract stands on: a place, states and runs there, and others beside them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from keepstate._finish import finish
from keepstate.typed.batch import MutationBatch
from keepstate.typed.key import AnyKey
from keepstate.typed.profiles import ProfileAccess
from keepstate.typed.run import AgentRun
from keepstate.typed.state import KeyedState
from tests.contracts.stage import PlacedStage
from tests.contracts.typed.keys import KEYS

T = TypeVar("T")


class TypedStage(PlacedStage):
    """Makes states, runs and profiles in one place, in both modes, and closes them afterwards."""

    async def state(self, *, keys: Iterable[AnyKey] = KEYS, **options: Any) -> KeyedState:
        """Return the state of thread `t`, read; called again, another one that sees the same."""
        state = KeyedState("t", keys=keys, **self._where(options), **options, _mode=self.mode_name)
        self._closing.append(state)
        await state.refresh()
        return state

    def run(self, **options: Any) -> AgentRun:
        """Return what does runs in the place; called again, as another process would have it."""
        arguments: dict[str, Any] = {"keys": KEYS, **self._where(options), **options}
        run = AgentRun(**arguments, _mode=self.mode_name)
        self._closing.append(run)
        return run

    def profiles(self, **options: Any) -> ProfileAccess:
        """Return access to the place's profiles."""
        access = ProfileAccess(**self._where(options), **options, _mode=self.mode_name)
        self._closing.append(access)
        return access

    def do_inside(self, work: Coroutine[Any, Any, T]) -> T:
        """Return what a piece of work returns that is done by a tool: such a function is beside the loop."""
        if self._loop is None:
            return finish(work)
        return asyncio.run_coroutine_threadsafe(work, self._loop.get_loop()).result(60)

    def _where(self, options: dict[str, Any]) -> dict[str, Any]:
        return {} if "space" in options else {"persistence": self.url}


def update(key: Any, change: Any) -> MutationBatch:
    """Return a batch of one update, of no base."""
    return MutationBatch().update(key, change)
