"""Subscriptions: told across processes, exact for whoever keeps up, and told so who does not."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from os import urandom
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    CompactedError,
    InvalidError,
    KeepstateError,
    SpeechStateManager,
    StateConfig,
    StateManager,
    StoreUnavailableError,
    STTState,
    UnsupportedError,
    register,
    sync,
)
from keepstate.engine.kernel import layout
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Reading
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.values.schema import CLASSES
from tests.contracts.managers.trouble import TroubledStore
from tests.processes import run

ROOT = Path(__file__).resolve().parents[2]
Told = list[tuple[str, Any, Any]]
WRITER = """
import sys
from keepstate import StateConfig, sync
with sync.StateManager(StateConfig(backend=sys.argv[1], shards=int(sys.argv[2]))) as state:
    for number in range(20):
        state.update("n", lambda old: old + 1, default=0)
        state.save(f"key {number}", number)
"""


@register("tests.subscriptions.Plan", version=2)
@dataclass(frozen=True)
class Plan:
    """What an application of older code does not know, or knows in version 1."""

    goal: str


NEWER = Plan("sing")


@contextmanager
def older_code(*, knows_version: int | None) -> Iterator[None]:
    """Let no plan be read; it can still be written."""
    known = CLASSES._by_name.pop("tests.subscriptions.Plan")
    try:
        if knows_version is not None:
            CLASSES._by_name["tests.subscriptions.Plan"] = replace(known, version=knows_version)
        yield
    finally:
        CLASSES._by_name["tests.subscriptions.Plan"] = known


def into(told: Told) -> Callable[[str, Any, Any], None]:
    return lambda key, old, new: told.append((key, old, new))


@pytest.mark.parametrize("kind", ["sqlite", "redis", "postgres"])
@pytest.mark.parametrize("shards", [1, 3])
def test_what_another_process_writes_is_told_exactly_and_in_order(
    kind: str, shards: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url: str = f"sqlite:///{tmp_path}/a.db" if kind == "sqlite" else request.getfixturevalue(f"{kind}_url")
    told: Told = []

    async def listen() -> None:
        async with StateManager(StateConfig(backend=url, shards=shards)) as state:
            state.subscribe("*", into(told))
            await state.get("n")
            await asyncio.to_thread(run, "-c", WRITER, url, shards)
            await state.drain()

    asyncio.run(listen())

    assert [(old, new) for key, old, new in told if key == "n"] == [
        (number or None, number + 1) for number in range(20)
    ]
    assert {key: new for key, old, new in told if key != "n"} == {
        f"key {number}": number for number in range(20)
    }
    assert len(told) == 40


async def test_who_comes_too_late_is_told_that_changes_were_lost_and_goes_on() -> None:
    config = StateConfig(backend="memory://late", record=False)
    told: Told = []
    released = asyncio.Event()

    async def tell(key: str, old: Any, new: Any) -> None:
        told.append((key, old, new))
        await released.wait()

    async with StateManager(config) as state:
        state.subscribe("*", tell)
        await state.save("k", 0)
        while not told:
            await asyncio.sleep(0)
        for number in range(1, 10_500):  # more than the log keeps
            await state.save("k", number)
        released.set()
        with pytest.raises(CompactedError):
            await state.drain()
        await state.drain()
        await state.save("k", "after")
        await state.drain()

    assert told[0] == ("k", None, 0) and told[-1] == ("k", 10_499, "after")
    assert told[1:-1] == sorted(told[1:-1], key=lambda each: each[2]) and 1_000 < len(told) < 10_400


@pytest.mark.parametrize(("version", "raised"), [(None, InvalidError), (1, UnsupportedError)])
async def test_who_cannot_be_told_of_a_value_is_told_what_comes_later(
    version: int | None, raised: type[KeepstateError], caplog: pytest.LogCaptureFixture
) -> None:
    told: Told = []
    async with StateManager(StateConfig(backend=f"memory://newer-{version}")) as state:
        state.subscribe("*", into(told))
        await state.save("before", 1)
        with older_code(knows_version=version):
            async with state.transaction() as tx:
                for key in ("newer 1", "newer 2"):
                    await tx.save(key, NEWER)
                await tx.save("older", 1)
            with pytest.raises(raised):
                await state.drain()
            await state.save("after", 1)
            await state.drain()

    assert [key for key, _, _ in told] == ["before", "older", "after"]
    assert caplog.text.count("skips a change that it cannot decode") == 2


async def test_who_is_told_how_things_stand_is_not_held_up_by_what_cannot_be_read() -> None:
    told: list[Any] = []
    async with keepstate.open("memory://") as ks:
        inner: Any = ks.store
        store = TroubledStore(inner)
        speech = SpeechStateManager(persistence=store)
        await speech.create_session("voice", session_id="s")
        await speech.subscribe("s", told.append)
        with older_code(knows_version=1):
            await ks.space("speech/s").documents.put("newer", NEWER)
            for heard in (STTState("s", interim_transcript=text) for text in ("one", "two")):
                await speech.update_stt_state(heard)
                while heard not in told:
                    await asyncio.sleep(0.01)
                store.lose(away=0)
        await speech.close()

    assert Plan not in map(type, told)


async def test_a_callback_that_drains_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    refused: list[BaseException] = []
    async with StateManager(StateConfig(backend="memory://drains")) as state:

        async def drain(key: str, old: Any, new: Any) -> None:
            try:
                await state.drain()
            except InvalidError as error:
                refused.append(error)
                raise

        state.subscribe("*", drain)
        with caplog.at_level(logging.WARNING):
            await state.save("k", 1)
            await state.drain()

    assert len(refused) == 1 and "failed" in caplog.text


@pytest.mark.parametrize("error", [asyncio.CancelledError, ValueError])
async def test_a_callback_whose_own_task_was_cancelled_is_told_what_comes_later(
    error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    async def fail(key: str, old: Any, new: Any) -> None:
        told.append(key)
        raise error

    async with StateManager(StateConfig(backend=f"memory://cancelled-{error.__name__}")) as state:
        state.subscribe("*", fail)
        for key in ("a", "b"):
            await state.save(key, 1)
            await asyncio.wait_for(state.drain(), 60)

    assert told == ["a", "b"] and "The callback of a subscription" in caplog.text


async def test_a_close_that_cannot_store_all_says_what_is_lost_and_ends_subscriptions() -> None:
    config = StateConfig(backend="memory://lost")
    told: Told = []
    async with StateManager(config) as other:
        state = StateManager(replace(config, auto_save=False))
        state.subscribe("*", into(told))
        await state.update("bad", {"a": 1})
        await state.save("good", 1)
        await other.save("bad", "no dict")
        with pytest.raises(InvalidError) as raised:
            await state.close()
        told.clear()
        await other.save("later", 1)

        assert await other.get("good") == 1 and "'bad'" in "".join(raised.value.__notes__)
        running = [task.get_name() for task in asyncio.all_tasks()]
        assert told == [] and not [name for name in running if "subscription" in name]


async def test_each_callback_gets_values_of_its_own() -> None:
    told: Told = []

    def spoil(key: str, old: Any, new: Any) -> None:
        new.clear()

    async with StateManager(StateConfig(backend="memory://own")) as state:
        state.subscribe("*", spoil)
        state.subscribe("*", into(told))
        await state.save("k", {"a": 1})
        await state.drain()

        assert told == [("k", None, {"a": 1})] and await state.get("k") == {"a": 1}


async def test_a_pattern_is_one_of_keys_also_in_a_space_that_was_passed() -> None:
    told: Told = []
    async with keepstate.open("memory://") as ks:
        run = ks.space("run")
        state = StateManager(StateConfig(key_prefix="[a]*/"), space=run)
        state.subscribe("agent:?", into(told))
        await state.save("agent:1", 1)
        await state.save("agent:10", 1)
        await run.documents.put("agent:2", 1)
        await state.drain()
        await state.close()

    assert told == [("agent:1", None, 1)]


async def test_what_two_calls_at_once_write_after_subscribing_is_told() -> None:
    for number in range(20):
        told: Told = []
        async with StateManager(StateConfig(backend=f"memory://both-{number}")) as state:
            state.subscribe("*", into(told))
            await asyncio.gather(state.save("a", 1), state.save("b", 1), state.save("c", 1))
            await state.drain()

        assert sorted(key for key, _, _ in told) == ["a", "b", "c"]


class AwayOnce(StoreWrapper):
    """A store that is away when a part of a large value is first read."""

    is_away = False

    async def read(self, space: str, keys: Sequence[bytes], *, at_ms: int | None = None) -> Reading:
        if self.is_away and keys and keys[0].startswith(layout.PARTS):
            self.is_away = False
            raise StoreUnavailableError("the store is starting; try again later")
        return await super().read(space, keys, at_ms=at_ms)


async def test_what_was_read_before_the_store_was_away_is_told_once() -> None:
    told: list[str] = []
    released = asyncio.Event()

    async def tell(key: str, old: Any, new: Any) -> None:
        told.append(key)
        await released.wait()

    store = AwayOnce(await MemoryStore().open())
    async with StateManager(StateConfig(backend=store, record=False)) as state:
        state.subscribe("*", tell)
        await state.save("first", 1)
        while not told:
            await asyncio.sleep(0)
        await state.save("small", 1)
        await state.save("large", urandom(3 << 20))
        store.is_away = True
        released.set()
        await asyncio.wait_for(state.drain(), 60)
    await store.close()

    assert told == ["first", "small", "large"] and not store.is_away


def test_the_thread_of_a_subscription_has_ended_when_close_returns() -> None:
    with sync.StateManager(StateConfig(backend="memory://threads")) as state:
        state.subscribe("*", lambda *_: None)
        state.save("k", 1)
        state.drain()
        running = [thread.name for thread in threading.enumerate() if "subscription" in thread.name]

    assert len(running) == 1
    assert not [thread for thread in threading.enumerate() if "subscription" in thread.name]
