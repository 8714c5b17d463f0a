"""Blocking twins of `keepstate.engine.space.space`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

from keepstate._deferral import defer_imports
from keepstate._finish import entered, finish
from keepstate.engine.kernel.layout import MAIN
from keepstate.engine.space import space as engine
from keepstate.engine.space.space import AppliedTransaction, SpaceSize
from keepstate.sync.documents import Documents
from keepstate.sync.twin import Twin, inner_of, receiving, single_use

if TYPE_CHECKING:
    from keepstate.engine.documents import collection_indexes as _indexes
    from keepstate.engine.history import checkout as _checkout
    from keepstate.engine.history import revisions as _revisions
    from keepstate.engine.space import erasure as _erasure
    from keepstate.sync import approvals as _approvals_twins
    from keepstate.sync import checkout as _checkout_twins
    from keepstate.sync import collection as _collection_twins
    from keepstate.sync import events as _events_twins
    from keepstate.sync import history as _history_twins
    from keepstate.sync import lease as _lease_twins
    from keepstate.sync import ledger as _ledger_twins
    from keepstate.sync import queue as _queue_twins
    from keepstate.sync import schedules as _schedules_twins
else:
    defer_imports(
        globals(),
        _approvals_twins="keepstate.sync.approvals",
        _collection_twins="keepstate.sync.collection",
        _events_twins="keepstate.sync.events",
        _checkout_twins="keepstate.sync.checkout",
        _history_twins="keepstate.sync.history",
        _lease_twins="keepstate.sync.lease",
        _queue_twins="keepstate.sync.queue",
        _schedules_twins="keepstate.sync.schedules",
        _ledger_twins="keepstate.sync.ledger",
        _indexes="keepstate.engine.documents.collection_indexes",
        _checkout="keepstate.engine.history.checkout",
        _revisions="keepstate.engine.history.revisions",
        _erasure="keepstate.engine.space.erasure",
    )
T = TypeVar("T")
Inner = TypeVar("Inner", bound=engine.Parts)


class Parts(Twin[Inner]):
    """The parts of a space or a transaction. Each is created on first use."""

    @cached_property
    def documents(self) -> Documents:
        """The named values of the space."""
        return Documents(self._inner.documents)

    def collection(
        self,
        name: str,
        type: type[T],
        *,
        index: Mapping[str, Callable[[T], _indexes.Place | None]] | None = None,
        version: int = 1,
    ) -> _collection_twins.Collection[T]:
        """Return the records of one type, as documents named `name/id`. Makes no call to the store.

        With an index, all other writes of these documents are rejected, in every process.

        Args:
            name: The name of the collection: 1 to 100 bytes of UTF-8 without a slash.
            type: The type of the records.
            index: A function for each index, at most 16. From a record, it returns its place in the index: a
                tuple of texts, integers, bytes, UUIDs and aware times, or None to leave the record out. It
                must be deterministic. A key of an index, with the tuple and the id, has at most 512 bytes.
                It is stored in plain text, also in an encrypted store.
            version: Raise it when a function changes, or an index is added or removed. Then call `reindex`.
        """
        return _collection_twins.Collection(self._inner.collection(name, type, index=index, version=version))

    @cached_property
    def events(self) -> _events_twins.Events:
        """The streams of events of the space."""
        return _events_twins.Events(self._inner.events)

    @cached_property
    def queue(self) -> _queue_twins.Queue:
        """The tasks of the space. Each is completed once."""
        return _queue_twins.Queue(self._inner.queue)

    @cached_property
    def schedules(self) -> _schedules_twins.Schedules:
        """The times at which the space puts tasks by itself."""
        return _schedules_twins.Schedules(self._inner.schedules)

    @cached_property
    def approvals(self) -> _approvals_twins.Approvals:
        """The questions of the space to people. Each is settled once."""
        return _approvals_twins.Approvals(self._inner.approvals)

    @cached_property
    def usage(self) -> _ledger_twins.UsageLedger:
        """The tokens, calls and money that models used, under budgets. Each use is counted once."""
        return _ledger_twins.UsageLedger(self._inner.usage)

    @cached_property
    def leases(self) -> _lease_twins.Leases:
        """The time-limited locks of the space."""
        return _lease_twins.Leases(self._inner.leases)

    @cached_property
    def history(self) -> _history_twins.History:
        """The commits of a state. Every committed state can be read again."""
        return _history_twins.History(self._inner.history)

    def at(self, ref: _revisions.Revision = MAIN, *, load: _checkout.Load = True) -> _checkout_twins.Checkout:
        """Return the documents of a recorded space as of a commit, by name and read-only.

        Args:
            ref: The commit: an id, a branch or tag, `main~3`, `main#37`, a time or a `Commit`.
            load: True for all documents, False for none yet, or the names of some.

        Raises:
            NotFoundError: The commit does not exist, or nothing was recorded.
        """
        return _checkout_twins.Checkout(finish(self._inner.at(ref, load=load)))

    def now(self) -> datetime:
        """Return the store's time in UTC, which decides about leases, delays and TTLs."""
        return finish(self._inner.now())


