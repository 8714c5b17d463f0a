"""`KnowledgeStateManager`: counts that nobody loses, sources, and documents that failed."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from keepstate.errors import InvalidError, TransitionError
from keepstate.managers.knowledge.manager import KnowledgeStateManager
from keepstate.managers.knowledge.records import (
    INDEXING_STEPS,
    IndexingProgress,
    IndexingStatus,
    SourceState,
    SyncStatus,
)
from tests.contracts.managers.agents import AWKWARD_IDS
from tests.contracts.managers.stage import ManagerStage

PENDING, IN_PROGRESS, PAUSED = IndexingStatus.PENDING, IndexingStatus.IN_PROGRESS, IndexingStatus.PAUSED
COMPLETED, FAILED = IndexingStatus.COMPLETED, IndexingStatus.FAILED
NAIVE = datetime(2001, 1, 1, 12, 30)


class KnowledgeContract(ManagerStage):
    """What a `KnowledgeStateManager` does, whatever it is kept in."""

    def bases(self) -> KnowledgeStateManager:
        return self.made(KnowledgeStateManager)

    # ---- progress

    async def test_progress_comes_back_as_it_was_told(self) -> None:
        bases = self.bases()
        told = IndexingProgress("kb", IN_PROGRESS, 1000, 450, 5, started_at=NAIVE)
        await bases.update_indexing_progress(told)
        found = await self.bases().get_indexing_progress("kb")

        assert found is not None and found == told
        assert told.started_at == NAIVE == found.started_at  # naive it was, and naive it is
        assert await bases.get_indexing_progress("other") is None
        assert await bases.list_knowledge_bases() == ["kb"]

    async def test_what_many_add_at_once_is_all_counted(self) -> None:
        bases = [self.bases() for _ in range(4)]
        await bases[0].update_indexing_progress(IndexingProgress("kb", PENDING, 100))

        async def work(number: int) -> None:
            for _ in range(10):
                await bases[number].add_indexing_progress("kb", processed=1, embeddings=3, size_bytes=1 << 18)

        await self.together(*(work(number) for number in range(4)))

        found = await bases[0].get_indexing_progress("kb")
        assert found == IndexingProgress("kb", IN_PROGRESS, 100, 40, embeddings=120, size_bytes=40 << 18)

    async def test_adding_makes_a_base_and_completes_none(self) -> None:
        bases = self.bases()
        first = await bases.add_indexing_progress("kb", failed=2)
        second = await bases.add_indexing_progress("kb", total=2)

        assert (first.status, first.failed_documents, first.total_documents) == (IN_PROGRESS, 2, 0)
        assert (second.status, second.total_documents) == (IN_PROGRESS, 2)
        with pytest.raises(InvalidError, match="failed_documents"):
            await bases.add_indexing_progress("kb", failed=-3)
        assert await bases.get_indexing_progress("kb") == second

    async def test_counts_that_are_not_told_stay(self) -> None:
        bases = self.bases()
        await bases.add_indexing_progress("kb", processed=1, embeddings=7, size_bytes=9)
        await bases.update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, 10, 2))
        found = await bases.get_indexing_progress("kb")
        await bases.update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, 10, 2, embeddings=1))
        told = await bases.get_indexing_progress("kb")

        assert found is not None and (found.embeddings, found.size_bytes) == (7, 9)
        assert told is not None and (told.embeddings, told.size_bytes) == (1, 9)

    async def test_statuses_follow_the_table(self) -> None:
        bases = self.bases()
        for number, before in enumerate(IndexingStatus):
            for after in IndexingStatus:
                id = f"{number} {after.name}"
                await bases.update_indexing_progress(IndexingProgress(id, before))
                if before is after or INDEXING_STEPS.allows(before, after):
                    await bases.update_indexing_progress(IndexingProgress(id, after))
                    continue
                with pytest.raises(TransitionError) as refused:
                    await bases.update_indexing_progress(IndexingProgress(id, after))
                assert before.name in str(refused.value) and after.name in str(refused.value)

        assert not INDEXING_STEPS.allows(COMPLETED, PAUSED)

    async def test_impossible_counts_are_refused(self) -> None:
        bases = self.bases()
        for wrong in (
            IndexingProgress("kb", total_documents=-1),
            IndexingProgress("kb", processed_documents=1.5),  # type: ignore[arg-type]  # wrong on purpose
            IndexingProgress("kb", embeddings=-2),
        ):
            with pytest.raises(InvalidError):
                await bases.update_indexing_progress(wrong)
        for done in (IndexingProgress("kb", IN_PROGRESS, 5, 9), IndexingProgress("kb", IN_PROGRESS, 5, 3, 3)):
            with pytest.raises(InvalidError, match="total_documents"):
                await bases.update_indexing_progress(done)
        for wrong_count in (-1, 1.5):
            with pytest.raises(InvalidError, match="embeddings"):
                # wrong on purpose
                await bases.complete_document("kb", "d", embeddings=wrong_count)  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="documents_synced"):
            await bases.update_source_state(SourceState("s", "kb", documents_synced=-1))

        assert await bases.get_knowledge_base_state("kb") is None

    async def test_a_known_total_goes_up_with_what_was_done(self) -> None:
        bases = self.bases()
        await bases.update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, 2))
        await bases.add_indexing_progress("kb", processed=2)
        await bases.complete_document("kb", "more")
        await bases.fail_document("kb", "bad", "no")

        assert await bases.get_indexing_progress("kb") == IndexingProgress("kb", IN_PROGRESS, 4, 3, 1)

    async def test_a_status_is_set_beside_who_counts(self) -> None:
        bases = [self.bases() for _ in range(2)]
        await bases[0].update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, 100, started_at=NAIVE))

        async def count() -> None:
            for _ in range(10):
                await bases[0].add_indexing_progress("kb", processed=1, embeddings=2)

        async def pause() -> None:
            for status in (PAUSED, IN_PROGRESS) * 3:
                await bases[1].set_indexing_status("kb", status)

        await self.together(count(), pause())
        failed = await bases[1].set_indexing_status("kb", FAILED, error="disk full", completed_at=NAIVE)

        told = IndexingProgress("kb", FAILED, 100, 10, 0, NAIVE, NAIVE, 20, error="disk full")
        assert failed == told == await bases[0].get_indexing_progress("kb")
        assert (await bases[0].set_indexing_status("kb", IN_PROGRESS)).error is None
        await bases[0].set_indexing_status("kb", COMPLETED)
        with pytest.raises(TransitionError):
            await bases[0].set_indexing_status("kb", PAUSED)
        assert await bases[0].set_indexing_status("new", PENDING) == IndexingProgress("new")

    # ---- sources

    async def test_sources_come_back_by_id(self) -> None:
        bases = self.bases()
        for id in reversed(AWKWARD_IDS):
            await bases.update_source_state(SourceState(id, "kb", SyncStatus.SYNCED, NAIVE))
        found = await bases.get_sources("kb")

        assert sorted(source.source_id for source in found) == sorted(AWKWARD_IDS)
        assert {source.last_sync for source in found} == {NAIVE}
        assert await bases.get_source("kb", "a/b") == SourceState("a/b", "kb", SyncStatus.SYNCED, NAIVE)
        assert await bases.remove_source("kb", "a/b") and await bases.get_source("kb", "a/b") is None
        assert await bases.get_sources("k") == []

    async def test_sources_tell_when_they_need_to_be_synchronized(self) -> None:
        bases = self.bases()
        now, naive_now = datetime.now(UTC), datetime.now()
        hour = timedelta(hours=1)
        for source in (
            SourceState("fresh", "kb", SyncStatus.SYNCED, now),
            SourceState("naive", "kb", SyncStatus.SYNCED, naive_now),
            SourceState("old", "kb", SyncStatus.SYNCED, naive_now - 2 * hour),
            SourceState("never", "kb", SyncStatus.SYNCED),
            SourceState("new", "kb"),
            SourceState("failed", "kb", SyncStatus.FAILED, now),
            SourceState("more", "kb", SyncStatus.SYNCED, now, documents_pending=1),
            SourceState("at it", "kb", SyncStatus.SYNCING, now - 2 * hour, documents_pending=1),
        ):
            await bases.update_source_state(source)

        due = {source.source_id for source in await bases.needs_sync("kb")}
        assert due == {"never", "new", "failed", "more"}
        assert {source.source_id for source in await bases.needs_sync("kb", older_than=hour)} == due | {"old"}

    # ---- the overview

    async def test_the_overview_is_derived(self) -> None:
        bases = self.bases()
        await bases.update_indexing_progress(
            IndexingProgress("kb", IN_PROGRESS, 100, 60, 2, embeddings=240, size_bytes=3 << 19)
        )
        first = await bases.get_knowledge_base_state("kb")
        await self.pass_time(5)
        await bases.update_source_state(SourceState("s", "kb", documents_synced=250, documents_pending=50))
        second = await bases.get_knowledge_base_state("kb")

        assert first is not None and second is not None
        assert (first.total_documents, second.total_documents) == (100, 300)
        assert (second.total_embeddings, second.storage_size_mb) == (240, 1.5)
        assert (second.processed_documents, second.failed_documents, second.pending_documents) == (60, 2, 50)
        assert (second.sources, second.status) == (1, IN_PROGRESS)
        assert first.last_updated is not None and second.last_updated is not None
        assert first.last_updated < second.last_updated

    # ---- documents that failed

    async def test_failed_documents_are_listed_and_counted_once(self) -> None:
        bases = self.bases()
        await bases.fail_document("kb", "a/1", "timeout", source_id="s")
        failed = await bases.fail_document("kb", "a/1", ValueError("no text"))
        await bases.fail_document("kb", "b", "gone")
        listed = await bases.get_failed_documents("kb")
        progress = await bases.get_indexing_progress("kb")

        assert [document.document_id for document in listed] == ["a/1", "b"] and listed[0] == failed
        assert (failed.attempts, failed.error, failed.source_id) == (2, "ValueError: no text", "s")
        assert progress is not None and progress.failed_documents == 2
        assert await bases.get_failed_documents("kb", after="a/1") == [listed[1]]

    async def test_a_failed_document_that_is_indexed_is_failed_no_longer(self) -> None:
        bases = self.bases()
        await bases.fail_document("kb", "a", "timeout")
        await bases.complete_document("kb", "a", embeddings=4, size_bytes=10)
        await bases.complete_document("kb", "b", embeddings=1)

        found = await bases.get_indexing_progress("kb")
        assert found == IndexingProgress("kb", IN_PROGRESS, 0, 2, 0, embeddings=5, size_bytes=10)
        assert await bases.get_failed_documents("kb") == []

    async def test_a_failed_document_is_indexed_also_where_a_run_began_anew_and_counts_none(self) -> None:
        bases = self.bases()
        await bases.fail_document("kb", "a", "timeout")
        await bases.update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, total_documents=10))
        await bases.complete_document("kb", "a", embeddings=4)

        found = await bases.get_indexing_progress("kb")
        assert found == IndexingProgress("kb", IN_PROGRESS, 10, 1, 0, embeddings=4)
        assert await bases.get_failed_documents("kb") == []

    async def test_a_document_that_two_have_indexed_counts_once(self) -> None:
        bases = [self.bases() for _ in range(2)]
        await bases[0].fail_document("kb", "a", "timeout")
        for _ in range(2):  # its time ran out, so both were given it
            for one in bases:
                await one.complete_document("kb", "a", embeddings=5, size_bytes=7)
        once = await bases[0].get_indexing_progress("kb")
        await bases[1].complete_document("kb", "a", embeddings=6)

        assert once == IndexingProgress("kb", IN_PROGRESS, 0, 1, embeddings=5, size_bytes=7)
        last = await bases[0].get_indexing_progress("kb")
        assert last == IndexingProgress("kb", IN_PROGRESS, 0, 1, embeddings=6, size_bytes=0)

    async def test_an_indexed_document_that_fails_is_indexed_no_longer(self) -> None:
        bases = self.bases()
        for id in ("a", "b"):
            await bases.complete_document("kb", id, embeddings=5)
        await bases.fail_document("kb", "a", "it has changed, and cannot be read")
        failed = await bases.get_indexing_progress("kb")
        await bases.complete_document("kb", "a", embeddings=6)

        assert failed == IndexingProgress("kb", IN_PROGRESS, 0, 1, 1, embeddings=5)
        assert await bases.get_indexing_progress("kb") == IndexingProgress(
            "kb", IN_PROGRESS, 0, 2, 0, embeddings=11
        )

    async def test_a_run_that_begins_anew_counts_each_document_anew(self) -> None:
        bases = self.bases()
        await bases.complete_document("kb", "a", embeddings=5)
        await bases.set_indexing_status("kb", COMPLETED)
        await bases.update_indexing_progress(IndexingProgress("kb", IN_PROGRESS, 2, 0, embeddings=0))
        for id in ("b", "a", "a"):
            await bases.complete_document("kb", id, embeddings=6)

        found = await bases.get_indexing_progress("kb")
        assert found == IndexingProgress("kb", IN_PROGRESS, 2, 2, embeddings=12)

    async def test_failed_documents_are_handed_out_to_one_at_a_time(self) -> None:
        bases = [self.bases() for _ in range(3)]
        for number in range(12):
            await bases[0].fail_document("kb", f"{number:02}", "timeout")
        handed = await self.together(*(each.retry_failed_documents("kb", limit=4) for each in bases))
        more = await bases[0].retry_failed_documents("kb")
        await bases[0].fail_document("kb", "03", "again")
        again = await bases[1].retry_failed_documents("kb", lease_s=0.02)
        await self.pass_time(40)
        later = await bases[2].retry_failed_documents("kb")

        names = [document.document_id for page in [*handed, more] for document in page]
        assert sorted(names) == [f"{number:02}" for number in range(12)]
        assert [(document.document_id, document.attempts) for document in again] == [("03", 2)]
        assert [document.document_id for document in later] == ["03"]

    # ---- all bases

    async def test_no_base_touches_another(self) -> None:
        bases = self.bases()
        for id in AWKWARD_IDS:
            await bases.add_indexing_progress(id, processed=len(id))
            await bases.fail_document(id, id, "no")

        for id in AWKWARD_IDS:
            found = await bases.get_knowledge_base_state(id)
            assert found is not None and (found.processed_documents, found.failed_documents) == (len(id), 1)
        assert sorted(await bases.list_knowledge_bases()) == sorted(AWKWARD_IDS)

    async def test_cleanup_leaves_every_base_with_what_failed_in_it(self) -> None:
        bases = self.bases()
        for id, status in (("done", COMPLETED), ("on", IN_PROGRESS)):
            await bases.update_source_state(SourceState("s", id, SyncStatus.SYNCED, NAIVE))
            await bases.fail_document(id, "d", "no")
            await bases.complete_document(id, "e", embeddings=1)
            await bases.set_indexing_status(id, status)
        before = [await bases.get_knowledge_base_state(id) for id in ("done", "on")]
        kept = await bases.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await bases.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 2)  # that `e` was indexed
        assert [await bases.get_knowledge_base_state(id) for id in ("done", "on")] == before
        assert [each.document_id for each in await bases.get_failed_documents("done")] == ["d"]
        assert (await bases.get_sources("done"))[0].last_sync == NAIVE

    async def test_a_base_is_deleted_by_its_name(self) -> None:
        bases = self.bases()
        for id in ("a", "a/b"):
            await bases.complete_document(id, "d", embeddings=1)
            await bases.fail_document(id, "e", "no")
        deleted = [await bases.delete("a") for _ in range(2)]

        assert deleted == [True, False] and await bases.list_knowledge_bases() == ["a/b"]
        assert await bases.get_knowledge_base_state("a") is None
        assert await bases.get_failed_documents("a") == []
        await bases.complete_document("a", "d")
        assert await bases.get_indexing_progress("a") == IndexingProgress("a", IN_PROGRESS, 0, 1)

    # ---- a plain model

    async def test_a_base_counts_as_a_plain_model_does(self) -> None:
        for seed in range(3):
            bases, dice = [self.bases(), self.bases()], random.Random(seed)
            id, indexed, failed, added = f"kb {seed}", dict[str, int](), set[str](), 0
            for step in range(30):
                one, name = dice.choice(bases), f"doc {dice.randrange(6)}"
                if dice.random() < 0.4:
                    await one.fail_document(id, name, "no")
                    failed.add(name)
                    indexed.pop(name, None)
                elif dice.random() < 0.5:
                    await one.complete_document(id, name, embeddings=step)
                    failed.discard(name)
                    indexed[name] = step
                else:
                    await one.add_indexing_progress(id, processed=3, embeddings=5)
                    added += 1

                found: Any = await bases[0].get_indexing_progress(id)
                counts = (found.processed_documents, found.failed_documents, found.embeddings or 0)
                brought = sum(indexed.values()) + 5 * added
                assert counts == (len(indexed) + 3 * added, len(failed), brought)
                listed = {each.document_id for each in await bases[1].get_failed_documents(id)}
                assert listed == failed
