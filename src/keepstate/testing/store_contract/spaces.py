"""Spaces: any text is a name, spaces are isolated, and a dropped space continues its revisions."""

from __future__ import annotations

import pytest

from keepstate.errors import CompactedError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Delete, Put
from keepstate.testing.store_contract.stage import (
    SHORT_MS,
    Stage,
    applied,
    changed,
    entry_of,
    is_invalid,
    put_away,
    refused,
    revision_of,
    scanned,
    value_of,
)

A, B = b"\x01a", b"\x01b"

ODD_ENDS = [
    "",
    "A",
    "a",
    "a/b",
    "a/b/",
    "a\\b",
    "..",
    ".",
    "{x}",
    "{",
    "}",
    "%",
    "%41",
    "_",
    "*",
    "?",
    "[a]",
    " ",
    "\n",
    "\x00",
    "a\x00b",
    "'",
    '"',
    ";drop table space",
    "é",
    "e\u0301",
    "ß",
    "SS",
    "\ufffd",
    "\uffff",
    "😀",
    "人",
    "\u202e",
    "\U0010fffe",
    "\U0010ffffa\x01b",
]
"""Ends of names, each of a different space."""


class Spaces(Stage):
    """Naming, listing and dropping."""

    async def test_any_text_names_a_space_of_its_own(self, store: StoreBase, space: str) -> None:
        names = [space + end for end in ODD_ENDS]

        outcomes = await store.apply([Batch(name, [Put(A, name.encode())]) for name in names])

        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [1] * len(names)
        assert [await value_of(store, name, A) for name in names] == [name.encode() for name in names]
        assert await store.spaces(space) == sorted(names, key=str.encode)
        await put_away(store, *names)

    async def test_the_time_of_the_last_change_is_told_or_unknown(self, store: StoreBase, space: str) -> None:
        absent, other = space + "/absent", space + "/other"
        await applied(store, other, Put(A, b"1"))
        first = (await applied(store, space, Put(A, b"1"))).now_ms
        told = await store.changed_ms([absent, space])
        await self.pass_time(SHORT_MS)
        await store.read(space, [A])
        await refused(store, space, Put(A, b"2"), checks=[Check(A, version=ABSENT)])

        assert told in ([None, first], [None, None])
        assert await store.changed_ms([absent, space]) == told, "neither reads nor refused batches change it"
        last = (await applied(store, space, Delete(A))).now_ms
        assert await store.changed_ms([space]) in ([last], [None])
        assert await store.changed_ms([]) == []
        await put_away(store, space, other)

    async def test_names_are_listed_in_the_order_of_their_bytes_page_by_page(
        self, store: StoreBase, space: str
    ) -> None:
        names = [space + end for end in ("Z", "a", "aa", "z", "é", "\uffff", "😀")]
        await store.apply([Batch(name, [Put(A, b"")]) for name in reversed(names)])

        pages: list[list[str]] = []
        after: str | None = None
        while page := await store.spaces(space, after=after, limit=3):
            pages.append(page)
            after = page[-1]

        assert pages == [names[:3], names[3:6], names[6:]]
        await put_away(store, *names)

    async def test_a_prefix_is_text_and_no_pattern(self, store: StoreBase, space: str) -> None:
        names = [space + end for end in ("%a", "_a", "*a", "[a", "\\a", "xa", "X")]
        await store.apply([Batch(name, [Put(A, b"")]) for name in names])

        for name in names[:-1]:
            assert await store.spaces(name[:-1]) == [name]

        assert await store.spaces(space + "none") == []
        await put_away(store, *names)

    async def test_asking_or_failing_makes_no_space(self, store: StoreBase, space: str) -> None:
        await store.read(space, [A])
        await store.scan(space, b"\x01")
        await store.changes(space, 0)
        await store.wait([space], 0.001)
        await store.drop(space)
        await refused(store, space, Put(A, b""), checks=[Check(A, version=1)])
        await applied(store, space, checks=[Check(A, version=ABSENT)])

        assert await store.spaces(space) == []
        assert await revision_of(store, space) == 0

    async def test_a_space_without_entries_still_has_its_history(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b""))
        await applied(store, space, Delete(A))

        assert await store.spaces(space) == [space]
        assert await revision_of(store, space) == 2

    async def test_dropping_takes_entries_and_log(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), Put(b"\x02doc", b"1"), Put(b"\x00object", b"1"))

        assert await store.drop(space)

        assert [await scanned(store, space, section) for section in (b"\x00", b"\x01", b"\x02")] == [
            [],
            [],
            [],
        ]
        assert await entry_of(store, space, A) is None
        assert await store.spaces(space) == []
        with pytest.raises(CompactedError) as caught:
            await store.changes(space, 1)
        assert caught.value.floor == 2

    async def test_a_space_is_dropped_only_at_the_revision_that_was_named(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))

        assert not await store.drop(space, at=1)
        assert not await store.drop(space, at=3)
        assert await value_of(store, space, A) == b"2"
        assert await store.drop(space, at=2)

        assert await store.spaces(space) == []
        assert not await store.drop(space, at=3)
        assert await revision_of(store, space) == 3

    async def test_a_space_made_again_continues_its_revisions(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))
        await store.drop(space)
        assert await revision_of(store, space) == 3

        done = await applied(store, space, Put(A, b"4"), checks=[Check(A, version=ABSENT)], at=3)

        entry = await entry_of(store, space, A)
        assert entry is not None
        assert (entry.version, entry.created) == (done.revision, done.revision) == (4, 4)
        assert [change.revision for change in await changed(store, space, 3)] == [4]
        assert await store.spaces(space) == [space]

    async def test_a_version_from_before_a_drop_never_matches_again(
        self, store: StoreBase, space: str
    ) -> None:
        for _ in range(3):
            await applied(store, space, Put(A, b""))
        await store.drop(space)
        await applied(store, space, Put(A, b""))

        for version in (1, 2, 3, 4):
            assert await refused(
                store, space, Put(A, b"stale"), checks=[Check(A, version=version)]
            ) == Conflict(A, 5)

    async def test_dropping_takes_tokens(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), token=b"t")
        await store.drop(space)

        done = await applied(store, space, Put(A, b"2"), token=b"t")

        assert done.revision == 3
        assert await value_of(store, space, A) == b"2"

    async def test_dropping_what_holds_nothing_is_no_change(self, store: StoreBase, space: str) -> None:
        assert not await store.drop(space)
        assert await revision_of(store, space) == 0

        await applied(store, space, Put(A, b"1"))
        assert await store.drop(space)
        assert not await store.drop(space)

        assert await revision_of(store, space) == 2
        assert (await store.changes(space, 2)).upto == 2

    async def test_dropping_one_space_leaves_its_neighbours(self, store: StoreBase, space: str) -> None:
        names = [space + end for end in ("", "/", "a")]
        await store.apply([Batch(name, [Put(A, b"1")]) for name in names])

        await store.drop(names[0])

        assert await store.spaces(space) == names[1:]
        assert [await value_of(store, name, A) for name in names] == [None, b"1", b"1"]
        await put_away(store, *names)

    async def test_what_expires_in_a_dropped_space_is_gone_with_it(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"", ttl_ms=SHORT_MS))
        await store.drop(space)
        await applied(store, space, Put(A, b"stays"))
        await self.pass_time(SHORT_MS)

        await applied(store, space, Put(B, b"a flush that looks for what expired"))
        await store.sweep(limit=1000)

        assert await value_of(store, space, A) == b"stays"
        assert await revision_of(store, space) == 4

    async def test_one_batch_s_refusal_is_no_other_space_s(self, store: StoreBase, space: str) -> None:
        second = space + "'s neighbour"

        outcomes = await store.apply(
            [
                Batch(space, [Put(A, b"")], at=7),
                Batch(second, [Put(A, b"")]),
                Batch(space, [Put(A, b"")], at=0),
            ]
        )

        assert [type(outcome).__name__ for outcome in outcomes] == ["Conflict", "Applied", "Applied"]
        await store.drop(second)

    async def test_a_prefix_that_is_no_text_is_invalid(self, store: StoreBase) -> None:
        await is_invalid(store.spaces("\ud800"))
