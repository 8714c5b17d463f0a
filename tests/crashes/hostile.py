"""Bytes as somebody may make them who can write below keepstate: real ones, bent at random."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from keepstate import KeepstateError, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.engine.queue.tasks import TaskState
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put
from keepstate.testing.clocks import ManualClock

Row = tuple[bytes, bytes]

LONG_NAME = "n" * 500
LARGE = Random(7).randbytes(1_200_000)
_MOST_BENT = 4_000
"""Bytes of a value; the end of a long one is nothing else than its middle."""
_ODD = (
    *(b"", b"\xd7", b"\xd7\x90", b"\xd8", b"\xd8\xff\xff"),
    *(b"\x01", b"\x11", b"\x21", b"\xd7\x93\xce\xff\xff\xff\xff"),
)


def bent(data: bytes, random: Random) -> bytes:
    """Return the bytes changed in one way: a bit, a cut, an end, some bytes, or all of them."""
    changed = bytearray(data[:_MOST_BENT])
    at = random.randrange(len(changed) + 1)
    match random.randrange(6):
        case 0 if changed:
            changed[random.randrange(len(changed))] ^= 1 << random.randrange(8)
        case 1:
            del changed[at:]
        case 2:
            changed += random.randbytes(random.randrange(1, 9))
        case 3:
            changed[at : at + random.randrange(4)] = random.randbytes(random.randrange(5))
        case 4:
            changed[at : at + 4] = b"\xff\xff\xff\xff"
        case _:
            changed = bytearray(random.choice((*_ODD, random.randbytes(20))))
    return bytes(changed)


def used_space() -> list[Row]:
    """Return the rows of a space in which every part was used."""
    store = finish(MemoryStore(runner=ThreadRunner(), clock=ManualClock()).open())
    space = sync.open(store, author="somebody").space("s")
    space.documents.put("a", {"x": 1, "when": None})
    space.documents.put(LONG_NAME, (1, 2.5, {3}))
    space.documents.put("large", LARGE)
    space.events.append("one", {"two": 2})
    space.events.append("elsewhere", stream="other")
    for name in ("t1", "t2", "t3"):
        space.queue.put({"task": name}, id=name, delay_s=100 if name == "t2" else 0)
    space.queue.claim("worker", lease_s=100)
    (done,) = space.queue.claim("worker", lease_s=100)
    done.complete("result")
    space.queue.put("ready", id="t4")
    space.leases.acquire("gpu", ttl_s=100)
    rows = [
        (entry.key, entry.value)
        for section in (b"\x00", b"\x01", b"\x02")
        for entry in finish(store.scan("s", section)).entries
    ]
    finish(store.close())
    return rows


def hostile_rows(rows: Sequence[Row], random: Random) -> list[Row]:
    """Return the rows, some of them bent, moved, or joined by ones whose keys are bent."""
    bad = list(rows)
    for _ in range(random.choice((1, 1, 2, 4))):
        place = random.randrange(len(bad))
        key, value = bad[place]
        match random.randrange(4):
            case 0 | 1:
                value = bent(value, random)
            case 2:
                value = random.choice(rows)[1]
            case _:
                key = key[:1] + bent(key[1:], random)[:500]
                place = random.choice((place, len(bad)))
        bad[place : place + 1] = [(key, value)]
    return list(dict(bad).items())


def store_of(rows: Sequence[Row]) -> MemoryStore | None:
    """Return an opened store with these rows, or None if a store would not take them."""
    store = finish(MemoryStore(runner=ThreadRunner(), clock=ManualClock()).open())
    try:
        finish(store.apply([Batch("s", [Put(key, value) for key, value in rows])]))
    except KeepstateError:
        finish(store.close())
        return None
    return store


def every_use(ks: sync.Keepstate) -> Iterator[Callable[[], Any]]:
    """Yield all that a program may do with a space that it has found."""
    space = ks.space("s")

    def watched() -> list[Any]:
        with space.documents.watch(after=0, timeout_s=0) as changes:
            return list(changes)

    def worked() -> None:
        for task in space.queue.claim("worker", lease_s=9, count=9):
            task.complete()

    yield lambda: list(space.documents.keys())
    yield lambda: list(space.documents.items())
    yield from (lambda name=name: space.documents.get(name) for name in ("a", "large", LONG_NAME))
    yield lambda: space.documents.get("a", type=dict[str, int])
    yield lambda: space.documents.update("a", {"y": 1})
    yield watched
    yield space.events.read
    yield lambda: space.events.append("more", expected=space.events.last() or 0)
    yield space.queue.counts
    states: tuple[TaskState, ...] = ("ready", "waiting", "claimed", "done", "dead")
    yield lambda: [space.queue.list(state) for state in states]
    yield from (lambda name=name: space.queue.get(name) for name in ("t1", "t2", "t3", "t4"))
    yield worked
    yield lambda: space.leases.holder("gpu")
    yield lambda: space.leases.acquire("gpu", ttl_s=5)
    yield lambda: space.transact(lambda tx: tx.documents.update("a", {"z": 1}))
    yield ks.sweep
