"""Limits and malformed calls: a named error, the same on every store, and nothing applied (promise 10)."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Check, Delete, Put
from keepstate.testing.store_contract.stage import Stage, applied, entry_of, is_invalid, revision_of, value_of
from keepstate.values import limits

A, B = b"\x01a", b"\x01b"
LONGEST_KEY = b"\x01".ljust(limits.KEY_BYTES, b"k")

put: Any = Put
check: Any = Check

MALFORMED: dict[str, Any] = {
    "an empty key": {"writes": [put(b"", b"")]},
    "a key too long": {"writes": [put(LONGEST_KEY + b"k", b"")]},
    "a deleted key too long": {"writes": [Delete(LONGEST_KEY + b"k")]},
    "a checked key too long": {"checks": [check(LONGEST_KEY + b"k", version=0)]},
    "a key in no section": {"writes": [put(b"\x03a", b"")]},
    "a key of text": {"writes": [put("\x01a", b"")]},
    "a value too long": {"writes": [put(B, b"v" * (limits.VALUE_BYTES + 1))]},
    "a value of text": {"writes": [put(B, "v")]},
    "a mutable value": {"writes": [put(B, bytearray(b"v"))]},
    "no write at all": {"writes": [b"\x01b"]},
    "a ttl of 0": {"writes": [put(B, b"", ttl_ms=0)]},
    "a negative ttl": {"writes": [put(B, b"", ttl_ms=-1)]},
    "a ttl over a century": {"writes": [put(B, b"", ttl_ms=limits.TTL_MS + 1)]},
    "a fractional ttl": {"writes": [put(B, b"", ttl_ms=1.5)]},
    "1,001 writes": {"writes": [put(b"\x01%d" % i, b"") for i in range(limits.BATCH_WRITES + 1)]},
    "1,001 checks": {"checks": [check(b"\x01%d" % i, version=0) for i in range(limits.BATCH_CHECKS + 1)]},
    "over 8 MiB": {"writes": [put(b"\x01%d" % i, b"v" * limits.VALUE_BYTES) for i in range(8)]},
    "a key put twice": {"writes": [put(B, b"1"), put(B, b"2")]},
    "a key put and deleted": {"writes": [put(B, b"1"), Delete(B)]},
    "a check of nothing": {"checks": [check(B)]},
    "a check of both": {"checks": [check(B, version=1, created=1)]},
    "a negative version": {"checks": [check(B, version=-1)]},
    "a version of text": {"checks": [check(B, version="1")]},
    "a version beyond counting": {"checks": [check(B, version=2**53)]},
    "a negative at": {"writes": [put(B, b"")], "at": -1},
    "an empty token": {"writes": [put(B, b"")], "token": b""},
    "a token too long": {"writes": [put(B, b"")], "token": b"t" * (limits.TOKEN_BYTES + 1)},
    "a token of text": {"writes": [put(B, b"")], "token": "t"},
    "a retry without a token": {"writes": [put(B, b"")], "retry_of": 0},
    "a retry of no revision": {"writes": [put(B, b"")], "token": b"t", "retry_of": -1},
}

NO_NAMES = ["", "s" * (limits.SPACE_BYTES + 1), "é" * 101, "a lone surrogate \ud800", b"bytes", None]


class Bounds(Stage):
    """A test for each limit, and for each malformed call."""

    @pytest.mark.parametrize("wrong", MALFORMED)
    async def test_a_malformed_batch_is_invalid_and_nothing_of_its_call_is_applied(
        self, store: StoreBase, space: str, wrong: str
    ) -> None:
        given: Any = {"writes": (), **MALFORMED[wrong]}
        malformed = Batch(space, **given)

        await is_invalid(store.apply([Batch(space, [Put(A, b"")]), malformed, Batch(space, [Put(A, b"")])]))

        assert await revision_of(store, space) == 0
        assert await entry_of(store, space, A) is None

    async def test_the_longest_key_and_value_are_kept(self, store: StoreBase, space: str) -> None:
        value = bytes(range(256)) * (limits.VALUE_BYTES // 256)

        await applied(store, space, Put(LONGEST_KEY, value), checks=[Check(LONGEST_KEY, version=0)])

        assert await value_of(store, space, LONGEST_KEY) == value
        await applied(store, space, Delete(LONGEST_KEY))

    async def test_a_batch_of_8_mib_applies(self, store: StoreBase, space: str) -> None:
        keys = [b"\x01%d" % i for i in range(8)]
        room = limits.BATCH_BYTES - sum(len(key) for key in keys)
        sizes = [limits.VALUE_BYTES] * 7 + [room - 7 * limits.VALUE_BYTES]

        await applied(store, space, *(Put(key, b"v" * size) for key, size in zip(keys, sizes, strict=True)))

        reading = await store.read(space, keys)
        assert [entry and len(entry.value) for entry in reading.entries] == sizes

    @pytest.mark.parametrize("name", NO_NAMES)
    async def test_what_is_no_name_of_a_space_is_invalid_everywhere(
        self, store: StoreBase, name: Any
    ) -> None:
        for call in (
            store.apply([Batch(name, [Put(A, b"")])]),
            store.read(name, [A]),
            store.scan(name, b"\x01"),
            store.changes(name, 0),
            store.drop(name),
            store.wait([name], 0.001),
        ):
            await is_invalid(call)

    @pytest.mark.parametrize("wrong", [0, -1, True, "1", 1.0, 2**63])
    async def test_a_space_is_dropped_at_no_wrong_revision(
        self, store: StoreBase, space: str, wrong: Any
    ) -> None:
        await is_invalid(store.drop(space, at=wrong))

    async def test_a_name_of_200_bytes_is_a_name(self, store: StoreBase) -> None:
        name = "é" * 99 + "!!"

        await applied(store, name, Put(A, b"1"))

        assert await value_of(store, name, A) == b"1"
        await store.drop(name)

    async def test_a_read_of_1_000_keys_is_answered_and_of_one_more_refused(
        self, store: StoreBase, space: str
    ) -> None:
        keys = [b"\x01%d" % i for i in range(limits.READ_KEYS + 1)]

        assert len((await store.read(space, keys[:-1])).entries) == limits.READ_KEYS
        await is_invalid(store.read(space, keys))

    async def test_malformed_questions_are_invalid(self, store: StoreBase, space: str) -> None:
        text: Any = "\x01a"

        for call in (
            store.read(space, [b""]),
            store.read(space, [b"\x03"]),
            store.read(space, [LONGEST_KEY + b"k"]),
            store.read(space, [text]),
            store.scan(space, b""),
            store.scan(space, b"\x03"),
            store.scan(space, A, after=B),
            store.scan(space, A, limit=0),
            store.changes(space, -1),
            store.changes(space, 0, limit=0),
            store.spaces(limit=0),
            store.sweep(limit=0),
        ):
            await is_invalid(call)

    async def test_a_refusal_of_one_caller_does_not_touch_another(self, store: StoreBase, space: str) -> None:
        """Malformed batches never reach the flush that they would have shared."""

        async def malformed() -> int:
            await is_invalid(store.apply([Batch(space, [Put(b"", b"")])]))
            return 0

        async def sound(i: int) -> int:
            return (await applied(store, space, Put(b"\x01%d" % i, b""))).revision

        revisions = await self.together(malformed(), sound(1), malformed(), sound(2), malformed(), sound(3))

        assert sorted(revisions) == [0, 0, 0, 1, 2, 3]
