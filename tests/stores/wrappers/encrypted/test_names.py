"""Names that are made of content: nothing that reads the keys of an encrypted store can try guesses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from random import Random

import pytest

from keepstate import EncryptedStore, KeyRing, parameters_hash, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.managers.records import encode_canonical
from keepstate.managers.teams.records import TaskQueueState, TeamState
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.sync import OrchestrationStateManager, ToolStateManager
from keepstate.values import codec
from keepstate.values.refs import DIGEST_SIZE

PIN = "4711"
PINS = [f"{number:04}" for number in range(10_000)]
LARGE = Random(3).randbytes(1 << 20)

Keys = Callable[[], list[bytes]]
Use = Callable[[sync.Keepstate, Keys], list[bytes]]


@contextmanager
def opened(is_encrypted: bool) -> Iterator[tuple[sync.Keepstate, Keys]]:
    """Yield a handle, and a function that returns all keys as the innermost store has them."""
    plain = finish(MemoryStore(runner=ThreadRunner()).open())
    store: StoreBase | StoreWrapper = plain
    if is_encrypted:
        store = finish(EncryptedStore(plain, KeyRing(bytes(32))).open())

    def keys() -> list[bytes]:
        found: list[bytes] = []
        for space in finish(plain.spaces(limit=1_000)):
            for section in (b"\x00", b"\x01", b"\x02"):
                found += [
                    space.encode() + entry.key
                    for entry in finish(plain.scan(space, section, limit=1_000)).entries
                ]
        return found

    try:
        with sync.open(store) as ks:
            yield ks, keys
    finally:
        finish(plain.close())


def event(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    ks.space("s").events.append("entered", id=PIN)
    assert ks.space("s").events.append("entered", id=PIN) == ks.space("s").events.last()
    return keys()


def kept_result(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    with ToolStateManager(persistence=ks) as tools:
        entry = tools.run("check", {"pin": PIN}, lambda _: "right", ttl=60)
        assert entry.parameters_hash == parameters_hash("check", {"pin": PIN})
        found = tools.get_cached_result("check", {"pin": PIN})
        assert found is not None
        assert found.result == "right"
        there = [key for key in keys() if b"cache/" in key]
        assert tools.remove_cached_results("check", {"pin": PIN}) == 1
    return there


def flight(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    there: list[bytes] = []
    with ToolStateManager(persistence=ks) as tools:
        tools.run("check", {"pin": PIN}, lambda _: there.extend(keys()))
    return [key for key in there if b"flight/" in key]


def team_task(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    with OrchestrationStateManager(persistence=ks) as teams:
        teams.create_team(TeamState("t", task_queue=TaskQueueState(pending=[{"pin": PIN}])))
        assert len(teams.get_queue_status("t").pending) == 1
    return [key for key in keys() if b"task" in key]


def part(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    ks.space("s").documents.put("large", PIN.encode() + LARGE)
    return [key for key in keys() if b"part" in key]


def history_object(ks: sync.Keepstate, keys: Keys) -> list[bytes]:
    ks.space("s").history.commit({"large": [PIN] * 10_000}, message="remember")
    return [key for key in keys() if b"object" in key or b"commit" in key]


def stored_part(pin: str) -> bytes:
    """Return the first part of a large document: what the codec puts before bytes of that length."""
    return codec.encode(pin.encode() + LARGE)[: 1 << 20]


USES: dict[str, tuple[Use, Callable[[str], bytes]]] = {
    "event": (event, lambda pin: sha256(pin.encode()).digest()[:16]),
    "kept result": (kept_result, lambda pin: parameters_hash("check", {"pin": pin}).encode()),
    "flight": (flight, lambda pin: parameters_hash("check", {"pin": pin}).encode()),
    "team task": (
        team_task,
        lambda pin: sha256(encode_canonical(("t", 0, {"pin": pin}))).hexdigest()[:32].encode(),
    ),
}


@pytest.mark.parametrize("use", USES)
def test_a_search_over_all_pins_finds_the_one_that_was_stored_only_without_encryption(use: str) -> None:
    store, guess = USES[use]
    found: dict[bool, list[str]] = {}
    for is_encrypted in (False, True):
        with opened(is_encrypted) as (ks, keys):
            there = b"\0".join(store(ks, keys))
            assert there, "nothing was stored that could be searched"
            found[is_encrypted] = [pin for pin in PINS if guess(pin) in there]

    assert found == {False: [PIN], True: []}


def test_names_of_parts_and_of_objects_of_histories_hold_no_digest_of_their_content() -> None:
    plain: set[bytes] = set()
    hidden: set[bytes] = set()
    for is_encrypted, names in ((False, plain), (True, hidden)):
        with opened(is_encrypted) as (ks, keys):
            for use in (part, history_object):
                names.update(key[-DIGEST_SIZE:] for key in use(ks, keys))

    assert sha256(stored_part(PIN)).digest()[:DIGEST_SIZE] in plain
    assert not plain & hidden


def test_the_space_of_a_kept_result_narrows_a_search_by_nothing() -> None:
    with opened(is_encrypted=True) as (ks, keys), ToolStateManager(persistence=ks) as tools:
        for pin in PINS[:64]:
            tools.run("check", {"pin": pin}, lambda given: given["pin"], ttl=60)
        picked = [key.partition(b"\x02")[0].decode() for key in keys() if b"cache/" in key]
    digests = [sha256(f"check\0{parameters_hash('check', {'pin': pin})}".encode()) for pin in PINS[:64]]
    guessed = sorted(f"tools/{digest.digest()[0] % 16}" for digest in digests)

    assert len(picked) == len(guessed) == 64
    assert sorted(picked) != guessed


def test_names_stay_when_the_key_is_replaced() -> None:
    plain = finish(MemoryStore(runner=ThreadRunner()).open())
    old, new = bytes(32), bytes(range(32))
    with sync.open(finish(EncryptedStore(plain, KeyRing(old)).open())) as ks:
        first = ks.space("s").events.append("entered", id=PIN)
        with ToolStateManager(persistence=ks) as tools:
            tools.run("check", {"pin": PIN}, lambda _: "right", ttl=60)
    with sync.open(finish(EncryptedStore(plain, KeyRing(new, old)).open())) as ks:
        assert ks.rotate() > 0
    with sync.open(finish(EncryptedStore(plain, KeyRing(new)).open())) as ks:
        assert ks.space("s").events.append("entered", id=PIN) == first
        with ToolStateManager(persistence=ks) as tools:
            assert tools.run("check", {"pin": PIN}, lambda _: "wrong", ttl=60).result == "right"
    finish(plain.close())
