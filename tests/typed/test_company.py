"""Several states of one thread, each following what the others do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepstate import AgentRun, CounterKey, KeyedState, MutationBatch, PersistedState, StateConflictError
from keepstate.engine.space.keepstate import Keepstate
from keepstate.opening import source_of
from tests.contracts.typed.keys import Draft, Plan, Steps, Visits, many

LOTS = many(60)
KEYS: list[Any] = [Visits, Steps, Plan, Draft, *LOTS]
handles = st.integers(0, 2)
few = st.lists(st.sampled_from([Visits, Steps]), min_size=1, max_size=2)
lots = st.integers(0, 30).map(lambda begin: LOTS[begin : begin + 40])
acts = st.one_of(
    st.tuples(st.just("commit"), handles, few | lots),
    st.tuples(st.just("commit"), handles, few | lots),
    st.tuples(st.just("replace"), handles, st.sampled_from([Plan, Draft])),
    st.tuples(st.just("refresh"), handles, st.none()),
    st.tuples(st.just("clear"), handles, st.none()),
    st.tuples(st.just("keep"), handles, st.none()),
    st.tuples(st.just("restore"), handles, st.none()),
    st.tuples(st.just("run"), handles, st.sampled_from(["r1", "r2"])),
)


class Company:
    """Three states of one thread: two of no run, and one that reads the run `r1`."""

    def __init__(self, ks: Keepstate) -> None:
        self._ks = ks
        self._kept: PersistedState | None = None
        self.states = [self._fresh(number) for number in range(3)]

    def _fresh(self, number: int) -> KeyedState:
        run_id = "r1" if number == 2 else ""
        return KeyedState("t", persistence=self._ks, keys=KEYS, run_id=run_id)

    async def act(self, act: str, number: int, given: Any) -> None:
        state = self.states[number]
        if act == "commit":
            batch = MutationBatch()
            for key in given:
                assert issubclass(key, CounterKey)
                batch.update(key, 1)
            await state.commit(batch)
        elif act == "replace":
            await self._replaced(state, given)
        elif act == "clear":
            await state.clear_run_scoped()
        elif act == "run":
            async with AgentRun(persistence=self._ks, keys=KEYS) as run:
                await run.start_run("t", given)
                await run.commit(MutationBatch().update(Steps, 1))
                await run.finish_run()
            await state.refresh()
        else:
            await state.refresh()
            if act == "keep":
                self._kept = state.export_persisted()
            elif act == "restore" and self._kept is not None:
                await state.restore_persisted(self._kept)
        fresh = self._fresh(number)
        await fresh.refresh()
        assert state.export_persisted() == fresh.export_persisted()

    async def _replaced(self, state: KeyedState, key: Any) -> None:
        """Replace an exclusive value by what this state knows: it is refused if that is no longer so."""
        before = state.read(key)
        try:
            await state.commit(state.begin_mutation().update(key, f"{before or ''}+"[-3:]))
        except StateConflictError:
            return
        assert state.read(key) == f"{before or ''}+"[-3:]


@pytest.mark.slow
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(acts, min_size=1, max_size=14))
def test_whatever_others_do_each_knows_what_one_reads_who_comes_anew(
    way: list[tuple[str, int, Any]],
) -> None:
    async def main() -> None:
        async with Keepstate(source_of("memory://", "async")) as ks:
            company = Company(ks)
            for state in company.states:
                await state.refresh()
            for act in way:
                await company.act(*act)

    asyncio.run(main())
