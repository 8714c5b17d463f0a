"""A row that is not as its writer meant it is refused: its expiry, and the revision that created it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from keepstate_testing.servers import Redis

from keepstate import ConflictError, CorruptError, EncryptedStore, KeyRing, LeaseLostError, sync
from keepstate._finish import finish
from keepstate.engine.kernel import layout
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Entry, Put
from keepstate.stores.redis.encoding import keys_of
from keepstate.stores.sqlite import connection as connections
from keepstate.stores.sqlite.schema import entry_seal
from keepstate.stores.wrappers.sealing import MOST_OVERHEAD_BYTES, OVERHEAD_BYTES, THIS_WRITE, Terms
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract.stage import applied, entry_of

KEYS = bytes(range(32))
LEASE = layout.named_key(layout.LEASES, "gpu")
DOCUMENT = layout.named_key(layout.DOCUMENTS, "plan")
A = b"\x01a"
MINUTE_MS = 60_000

Row = tuple[int, int, int | None]
"""Version, creation and expiry of a row, as the store keeps them in clear."""
Rewrite = Callable[[bytes, Callable[[Row], Row]], None]

_REWRITE = """
local field = 'h' .. ARGV[1]:gsub('..', function(c) return string.char(tonumber(c, 16)) end)
local version, created, expires, size = struct.unpack('>I8I8I8I4', redis.call('HGET', KEYS[1], field))
if ARGV[2] ~= '' then
  local head = struct.pack('>I8I8I8I4', tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), size)
  redis.call('HSET', KEYS[1], field, head)
