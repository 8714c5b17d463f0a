"""Faults between a client and its server: nothing acknowledged is lost, and every retry applies once."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from keepstate_testing.faults import CutReply, Plan, Proxy, Silence, having
from keepstate_testing.servers import Postgres

from keepstate.errors import (
    HistoryLostError,
    NotAllowedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from keepstate.stores.http.store import HttpStore
from keepstate.stores.protocol import Applied, Batch, Put
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.company import COUNTER, increment
from keepstate.testing.store_contract.stage import Stage, applied, outcome_of, revision_of, value_of
from tests.stores.http.serving import StoreServer, sqlite_url

A = b"\x01a"
AN_HOUR_S = 3600.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[StoreServer]:
    """A server of the test's own, to be killed."""
    with StoreServer(sqlite_url(tmp_path)) as server:
        yield server


class HttpStage(Stage):
    async def open(self, url: str) -> HttpStore:
        return await HttpStore(StoreUrl.parse(url), runner=self.runner()).open()


class TestFaults(HttpStage):
    async def test_a_server_killed_while_it_writes_loses_nothing_acknowledged_and_applies_retries_once(
        self, server: StoreServer, space: str
    ) -> None:
        store = await self.open(server.url())
        acknowledged: list[int] = []
        killed = threading.Event()

        def kill() -> None:
            for _ in range(3):
                time.sleep(0.3)
                server.restart()
            killed.set()

        killer = threading.Thread(target=kill)
        killer.start()
        while not killed.is_set():
            number = len(acknowledged) + 1
            done = await applied(store, space, Put(b"\x01log/", b"%d" % number, stamp=True))
            acknowledged.append(done.revision)
        killer.join()

        page = await store.scan(space, b"\x01log/", limit=1000)
        entries = list(page.entries)
        while page.next is not None:
            page = await store.scan(space, b"\x01log/", after=page.next, limit=1000)
            entries += page.entries
        assert [entry.version for entry in entries] == acknowledged == list(range(1, len(acknowledged) + 1))
        assert [int(entry.value) for entry in entries] == acknowledged
        await store.close()

    async def test_counting_over_a_line_that_is_cut_at_random_loses_no_step(
        self, server: StoreServer, space: str
    ) -> None:
        with Proxy(server.port, plan=Plan(7, share=0.1)) as line:
            store = await self.open(line.url(server.url()))

            await self.together(*(increment(store, space, 12) for _ in range(3)))

            assert line.happened.total() > 0
            assert await value_of(store, space, COUNTER) == b"36"
            assert await revision_of(store, space) == 36
            await store.close()

    async def test_a_server_that_does_not_listen_is_unavailable_and_nothing_was_written(
        self, server: StoreServer, space: str
    ) -> None:
        store = await self.open(server.url(retry_for_s=0))
        await applied(store, space, Put(A, b"1"))
        server.kill()

        outcome = await outcome_of(store, space, Put(A, b"2"))
        with pytest.raises(StoreUnavailableError) as caught:
            await store.read(space, [A])

        assert type(outcome) is type(caught.value) is StoreUnavailableError
        await store.close()

    async def test_a_lost_answer_without_a_retry_is_unknown_and_names_its_token(
        self, server: StoreServer, space: str
    ) -> None:
        with Proxy(server.port) as line:
            store = await self.open(line.url(server.url(retry_for_s=0)))
            await applied(store, space, Put(A, b"1"))
            line.spoil(CutReply(), chosen=having(b"/store/apply"))

            outcome = await outcome_of(store, space, Put(A, b"2"), token=b"t")

            assert type(outcome) is OutcomeUnknownError
            assert (outcome.token, outcome.space) == (b"t", space)
            assert (await applied(store, space, Put(A, b"2"), token=b"t", retry_of=1)).revision == 2
            await store.close()

    async def test_a_silent_line_is_given_up_after_the_timeout(self, server: StoreServer, space: str) -> None:
        with Proxy(server.port) as line:
            store = await self.open(line.url(server.url(timeout_s=0.5, retry_for_s=20)))
            await applied(store, space, Put(A, b"1"))
            line.spoil(Silence(), chosen=having(b"/store/apply"))

            done = await applied(store, space, Put(A, b"2"))

            assert done.revision == 2
            assert await revision_of(store, space) == 2
            await store.close()

    async def test_a_drop_whose_answer_was_lost_is_not_repeated(
        self, server: StoreServer, space: str
    ) -> None:
        with Proxy(server.port) as line:
            store = await self.open(line.url(server.url()))
            await applied(store, space, Put(A, b"1"))
            line.spoil(CutReply(), chosen=having(b"/store/drop"))

            with pytest.raises(OutcomeUnknownError):
                await store.drop(space)

            assert await revision_of(store, space) == 2
            await store.close()

    async def test_a_loss_is_noticed_after_the_server_came_back_on_an_older_file(
        self, server: StoreServer, space: str, tmp_path: Path
    ) -> None:
        store = await self.open(server.url())
        await applied(store, space, Put(A, b"1"))
        server.stop()
        backup = tmp_path / "backup"
        backup.mkdir()
        for file in tmp_path.glob("behind.db*"):
            shutil.copy(file, backup)
        server.start()
        await applied(store, space, Put(A, b"2"))
        server.kill()
        for file in tmp_path.glob("behind.db*"):
            file.unlink()
        for file in backup.iterdir():
            shutil.copy(file, tmp_path)
        server.start()
        other = await self.open(server.url())
        await applied(other, space, Put(A, b"another 2"))

        (lost,) = await store.apply([Batch(space, [Put(A, b"stale")], losses=0)])

        assert isinstance(lost, HistoryLostError)
        assert store.losses(space) == 1
        assert await value_of(store, space, A) == b"another 2"
        (stale,) = await store.apply([Batch(space, [Put(A, b"stale")], losses=0)])
        assert isinstance(stale, HistoryLostError)
        assert (await applied(store, space, Put(A, b"3"))).revision == 3
        await other.close()
        await store.close()

    async def test_a_restart_on_the_same_file_is_not_a_loss(self, server: StoreServer, space: str) -> None:
        store = await self.open(server.url())
        await applied(store, space, Put(A, b"1"))
        server.restart()

        assert await value_of(store, space, A) == b"1"
        assert (await applied(store, space, Put(A, b"2"))).revision == 2
        assert store.losses(space) == 0
        await store.close()

    async def test_hints_go_on_after_the_server_was_restarted(self, server: StoreServer, space: str) -> None:
        store, writer = await self.open(server.url()), await self.open(server.url())
        listener = store.listen([space])
        await applied(writer, space, Put(A, b"1"))
        await listener.wait(AN_HOUR_S)
        server.restart()
        upto, until_s = 1, time.monotonic() + 60

        for number in range(2, 5):
            await applied(writer, space, Put(A, b"%d" % number))
            while upto < number and time.monotonic() < until_s:
                await listener.wait(10)
                upto = (await store.changes(space, upto)).upto

        assert upto == 4
        listener.close()
        await writer.close()
        await store.close()

    async def test_listeners_that_come_one_by_one_hear_all_their_spaces(
        self, server: StoreServer, space: str
    ) -> None:
        store, writer = await self.open(server.url()), await self.open(server.url())
        names = [f"{space}/{number}" for number in range(6)]
        listeners = [store.listen([name]) for name in names[:3]]
        for listener in listeners:
            await listener.wait(AN_HOUR_S)  # each new space has a hint of its own
        listeners += [store.listen([name]) for name in names[3:]]
        for listener in listeners[3:]:
            await listener.wait(AN_HOUR_S)

        for name, listener in zip(names, listeners, strict=True):
            revision = (await applied(writer, name, Put(A, b"1"))).revision
            while (await store.changes(name, 0)).upto < revision:
                await listener.wait(AN_HOUR_S)
            listener.close()

        await writer.close()
        await store.close()

    async def test_a_flush_over_the_size_of_a_body_is_sent_in_parts_in_order(
        self, server: StoreServer, space: str
    ) -> None:
        store = await self.open(server.url())
        batches = [
            Batch(space, [Put(b"\x01%d/%d" % (number, part), b"v" * (1 << 20)) for part in range(3)])
            for number in range(5)
        ]

        outcomes = await store.apply(batches)

        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [1, 2, 3, 4, 5]
        await store.close()

    async def test_a_batch_that_the_server_gave_up_on_is_asked_for_again_under_its_token(
        self, postgres_server: Postgres, space: str
    ) -> None:
        behind = postgres_server.create_database()
        with (
            Proxy(postgres_server.port) as line,
            StoreServer(f"{line.url(behind)}?retry_for_s=0") as server,
        ):
            store = await self.open(server.url())
            await applied(store, space, Put(b"\x01log/", b"1", stamp=True))
            line.spoil(CutReply(), chosen=having(b"_apply\0", b"_put\0"))

            done = await applied(store, space, Put(b"\x01log/", b"2", stamp=True))

            assert line.happened.total() == 1
            assert done.revision == await revision_of(store, space) == 2
            await store.close()
        postgres_server.drop_database(behind)

    async def test_a_key_that_is_refused_later_ends_calls_at_once(
        self, server: StoreServer, space: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.kill()
        monkeypatch.chdir(tmp_path)
        server.start()
        store = await self.open(server.url("forgotten"))
        await applied(store, space, Put(A, b"1"))
        (tmp_path / "forget").touch()

        with pytest.raises(NotAllowedError):
            await applied(store, space, Put(A, b"2"))
        with pytest.raises(NotAllowedError):
            await store.read(space, [A])

        await store.close()
