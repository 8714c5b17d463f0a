"""Sizes: the store counts each part as it applies, sweeps and drops. Its counts equal those of a scan."""

from __future__ import annotations

from collections.abc import Mapping

from keepstate.stores.part_sizes import PartSizes
from keepstate.stores.protocol import Delete, Entry, PartSize, Put, Store
from keepstate.testing.store_contract.stage import (
    LONG_MS,
    SHORT_MS,
    Stage,
    applied,
    put_away,
    refused,
    scanned,
)
from keepstate.values import limits
from keepstate.values.key import BY_KEY, Stamp, part_of, stored_key

_SECTIONS = (b"\x00", b"\x01", b"\x02")
_TASK, _OTHER, _READY, _OBJECT, _PLAN = (
    stored_key(1, "task", "a"),
    stored_key(1, "task", "b"),
    stored_key(1, "ready", 0),
    stored_key(0, "object", b"o"),
    stored_key(2, "doc") + b"plan",
)


class SizesOfParts(Stage):
    """The sizes of a space's parts."""

    def stored_by(self, store: Store) -> Store:
        """Return the store whose entries are counted. A wrapper that seals values has other bytes."""
        return store

    async def counted(self, store: Store, space: str) -> Mapping[bytes, PartSize]:
        """Return the sizes that a scan finds."""
        entries: list[Entry] = []
        for section in _SECTIONS:
            entries += await scanned(self.stored_by(store), space, section)
        return PartSizes.of(entries).without(())

    async def require_exact(self, store: Store, space: str) -> None:
        """Compare the sizes that the store keeps with the sizes that a scan finds."""
        before = await store.sizes(space)
        assert before.parts == await self.counted(store, space)
        assert before.revision == (await store.read(space, [])).revision

    async def test_an_empty_space_has_no_parts(self, store: Store, space: str) -> None:
        sizes = await store.sizes(space)

        assert (sizes.parts, sizes.revision) == ({}, 0)

    async def test_each_part_is_counted_by_itself(self, store: Store, space: str) -> None:
        await applied(store, space, Put(_TASK, b"1"), Put(_OTHER, b"22"), Put(_PLAN, b"333"))

        sizes = await store.sizes(space)

        assert {part: size.entries for part, size in sizes.parts.items()} == {
            part_of(_TASK): 2,
            part_of(_PLAN): 1,
        }
        await self.require_exact(store, space)

    async def test_replacing_and_deleting_are_counted(self, store: Store, space: str) -> None:
        await applied(store, space, *(Put(key, b"first") for key in (_TASK, _OBJECT, _PLAN)))
        await applied(store, space, *(Put(key, b"the second") for key in (_TASK, _OBJECT, _PLAN)))
        await self.require_exact(store, space)
        await applied(store, space, Put(_TASK, b""), Put(_OBJECT, b""), Put(_PLAN, b""))
        await self.require_exact(store, space)
        await applied(store, space, Delete(_TASK), Put(_PLAN, b"again"), Delete(_OTHER))
        await self.require_exact(store, space)
        await applied(store, space, Delete(_OBJECT), Delete(_PLAN))

        assert (await store.sizes(space)).parts == {}

    async def test_stamped_entries_are_counted_over_a_guessed_one_too(self, store: Store, space: str) -> None:
        await applied(
            store, space, Put(_READY, b"a", stamp=True), Put(_READY, b"bb", stamp=True), Put(_TASK, b"")
        )
        await self.require_exact(store, space)
        guessed = stored_key(1, "ready", 0, Stamp(3, 0))
        await applied(store, space, Put(guessed, b"there before"))

        await applied(store, space, Put(_READY, b"over it", stamp=True))

        assert (await store.sizes(space)).parts[part_of(_READY)].entries == 3
        await self.require_exact(store, space)

    async def test_a_refused_batch_counts_nothing(self, store: Store, space: str) -> None:
        await applied(store, space, Put(_TASK, b"1"))
        before = await store.sizes(space)

        await refused(store, space, Put(_TASK, b"2222"), Delete(_PLAN), at=7)

        assert (await store.sizes(space)).parts == before.parts

    async def test_an_expired_entry_is_not_counted_before_it_is_swept(self, store: Store, space: str) -> None:
        short = [stored_key(1, "done", n) for n in range(3)]
        await applied(store, space, *(Put(key, b"x", ttl_ms=SHORT_MS) for key in short), Put(_PLAN, b"p"))
        await applied(store, space, Put(short[0], b"longer", ttl_ms=LONG_MS))
        await self.pass_time(SHORT_MS)

        assert (await store.sizes(space)).parts[part_of(short[0])].entries == 1
        await self.require_exact(store, space)

    async def test_sweeping_is_counted(self, store: Store, space: str) -> None:
        keys = [stored_key(1, "done", n) for n in range(40)]
        await applied(store, space, *(Put(key, b"x" * n, ttl_ms=SHORT_MS) for n, key in enumerate(keys)))
        await applied(store, space, Put(_PLAN, b"old", ttl_ms=SHORT_MS))
        await self.pass_time(SHORT_MS)
        await applied(store, space, Put(_PLAN, b"over an expired one"))  # sweeps some
        await self.require_exact(store, space)

        while await store.sweep(space):
            await self.require_exact(store, space)

        assert (await store.sizes(space)).parts.keys() == {part_of(_PLAN)}

    async def test_a_drop_counts_from_nothing(self, store: Store, space: str) -> None:
        await applied(store, space, Put(_TASK, b"1"), Put(_PLAN, b"2", ttl_ms=LONG_MS))
        await store.drop(space)

        assert (await store.sizes(space)).parts == {}
        await applied(store, space, Put(_PLAN, b"333"))
        await self.require_exact(store, space)

    async def test_other_spaces_are_not_counted(self, store: Store, space: str) -> None:
        await applied(store, space + "/other", Put(_TASK, b"1"))

        assert (await store.sizes(space)).parts == {}
        await put_away(store, space + "/other")

    async def test_more_parts_than_are_kept_count_as_their_section(self, store: Store, space: str) -> None:
        keys = [stored_key(BY_KEY, f"part {n:02}") for n in range(limits.COUNTED_PARTS + 10)]
        await applied(store, space, *(Put(key, b"v") for key in keys))

        await applied(store, space, Delete(keys[0]), Delete(keys[-1]))
        await applied(store, space, Put(keys[-2], b"longer"), Put(keys[0], b"again"))

        parts = (await store.sizes(space)).parts
        assert parts[part_of(keys[0])].entries == 1
        assert parts[b"\x01"].entries == 9
        assert sum(size.entries for size in parts.values()) == len(keys) - 1

    async def test_batches_of_one_flush_are_counted_together(self, store: Store, space: str) -> None:
        await self.together(
            *(applied(store, space, Put(stored_key(1, "task", f"{n % 7}"), b"x" * n)) for n in range(40))
        )

        await self.require_exact(store, space)