end
return string.format('%d %d %d', version, created, expires)
"""


def in_sqlite(path: Path, key: bytes, change: Callable[[Row], Row]) -> None:
    """Rewrite a row of space `s` as a process that can write to the file may do: all checksums are right."""
    with closing(apsw.Connection(str(path), vfs=connections.file_system())) as connection:
        found: Any = connection.execute(
            "SELECT entries.id, value, version, created, expires_at_ms FROM entries "
            "JOIN spaces ON spaces.id = space WHERE name = ? AND key = ?",
            (b"s", key),
        ).get
        row, value = found[:2]
        version, created, expires_at_ms = change(found[2:])
        seal = entry_seal(key, value, version, expires_at_ms)
        connection.execute(
            "UPDATE entries SET version = ?, created = ?, expires_at_ms = ?, seal = ? WHERE id = ?",
            (version, created, expires_at_ms, seal, row),
        )


def in_redis(server: Redis, key: bytes, change: Callable[[Row], Row]) -> None:
    """Rewrite a field of space `s` in the server."""
    command = "EVAL", _REWRITE, "1", keys_of("keepstate", "s").keys[0].decode(), key.hex()
    version, created, expires_at_ms = map(int, str(server.command(*command, "")).split())
    changed = change((version, created, expires_at_ms or None))
    server.command(*command, *(str(number or 0) for number in changed))


@pytest.fixture(params=["sqlite", "redis"])
def store_of(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, Rewrite]:
    """Return a URL, and what rewrites rows of its space `s` behind the back of keepstate."""
    if request.param == "sqlite":
        path = tmp_path / "s.db"
        return f"sqlite:///{path}", lambda key, change: in_sqlite(path, key, change)
    server: Redis = request.getfixturevalue("redis_server")
    url: str = request.getfixturevalue("redis_url")
    return url, lambda key, change: in_redis(server, key, change)


def opened(url: str) -> sync.Keepstate:
    return sync.open(url, encryption=KeyRing(KEYS))


EXPIRIES: dict[str, tuple[Callable[[Row], Row], str]] = {
    "removed": (lambda row: (row[0], row[1], None), "to expire 60000 ms after its write"),
    "doubled": (lambda row: (row[0], row[1], (row[2] or 0) + MINUTE_MS), "more than its 60000 ms to live"),
    "for ever": (lambda row: (row[0], row[1], 2**52), "more than its 60000 ms to live"),
}


@pytest.mark.parametrize("expiry", EXPIRIES)
def test_a_lease_is_not_made_to_last_longer(store_of: tuple[str, Rewrite], expiry: str) -> None:
    url, rewrite = store_of
    change, words = EXPIRIES[expiry]
    with opened(url) as ks:
        ks.space("s").leases.acquire("gpu", ttl_s=60)
    rewrite(LEASE, change)

    with opened(url) as ks, pytest.raises(CorruptError, match=words):
        ks.space("s").leases.acquire("gpu", ttl_s=60)
    newer = KeyRing(bytes(32), KEYS)
    with sync.open(url, encryption=newer) as ks, pytest.raises(CorruptError, match=words):
        ks.rotate()  # otherwise it would seal the change as meant


def test_what_never_expires_is_not_made_to(store_of: tuple[str, Rewrite]) -> None:
    url, rewrite = store_of
    with opened(url) as ks:
        ks.space("s").documents.put("plan", 1)
    rewrite(DOCUMENT, lambda row: (row[0], row[1], 2**52))

    with opened(url) as ks, pytest.raises(CorruptError, match="was written never to expire"):
        ks.space("s").documents.get("plan")


@pytest.mark.parametrize("is_renewed", [False, True])
def test_the_token_of_a_lease_is_not_replaced(store_of: tuple[str, Rewrite], is_renewed: bool) -> None:
    url, rewrite = store_of
    with opened(url) as ks:
        ks.space("s").documents.put("plan", 1)
        lease = ks.space("s").leases.acquire("gpu", ttl_s=60)
        assert lease.token == 2
        if is_renewed:
            lease.renew()
            lease.check()
    rewrite(LEASE, lambda row: (row[0], 1, row[2]))

    with opened(url) as ks, pytest.raises(CorruptError, match="was not created at revision 1"):
        ks.space("s").leases.acquire("gpu", ttl_s=60)


def test_the_token_of_a_renewed_lease_is_not_replaced_with_its_version(store_of: tuple[str, Rewrite]) -> None:
    url, rewrite = store_of
    with opened(url) as ks:
        ks.space("s").documents.put("plan", 1)
        ks.space("s").leases.acquire("gpu", ttl_s=60).renew()
    rewrite(LEASE, lambda row: (1, 1, row[2]))

    with opened(url) as ks, pytest.raises(CorruptError, match="was not created at revision 1"):
        ks.space("s").leases.acquire("gpu", ttl_s=60)


def test_an_early_end_is_not_seen_and_the_next_holder_gets_a_token(
    store_of: tuple[str, Rewrite],
) -> None:
    """The store could as well remove the row: the fence is what holds."""
    url, rewrite = store_of
    with opened(url) as first, opened(url) as second:
        lease = first.space("s").leases.acquire("gpu", ttl_s=60)
        rewrite(LEASE, lambda row: (row[0], row[1], 1))
        other = second.space("s").leases.acquire("gpu", ttl_s=60)

        assert other.token > lease.token
        with pytest.raises(LeaseLostError), first.space("s").transaction(lease=lease) as tx:
            tx.documents.put("plan", 1)


# ---- what is told of rows by the writer, and what must keep being read


@pytest.fixture
def both(plain: MemoryStore, store: EncryptedStore, key: bytes, clock: ManualClock) -> EncryptedStore:
    return finish(EncryptedStore(plain, KeyRing(KeyRing.new_key(), key), clock=clock).open())


def terms_of(plain: MemoryStore, store: EncryptedStore, at: bytes = A) -> Terms:
    entry = finish(entry_of(plain, "s", at))
    assert entry is not None
    return store._sealer.open("s", at, entry.value).terms  # pyright: ignore[reportPrivateUsage]


def test_a_batch_s_words_on_a_row_are_sealed_with_its_value(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    finish(applied(store, "s", Put(A, b"1", ttl_ms=5), checks=[Check(A, version=0)]))
    assert terms_of(plain, store) == Terms(5, THIS_WRITE)
    finish(applied(store, "s", Put(A, b"2"), checks=[Check(A, created=1)]))
    assert terms_of(plain, store) == Terms(None, 1)
    finish(applied(store, "s", Put(A, b"3"), checks=[Check(A, version=2)]))
    assert terms_of(plain, store) == Terms()

    found = finish(entry_of(plain, "s", A))
    assert found is not None
    assert (found.version, found.created) == (3, 1)


def test_a_value_grows_by_42_bytes_and_by_8_for_each_number_of_its_row(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    sizes: list[int] = []
    for put, checks in (
        (Put(A, b""), []),
        (Put(A, b"", ttl_ms=5), []),
        (Put(A, b"", ttl_ms=5), [Check(A, created=1)]),
    ):
        finish(applied(store, "s", put, checks=checks))
        entry = finish(entry_of(plain, "s", A))
        assert entry is not None
        sizes.append(len(entry.value))

    assert sizes == [OVERHEAD_BYTES, OVERHEAD_BYTES + 8, OVERHEAD_BYTES + 16]
    assert (OVERHEAD_BYTES, MOST_OVERHEAD_BYTES) == (42, 66)


def test_rotation_keeps_the_terms_and_narrows_the_time_to_live_to_what_is_left(
    store: EncryptedStore, both: EncryptedStore, plain: MemoryStore, clock: ManualClock
) -> None:
    finish(applied(store, "s", Put(A, b"1", ttl_ms=MINUTE_MS), checks=[Check(A, version=0)]))
    before = finish(entry_of(store, "s", A))
    clock.advance(20_000)

    assert finish(both.rotate()) == 2

    assert terms_of(plain, both) == Terms(40_000, THIS_WRITE)
    assert finish(entry_of(both, "s", A)) == before
    finish(applied(both, "s", Put(A, b"2", ttl_ms=MINUTE_MS), checks=[Check(A, created=1)]))
    assert terms_of(plain, both) == Terms(MINUTE_MS, 1)


def test_a_row_written_over_an_expired_one_is_created_by_that_write(
    store: EncryptedStore, clock: ManualClock
) -> None:
    finish(applied(store, "s", Put(A, b"1", ttl_ms=5), checks=[Check(A, version=0)]))
    clock.advance(5)
    finish(applied(store, "s", Put(A, b"2", ttl_ms=5), checks=[Check(A, version=0)]))

    entry = finish(entry_of(store, "s", A))
    assert entry is not None
    assert (entry.value, entry.created) == (b"2", 2)


def test_a_row_whose_terms_were_cut_off_is_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    finish(applied(store, "s", Put(A, b"1", ttl_ms=MINUTE_MS)))
    entry = finish(entry_of(plain, "s", A))
    assert entry is not None
    for bits in (0, 2, 3, 4, 5, 255):
        forged = entry.value[:13] + bytes((bits,)) + entry.value[14:]
        without = entry.value[:13] + bytes((bits,)) + entry.value[22:]
        for value in (forged, without):
            finish(applied(plain, "s", Put(A, value)))
            with pytest.raises(CorruptError):
                finish(store.read("s", [A]))


def test_a_check_that_must_look_at_an_altered_row_fails_with_its_name(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    finish(applied(store, "s", Put(A, b"1")))
    sealed = finish(entry_of(plain, "s", A))
    assert isinstance(sealed, Entry)
    finish(applied(plain, "s", Put(A, sealed.value, ttl_ms=5)))

    outcome = finish(store.apply([Batch("s", [Put(A, b"2")], [Check(A, version=1)])]))[0]

    assert isinstance(outcome, CorruptError)
    assert not isinstance(outcome, ConflictError)
    assert repr(A) in str(outcome)


def test_rows_of_every_part_open_again_as_they_were_written(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/s.db"
    with opened(url) as ks:
        space = ks.space("s")
        space.documents.put("plan", 1, ttl_s=60)
        space.documents.update("plan", lambda known: known + 1)
        space.events.append("a", "b", id=["1", "2"])
        space.queue.put("work", id="task")
        space.leases.acquire("gpu", ttl_s=60).renew(ttl_s=30)
    with opened(url) as ks:
        assert ks.space("s").documents.get("plan") == 2
        assert [event.data for event in ks.space("s").events.read()] == ["a", "b"]
        with pytest.raises(ConflictError):
            ks.space("s").leases.acquire("gpu", ttl_s=60)
