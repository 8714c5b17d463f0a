"""Subscriptions: what is told is exact and in order, and nobody waits for what will never be told."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest

from keepstate.errors import CorruptError, HistoryLostError
from keepstate.managers.speech.manager import SpeechStateManager
from keepstate.managers.speech.records import STTState
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.manager import StateManager
from tests.contracts.managers.stage import ManagerStage


class SubscriptionContract(ManagerStage):
    """What subscriptions of a `StateManager` and a `SpeechStateManager` tell, whatever they are kept in."""

    def state(self, **config: Any) -> StateManager:
        return self.made(StateManager, StateConfig(**config))

    async def until(self, is_so: Callable[[], Any]) -> None:
        """Return when something is so."""
        for _ in range(500):
            if is_so():
                return
            await self.pass_time(20)
        raise AssertionError("it never became so")

    async def test_changes_are_told_exactly_in_order_and_from_the_next_call_on(self) -> None:
        state, other = self.state(), self.state()
        told: list[tuple[str, Any, Any]] = []
        await state.save("agent:a", 0)
        state.subscribe("agent:*", lambda key, old, new: told.append((key, old, new)))
        await state.save("agent:a", {"n": 1})
        await other.update("agent:a", {"m": 2})
        await other.save("tool:x", 1)
        await other.delete("agent:a")
        await state.drain()

        assert told == [
            ("agent:a", 0, {"n": 1}),
            ("agent:a", {"n": 1}, {"n": 1, "m": 2}),
            ("agent:a", {"n": 1, "m": 2}, None),
        ]

    async def test_a_callback_that_raises_hurts_nobody(self) -> None:
        state = self.state()
        told: list[str] = []

        def fail(key: str, old: Any, new: Any) -> None:
            raise ZeroDivisionError

        state.subscribe("*", fail)
        state.subscribe("*", lambda key, old, new: told.append(key))
        await state.save("a", 1)
        await state.save("b", 1)
        await state.drain()

        assert told == ["a", "b"]

    async def test_after_unsubscribing_no_call_begins(self) -> None:
        state = self.state()
        told: list[str] = []

        def tell(key: str, old: Any, new: Any) -> None:
            told.append(key)

        state.subscribe("*", tell)
        await state.save("a", 1)
        await state.drain()

        assert state.unsubscribe("*", tell) and not state.unsubscribe("*", tell)
        await state.save("b", 1)
        await state.drain()
        assert told == ["a"]

    async def test_who_unsubscribes_is_not_told_what_has_changed_by_then(self) -> None:
        state = self.state()
        told: list[str] = []

        def tell(key: str, old: Any, new: Any) -> None:
            told.append(key)
            state.unsubscribe("*", tell)

        state.subscribe("*", tell)
        async with state.transaction() as tx:
            for key in "abcde":
                await tx.save(key, 1)
        await state.drain()
        await self.until(lambda: told)
        await state.close()

        assert told == ["a"]

    async def test_a_callback_that_was_unsubscribed_is_let_go(self) -> None:
        state, held = self.state(), WeakSet[Any]()

        class Callback:
            def __call__(self, key: str, old: Any, new: Any) -> None: ...

        async def subscribe_for_a_moment(number: int) -> None:
            callback = Callback()
            held.add(callback)
            state.subscribe("*", callback)
            await state.save("k", number)
            state.unsubscribe("*", callback)

        for number in range(3):
            await subscribe_for_a_moment(number)

        await self.until(lambda: gc.collect() >= 0 and not held)

    async def test_who_never_called_was_never_subscribed(self) -> None:
        state = self.state()
        state.subscribe("*", print)

        assert state.unsubscribe("*", print)

    async def test_a_subscription_outlives_lost_history_and_a_store_that_is_away(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        store, state, other = await self.in_trouble(StateManager)
        told: list[str] = []
        state.subscribe("*", lambda key, old, new: told.append(key))
        await state.save("before", 1)
        await state.drain()
        store.lose(away=1)
        await other.save("meanwhile", 1)
        await self.until(lambda: not store.away)
        with pytest.raises(HistoryLostError):
            await state.drain()
        await state.save("after", 1)
        await state.drain()

        assert told[0] == "before" and told[-1] == "after"
        warned = [entry.getMessage() for entry in caplog.records if entry.name.startswith("keepstate.")]
        assert any("missed changes" in text for text in warned) and any("retries" in text for text in warned)

    async def test_who_drains_is_told_where_nothing_more_will_be_told(self) -> None:
        store, state, other = await self.in_trouble(StateManager)
        state.subscribe("*", lambda key, old, new: None)
        await state.save("before", 1)
        await state.drain()
        store.is_damaged = True
        await other.save("after", 1)

        with pytest.raises(CorruptError):
            await state.drain()
        await state.drain()

    async def test_who_is_told_how_things_stand_is_told_after_lost_history_too(self) -> None:
        store, speech, other = await self.in_trouble(SpeechStateManager)
        told: list[Any] = []
        await speech.create_session("voice", session_id="s")
        await speech.subscribe("s", told.append)
        await other.update_stt_state(STTState("s", interim_transcript="one"))
        await self.until(lambda: len(told) == 1)
        store.lose(away=1)
        await other.update_stt_state(STTState("s", interim_transcript="two"))
        await self.until(lambda: [each for each in told if each == STTState("s", interim_transcript="two")])

        assert store.away == 0
