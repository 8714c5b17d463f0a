"""The measured wrapper tells of every operation, and changes no answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest

import keepstate
from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.opening import source_of
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Listening, Put, Store
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement
from keepstate.sync import of

KEY = b"\x01k"


class Told(list[Measurement]):
    """What the callback was told."""


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def store(told: Told) -> Iterator[MeasuredStore]:
    measured = MeasuredStore(finish(MemoryStore(runner=ThreadRunner()).open()), told.append)
    yield measured
    finish(measured.close())


def test_an_applied_and_a_refused_batch_are_told_apart(store: MeasuredStore, told: Told) -> None:
    finish(store.apply([Batch("s", [Put(KEY, b"v")]), Batch("s", [Put(KEY, b"w")], [Check(KEY, version=9)])]))

    (measurement,) = told
    assert (measurement.operation, measurement.count, measurement.conflicts) == ("apply", 2, 1)
    assert measurement.duration_s >= 0


def test_every_operation_is_told_of_by_name(store: MeasuredStore, told: Told) -> None:
    finish(store.read("s", [KEY]))
    finish(store.scan("s", b"\x01"))
    finish(store.changes("s", 0))
    finish(store.wait(["s"], 0.001))
    finish(store.spaces())
    finish(store.sweep())
    finish(store.drop("s"))

    assert [measurement.operation for measurement in told] == [
        "read", "scan", "changes", "wait", "spaces", "sweep", "drop",
    ]  # fmt: skip
    assert not any(measurement.errors for measurement in told)


def test_a_failure_is_told_and_raised(store: MeasuredStore, told: Told) -> None:
    with pytest.raises(InvalidError):
        finish(store.read("s", [b"\x09no section"]))

    assert (told[0].errors, told[0].error) == (1, "InvalidError")


def test_a_callback_that_fails_fails_nobody_else(caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: Measurement) -> None:
        raise RuntimeError("the metrics server is away")

    store = MeasuredStore(finish(MemoryStore(runner=ThreadRunner()).open()), fail)
    with caplog.at_level(logging.ERROR, "keepstate"):
        reading = finish(store.read("s", [KEY]))
    finish(store.close())

    assert reading.entries == [None]
    assert "the metrics server is away" in caplog.text


def test_it_is_a_store_that_listens_and_can_be_opened(store: MeasuredStore, told: Told) -> None:
    ks = Keepstate(source_of(store, "blocking"))

    finish(ks.space("s").documents.put("plan", 1))

    listens: Store = store
    assert isinstance(listens, Listening)
    assert finish(ks.space("s").documents.get("plan")) == 1
    assert {measurement.operation for measurement in told} >= {"apply", "read"}


def test_its_twin_is_measured_too(told: Told) -> None:
    async def main() -> int:
        store = await MeasuredStore(MemoryStore(runner=TaskRunner()), told.append).open()
        async with keepstate.open(store) as ks:
            await ks.space("s").documents.put("plan", 1)
            found: int = await asyncio.to_thread(of(ks).space("s").documents.get, "plan")
        await store.close()
        return found

    assert asyncio.run(main()) == 1
    assert [measurement.operation for measurement in told] == ["apply", "read"]


def test_the_wrong_mode_is_refused_by_name(store: MeasuredStore) -> None:
    with pytest.raises(InvalidError, match=r"pass it to keepstate\.sync\.open"):
        keepstate.open(store)
