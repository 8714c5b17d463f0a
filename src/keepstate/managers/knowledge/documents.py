"""Documents of knowledge bases: which were indexed, with what they brought, and which could not be.

A base has a note of what became of each of its documents: what it brought when it was indexed, or why it
could not be.

Invariant: a document that is completed twice in one run counts once. A run begins when an update tells of
fewer processed documents than were counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from functools import partial
from typing import Final

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.times import check_duration_ms, to_datetime, to_milliseconds
from keepstate.engine.queue.tasks import format_error
from keepstate.engine.space.joint_work import read_ahead
from keepstate.errors import InvalidError
from keepstate.managers.binding import Folder
from keepstate.managers.knowledge.records import (
    FailedDocument,
    Indexed,
    IndexingProgress,
    admit_brought,
    grown,
)
from keepstate.managers.manager import Manager
from keepstate.values import limits

_AT_ONCE: Final = 300


class KnowledgeDocuments(Manager):
    """What a `KnowledgeStateManager` does for single documents."""

    async def fail_document(
        self, knowledge_base_id: str, document_id: str, error: object, *, source_id: str | None = None
    ) -> FailedDocument:
        """List a document that could not be indexed, and count it as failed if it was not listed yet.

        One that was indexed before in this run no longer counts as that, nor does what it had brought.
        """
        if source_id is not None:
            check_text("source_id", source_id)

        async def work(base: Folder) -> FailedDocument:
            before, run = await standing_of(base, document_id)
            kept = await base.space.documents.get(base.name("failed", document_id))
            failed = FailedDocument(
                document_id,
                base.id,
                format_error(error),
                source_id=source_id or (kept["value"].source_id if kept else None),
                attempts=kept["value"].attempts + 1 if kept else 1,
                failed_at=await base.space.now(),
            )
            await put_beside(base, failed, "failed", document_id, hidden_ms=0)
            gone = await _take_indexed(base, document_id, run)
            if kept is None or gone is not None:
                progress = _less(before or IndexingProgress(base.id), gone)
                await put_progress(base, grown(progress, failed=int(kept is None)), run)
            return failed

        return await self._together(self._folder(knowledge_base_id), work)

    async def complete_document(
        self, knowledge_base_id: str, document_id: str, *, embeddings: int = 0, size_bytes: int = 0
    ) -> None:
        """Count a document as indexed, with what it has brought; one that had failed is listed no longer.

        Again in the same run it counts once, with what it has brought the last time.
        """
        brought = Indexed(admit_brought("embeddings", embeddings), admit_brought("size_bytes", size_bytes))

        async def work(base: Folder) -> None:
            before, run = await standing_of(base, document_id)
            had_failed = await base.space.documents.delete(base.name("failed", document_id))
            known = before or IndexingProgress(base.id)
            # A run that began anew may count none, while the document was still listed.
            fewer = min(int(had_failed), known.failed_documents)
            known = _less(known, await _take_indexed(base, document_id, run))
            after = grown(known, processed=1, failed=-fewer, embeddings=embeddings, size_bytes=size_bytes)
            await put_beside(base, replace(brought, run=run), "indexed", document_id)
            await put_progress(base, after, run)

        await self._together(self._folder(knowledge_base_id), work)

    async def get_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, after: str | None = None
    ) -> list[FailedDocument]:
        """Return documents that could not be indexed, by id, behind that of `after`."""
        limits.admit_count("limit", limit)
        if after is not None:
            check_text("after", after)
        found: list[FailedDocument] = []
        async for _, kept in self._folder(knowledge_base_id).values("failed", after=after):
            found.append(kept["value"])
            if len(found) == limit:
                break
        return found

    async def retry_failed_documents(
        self, knowledge_base_id: str, *, limit: int = 100, lease_s: float = 300
    ) -> list[FailedDocument]:
        """Hand out documents to be indexed once more; no other caller gets them within `lease_s` seconds.

        They stay listed, and counted as failed, until `complete_document`; after `fail_document`, or when the
        time is over, they can be handed out again.
        """
        if type(limit) is not int or not 0 < limit <= _AT_ONCE:
            raise InvalidError(f"`limit` is {limit!r}; it is 1 to {_AT_ONCE}")
        base, lease_ms = self._folder(knowledge_base_id), check_duration_ms("lease_s", lease_s)

        async def hand_out(base: Folder, names: Sequence[str]) -> list[FailedDocument]:
            now_ms = to_milliseconds(await base.space.now())
            entries = await base.space.documents.entries(*(base.name("failed", name) for name in names))
            kept = [each.value for each in entries.values() if each.value["hidden_ms"] <= now_ms]
            for each in kept:
                name = each["value"].document_id
                await put_beside(base, each["value"], "failed", name, hidden_ms=now_ms + lease_ms)
            return [each["value"] for each in kept]

        found: list[FailedDocument] = []
        now_ms, after = to_milliseconds(await base.space.now()), None
        while (most := limit - len(found)) and (names := await _ripe(base, now_ms, after, most)):
            found += await self._together(base, partial(hand_out, names=names))
            after = names[-1]
        return found

    async def _clean(self, folder: Folder, before: datetime) -> int:
        """Forget which documents were indexed before then: one that is completed again counts again."""

        async def remove(base: Folder, names: Sequence[str]) -> int:
            entries = await base.space.documents.entries(*names)
            old = [name for name, each in entries.items() if to_datetime(each.value["written_ms"]) < before]
            return sum([await base.space.documents.delete(name) for name in old])

        names = [folder.name("indexed", name) async for name in folder.names("indexed")]
        removed = 0
        for begin in range(0, len(names), _AT_ONCE):
            removed += await self._together(folder, partial(remove, names=names[begin : begin + _AT_ONCE]))
        return removed


async def _ripe(base: Folder, now_ms: int, after: str | None, most: int) -> list[str]:
    """Return the first failed documents behind that of `after` that nobody has just been given."""
    names: list[str] = []
    async for name, kept in base.values("failed", after=after):
        if kept["hidden_ms"] <= now_ms:
            names.append(name)
            if len(names) == most:
                break
    return names


async def standing_of(base: Folder, *document_ids: str) -> tuple[IndexingProgress | None, int]:
    """Return how far a base is indexed, and in which run; these documents are read along."""
    notes = [base.name(kind, id) for id in document_ids for kind in ("failed", "indexed")]
    if notes:
        await read_ahead(base.space, documents=[base.name("progress"), *notes])
    kept = await base.space.documents.get(base.name("progress"))
    return (None, 0) if kept is None else (kept["value"], kept.get("run", 0))


async def put_beside(base: Folder, value: object, *segments: str, **beside: int | None) -> None:
    """Keep a value with the time of writing it."""
    written_ms = to_milliseconds(await base.space.now())
    await base.space.documents.put(base.name(*segments), {"value": value, "written_ms": written_ms, **beside})


async def put_progress(base: Folder, progress: IndexingProgress, run: int) -> None:
    """Keep how far a base is indexed, and in which run."""
    await put_beside(base, progress, "progress", run=run)


async def _take_indexed(base: Folder, document_id: str, run: int) -> Indexed | None:
    """Forget that a document was indexed in this run, and return what it had brought."""
    name = base.name("indexed", document_id)
    kept = await base.space.documents.get(name)
    if kept is None or kept["value"].run != run:
        return None
    await base.space.documents.delete(name)
    indexed: Indexed = kept["value"]
    return indexed


def _less(progress: IndexingProgress, gone: Indexed | None) -> IndexingProgress:
    """Return progress without a document; an update may have told of fewer than it had brought."""
    if gone is None:
        return progress
    return grown(
        progress,
        processed=-min(1, progress.processed_documents),
        embeddings=-min(gone.embeddings, progress.embeddings or 0),
        size_bytes=-min(gone.size_bytes, progress.size_bytes or 0),
    )
