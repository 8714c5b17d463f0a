"""A replica that missed writes takes over: whoever had seen them is told, and nothing stale gets through."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import count, product
from random import Random
from typing import Any

import pytest
from keepstate_testing.servers import Redis, RedisCluster, Valkey

from keepstate._finish import finish
from keepstate._runner import Mode, ThreadRunner
from keepstate.errors import HistoryLostError, StoreUnavailableError
from keepstate.stores.protocol import Applied, Batch, Change, Check, Put
from keepstate.stores.redis import RedisStore
from keepstate.stores.urls import StoreUrl
from keepstate.testing.store_contract.stage import changed, entry_of
from tests.crashes.failover_stories import STORIES, Cast, Story
from tests.crashes.redis_pair import RedisPair
from tests.server_fixtures import running
from tests.tally import first_seed

SEED = first_seed()
HOT = b"\x02hot"
CLUSTERS = [
    pytest.param(Redis, id="Redis"),
    pytest.param(Valkey, id="Valkey", marks=pytest.mark.deep),
]
PAIRS = [
    pytest.param(Redis, id="Redis", marks=pytest.mark.deep),
    pytest.param(Valkey, id="Valkey"),
]
MODES: tuple[Mode, ...] = ("async", "blocking")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CLUSTERS)
def cluster(request: pytest.FixtureRequest) -> Iterator[RedisCluster]:
    yield from running(request, RedisCluster(replicas=1, server=request.param))


class Telling:
    """A story on its way, in its colour."""

    def __init__(self, story: Story, cast: Cast) -> None:
        self.cast = cast
        self._loop = asyncio.Runner() if cast.mode == "async" else None
        self._steps = story(cast)

    def go_on(self) -> bool:
        """Tell it up to its next stop, and return whether there was one."""
        return self._run(anext(self._steps, self)) is not self

    def end(self) -> None:
        """Close what the story has opened."""
        self._run(self._steps.aclose())
        self._run(self.cast.end())
        if self._loop is not None:
            self._loop.close()

    def _run(self, work: Any) -> object:
        async def awaited() -> object:
            return await work

        return finish(awaited()) if self._loop is None else self._loop.run(awaited())


Tellings = dict[tuple[Story, Mode], Telling]


@contextmanager
def told(
    url: str, names: Iterable[str], failover: Callable[[], AbstractContextManager[object]]
) -> Generator[Tellings]:
    """Yield all stories, told up to a failover that they have in common."""
    casts = zip(product(STORIES, MODES), names, strict=False)
    tellings = {(story, mode): Telling(story, Cast(url, name, mode)) for (story, mode), name in casts}
    try:
        for telling in tellings.values():
            assert telling.go_on()
        with failover():
            for telling in tellings.values():
                assert telling.go_on()
        yield tellings
    finally:
        for telling in tellings.values():
            telling.end()


@pytest.fixture(scope="module")
def tellings_on_a_cluster(cluster: RedisCluster) -> Iterator[Tellings]:
    master = cluster.master_of("a")
    names = (name for name in map("s{}".format, count()) if cluster.master_of(f"{{{name}}}") is master)
    with told(cluster.url, names, lambda: cluster.forgetful_failover("a")) as tellings:
        yield tellings


@pytest.fixture(scope="module", params=PAIRS)
def tellings_on_a_pair(request: pytest.FixtureRequest) -> Iterator[Tellings]:
    names = map("s{}".format, count())
    with RedisPair(request.param) as pair, told(pair.url, names, pair.forgetful_failover) as tellings:
        yield tellings


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_after_a_replica_took_over_in_a_cluster(
    tellings_on_a_cluster: Tellings, story: Story, mode: Mode
) -> None:
    assert not tellings_on_a_cluster[story, mode].go_on()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_after_a_replica_was_promoted_by_hand(tellings_on_a_pair: Tellings, story: Story, mode: Mode) -> None:
    assert not tellings_on_a_pair[story, mode].go_on()


class Chain(threading.Thread):
    """Writes over what it has read, again and again, and says in each value what that was.

    So the log itself shows a check that passed on a write of somebody else than the one that was read.
    """

    def __init__(self, cluster: RedisCluster, space: str, name: str, random: Random) -> None:
        super().__init__(daemon=True)
        self._url, self._space, self._label, self._random = cluster.url, space, name, random
        self.acknowledged: dict[int, bytes] = {}
        self.times_told = 0
        self.away = 0
        self.failure: BaseException | None = None
        self.ended = threading.Event()

    def run(self) -> None:
        try:
            store = finish(RedisStore(StoreUrl.parse(self._url), runner=ThreadRunner()).open())
            for number in count():
                is_last = self.ended.wait(self._random.random() * 0.004)
                if self._step(store, b"%s/%d" % (self._label.encode(), number)) and is_last:
                    break
            finish(store.close())
        except BaseException as failure:
            self.failure = failure
            raise

    def _step(self, store: RedisStore, name: bytes) -> bool:
        """Return whether the master answered."""
        try:
            entry = finish(entry_of(store, self._space, HOT))
            value = name + b"<" + (entry.value.partition(b"<")[0] if entry else b"")
            check = Check(HOT, version=entry.version if entry else 0)
            (outcome,) = finish(store.apply([Batch(self._space, [Put(HOT, value)], [check])]))
            if isinstance(outcome, Applied):
                self.acknowledged[outcome.revision] = value
            elif isinstance(outcome, Exception):
                raise outcome
        except HistoryLostError:
            self.times_told += 1
        except StoreUnavailableError:
            self.away += 1
            return False
        return True

    def lost(self, log: dict[int, Change]) -> int:
        """Return how many of its acknowledged writes are not in the log."""
        return sum(
            revision not in log or log[revision].new != value for revision, value in self.acknowledged.items()
        )

    def stop(self) -> None:
        """Let it make one more step that is answered, so that it has met the present master."""
        self.ended.set()
        self.join(60)
        assert not self.is_alive()
        if self.failure is not None:
            raise self.failure


@pytest.mark.parametrize(
    "rounds",
    [
        pytest.param(1, id="short"),
        pytest.param(12, id="long", marks=[pytest.mark.deep, pytest.mark.timeout(400)]),
    ],
)
def test_writers_through_failovers_build_on_nothing_that_was_lost(
    cluster: RedisCluster, rounds: int, space: str, tally: Callable[..., None]
) -> None:
    random = Random(SEED)
    operations = silent = stale = 0
    for number in range(rounds):
        place = f"{space} {number}"  # of its own: together they are more revisions than a log keeps
        cluster.start()
        chains = [Chain(cluster, place, f"{number}.{k}", Random(random.random())) for k in range(3)]
        for chain in chains:
            chain.start()
        time.sleep(0.2 + 0.3 * random.random())
        with cluster.forgetful_failover(f"{{{place}}}"):
            time.sleep(0.05 + 0.2 * random.random())
        time.sleep(0.5)
        for chain in chains:
            chain.stop()
        log = {change.revision: change for change in read_log(cluster, place)}
        stale += sum(not builds_on(change.old, change.new) for change in log.values())
        gone = [chain.lost(log) for chain in chains]
        assert sum(gone) > 0, f"seed {SEED}, round {number}: nothing was lost that somebody could be told of"
        silent += sum(lost for chain, lost in zip(chains, gone, strict=True) if not chain.times_told)
        operations += sum(len(chain.acknowledged) + chain.away + chain.times_told for chain in chains)

    kind = type(cluster.nodes[0]).__name__
    tally(
        f"{kind} Cluster: failovers", operations=operations, failovers=rounds, lost=silent, disordered=stale
    )
    assert (silent, stale) == (0, 0), f"seed {SEED}"


@pytest.fixture
def space(request: pytest.FixtureRequest) -> str:
    return f"chain {request.node.name}"


def read_log(cluster: RedisCluster, space: str) -> list[Any]:
    """Return the changes as somebody sees them who comes new."""
    store = finish(RedisStore(StoreUrl.parse(cluster.url), runner=ThreadRunner()).open())
    try:
        return finish(changed(store, space))
    finally:
        finish(store.close())


def builds_on(old: bytes | None, new: bytes | None) -> bool:
    """Whether a value names the one that it stands over."""
    assert new is not None
    return new.partition(b"<")[2] == (old.partition(b"<")[0] if old is not None else b"")
