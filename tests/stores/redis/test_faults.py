"""Servers that die, restart, forget or fill up, and broken connections: nothing is lost, or applies twice."""

from __future__ import annotations

import threading
import time

import pytest
from keepstate_testing.servers import Redis

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, HistoryLostError, StoreFullError, StoreUnavailableError
from keepstate.stores.protocol import Applied, Batch, Delete, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import applied, changed, revision_of, scanned, value_of
from tests.stores.redis.stage import DOC, A, RedisStage

LOG = b"\x01log/"


class TestFaults(RedisStage):
    async def test_scripts_that_the_server_forgot_are_sent_again(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))
        redis_server.command("SCRIPT", "FLUSH")

        await applied(store, space, Put(A, b"2"))
        redis_server.command("SCRIPT", "FLUSH")
        many = await store.apply([Batch(space, [Put(LOG, b"%d" % i, stamp=True)]) for i in range(10)])
        redis_server.command("SCRIPT", "FLUSH")
        found = await scanned(store, space, LOG)

        assert [outcome.revision for outcome in many if isinstance(outcome, Applied)] == list(range(3, 13))
        assert [entry.value for entry in found] == [b"%d" % i for i in range(10)]
        await store.close()

    async def test_a_restarted_server_is_found_again_with_all_that_it_had(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url)
        await applied(store, space, Put(A, b"1"))

        own_server.restart()

        await applied(store, space, Put(DOC, b"2"))
        assert await value_of(store, space, A) == b"1"
        assert await revision_of(store, space) == 2
        await store.close()

    async def test_connections_that_the_server_closed_cost_no_error(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))
        for i in range(5):
            redis_server.command("CLIENT", "KILL", "TYPE", "normal")

            assert await value_of(store, space, A) == b"1"
            redis_server.command("CLIENT", "KILL", "TYPE", "normal")
            assert (await applied(store, space, Put(LOG, b"", stamp=True))).revision == i + 2
        await store.close()

    async def test_a_server_that_stays_away_is_named_when_time_is_up(
        self, own_server: Redis, space: str
    ) -> None:
        store = await self.open(own_server.url + "?retry_for_s=0.3")
        await applied(store, space, Put(A, b"1"))
        own_server.kill()

        with pytest.raises(StoreUnavailableError, match="Check that the server is up"):
            await store.read(space, [A])
        (outcome,) = await store.apply([Batch(space, [Put(A, b"2")])])

        assert isinstance(outcome, StoreUnavailableError)
        assert own_server.url in str(outcome)
        await store.close()

    async def test_what_a_server_lost_is_noticed_by_who_had_seen_it(
        self, redis_server: Redis, space: str
    ) -> None:
        store, newcomer = await self.open(redis_server.url), await self.open(redis_server.url)
        for i in range(3):
            await applied(store, space, Put(A, b"%d" % i))
        redis_server.flush()
        for i in range(5):  # another history, which has passed the lost one's revision
            await applied(newcomer, space, Put(A, b"other %d" % i))

        with pytest.raises(HistoryLostError) as caught:
            await store.read(space, [A])

        assert (caught.value.space, caught.value.revision) == (space, 3)
        assert await value_of(store, space, A) == b"other 4"
        assert (await applied(store, space, Put(A, b"on"))).revision == 6
        await store.close()
        await newcomer.close()

    async def test_spaces_are_listed_anew_after_a_server_lost_them(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        other = f"{space}/other"
        await store.apply([Batch(name, [Put(A, b"1")]) for name in (space, other)])
        redis_server.flush()

        for name in (space, other):
            with pytest.raises(HistoryLostError):
                await store.read(name, [A])
            await applied(store, name, Put(A, b"2"))

        assert await store.spaces(space) == [space, other]
        await store.close()

    @pytest.mark.parametrize("call", ["apply", "scan", "changes", "drop", "read many"])
    async def test_every_call_notices_a_lost_history(
        self, redis_server: Redis, space: str, call: str
    ) -> None:
        store = await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))
        redis_server.flush()

        calls = {
            "apply": lambda: store.apply([Batch(space, [Put(A, b"2")])]),
            "scan": lambda: store.scan(space, b"\x01"),
            "changes": lambda: store.changes(space, 1),
            "drop": lambda: store.drop(space),
            "read many": lambda: store.read(space, [b"\x01%d" % i for i in range(20)]),
        }
        if call == "apply":
            (outcome,) = await store.apply([Batch(space, [Put(A, b"2")])])
            assert isinstance(outcome, HistoryLostError)
        else:
            with pytest.raises(HistoryLostError):
                await calls[call]()

        assert await revision_of(store, space) == 0
        assert (await applied(store, space, Put(A, b"3"))).revision == 1
        await store.close()

    async def test_a_cut_log_and_a_drop_are_no_lost_history(self, redis_server: Redis, space: str) -> None:
        store, other = await self.open(redis_server.url), await self.open(redis_server.url)
        await applied(store, space, Put(A, b"1"))
        await other.drop(space)
        await applied(other, space, Put(A, b"2"))

        assert await value_of(store, space, A) == b"2"
        await store.close()
        await other.close()

    async def test_a_full_server_takes_no_more_but_can_be_emptied(self, space: str) -> None:
        with Redis(settings={"maxmemory": "12mb", "maxmemory-policy": "noeviction"}) as server:
            store = await self.open(server.url)
            outcome: object = None
            for i in range(100):
                (outcome,) = await store.apply([Batch(space, [Put(b"\x00%d" % i, bytes(1 << 20))])])
                if not isinstance(outcome, Applied):
                    break
            before = await revision_of(store, space)
            assert isinstance(outcome, StoreFullError), outcome
            assert "user_script" not in str(outcome), "which line of our own script is no news"
            assert ".;" not in str(outcome)

            newcomer = await self.open(server.url)
            deleted = await applied(newcomer, space, Delete(b"\x00%d" % 0), Delete(b"\x00%d" % 1))
            again = await applied(newcomer, space, Put(A, b"fits now"))
            await newcomer.drop(space)

            assert (before + 1, before + 2) == (deleted.revision, again.revision)
            await store.close()
            await newcomer.close()

    async def test_a_foreign_key_in_the_place_of_a_space_is_an_error_that_writes_nothing(
        self, redis_server: Redis
    ) -> None:
        store = await self.open(redis_server.url)
        redis_server.command("SET", "keepstate:{taken}:log", "mine")
        redis_server.command("SET", "keepstate:{typed}:entries", "mine")

        (outcome,) = await store.apply([Batch("taken", [Put(A, b"1")])])
        with pytest.raises(CorruptError, match="Use another prefix="):
            await store.apply([Batch("typed", [Put(A, b"1")])])

        assert isinstance(outcome, CorruptError)
        assert redis_server.command("GET", "keepstate:{taken}:log") == "mine"
        assert redis_server.command("EXISTS", "keepstate:{taken}:entries") == 0
        redis_server.flush()
        await store.close()

    async def test_a_whole_batch_of_eight_mebibytes_is_written_and_read_back(
        self, redis_server: Redis, space: str
    ) -> None:
        store = await self.open(redis_server.url)
        keys = [b"\x02%d" % i for i in range(8)]
        values = [bytes([i]) * ((1 << 20) - len(keys[i])) for i in range(8)]

        await applied(store, space, *(Put(key, value) for key, value in zip(keys, values, strict=True)))
        await applied(
            store, space, *(Put(key, value) for key, value in zip(keys, reversed(values), strict=True))
        )

        reading = await store.read(space, keys)
        assert [entry.value for entry in reading.entries if entry] == values[::-1]
        log = await changed(store, space)
        assert [change.new for change in log] == values + values[::-1]
        assert [change.old for change in log[8:]] == values
        await store.close()


