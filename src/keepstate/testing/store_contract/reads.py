"""Reads and scans: each shows one revision, in order and in pages (promises 3 and 4)."""

from __future__ import annotations

import pytest

from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Delete, Entry, Page, Put
from keepstate.testing.store_contract.stage import (
    SHORT_MS,
    Stage,
    applied,
    is_invalid,
    scanned,
)
from keepstate.values import limits

A, B, C = b"\x01a", b"\x01b", b"\x01c"


class Reads(Stage):
    """Reading by key."""

    async def test_entries_stand_in_the_order_of_the_keys_asked(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), Put(C, b"3"))

        reading = await store.read(space, [C, B, A, C])

        assert list(reading.entries) == [
            Entry(C, b"3", 1, 1),
            None,
            Entry(A, b"1", 1, 1),
            Entry(C, b"3", 1, 1),
        ]

    async def test_a_space_that_nobody_wrote_is_empty_at_revision_0(
        self, store: StoreBase, space: str
    ) -> None:
        reading = await store.read(space, [A])

        assert (list(reading.entries), reading.revision) == ([None], 0)
        assert reading.now_ms > 0
        page = await store.scan(space, b"\x01")
        assert page == Page([], None, 0, page.now_ms, b"")

    async def test_reading_no_keys_tells_the_revision(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))

        reading = await store.read(space, [])

        assert (list(reading.entries), reading.revision) == ([], 1)

    async def test_a_read_of_8_mib_is_answered_and_one_byte_more_is_refused(
        self, store: StoreBase, space: str
    ) -> None:
        keys = [b"\x01%d" % i for i in range(9)]
        for key in keys[:8]:
            await applied(store, space, Put(key, b"v" * limits.VALUE_BYTES))
        await applied(store, space, Put(keys[8], b"v"))

        reading = await store.read(space, keys[:8])

        assert all(entry is not None and len(entry.value) == limits.VALUE_BYTES for entry in reading.entries)
        await is_invalid(store.read(space, keys))

    async def test_a_reader_sees_batches_whole(self, store: StoreBase, space: str) -> None:
        keys = [A, B, C]
        await applied(store, space, *(Put(key, b"0") for key in keys))

        async def write() -> list[set[bytes]]:
            for i in range(1, 30):
                await store.apply([Batch(space, [Put(key, b"%d" % i) for key in keys])])
            return []

        async def read() -> list[set[bytes]]:
            readings = [await store.read(space, keys) for _ in range(30)]
            pages = [await store.scan(space, b"\x01") for _ in range(30)]
            both = [*(reading.entries for reading in readings), *(page.entries for page in pages)]
            return [{entry.value for entry in entries if entry is not None} for entries in both]

        _, *answers = await self.together(write(), read(), read())

        assert {len(values) for answer in answers for values in answer} == {1}


