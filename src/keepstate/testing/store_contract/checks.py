"""Checks: a write applies only if its caller's view is still current (promise 3)."""

from __future__ import annotations

from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Delete, Put
from keepstate.testing.store_contract.stage import Stage, applied, refused, revision_of, value_of

A, B, C = b"\x01a", b"\x01b", b"\x01c"


class Checks(Stage):
    """A test for each rule of `Check` and `at`."""

    async def test_a_matching_version_lets_the_batch_through(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))

        await applied(store, space, Put(A, b"2"), checks=[Check(A, version=1)])

        assert await value_of(store, space, A) == b"2"

    async def test_another_version_refuses_and_names_key_and_version(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))

        assert await refused(store, space, Put(A, b"3"), checks=[Check(A, version=1)]) == Conflict(A, 2)

    async def test_an_absent_key_has_version_0(self, store: StoreBase, space: str) -> None:
        assert await refused(store, space, Put(A, b"1"), checks=[Check(A, version=3)]) == Conflict(A, 0)

        await applied(store, space, Put(A, b"1"), checks=[Check(A, version=ABSENT)])

        assert await refused(store, space, Put(A, b"2"), checks=[Check(A, version=ABSENT)]) == Conflict(A, 1)

    async def test_a_deleted_key_has_version_0(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Delete(A))

        assert await refused(store, space, Put(A, b"2"), checks=[Check(A, version=1)]) == Conflict(A, 0)

    async def test_each_check_of_a_key_sees_its_last_change(self, store: StoreBase, space: str) -> None:
        """A store may remember the entries that it has checked."""
        await applied(store, space, Put(A, b"1"), checks=[Check(A, version=ABSENT)])
        await applied(store, space, Put(A, b"22"), checks=[Check(A, version=1)])
        await applied(store, space, Put(B, b""), checks=[Check(A, version=2), Check(A, created=1)])
        await applied(store, space, Delete(A), checks=[Check(A, version=2)])

        assert await refused(store, space, Put(A, b"3"), checks=[Check(A, version=2)]) == Conflict(A, 0)

        await applied(store, space, Put(A, b"333"), checks=[Check(A, version=ABSENT)])
        await applied(store, space, Put(B, b""), checks=[Check(A, version=5), Check(A, created=5)])
        await store.drop(space)

        assert await refused(store, space, Put(B, b""), checks=[Check(A, version=5)]) == Conflict(A, 0)

    async def test_created_holds_over_rewrites(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))

        await applied(store, space, Put(B, b"guarded"), checks=[Check(A, created=1)])

        assert await value_of(store, space, B) == b"guarded"

    async def test_another_created_refuses_and_answers_the_actual_one(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Delete(A))
        await applied(store, space, Put(A, b"2"))
        await applied(store, space, Put(A, b"3"))

        assert await refused(store, space, Put(B, b""), checks=[Check(A, created=1)]) == Conflict(A, 3)
        assert await refused(store, space, Put(B, b""), checks=[Check(C, created=1)]) == Conflict(C, 0)

    async def test_created_0_asks_for_an_absent_key(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), checks=[Check(A, created=ABSENT)])

        assert await refused(store, space, Put(A, b"2"), checks=[Check(A, created=ABSENT)]) == Conflict(A, 1)

    async def test_the_first_failing_check_is_named(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), Put(B, b"1"), Put(C, b"1"))

        conflict = await refused(
            store,
            space,
            Put(A, b"2"),
            checks=[Check(C, version=1), Check(B, version=7), Check(A, version=8), Check(A, created=9)],
        )

        assert conflict == Conflict(B, 1)

    async def test_checks_are_judged_against_the_state_before_the_batch(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(
            store, space, Put(A, b"1"), Delete(B), checks=[Check(A, version=ABSENT), Check(B, version=ABSENT)]
        )

        await applied(
            store, space, Delete(A), Put(B, b"2"), checks=[Check(A, version=1), Check(B, version=ABSENT)]
        )

        assert await value_of(store, space, A) is None
        assert await value_of(store, space, B) == b"2"

    async def test_version_and_created_of_one_key_can_both_be_checked(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await applied(store, space, Put(A, b"2"))

        await applied(store, space, Put(A, b"3"), checks=[Check(A, version=2), Check(A, created=1)])

        assert await value_of(store, space, A) == b"3"

    async def test_at_applies_only_at_exactly_that_revision(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"), at=0)
        await applied(store, space, Put(A, b"2"))

        assert await refused(store, space, Put(A, b"3"), at=1) == Conflict(None, 2)
        assert await refused(store, space, Put(A, b"3"), at=3) == Conflict(None, 2)
        assert (await applied(store, space, Put(A, b"3"), at=2)).revision == 3

    async def test_at_is_judged_before_the_checks(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))

        assert await refused(store, space, Put(A, b"2"), checks=[Check(A, version=9)], at=5) == Conflict(
            None, 1
        )

    async def test_a_refusal_is_its_batch_s_own(self, store: StoreBase, space: str) -> None:
        outcomes = await store.apply(
            [
                Batch(space, [Put(A, b"1")]),
                Batch(space, [Put(B, b"1")], [Check(A, version=ABSENT)]),
                Batch(space, [Put(C, b"1")]),
            ]
        )

        assert [type(outcome) for outcome in outcomes] == [Applied, Conflict, Applied]
        assert await value_of(store, space, B) is None
        assert await revision_of(store, space) == 2

    async def test_a_thousand_checks_are_judged(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        absent = [Check(b"\x01missing%d" % i, version=ABSENT) for i in range(998)]

        holds = [Check(A, version=1), *absent, Check(A, created=1)]
        fails = [*absent, Check(A, version=1), Check(A, version=2)]

        assert (await applied(store, space, checks=holds)).revision == 1
        assert await refused(store, space, Put(B, b""), checks=fails) == Conflict(A, 1)

    async def test_write_skew_is_refused(self, store: StoreBase, space: str) -> None:
        """Two doctors on call; each sees the other and goes home, under checks of both."""
        await applied(store, space, Put(A, b"on call"), Put(B, b"on call"))
        seen = [Check(A, version=1), Check(B, version=1)]

        outcomes = await self.together(
            store.apply([Batch(space, [Put(A, b"home")], seen)]),
            store.apply([Batch(space, [Put(B, b"home")], seen)]),
        )

        assert sorted(type(outcome).__name__ for [outcome] in outcomes) == ["Applied", "Conflict"]
        assert sorted([await value_of(store, space, A) or b"", await value_of(store, space, B) or b""]) == [
            b"home",
            b"on call",
        ]

    async def test_a_phantom_is_refused_by_at(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(A, b"1"))
        page = await store.scan(space, b"\x01")
        await applied(store, space, Put(B, b"a phantom"))

        conflict = await refused(store, space, Put(C, b"built on the scan"), at=page.revision)

        assert conflict == Conflict(None, 2)