class Transaction(Parts[engine.Transaction]):
    """A set of operations on one space that apply together when the block ends.

    A transaction reads its own writes, and everything else as of one revision. An appended event gets its
    number when the transaction is applied. Tasks and threads may share a transaction: their calls run one
    after the other, and a call that is still waiting at the end is rejected. A function that the transaction
    calls may use it too, in the same thread.

    Attributes:
        space: The name of the space.
        author: The author of the writes, or None.
        message: The purpose of the transaction.
    """

    @property
    def space(self) -> str:
        """The name of the space."""
        return self._inner.space

    @property
    def author(self) -> str | None:
        """The author of the writes, or None."""
        return self._inner.author

    @property
    def message(self) -> str:
        """The purpose of the transaction."""
        return self._inner.message

    @property
    def revision(self) -> int:
        """The revision of the transaction once it is applied; 0 before, and if it wrote nothing.

        If a transaction with its `token` was applied before, the revision of that time.
        """
        return self._inner.revision

    @property
    def note(self) -> bytes:
        """The bytes that are stored with the `token`, empty without any; see `set_note`.

        If a transaction with its `token` was applied before, the note of that time.
        """
        return self._inner.note

    def set_note(self, note: bytes) -> None:
        """Store bytes with the `token`, such as the answer that a caller gets who repeats the request.

        They are stored as long as the token, and ignored if the token was used before.

        Args:
            note: At most 16 KiB.

        Raises:
            InvalidError: The note is too large, or the transaction has no token.
        """
        self._inner.set_note(note)

    def by(
        self, author: str | None = None, *, message: str | None = None, meta: Mapping[str, str] | None = None
    ) -> Transaction:
        """Return the same transaction with another author, message or notes. Makes no call to the store.

        The commit of a recorded space names every author who changed documents, with the message.

        Args:
            author: The author of the writes. Default: the author of this transaction.
            message: The purpose of the writes.
            meta: Notes on the commits, added to those of this transaction; see `History.commit`.
        """
        return Transaction(self._inner.by(author, message=message, meta=meta))