class Scans(Stage):
    """Reading by prefix."""

    async def test_a_scan_finds_what_starts_with_the_prefix_in_byte_order(
        self, store: StoreBase, space: str
    ) -> None:
        inside = [
            b"\x01p",
            b"\x01p\x00",
            b"\x01p\x00\xff",
            b"\x01pA",
            b"\x01pa",
            b"\x01p\x80",
            b"\x01p\xff\xff",
        ]
        outside = [b"\x01o\xff", b"\x01q", b"\x01", b"\x02p", b"\x00p"]
        await applied(store, space, *(Put(key, b"") for key in [*inside, *outside]))

        forwards, backwards = (
            await scanned(store, space, b"\x01p"),
            await scanned(store, space, b"\x01p", reverse=True),
        )

        assert [entry.key for entry in forwards] == sorted(inside)
        assert [entry.key for entry in backwards] == sorted(inside, reverse=True)

    @pytest.mark.parametrize("prefix", [b"\x01", b"\x01\xff", b"\x01\xff\xff", b"\x02\xff", b"\x02", b"\x00"])
    async def test_a_prefix_ends_at_its_byte_successor(
        self, store: StoreBase, space: str, prefix: bytes
    ) -> None:
        ends = [b"", b"\x00", b"\x7f", b"\xfe", b"\xff", b"\xff\x00", b"\xff\xff", b"\xff\xff\xff"]
        keys = sorted(section + end for section in (b"\x00", b"\x01", b"\x02") for end in ends)
        await applied(store, space, *(Put(key, b"") for key in keys))
        wanted = [key for key in keys if key.startswith(prefix)]

        assert [entry.key for entry in await scanned(store, space, prefix)] == wanted
        assert [entry.key for entry in await scanned(store, space, prefix, reverse=True)] == wanted[::-1]

    async def test_after_is_exclusive_in_scan_direction(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b""), Put(B, b""), Put(C, b""))

        up = await store.scan(space, b"\x01", after=A)
        down = await store.scan(space, b"\x01", after=C, reverse=True)

        assert [entry.key for entry in up.entries] == [B, C]
        assert [entry.key for entry in down.entries] == [B, A]

    async def test_after_may_be_a_key_that_is_absent(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b""), Put(C, b""))
        await applied(store, space, Put(B, b""))
        await applied(store, space, Delete(B))

        assert [entry.key for entry in (await store.scan(space, b"\x01", after=B)).entries] == [C]
        assert [entry.key for entry in (await store.scan(space, b"\x01", after=B, reverse=True)).entries] == [
            A
        ]
        assert (await store.scan(space, b"\x01", after=b"\x01\xff")).entries == []
        assert (await store.scan(space, b"\x01", after=b"\x01", reverse=True)).entries == []

    async def test_a_page_ends_at_its_limit_and_tells_where_to_go_on(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b""), Put(B, b""), Put(C, b""))

        page = await store.scan(space, b"\x01", limit=2)
        backwards = await store.scan(space, b"\x01", limit=2, reverse=True)

        assert ([entry.key for entry in page.entries], page.next) == ([A, B], B)
        assert ([entry.key for entry in backwards.entries], backwards.next) == ([C, B], B)
        assert page.revision == 1

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_pages_together_are_the_whole_range(
        self, store: StoreBase, space: str, *, reverse: bool
    ) -> None:
        keys = [b"\x01%05d" % i for i in range(2500)]
        for start in range(0, 2500, 500):
            await applied(store, space, *(Put(key, key) for key in keys[start : start + 500]))

        entries = await scanned(store, space, b"\x01", limit=777, reverse=reverse)

        assert [entry.key for entry in entries] == (keys[::-1] if reverse else keys)
        assert all(entry.value == entry.key for entry in entries)

    async def test_a_page_ends_before_it_passes_8_mib(self, store: StoreBase, space: str) -> None:
        keys = [b"\x01%02d" % i for i in range(10)]
        for key in keys:
            await applied(store, space, Put(key, key * (limits.VALUE_BYTES // 3)))

        page = await store.scan(space, b"\x01")

        assert sum(len(entry.value) for entry in page.entries) <= limits.PAGE_BYTES
        assert [entry.key for entry in page.entries] == keys[:8]
        assert page.next == keys[7]
        assert [entry.key for entry in await scanned(store, space, b"\x01", reverse=True)] == keys[::-1]

    @pytest.mark.parametrize("reverse", [False, True])
    async def test_a_page_ends_after_1_024_rows_looked_at_and_may_be_empty(
        self, store: StoreBase, space: str, *, reverse: bool
    ) -> None:
        """Expired rows that are not swept yet count toward the limit, like those that the scan finds."""
        expired = [b"\x01%04d" % i for i in range(1200)]
        stays = b"\x01a stays" if not reverse else b"\x01+ stays"
        await applied(store, space, Put(stays, b""))
        for half in (expired[:600], expired[600:]):
            await applied(store, space, *(Put(key, b"", ttl_ms=SHORT_MS * 10) for key in half))
        await self.pass_time(SHORT_MS * 10)

        page = await store.scan(space, b"\x01", reverse=reverse)
        rest = await store.scan(space, b"\x01", reverse=reverse, after=page.next)

        assert page.entries == []
        assert page.next in (expired[limits.PAGE_ROWS - 1], expired[-limits.PAGE_ROWS])
        assert [entry.key for entry in rest.entries] == [stays]

    async def test_a_scan_leaves_out_what_was_deleted(self, store: StoreBase, space: str) -> None:
        await applied(store, space, *(Put(b"\x01%03d" % i, b"") for i in range(100)))
        await applied(store, space, *(Delete(b"\x01%03d" % i) for i in range(0, 100, 2)))

        assert [entry.key for entry in await scanned(store, space, b"\x01", limit=10)] == [
            b"\x01%03d" % i for i in range(1, 100, 2)
        ]
