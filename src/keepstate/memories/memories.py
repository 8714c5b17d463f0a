"""Memories: facts with their sources, searched by words or by meaning.

Embedding happens before a transaction begins, never in it. The head, a document, names the model of all
vectors, and each batch that writes a vector reads it: vectors of two models never mix.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from graphlib import TopologicalSorter
from os import PathLike
from types import MappingProxyType
from typing import Any, Final, TypeVar, cast

from keepstate._runner import Mode
from keepstate.binding import Resource, StorageOptions, StoreBinding, is_own_space
from keepstate.engine.kernel.arguments import check_duration_ms, check_text
from keepstate.engine.kernel.glob import escape_pattern
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import UNREADABLE, IfUnreadable, check_unreadable, raise_listed
from keepstate.engine.space.erasure import Erased
from keepstate.engine.space.joint_work import read_ahead, run_in_transaction
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, TransitionError
from keepstate.memories.embedder import DerivedIndex, Embed, Embedder, VectorIndex
from keepstate.memories.local_index import LocalIndex, packed_vector, read_entries
from keepstate.memories.memory import (
    FACT,
    FOLDER,
    HEAD,
    VECTOR,
    Head,
    Hit,
    Memory,
    Status,
    check_data,
    check_fact,
    check_id,
    check_note,
    check_reason,
    folder_of,
    id_in,
    read_current,
    read_listed_memory,
    read_memory,
    to_document,
)
from keepstate.stores.protocol import Store
from keepstate.values import limits
from keepstate.values.vectors import NUMBER_BYTES

T = TypeVar("T")

_KIND: Final = "memory"
_HITS: Final = 100
_NEVER: Final = datetime.min.replace(tzinfo=UTC)
_MERGED: Final = 100
_LINE: Final = 10_000
"""The largest number of memories in one history."""
_EMBEDDED_AT_ONCE: Final = 64
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


class Memories(Resource):
    """The memories of one owner. Each owner has a space, `memory/OWNER`, unless a space is passed.

    A memory is never overwritten: `replace`, `merge` and `forget` end it and say why, and `history` shows all
    of it. `erase` removes it everywhere. Everything works in every process at once.

    Args:
        space: A space, or a transaction whose batch all writes join. A transaction embeds nothing, and does
            not search.
        owner: The owner. Needed without `space`, and in a space that several owners share.
        embed: A function that returns the vectors of texts; plain, or a coroutine function. Without it, a
            search compares words.
        model: The name of the embedding model, stored with the vectors.
        index: An index of vectors outside of keepstate, for more than 50,000 memories.
        persistence: Instead of `space`: a URL, the path of an SQLite file, an open store, or a handle on one.
            Without either, memory that this process shares.

    Raises:
        InvalidError: There is no owner, or `space` belongs to another one, or `model` or `index` is given
            without `embed`.
    """

    def __init__(
        self,
        space: Space | Transaction | None = None,
        *,
        owner: str | None = None,
        embed: Embed | None = None,
        model: str = "",
        index: VectorIndex | None = None,
        persistence: str | PathLike[str] | Store | Keepstate | None = None,
        _mode: Mode = "async",
    ) -> None:
        storage: StorageOptions = {"persistence": persistence, "space": space, "_mode": _mode}
        self._binding = self._closing = StoreBinding(storage)
        self._target, self._prefix, self._owner = self._locate(owner)
        check_text("model", model)
        self._embedder = self._index = None
        if embed is not None:
            self._embedder = Embedder(embed, model, self._binding.runner)
        elif model or index is not None:
            raise InvalidError("`model` and `index` are for vectors. Pass `embed` with them.")
        if index is not None:
            self._index = DerivedIndex(index, self._binding.runner)
        self._local: LocalIndex | None = None

    def __repr__(self) -> str:
        of = "" if self._owner is None else f" of {self._owner!r}"
        return f"<Memories{of} in {self._binding!r}>"

    @property
    def _place(self) -> str:
        """The owner and the space, for messages."""
        of = "" if self._owner is None else f"of {self._owner!r} "
        return f"{of}in space {self._target.executor.name!r}"

    def _locate(self, owner: str | None) -> tuple[Space | Transaction, str, str | None]:
        passed = self._binding.passed
        if owner is not None:
            check_id(owner, "owner")
            target, prefix = self._binding.locate(_KIND, owner, what="owner")
            name = target.space if isinstance(target, Transaction) else target.name
            if name.startswith(f"{_KIND}/") and not is_own_space(target, _KIND, owner):
                raise InvalidError(f"Space {name!r} holds the memories of another owner, not of {owner!r}.")
            return target, prefix, owner
        if passed is None:
            raise InvalidError("`owner` is missing. Pass the owner of the memories, or a space.")
        name = passed.space if isinstance(passed, Transaction) else passed.name
        kind, _, rest = name.partition("/")
        return passed, "", rest if kind == _KIND and rest else None

    # ---- writing

    async def remember(
        self,
        text: str,
        *,
        data: Mapping[str, Any] = NOTHING,
        source: str | None = None,
        expires_s: float | None = None,
        id: str | None = None,
    ) -> Memory:
        """Store a fact, in one batch with its vector.

        If the model fails, the fact is stored without a vector, and a warning is logged. A search finds it by
        its words, until `reembed` adds the vector.

        Args:
            text: The fact; at most 1 MiB.
            data: Values that a search can select by.
            source: The origin of the fact, at most 4 KiB.
            expires_s: Seconds after which the memory is deleted; by default never.
            id: An id of your own. The same call again returns the memory of the first one.

        Raises:
            AlreadyExistsError: Another memory has this id, or a memory with this id has ended.
            InvalidError: An argument is wrong, or the vectors come from another model; see `reembed`.
        """
        made = Memory(
            self._new_id() if id is None else check_id(id),
            check_fact("text", text),
            check_data("data", data),
            None if source is None else check_note("source", source),
        )
        expires_ms = None if expires_s is None else check_duration_ms("expires_s", expires_s)
        vector = await self._vector(made.text)

        async def work(tx: Transaction) -> Memory:
            _, former = await self._read(tx, made.id)
            if (old := former[made.id]) is not None:
                told = old.text, old.data, old.source, old.status
                if told == (made.text, made.data, made.source, "current"):
                    return old
                raise AlreadyExistsError(
                    f"Memory {made.id!r} {self._place} exists and is {old.status}, or says something else. "
                    "Choose another id, or replace() it."
                )
            ends = None if expires_ms is None else await tx.now() + timedelta(milliseconds=expires_ms)
            return await self._write(tx, replace(made, expires_at=ends), vector)

        memory = await self._run(work, f"remember {made.id}")
        await self._index_put(memory.id, vector)
        return memory

    async def replace(self, id: str, text: str, *, because: str, source: str | None = None) -> Memory:
        """Store a fact in place of an older one, which ends. Data and time of expiry continue.

        Raises:
            NotFoundError: The memory does not exist.
            TransitionError: It has ended already; see its `replaced_by`.
            InvalidError: An argument is wrong, or the vectors come from another model.
        """
        return await self._replace([check_id(id)], "replaced", text, because, source)

    async def merge(self, ids: Sequence[str], text: str, *, because: str) -> Memory:
        """Store one fact in place of several, which end. Data of later ids take precedence.

        The new memory expires when the last of them does.

        Args:
            ids: The ids of 2 to 100 memories.
            text: The new fact.
            because: The reason.

        Raises:
            NotFoundError: A memory does not exist.
            TransitionError: A memory has ended already.
            InvalidError: An argument is wrong, or the vectors come from another model.
        """
        if isinstance(ids, str) or not isinstance(cast("object", ids), Sequence):
            raise InvalidError(f"`ids` is {ids!r:.60}. Pass a list of ids.")
        listed = [check_id(each, "ids") for each in ids]
        if not 2 <= len(listed) <= _MERGED or len(set(listed)) < len(listed):
            raise InvalidError(f"`ids` has {len(listed)} ids. Pass 2 to {_MERGED} different ones.")
        return await self._replace(listed, "merged", text, because, None)

    async def _replace(
        self, ids: Sequence[str], status: Status, text: str, because: str, source: str | None
    ) -> Memory:
        made = Memory(
            self._new_id(),
            check_fact("text", text),
            source=None if source is None else check_note("source", source),
            because=check_reason(because),
            replaces=tuple(ids),
        )
        vector = await self._vector(made.text)

        async def work(tx: Transaction) -> Memory:
            _, found = await self._read(tx, *ids)
            former = [self._require_current(id, found[id]) for id in ids]
            for old in former:
                await self._end(tx, old, status, because, made.id)
            ends = [old.expires_at for old in former if old.expires_at is not None]
            memory = replace(
                made,
                data={key: value for old in former for key, value in old.data.items()},
                expires_at=max(ends) if len(ends) == len(former) else None,
            )
            return await self._write(tx, memory, vector)

        memory = await self._run(work, f"replace {ids[0]}")
        await self._index_delete(ids)
        await self._index_put(memory.id, vector)
        return memory

    async def forget(self, id: str, *, because: str) -> Memory:
        """End a memory: no listing and no search shows it. `get` and `history` still do; see `erase`.

        Raises:
            NotFoundError: The memory does not exist.
            TransitionError: It has ended already.
        """
        check_id(id)
        check_reason(because)

        async def work(tx: Transaction) -> Memory:
            _, found = await self._read(tx, id)
            return await self._end(tx, self._require_current(id, found[id]), "forgotten", because, None)

        memory = await self._run(work, f"forget {id}")
        await self._index_delete([id])
        return memory

    async def erase(self, id: str) -> Erased:
        """Remove a memory and all of its history from the space, its log and its recorded history.

        Everything that `history` lists is removed, because the texts of one line repeat each other. Older
        positions of the space raise `CompactedError`; see `Space.expunge`. The next call completes an
        interrupted one.

        Returns:
            The counts of what this call removed.

        Raises:
            NotFoundError: The memory does not exist.
        """
        space = self._space("erasing a memory")
        line = await self._line(check_id(id))
        await self._index_delete(list(line))
        if self._local is not None:
            self._local = None  # it may contain the words of these texts
        total: Erased | None = None
        for each in reversed(line):  # the memory itself last, because it leads to the others
            done = await space.expunge(folder_of(self._prefix, each) + "/")
            total = (
                done
                if total is None
                else Erased(
                    max(total.spaces, done.spaces),
                    total.entries + done.entries,
                    total.size_bytes + done.size_bytes,
                    [*total.archives, *done.archives],
                    sorted({*total.not_reached, *done.not_reached}),
                )
            )
        assert total is not None
        return total

    # ---- reading

    async def get(self, id: str) -> Memory | None:
        """Return a memory, also one that has ended; None if it does not exist."""
        name = folder_of(self._prefix, check_id(id)) + FACT
        entry = await self._target.documents.entry(name)
        return None if entry is None else read_memory(id, entry.value, entry.expires_at)

    async def page(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Page[Memory]:
        """Return current memories in the order of their ids, which is that of time for ids made here.

        Args:
            after: The `next` of the page before.
            limit: The largest number of memories.
            unreadable: With `skip`, a memory that cannot be read is left out. With `raw`, its `unreadable`
                says why.
        """
        limits.admit_count("limit", limit, most=1_000)
        check_unreadable(unreadable)
        if after is not None:
            check_text("after", after)
        pattern = escape_pattern(self._prefix + FOLDER) + "*" + FACT
        found: list[Memory] = []
        cursor, at_once = after, limit
        while True:
            page = await self._target.documents.page(
                pattern, after=cursor, limit=at_once, unreadable=unreadable
            )
            read = [read_current(self._prefix, entry, unreadable) for entry in page]
            counts = [count for count, memory in enumerate(read, 1) if memory is not None]
            if len(counts) > (room := limit - len(found)):
                at_once = counts[room - 1]  # read again up to the last one that has room, for a cursor there
                continue
            found += [memory for memory in read if memory is not None]
            cursor, at_once = page.next, limit
            if cursor is None or len(found) == limit:
                return Page(found, next=cursor)

    async def history(self, id: str) -> list[Memory]:
        """Return all memories of a line: what a memory replaced, itself, and what replaced it; oldest first.

        Raises:
            NotFoundError: The memory does not exist.
        """
        line = await self._line(check_id(id))
        depths: dict[str, int] = {}  # memories of one millisecond are ordered by what replaces what
        links = {each.id: [former for former in each.replaces if former in line] for each in line.values()}
        for each in TopologicalSorter(links).static_order():
            depths[each] = 1 + max((depths[former] for former in links[each]), default=0)
        return sorted(line.values(), key=lambda each: (each.at or _NEVER, depths[each.id], each.id))

    async def _line(self, id: str) -> dict[str, Memory]:
        """Return the memories that are linked to one, the nearest first."""
        line: dict[str, Memory] = {}
        ids = [id]
        while ids and len(line) < _LINE:
            _, found = await self._read(self._target, *ids)
            line |= {each: memory for each, memory in found.items() if memory is not None}
            linked = [
                each
                for memory in found.values()
                if memory is not None
                for each in (*memory.replaces, *([memory.replaced_by] if memory.replaced_by else []))
            ]
            ids = [each for each in dict.fromkeys(linked) if each not in line][:_MERGED]
        if not line:
            raise self._missing(id)
        return line

    # ---- search

    async def search(
        self,
        query: str,
        *,
        limit: int = 10,
        where: Mapping[str, Any] = NOTHING,
        min_score: float | None = None,
        unreadable: IfUnreadable = "raise",
    ) -> list[Hit]:
        """Return the current memories nearest to a query; equal scores are ordered by id.

        With `embed`, memories are compared by meaning. Those without a vector of the model are compared by
        words, and so are all of them if the model fails. The first search reads all memories, later ones what
        has changed since. A search sees every write that was acknowledged before it.

        Args:
            query: A text.
            limit: The largest number of hits, at most 100.
            where: Values that the data of a hit must have, at the top level.
            min_score: The smallest score of a hit.
            unreadable: With `skip`, memories that cannot be read are left out. With `raw`, they are compared
                by what is known of them, and `unreadable` of a memory says why. A memory whose vector cannot
                be read is then compared by words.

        Raises:
            InvalidError: An argument is wrong, or the vectors come from another model than `embed`, or more
                than 50,000 memories have vectors and there is no `index`.
            KeepstateError: By default, the error of any current memory that cannot be read, with its name.
        """
        check_unreadable(unreadable)
        check_fact("query", query)
        limits.admit_count("limit", limit, most=_HITS)
        selected = check_data("where", where)
        if min_score is not None and (type(min_score) not in (int, float) or min_score != min_score):
            raise InvalidError(f"`min_score` is {min_score!r}. Pass a number.")
        space = self._space("a search")
        vector = await self._vector(query)
        if self._local is None:
            self._local = LocalIndex(space, self._prefix, has_matrix=self._index is None)
        local = self._local
        await local.catch_up()
        if unreadable == "raise":
            await self._require_readable(space, local)
        if vector is not None:
            self._require_model(local.head, len(vector) // NUMBER_BYTES)
        while True:
            allowed = local.select(selected, skip_unreadable=unreadable == "skip")
            ranked = await self._rank(local, query, vector, selected, allowed, limit, min_score)
            names = {folder_of(self._prefix, id) + FACT: id for id, _, _ in ranked}
            found = await read_entries(space, list(names), unreadable)
            memories = [
                read_listed_memory(names[name], entry.value, entry.expires_at, unreadable)
                for name, entry in found.items()
            ]
            current = {each.id: each for each in memories if each is not None and each.status == "current"}
            if len(current) == len(ranked):
                return [Hit(current[id], score, "meaning" if near else "words") for id, score, near in ranked]
            for id, _, _ in ranked:
                if id not in current:
                    local.discard(id)  # it has expired, or ended since the index caught up

    async def _require_readable(self, space: Space, local: LocalIndex) -> None:
        """Raise the error of a memory of the index that cannot be read, and name it."""
        while ids := sorted(local.unreadable | local.unreadable_vectors):
            id = ids[0]
            names = [folder_of(self._prefix, id) + kind for kind in (FACT, VECTOR)]
            for name in names:
                try:
                    found = await space.documents.entry(name)
                    if found is not None and name.endswith(FACT):
                        read_memory(id, found.value)
                except UNREADABLE as error:
                    raise_listed(error)
            await local.refresh([id])  # its class is registered by now, or it was written again

    async def _rank(
        self,
        local: LocalIndex,
        query: str,
        vector: bytes | None,
        where: Mapping[str, Any],
        allowed: set[str] | None,
        limit: int,
        min_score: float | None,
    ) -> list[tuple[str, float, bool]]:
        """Return the best ids with their scores, and whether each was found by meaning."""
        near: list[tuple[str, float]] = []
        worded = allowed
        if vector is not None:
            if self._index is None:
                near = local.nearest(vector, limit, allowed)
            else:
                near = await self._nearest_of(self._index, local, vector, limit, where, allowed)
            worded = local.pending if allowed is None else local.pending & allowed
        by_words = local.words.nearest(query, limit, worded) if worded is None or worded else []
        rows = [
            *((id, score, True) for id, score in near),
            *((id, score, False) for id, score in by_words),
        ]
        if min_score is not None:
            rows = [row for row in rows if row[1] >= min_score]
        return sorted(rows, key=lambda row: (-row[1], row[0]))[:limit]

    async def _nearest_of(
        self,
        index: DerivedIndex,
        local: LocalIndex,
        vector: bytes,
        limit: int,
        where: Mapping[str, Any],
        allowed: set[str] | None,
    ) -> list[tuple[str, float]]:
        """Ask the caller's index for more, until enough of its results are current memories."""
        wanted = limit
        while True:
            rows = dict(await index.search(vector, wanted, where))
            kept = [
                (id, score)
                for id, score in rows.items()
                if id in local.embedded and (allowed is None or id in allowed)
            ]
            if len(kept) >= limit or len(rows) < wanted or wanted > len(local.embedded) * 2 + limit:
                return kept
            wanted *= 4

    # ---- vectors

    async def reembed(self) -> int:
        """Embed all current memories that have no vector of this model, and return their number.

        Needed after a change of the model, and after the model has failed. From the first batch on, writers
        with another model are rejected; others may write during the call. A search finds memories by words
        until they have a new vector. An interrupted call is continued by the next one. With `index`, all
        vectors are put there again.

        Raises:
            InvalidError: There is no `embed`, or another process has switched to another model meanwhile.
        """
        space = self._space("embedding")
        if (embedder := self._embedder) is None:
            raise InvalidError("These memories have no `embed`. Pass the embedding model.")
        head = await self._switch(embedder)
        if head is None:
            return 0
        count, ids = 0, list[str]()
        async for name in space.documents.keys(prefix=self._prefix + FOLDER):
            id = id_in(self._prefix, name)
            if id is not None and name.endswith(FACT):
                ids.append(id)
            if len(ids) == _EMBEDDED_AT_ONCE:
                count += await self._embed_some(embedder, head, ids)
                ids = []
        return count + await self._embed_some(embedder, head, ids)

    async def _switch(self, embedder: Embedder) -> Head | None:
        """Name the model in the head; return None if there is nothing to embed."""
        first = await self.page(limit=1)
        dims = len((await embedder.vectors([first[0].text]))[0]) // NUMBER_BYTES if first else None
        head: Head = {"owner": self._owner, "model": embedder.model if first else None, "dims": dims}

        async def work(tx: Transaction) -> None:
            if await tx.documents.get(self._prefix + HEAD) not in (None if not first else head, head):
                await tx.documents.put(self._prefix + HEAD, head)

        await self._run(work, f"embed with {embedder.model}")
        return head if first else None

    async def _embed_some(self, embedder: Embedder, head: Head, ids: Sequence[str]) -> int:
        names = [folder_of(self._prefix, id) + kind for id in ids for kind in (FACT, VECTOR)]
        found = await read_entries(self._space("embedding"), names)
        texts: dict[str, str] = {}
        kept: dict[str, bytes] = {}
        for id in ids:
            folder = folder_of(self._prefix, id)
            fact, vector = found.get(folder + FACT), found.get(folder + VECTOR)
            if fact is None or (memory := read_memory(id, fact.value, fact.expires_at)).status != "current":
                continue
            if (packed := packed_vector(None if vector is None else vector.value, head)) is None:
                texts[id] = memory.text
            else:
                kept[id] = packed
        made = dict(zip(texts, await embedder.vectors(list(texts.values())), strict=True)) if texts else {}

        async def work(tx: Transaction) -> list[str]:
            present, memories = await self._read(tx, *made)
            if present != head:
                raise InvalidError(
                    f"Another process has switched the memories {self._place} to another model. Use that "
                    "model."
                )
            written = [
                memory
                for memory in memories.values()
                if memory is not None and (memory.status, memory.text) == ("current", texts[memory.id])
            ]
            for memory in written:
                await self._put_vector(tx, memory, made[memory.id])
            return [memory.id for memory in written]

        written = await self._run(work, "embed memories") if made else []
        if self._index is not None:
            await self._index.put(kept | {id: made[id] for id in written})
            if ended := [id for id in ids if id not in kept and id not in written]:
                await self._index.delete(ended)
        return len(written)

    async def _vector(self, text: str) -> bytes | None:
        """Return the vector of a text; None without a model, if it fails, or in a transaction."""
        if self._embedder is None or isinstance(self._target, Transaction):
            return None
        return await self._embedder.try_vector(text)

    def _require_model(self, head: Head | None, dims: int) -> None:
        embedder = self._embedder
        if embedder is None or head is None or head["dims"] is None:
            return
        if (head["model"], head["dims"]) != (embedder.model, dims):
            raise InvalidError(
                f"The vectors of memories {self._place} have {head['dims']} numbers of model "
                f"{head['model']!r}, and {embedder.model!r} returned {dims}. Use that model, or call "
                "reembed() to change it."
            )

    # ---- documents

    async def _run(self, work: Callable[[Transaction], Awaitable[T]], message: str) -> T:
        return await run_in_transaction(self._target, work, message=message)

    async def _read(self, tx: Space | Transaction, *ids: str) -> tuple[Head | None, dict[str, Memory | None]]:
        """Return the head, and memories by their ids."""
        names = [folder_of(self._prefix, id) + FACT for id in ids]
        if isinstance(tx, Transaction):
            await read_ahead(tx, documents=[self._prefix + HEAD, *names])
        found: dict[str, Any] = {}
        for name in [self._prefix + HEAD, *names]:
            if (entry := await tx.documents.entry(name)) is not None:
                found[name] = entry
        head = found.get(self._prefix + HEAD)
        memories = {
            id: read_memory(id, found[name].value, found[name].expires_at) if name in found else None
            for id, name in zip(ids, names, strict=True)
        }
        return None if head is None else head.value, memories

    async def _write(self, tx: Transaction, memory: Memory, vector: bytes | None) -> Memory:
        """Write a new memory, with the head if it is the first, and return it as it was written."""
        at = await tx.now()
        written = replace(memory, at=at, by=tx.author)
        head: Head | None = await tx.documents.get(self._prefix + HEAD)
        if head is None:
            head = {"owner": self._owner, "model": None, "dims": None}
            await tx.documents.put(self._prefix + HEAD, head)
        if vector is not None:
            self._require_model(head, len(vector) // NUMBER_BYTES)
            if head["dims"] is None and self._embedder is not None:
                named: Head = {**head, "model": self._embedder.model, "dims": len(vector) // NUMBER_BYTES}
                await tx.documents.put(self._prefix + HEAD, named)
            await self._put_vector(tx, written, vector)
        await self._put_fact(tx, written)
        return written

    async def _put_fact(self, tx: Transaction, memory: Memory) -> None:
        ttl_s = await _ttl_s(tx, memory)
        await tx.documents.put(folder_of(self._prefix, memory.id) + FACT, to_document(memory), ttl_s=ttl_s)

    async def _put_vector(self, tx: Transaction, memory: Memory, vector: bytes) -> None:
        assert self._embedder is not None
        document = {"model": self._embedder.model, "vector": vector}
        name = folder_of(self._prefix, memory.id) + VECTOR
        await tx.documents.put(name, document, ttl_s=await _ttl_s(tx, memory))

    async def _end(
        self, tx: Transaction, memory: Memory, status: Status, because: str, by_id: str | None
    ) -> Memory:
        ended = replace(
            memory,
            status=status,
            replaced_by=by_id,
            ended_by=tx.author,
            ended_at=await tx.now(),
            ended_because=because,
        )
        await self._put_fact(tx, ended)
        await tx.documents.delete(folder_of(self._prefix, memory.id) + VECTOR)
        return ended

    def _require_current(self, id: str, memory: Memory | None) -> Memory:
        if memory is None:
            raise self._missing(id)
        if memory.status != "current":
            by = f" by {memory.replaced_by!r}" if memory.replaced_by else ""
            raise TransitionError(f"Memory {id!r} {self._place} is {memory.status}{by}. See history({id!r}).")
        return memory

    def _missing(self, id: str) -> NotFoundError:
        return NotFoundError(f"Memory {id!r} {self._place} does not exist. It was erased, or has expired.")

    async def _index_put(self, id: str, vector: bytes | None) -> None:
        if self._index is not None and vector is not None:
            await self._index.put({id: vector})

    async def _index_delete(self, ids: Sequence[str]) -> None:
        if self._index is not None and isinstance(self._target, Space):
            await self._index.delete(ids)

    def _space(self, what: str) -> Space:
        self._binding.require_outside_transaction(what)
        assert isinstance(self._target, Space)
        return self._target

    def _new_id(self) -> str:
        clock = self._binding.clock
        return f"{clock.now_ms():012x}-{clock.random_bytes(8).hex()}"


async def _ttl_s(tx: Transaction, memory: Memory) -> float | None:
    """Return the seconds until a memory expires."""
    if memory.expires_at is None:
        return None
    return max(0.001, (memory.expires_at - await tx.now()).total_seconds())