class Space(Parts[engine.Space]):
    """The unit of atomicity and order: everything in one space can change together.

    Made by `Keepstate.space`, without I/O. Every operation is atomic, and strictly serializable with all
    other operations on the space.

    Attributes:
        name: The name of the space, without its tenant.
        author: The author of writes, or None.
    """

    @property
    def name(self) -> str:
        """The name of the space, without its tenant."""
        return self._inner.name

    @property
    def author(self) -> str | None:
        """The author of writes, or None."""
        return self._inner.author

    def by(
        self, author: str | None = None, *, message: str | None = None, meta: Mapping[str, str] | None = None
    ) -> Space:
        """Return the same space with another author, message or notes. Makes no call to the store.

        Events and commits name the author. Commits contain the notes, and those of a recorded space the
        message.

        Args:
            author: The author of writes. Default: the author of this space.
            message: The purpose of the writes; at most 64 KiB of UTF-8.
            meta: Notes on the commits, added to those of this space; see `History.commit`.
        """
        return Space(self._inner.by(author, message=message, meta=meta))

    @single_use
    def transaction(
        self, *, lease: _lease_twins.Lease | None = None, message: str = "", token: str | None = None
    ) -> Generator[Transaction]:
        """Collect the operations of the body and apply them as one batch at its end.

        The body runs once. If it raises, nothing is applied.

        Args:
            lease: Apply the batch only if this lease is still held.
            message: The purpose of the transaction, for the commit of a recorded space.
            token: A name for the transaction, such as the id of a request: 1 to 512 bytes of UTF-8. A
                transaction of this space is not applied again if one with the same token was applied within
                the last 24 hours. `revision` of the transaction is then the revision of that time, from the
                beginning of the body, and the operations of the body are ignored. Afterwards the token is
                forgotten. It is one write of the batch, and costs one more read.

        Raises:
            ConflictError: Something that the body read has changed. Nothing was applied.
            LeaseLostError: The lease is no longer held. Nothing was applied.
            OutcomeUnknownError: The reply of the store was lost. With a token, run the transaction again.
        """
        with entered(
            self._inner.transaction(
                lease=inner_of(lease) if isinstance(lease, _lease_twins.Lease) else lease,
                message=message,
                token=token,
            )
        ) as inner:
            yield Transaction(inner)

    def transact(self, fn: Callable[[Transaction], T], attempts: int | None = 8) -> T:
        """Call `fn(tx)` and apply its operations as one batch; on conflict, call it again with a new `tx`.

        Args:
            fn: The function. It may be called several times.
            attempts: The largest number of calls. None calls it until that is hopeless: 1,000 conflicts over
                at least a minute.

        Returns:
            The return value of `fn`; `apply` also returns the revision.

        Raises:
            AttemptsExhaustedError: Every attempt ended in a conflict. Nothing was applied. Allow more
                attempts, or update a single document, which is retried until it succeeds.
        """
        return finish(self._inner.transact(receiving(Transaction, fn), attempts))

    def apply(self, fn: Callable[[Transaction], T], *, attempts: int | None = None) -> AppliedTransaction[T]:
        """Do what `transact` does, by default until that is hopeless. Return the value with the revision."""
        return finish(self._inner.apply(receiving(Transaction, fn), attempts=attempts))

    def size(self) -> SpaceSize:
        """Return the size of the space at one revision, in one read that does not depend on its size."""
        return finish(self._inner.size())

    def expunge(self, prefix: str) -> _erasure.Erased:
        """Remove everything whose name begins with a prefix, with its log and its history.

        These are documents with their places in indexes, streams, leases, tasks, schedules, approvals,
        accounts of usage, branches and tags. All other entries stay as they are. The log of the space ends
        here: an older position of anything in the space raises `CompactedError`. In a recorded space only the
        present states of branches and tags are left of the history. Embedded stores rewrite their files, so
        that no removed bytes remain there.

        Writers are not rejected: what they write under the prefix during the call may remain. An interrupted
        call is completed by the next one.

        Args:
            prefix: The beginning of the names, at most 440 bytes, in which no character is special.

        Returns:
            The counts of what this call removed, the archive of the history if there is one, and what was not
            reached.

        Raises:
            InvalidError: The prefix is empty or too long.
        """
        return finish(self._inner.expunge(prefix))

    def revision(self) -> int:
        """Return the number of batches that the space has applied."""
        return finish(self._inner.revision())

    def outcome(self, token: bytes) -> int | None:
        """Settle a batch whose outcome was unknown.

        Returns:
            The revision at which the batch was applied. None if it was not applied, and never will be.

        Raises:
            OutcomeUnknownError: The log no longer reaches back that far.
        """
        return finish(self._inner.outcome(token))
