"""Workers and servers are killed every second or so, and nothing is lost, torn, invented or disordered."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest
from keepstate_testing.chaos import Crash, Plan, Report, run
from keepstate_testing.servers import Postgres, Redis, RedisCluster, Server, Valkey

from keepstate.errors import MissingExtraError
from tests.crashes import sabotage
from tests.tally import Tally, first_seed

# What `everysec` leaves to the kernel a moment later than it answers would be lost with the process.
ALWAYS = {"appendfsync": "always"}
# What a crash left is in the kernel's hands: file after file, to sync it again takes seconds of each start.
RESUMING = {"recovery_init_sync_method": "syncfs"} if sys.platform == "linux" else {}
SERVERS: dict[str, Callable[[], Server]] = {
    "Redis": lambda: Redis(appendonly=True, settings=ALWAYS),
    "Valkey": lambda: Valkey(appendonly=True, settings=ALWAYS),
    "PostgreSQL": lambda: Postgres(settings={"max_connections": "200", **RESUMING}),
}


@dataclass(frozen=True)
class Arena:
    """A store to run on: how the workers name it, and what kills its server."""

    urls: tuple[str, ...]
    crash: Crash | None = None
    workers: int = 3
    clients: int = 4
    failovers: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class Size:
    """How long a run is, and how often something is killed."""

    seconds: float
    kill_every_s: tuple[float, float] = (0.4, 1.2)
    least_kills: int = 1
    """Of workers, and of the server if there is one: with fewer, a run has proven little."""


_TRIALS = 20
_LOOKS = 250
SHORT = Size(1.2, (0.15, 0.35))
DEEP = [pytest.mark.deep, pytest.mark.timeout(600)]
BACKENDS = {
    "File": 55.0,
    "SQLite, full": 75.0,
    "SQLite, normal": 90.0,
    "Redis": 100.0,
    "Valkey": 90.0,
    "PostgreSQL": 130.0,
    "Redis Cluster": 130.0,
}


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(pytest.param(kind, SHORT, id=f"{kind}-short", marks=pytest.mark.slow) for kind in BACKENDS),
        *(
            pytest.param(kind, Size(long, least_kills=15), id=f"{kind}-long", marks=DEEP)
            for kind, long in BACKENDS.items()
        ),
    ],
)
def test_kills_lose_nothing(kind: str, size: Size, tmp_path: Path, tally: Tally) -> None:
    seed = first_seed()
    with arena(kind, tmp_path) as at:
        report = chaos(at, tmp_path, size, seed)

    print(f"{kind}, seed {seed}: {report}")
    assert report.faults == []
    assert report.findings.found == [], f"seed {seed}: {report}"
    assert report.history_lost == 0
    assert report.worker_kills >= size.least_kills
    assert report.server_crashes >= (size.least_kills if at.crash is not None else 0)
    assert report.samples > 0
    assert report.too_long <= max(2, report.samples), "most samples were given up"
    tally(
        f"{kind}: chaos",
        operations=report.findings.operations,
        worker_kills=report.worker_kills,
        server_crashes=report.server_crashes,
        failovers=at.failovers(),
        **report.findings.counts(),
    )
    shutil.rmtree(tmp_path / "histories")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "kinds"),
    [
        (sabotage.drop_checks, {"disordered"}),
        (sabotage.acknowledge_and_forget, {"lost"}),
        (sabotage.apply_the_half, {"partial"}),
        (sabotage.apply_twice, {"applied_twice"}),
        (sabotage.apply_what_was_refused, {"ghosts"}),
        (sabotage.read_from_a_cache, {"disordered"}),
        (sabotage.guard_scans_by_revision_alone, {"disordered"}),
    ],
)
def test_a_broken_store_is_found_guilty(broken: Callable[[], None], kinds: set[str], tmp_path: Path) -> None:
    size, found = Size(0.6, (0.2, 0.3)), set[str]()
    for attempt in range(_TRIALS):  # a loaded machine may let the workers do too little in one of them
        folder = tmp_path / f"trial-{attempt}"
        folder.mkdir()
        with arena("SQLite, normal", folder) as at:
            report = chaos(at, folder, size, first_seed() + attempt, sabotaged=broken)
        found |= {name for name, count in report.findings.counts().items() if count}
        if kinds <= found:
            return

    pytest.fail(f"{kinds} expected, {found} found: {report}")


@pytest.mark.slow
def test_the_search_that_trusts_no_revision_finds_it_too(tmp_path: Path) -> None:
    for attempt in range(_TRIALS):
        folder = tmp_path / f"trial-{attempt}"
        folder.mkdir()
        with arena("SQLite, normal", folder) as at:
            seed = first_seed() + attempt
            report = chaos(at, folder, Size(1.0, (0.3, 0.4)), seed, sabotaged=sabotage.drop_checks)
        if any("no order explains" in finding.text for finding in report.findings.found):
            return

    pytest.fail(f"no search found it: {report}")


def chaos(
    at: Arena, folder: Path, size: Size, seed: int, *, sabotaged: Callable[[], None] | None = None
) -> Report:
    """Return what a run on a store came to."""
    histories = folder / "histories"
    histories.mkdir()
    return run(
        Plan(
            urls=at.urls,
            folder=histories,
            seconds=size.seconds,
            seed=seed,
            workers=at.workers,
            clients=at.clients,
            kill_every_s=size.kill_every_s,
            crash=at.crash,
            prepare=sabotaged and f"{sabotaged.__module__}:{sabotaged.__name__}",
        )
    )


@contextmanager
def arena(kind: str, folder: Path) -> Iterator[Arena]:
    """Yield a new store of this kind."""
    if kind == "File":
        yield Arena((f"file:///{folder}/chaos.journal",), workers=1, clients=8)
    elif kind == "SQLite, full":
        yield Arena((f"sqlite:///{folder}/chaos.db",))
    elif kind == "SQLite, normal":
        yield Arena((f"sqlite:///{folder}/chaos.db?durability=normal",))
    elif kind == "Redis Cluster":
        # What a failover loses is another proof: here a killed master always comes back itself.
        settings = {**ALWAYS, "cluster-replica-no-failover": "yes"}
        cluster = RedisCluster(replicas=1, appendonly=True, settings=settings)
        with running(cluster):
            taken = TakenOver(cluster)
            yield Arena(hasty(cluster.url), taken.crash, clients=6, failovers=lambda: taken.failovers)
    else:
        server = SERVERS[kind]()
        with running(server):
            urls = (server.url,) if kind == "PostgreSQL" else hasty(server.url)
            yield Arena(urls, lambda dice: restart(server, dice), clients=8)


@contextmanager
def running(server: Server | RedisCluster) -> Iterator[None]:
    """Keep a server up; skips the test where its binary is not installed."""
    try:
        server.start()
    except MissingExtraError as error:
        pytest.skip(str(error))
    with server:
        yield


def restart(server: Server, dice: Random) -> None:
    """Kill a server, at times while it keeps all waiting, and start it again a moment later."""
    if dice.random() < 0.25:
        server.pause()
        time.sleep(dice.uniform(0.1, 1.5))
        if dice.random() < 0.5:
            server.resume()
    server.kill()
    time.sleep(dice.uniform(0, 0.2))
    server.start()


class TakenOver:
    """Kills nodes of a cluster, and at times first lets a replica take over in order, which loses nothing."""

    def __init__(self, cluster: RedisCluster) -> None:
        self._cluster, self.failovers = cluster, 0

    def crash(self, dice: Random) -> None:
        """Kill any node, and start it again."""
        if dice.random() < 0.4:
            self._take_over(dice)
        restart(dice.choice(self._cluster.nodes), dice)

    def _take_over(self, dice: Random) -> None:
        for node in dice.sample(self._cluster.nodes, len(self._cluster.nodes)):
            fields = node.info()
            if fields["role"] == "slave" and fields["master_link_status"] == "up":
                node.command("CLUSTER", "FAILOVER")
                for _ in range(_LOOKS):
                    if node.info()["role"] == "master":
                        self.failovers += 1
                        return
                    time.sleep(0.02)
                return


def hasty(url: str) -> tuple[str, str]:
    """Return the URL of patient workers, and of others that soon take a lost answer for unknown."""
    return url, f"{url}?retry_for_s=0.1&timeout_s=1"
