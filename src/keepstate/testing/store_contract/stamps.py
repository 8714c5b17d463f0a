"""Stamps: the store appends the batch's revision to a key, so that appends never conflict."""

from __future__ import annotations

from keepstate.errors import InvalidError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import Batch, Check, Delete, Put
from keepstate.testing.store_contract.stage import (
    Stage,
    applied,
    changed,
    is_invalid,
    outcome_of,
    revision_of,
    scanned,
    value_of,
)
from keepstate.values import limits
from keepstate.values.key import stamp_suffix

LOG = b"\x01log/"


class Stamps(Stage):
    """Promises of the protocol about stamps, a test each."""

    async def test_a_stamped_key_ends_with_revision_and_place_in_the_batch(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(b"\x01other", b""))

        done = await applied(
            store, space, Put(LOG, b"1", stamp=True), Delete(LOG), Put(LOG, b"3", stamp=True)
        )

        assert [(entry.key, entry.value) for entry in await scanned(store, space, LOG)] == [
            (LOG + stamp_suffix(done.revision, 0), b"1"),
            (LOG + stamp_suffix(done.revision, 2), b"3"),
        ]

    async def test_stamped_keys_stand_in_the_order_of_their_revisions(
        self, store: StoreBase, space: str
    ) -> None:
        for i in range(300):
            await store.apply([Batch(space, [Put(LOG, b"%d" % i, stamp=True)])])

        assert [entry.value for entry in await scanned(store, space, LOG)] == [b"%d" % i for i in range(300)]

    async def test_stamped_keys_are_logged_whole(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(LOG, b"1", stamp=True))

        assert [change.key for change in await changed(store, space)] == [LOG + stamp_suffix(1, 0)]

    async def test_the_longest_key_can_be_stamped_and_used_like_any_other(
        self, store: StoreBase, space: str
    ) -> None:
        key = b"\x01".ljust(limits.KEY_BYTES, b"k")
        await applied(store, space, Put(key, b"1", stamp=True), Put(key, b"2", stamp=True))
        first, second = key + stamp_suffix(1, 0), key + stamp_suffix(1, 1)

        page = await store.scan(space, key, after=first)
        await applied(store, space, Delete(first), Put(second, b"3"), checks=[Check(first, version=1)])

        assert [entry.key for entry in page.entries] == [second]
        assert await value_of(store, space, first) is None
        assert await value_of(store, space, second) == b"3"
        await is_invalid(outcome_of(store, space, Put(key + b"k", b"1", stamp=True)))

    async def test_a_stamped_key_equal_to_another_of_its_batch_is_invalid(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(b"\x01other", b""))

        outcome = await outcome_of(
            store, space, Put(LOG + stamp_suffix(2, 1), b"plain"), Put(LOG, b"stamped", stamp=True)
        )

        assert isinstance(outcome, InvalidError)
        assert await scanned(store, space, LOG) == []
        assert await revision_of(store, space) == 1

    async def test_writers_of_one_log_never_conflict(self, store: StoreBase, space: str) -> None:
        answers = await self.together(
            *(store.apply([Batch(space, [Put(LOG, b"%d" % i, stamp=True)])]) for i in range(32))
        )

        assert len(answers) == 32
        assert sorted(int(entry.value) for entry in await scanned(store, space, LOG)) == list(range(32))
