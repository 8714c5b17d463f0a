"""A value is what was sealed at the place it is read from, or it is refused by name."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepstate import CorruptError, EncryptedStore, InvalidError, KeyRing, MissingExtraError
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Check, Put
from keepstate.stores.wrappers.sealing import OVERHEAD_BYTES, Sealer
from keepstate.testing.clocks import ManualClock
from keepstate.testing.store_contract.stage import applied, entry_of, value_of

A, B, DOC, LOG = b"\x01a", b"\x01b", b"\x02doc", b"\x01log/"
VALUE = b"what nobody else should read"


def written(store: EncryptedStore, key: bytes = A, value: bytes = VALUE, *, stamp: bool = False) -> int:
    outcome = finish(store.apply([Batch("s", [Put(key, value, stamp=stamp)])]))[0]
    return getattr(outcome, "revision", 0)


def sealed(plain: MemoryStore, key: bytes = A, space: str = "s") -> bytes:
    found = finish(value_of(plain, space, key))
    assert found is not None
    return found


def refused(store: EncryptedStore, key: bytes = A, space: str = "s") -> CorruptError:
    with pytest.raises(CorruptError) as caught:
        finish(store.read(space, [key]))
    assert caught.value.space == space
    assert repr(key) in str(caught.value)
    return caught.value


def test_what_is_stored_shows_nothing_of_the_value(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)

    assert finish(store.read("s", [A])).entries[0] is not None
    assert VALUE not in sealed(plain)
    assert len(sealed(plain)) == len(VALUE) + OVERHEAD_BYTES


def test_the_same_value_is_never_sealed_alike(store: EncryptedStore, plain: MemoryStore) -> None:
    seen = {sealed(plain) for _ in range(50) if written(store)}

    assert len(seen) == 50


def test_a_row_without_encryption_is_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    finish(applied(plain, "s", Put(A, VALUE)))

    assert "is not sealed" in str(refused(store))


def test_a_row_moved_to_another_key_is_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)
    finish(applied(plain, "s", Put(B, sealed(plain))))

    assert "moved here" in str(refused(store, B))


def test_a_row_moved_to_another_space_is_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)
    finish(applied(plain, "t", Put(A, sealed(plain))))

    assert "moved here" in str(refused(store, A, "t"))


def test_a_row_of_another_store_with_the_same_key_is_refused(
    store: EncryptedStore, plain: MemoryStore, key: bytes
) -> None:
    elsewhere = finish(MemoryStore(runner=ThreadRunner()).open())
    written(finish(EncryptedStore(elsewhere, KeyRing(key)).open()))
    finish(applied(plain, "s", Put(A, sealed(elsewhere))))
    finish(elsewhere.close())

    assert "moved here" in str(refused(store))


def test_an_event_moved_to_another_stream_or_index_is_refused(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    written(store, LOG, stamp=True)
    (entry,) = finish(plain.scan("s", LOG)).entries
    stamp = entry.key[len(LOG) :]
    other_stream = b"\x01gol/" + stamp
    other_index = LOG + stamp[:-1] + b"\x07"
    unstamped = b"\x01log"
    finish(applied(plain, "s", *(Put(key, entry.value) for key in (other_stream, other_index, unstamped))))

    for key in (other_stream, other_index, unstamped):
        refused(store, key)
    opened = finish(entry_of(store, "s", entry.key))
    assert opened is not None
    assert opened.value == VALUE


@pytest.mark.parametrize("at", ["first byte", "key id", "day", "nonce", "ciphertext", "tag"])
def test_a_flipped_bit_anywhere_is_refused(store: EncryptedStore, plain: MemoryStore, at: str) -> None:
    written(store)
    place = {"first byte": 0, "key id": 3, "day": 12, "nonce": 20, "ciphertext": 30, "tag": -1}[at]
    for bit in range(8):
        damaged = bytearray(sealed(plain))
        damaged[place] ^= 1 << bit
        finish(applied(plain, "s", Put(B, sealed(plain)), Put(A, bytes(damaged))))

        refused(store)
        written(store)


def test_sealed_bytes_cut_anywhere_are_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)
    whole = sealed(plain)

    for size in range(len(whole)):
        finish(applied(plain, "s", Put(A, whole[:size])))
        refused(store)


def test_a_replaced_key_id_is_refused(store: EncryptedStore, plain: MemoryStore, key: bytes) -> None:
    other = KeyRing.new_key()
    both = finish(EncryptedStore(plain, KeyRing(key, other)).open())
    written(store)
    whole = sealed(plain)
    finish(applied(plain, "s", Put(A, whole[:1] + KeyRing(other).newest_id + whole[9:])))

    refused(both)
    assert "not in the ring" in str(refused(store))


def test_a_ring_without_the_store_s_key_does_not_open_it(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)

    with pytest.raises(CorruptError, match="not in the ring"):
        finish(EncryptedStore(plain, KeyRing(KeyRing.new_key())).open())
    assert plain.is_open


def test_old_and_new_values_of_changes_are_opened(store: EncryptedStore) -> None:
    written(store, DOC, b"1")
    written(store, DOC, b"2")

    changes = finish(store.changes("s", 0))

    assert [(change.old, change.new) for change in changes.items] == [(None, b"1"), (b"1", b"2")]


def test_a_damaged_log_is_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store, DOC, b"1")
    finish(applied(plain, "s", Put(DOC, b"without encryption")))

    with pytest.raises(CorruptError, match="is not sealed"):
        finish(store.changes("s", 0))


def test_a_damaged_entry_fails_the_check_that_must_look_at_it(
    store: EncryptedStore, plain: MemoryStore
) -> None:
    finish(applied(plain, "s", Put(A, b"without encryption")))

    outcome = finish(store.apply([Batch("s", [Put(B, b"")], [Check(A, version=9)])]))[0]

    assert isinstance(outcome, CorruptError)


def test_a_key_seals_no_more_than_one_day_of_one_space(
    store: EncryptedStore, plain: MemoryStore, clock: ManualClock
) -> None:
    written(store)
    before = sealed(plain)
    clock.advance(24 * 3600 * 1000)
    written(store, B)

    assert sealed(plain, B)[9:13] != before[9:13]
    assert finish(value_of(store, "s", A)) == finish(value_of(store, "s", B)) == VALUE


def test_the_wrapper_s_own_space_is_hidden_and_refused(store: EncryptedStore, plain: MemoryStore) -> None:
    written(store)
    own = "keepstate:encryption"

    assert finish(plain.spaces()) == [own, "s"]
    assert finish(store.spaces()) == finish(store.spaces(limit=1)) == ["s"]
    for call in (store.read(own, [A]), store.scan(own, b"\x01"), store.changes(own, 0), store.drop(own)):
        with pytest.raises(InvalidError, match="which encryption reserves"):
            finish(call)
    with pytest.raises(InvalidError, match="which encryption reserves"):
        finish(store.apply([Batch(own, [Put(A, b"")])]))


@pytest.mark.parametrize("keys", [(), (b"short",), ("k" * 32,), (bytes(32), bytes(32))])
def test_what_is_no_ring_of_keys_is_refused(keys: tuple[bytes, ...]) -> None:
    with pytest.raises((InvalidError, TypeError)):
        KeyRing(*keys)


def test_a_ring_shows_and_hands_on_no_key(key: bytes) -> None:
    import pickle

    assert key.hex() not in repr(KeyRing(key)) and repr(key) not in repr(KeyRing(key))
    with pytest.raises(TypeError, match="where it is used"):
        pickle.dumps(KeyRing(key))


def test_without_cryptography_the_command_to_install_it_is_told(
    monkeypatch: pytest.MonkeyPatch, plain: MemoryStore, key: bytes
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'keepstate\[encryption\]'"):
        EncryptedStore(plain, KeyRing(key))


@given(data=st.binary(max_size=200), key=st.binary(min_size=1, max_size=40))
def test_no_bytes_that_were_not_sealed_are_opened(data: bytes, key: bytes) -> None:
    ring = KeyRing(bytes(32))
    sealer = Sealer(ring, bytes(16), ManualClock())

    for hostile in (data, b"\x21" + ring.newest_id + data, b"\xa1" + ring.newest_id + data):
        with pytest.raises(CorruptError):
            sealer.open("s", key, hostile)
