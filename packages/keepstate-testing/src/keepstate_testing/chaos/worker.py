"""A worker of the chaos: a process with several clients, to be killed at any moment.

It writes a history of its clients' operations, and errors that end it into a second file.
"""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from multiprocessing import parent_process
from pathlib import Path
from typing import Final

import msgspec

from keepstate._finish import finish
from keepstate._runner import Mode, runner_of
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import StoreUnavailableError
from keepstate.opening import source_of, store_class
from keepstate.stores.base import StoreBase
from keepstate.stores.urls import StoreUrl
from keepstate_testing.chaos.workload import SPACE_REVISIONS, Client, space_name
from keepstate_testing.proof.recorded_store import RecordedStore
from keepstate_testing.proof.recorder import Recorder

_PAUSE_S: Final = 0.02
"""Between two looks whether a server is there again."""


class Order(msgspec.Struct, frozen=True):
    """The orders of a worker.

    Attributes:
        url: The store.
        folder: The folder of its files.
        launch: The number of the worker in the run, from 0.
        mode: Whether its clients are tasks or threads.
        clients: The number of clients.
        seed: The seed of all choices.
        prepare: A function to call first, as `module:name`.
    """

    url: str
    folder: Path
    launch: int
    mode: Mode
    clients: int
    seed: int
    prepare: str | None = None

    @property
    def history(self) -> Path:
        """The file with what its clients did."""
        return self.folder / f"{self.launch}.history"

    @property
    def stop(self) -> Path:
        """The file that is there when all are to end."""
        return self.folder / "stop"

    @property
    def fault(self) -> Path:
        """The file that exists if the worker failed."""
        return self.folder / f"{self.launch}.fault"


def main(order: Order) -> None:
    """Work until the order to end, or until the parent has ended."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        if order.prepare is not None:
            module, _, name = order.prepare.partition(":")
            prepare: Callable[[], object] = getattr(import_module(module), name)
            prepare()
        if order.mode == "async":
            asyncio.run(_tasks(order))
        else:
            _threads(order)
    except BaseException:
        order.fault.write_text(traceback.format_exc())
        raise


def _end_with_parent() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


async def opened(url: str, mode: Mode) -> StoreBase:
    """Return the opened store, as soon as its server is there."""
    place = StoreUrl.parse(url)
    while True:
        store = store_class(place.scheme).from_url(place, runner=runner_of(mode))
        try:
            return await store.open()
        except StoreUnavailableError:
            await runner_of(mode).sleep(_PAUSE_S)


async def _clients(order: Order, store: StoreBase) -> list[Client]:
    recorder = Recorder(order.history)
    recorded = RecordedStore(store, recorder, order.launch)
    number = await _newest(recorded, order.mode)
    ks = Keepstate(source_of(recorded, order.mode), author=f"worker {order.launch}")
    names = [f"{order.launch}.{place}" for place in range(order.clients)]
    return [
        Client(ks, recorded, recorder, runner_of(order.mode), name=name, seed=order.seed, first=number)
        for name in names
    ]


async def _newest(store: RecordedStore, mode: Mode) -> int:
    """Return the number of the space that the others have come to."""
    number = 0
    while True:
        try:
            if (await store.read(space_name(number), [])).revision < SPACE_REVISIONS:
                return number
            number += 1
        except StoreUnavailableError:
            await runner_of(mode).sleep(_PAUSE_S)


async def _tasks(order: Order) -> None:
    store = await opened(order.url, "async")
    async with asyncio.TaskGroup() as group:
        for client in await _clients(order, store):
            group.create_task(client.work(order.stop.exists))
    await store.close()


def _threads(order: Order) -> None:
    store = finish(opened(order.url, "blocking"))
    faults: list[BaseException] = []

    def work(client: Client) -> None:
        try:
            finish(client.work(order.stop.exists))
        except BaseException as error:  # noqa: BLE001  told by the thread that waits
            faults.append(error)

    threads = [threading.Thread(target=work, args=(client,)) for client in finish(_clients(order, store))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish(store.close())
    if faults:
        raise faults[0]
