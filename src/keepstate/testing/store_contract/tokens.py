"""Tokens: a batch that is sent twice applies once, and gets its first answer again (promise 2)."""

from __future__ import annotations

from keepstate.errors import OutcomeUnknownError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ABSENT, Applied, Batch, Check, Conflict, Delete, Put
from keepstate.testing.store_contract.stage import (
    Stage,
    applied,
    entry_of,
    outcome_of,
    refused,
    revision_of,
    scanned,
    value_of,
)
from keepstate.values import limits

A, B = b"\x01a", b"\x01b"
LOG = b"\x01log/"


class Tokens(Stage):
    """Promises of the protocol about tokens, a test each."""

    async def test_a_token_found_gives_the_first_answer(self, store: StoreBase, space: str) -> None:
        first = await applied(store, space, Put(LOG, b"1", stamp=True), token=b"t")
        await applied(store, space, Put(A, b"2"))

        again = await applied(store, space, Put(LOG, b"1", stamp=True), token=b"t")
        retried = await applied(store, space, Put(LOG, b"1", stamp=True), token=b"t", retry_of=0)

        assert again.revision == retried.revision == first.revision == 1
        assert len(await scanned(store, space, LOG)) == 1
        assert await revision_of(store, space) == 2

    async def test_a_first_answer_stands_although_its_checks_would_fail_now(
        self, store: StoreBase, space: str
    ) -> None:
        once = [Put(A, b"1")], [Check(A, version=ABSENT)]
        await store.apply([Batch(space, *once, at=0, token=b"t")])

        [retried] = await store.apply([Batch(space, *once, at=0, token=b"t", retry_of=0)])

        assert isinstance(retried, Applied)
        assert retried.revision == 1

    async def test_a_token_is_found_within_one_call(self, store: StoreBase, space: str) -> None:
        batch = Batch(space, [Put(LOG, b"1", stamp=True)], token=b"t")

        outcomes = await store.apply([batch, batch, batch])

        assert [outcome.revision for outcome in outcomes if isinstance(outcome, Applied)] == [1, 1, 1]
        assert len(await scanned(store, space, LOG)) == 1

    async def test_a_token_names_one_batch_of_its_own_space(self, store: StoreBase, space: str) -> None:
        second = space + "'s neighbour"
        await applied(store, space, Put(A, b"1"), token=b"t")

        await applied(store, second, Put(A, b"2"), token=b"t")
        await applied(store, space, Put(A, b"3"), token=b"u")

        assert await value_of(store, second, A) == b"2"
        assert await value_of(store, space, A) == b"3"
        await store.drop(second)

    async def test_a_retry_whose_first_attempt_did_not_apply_is_applied(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))

        done = await applied(store, space, Put(A, b"2"), checks=[Check(A, version=1)], token=b"t", retry_of=1)

        assert done.revision == 2

    async def test_a_late_original_gets_the_answer_of_its_retry(self, store: StoreBase, space: str) -> None:
        await applied(store, space, Put(LOG, b"1", stamp=True), token=b"t", retry_of=0)

        late = await applied(store, space, Put(LOG, b"1", stamp=True), token=b"t")

        assert late.revision == 1
        assert len(await scanned(store, space, LOG)) == 1

    async def test_a_late_original_stays_refused_when_its_retry_was(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        conflict = await refused(
            store, space, Put(B, b"2"), checks=[Check(A, version=9)], token=b"t", retry_of=1
        )
        await applied(store, space, Put(A, b"2"))

        late = await refused(store, space, Put(B, b"2"), token=b"t")

        assert late == conflict == Conflict(A, 1)
        assert await entry_of(store, space, B) is None

    async def test_a_retry_is_refused_for_good_in_a_space_that_has_nothing_yet(
        self, store: StoreBase, space: str
    ) -> None:
        conflict = await refused(store, space, Put(A, b"1"), at=7, token=b"t", retry_of=0)

        late = await refused(store, space, Put(A, b"1"), token=b"t")

        assert late == conflict == Conflict(None, 0)
        assert (await applied(store, space, Put(B, b"2"))).revision == 1
        assert await entry_of(store, space, A) is None

    async def test_a_drop_keeps_the_answers_of_retries(self, store: StoreBase, space: str) -> None:
        done = await applied(store, space, Put(A, b"1"), token=b"yes", retry_of=0)
        conflict = await refused(store, space, Put(B, b"2"), at=7, token=b"no", retry_of=0)
        await store.drop(space)

        late = await applied(store, space, Put(A, b"1"), token=b"yes")
        refusal = await refused(store, space, Put(B, b"2"), token=b"no")

        assert (late, refusal) == (done, conflict)
        assert await revision_of(store, space) == 2
        assert await scanned(store, space, b"\x01") == []

    async def test_a_refusal_is_kept_for_retries_only(self, store: StoreBase, space: str) -> None:
        """After a conflict, the caller may send the same batch again, and it is checked again."""
        await refused(store, space, Put(B, b"2"), checks=[Check(A, version=1)], token=b"t")
        await applied(store, space, Put(A, b"1"))

        await applied(store, space, Put(B, b"2"), checks=[Check(A, version=1)], token=b"t")

        assert await value_of(store, space, B) == b"2"

    async def test_an_outcome_is_asked_for_by_a_retry_that_cannot_apply(
        self, store: StoreBase, space: str
    ) -> None:
        """A retry whose check can never hold tells whether the batch with its token applied."""
        await applied(store, space, Put(A, b"1"), token=b"applied")
        question = [Check(B, version=limits.LOG_REVISIONS**2)]

        yes = await outcome_of(store, space, checks=question, token=b"applied", retry_of=0)
        no = await outcome_of(store, space, checks=question, token=b"refused", retry_of=0)
        late = await outcome_of(store, space, Put(B, b"late"), token=b"refused")

        assert isinstance(yes, Applied)
        assert no == late == Conflict(B, 0)
        assert await entry_of(store, space, B) is None

    async def test_tokens_of_1_and_64_bytes_name_batches(self, store: StoreBase, space: str) -> None:
        for token in (b"\x00", b"\xff" * limits.TOKEN_BYTES):
            first = await applied(store, space, Put(LOG, b"", stamp=True), token=token)
            assert (
                await applied(store, space, Put(LOG, b"", stamp=True), token=token)
            ).revision == first.revision

        assert len(await scanned(store, space, LOG)) == 2

    async def test_a_retry_of_the_log_s_floor_applies_and_one_of_the_revision_below_does_not(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"))
        await store.drop(space)
        await applied(store, space, Put(A, b"3"))

        below = await outcome_of(store, space, Put(B, b"below"), token=b"below", retry_of=1)
        at_floor = await applied(store, space, Put(B, b"at"), token=b"at", retry_of=2)

        assert isinstance(below, OutcomeUnknownError)
        assert at_floor.revision == 4
        assert await value_of(store, space, B) == b"at"

    async def test_a_retry_below_the_log_s_floor_is_not_applied_and_says_so(
        self, store: StoreBase, space: str
    ) -> None:
        await applied(store, space, Put(A, b"1"), token=b"first")
        await applied(store, space, Delete(A))
        await store.drop(space)  # the cheapest way to a floor: revisions 1 to 3 are below it
        await applied(store, space, Put(A, b"2"))

        retried = await outcome_of(store, space, Put(B, b"again"), token=b"first", retry_of=0)
        late = await outcome_of(store, space, Put(B, b"again"), token=b"first")

        for outcome in (retried, late):
            assert isinstance(outcome, OutcomeUnknownError)
            assert outcome.token == b"first"
            assert outcome.space == space
        assert await entry_of(store, space, B) is None
        assert await revision_of(store, space) == 4
