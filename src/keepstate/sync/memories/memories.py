"""Blocking twins of `keepstate.memories.memories`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from keepstate._finish import finish
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.engine.space.erasure import Erased
from keepstate.memories import memories
from keepstate.memories.embedder import Embed, VectorIndex
from keepstate.memories.memories import NOTHING
from keepstate.memories.memory import Hit, Memory
from keepstate.stores.protocol import Store
from keepstate.sync.binding import Resource
from keepstate.sync.keepstate import Keepstate
from keepstate.sync.space import Space, Transaction
from keepstate.sync.twin import inner_of


class Memories(Resource[memories.Memories]):
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
    ) -> None:
        super().__init__(
            memories.Memories(
                inner_of(space)
                if isinstance(space, Space)
                else inner_of(space)
                if isinstance(space, Transaction)
                else space,
                owner=owner,
                embed=embed,
                model=model,
                index=index,
                persistence=inner_of(persistence) if isinstance(persistence, Keepstate) else persistence,
                _mode="blocking",
            )
        )

    def remember(
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
        return finish(self._inner.remember(text, data=data, source=source, expires_s=expires_s, id=id))

    def replace(self, id: str, text: str, *, because: str, source: str | None = None) -> Memory:
        """Store a fact in place of an older one, which ends. Data and time of expiry continue.

        Raises:
            NotFoundError: The memory does not exist.
            TransitionError: It has ended already; see its `replaced_by`.
            InvalidError: An argument is wrong, or the vectors come from another model.
        """
        return finish(self._inner.replace(id, text, because=because, source=source))

    def merge(self, ids: Sequence[str], text: str, *, because: str) -> Memory:
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
        return finish(self._inner.merge(ids, text, because=because))

    def forget(self, id: str, *, because: str) -> Memory:
        """End a memory: no listing and no search shows it. `get` and `history` still do; see `erase`.

        Raises:
            NotFoundError: The memory does not exist.
            TransitionError: It has ended already.
        """
        return finish(self._inner.forget(id, because=because))

    def erase(self, id: str) -> Erased:
        """Remove a memory and all of its history from the space, its log and its recorded history.

        Everything that `history` lists is removed, because the texts of one line repeat each other. Older
        positions of the space raise `CompactedError`; see `Space.expunge`. The next call completes an
        interrupted one.

        Returns:
            The counts of what this call removed.

        Raises:
            NotFoundError: The memory does not exist.
        """
        return finish(self._inner.erase(id))

    def get(self, id: str) -> Memory | None:
        """Return a memory, also one that has ended; None if it does not exist."""
        return finish(self._inner.get(id))

    def page(
        self, *, after: str | None = None, limit: int = 100, unreadable: IfUnreadable = "raise"
    ) -> Page[Memory]:
        """Return current memories in the order of their ids, which is that of time for ids made here.

        Args:
            after: The `next` of the page before.
            limit: The largest number of memories.
            unreadable: With `skip`, a memory that cannot be read is left out. With `raw`, its `unreadable`
                says why.
        """
        return finish(self._inner.page(after=after, limit=limit, unreadable=unreadable))

    def history(self, id: str) -> list[Memory]:
        """Return all memories of a line: what a memory replaced, itself, and what replaced it; oldest first.

        Raises:
            NotFoundError: The memory does not exist.
        """
        return finish(self._inner.history(id))

    def search(
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
        return finish(
            self._inner.search(query, limit=limit, where=where, min_score=min_score, unreadable=unreadable)
        )

    def reembed(self) -> int:
        """Embed all current memories that have no vector of this model, and return their number.

        Needed after a change of the model, and after the model has failed. From the first batch on, writers
        with another model are rejected; others may write during the call. A search finds memories by words
        until they have a new vector. An interrupted call is continued by the next one. With `index`, all
        vectors are put there again.

        Raises:
            InvalidError: There is no `embed`, or another process has switched to another model meanwhile.
        """
        return finish(self._inner.reembed())