def test_a_killed_server_has_lost_nothing_that_it_acknowledged(own_server: Redis) -> None:
    """Writers go on while the server is killed, and again while it comes back."""
    acknowledged: list[list[int]] = [[] for _ in range(4)]
    ended = threading.Event()

    def write(number: int) -> None:
        store = finish(RedisStore(StoreUrl.parse(own_server.url), runner=ThreadRunner()).open())
        i = 0
        while not ended.is_set():
            (outcome,) = finish(store.apply([Batch("s", [Put(b"\x01%d/" % number, b"%d" % i, stamp=True)])]))
            assert isinstance(outcome, Applied), outcome
            acknowledged[number].append(i)
            i += 1
        finish(store.close())

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    for number in range(1, 5):
        while min(map(len, acknowledged)) < 12 * number and all(writer.is_alive() for writer in writers):
            time.sleep(0.01)
        if number < 4:
            own_server.kill()
            own_server.start()
    ended.set()
    for writer in writers:
        writer.join()

    store = finish(RedisStore(StoreUrl.parse(own_server.url), runner=ThreadRunner()).open())
    total = 0
    for number, written in enumerate(acknowledged):
        assert len(written) > 10
        found: list[int] = []
        after = None
        while True:
            page = finish(store.scan("s", b"\x01%d/" % number, after=after, limit=1000))
            found += [int(entry.value) for entry in page.entries]
            after = page.next
            if after is None:
                break
        assert found == written, "each acknowledged batch is there once, in order, and none beside"
        total += len(written)
    assert finish(store.read("s", ())).revision == total
    finish(store.close())
