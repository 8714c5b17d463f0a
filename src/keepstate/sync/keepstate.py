"""Blocking twins of `keepstate.engine.space.keepstate`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, overload

from keepstate._deferral import defer_imports
from keepstate._finish import finish, finish_each
from keepstate.engine.kernel.observation import Observer
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.quotas import Quota
from keepstate.engine.space import keepstate as engine
from keepstate.engine.space.keepstate import SpaceInfo, TenantInfo
from keepstate.engine.space.space import SpaceSize
from keepstate.names import OWN, TenantScope
from keepstate.stores.protocol import Store
from keepstate.sync.space import Space
from keepstate.sync.twin import Twin

if TYPE_CHECKING:
    from keepstate.engine.index import rows as _rows
    from keepstate.engine.space import erasure as _erasure
    from keepstate.engine.space import export as _export
    from keepstate.sync import ledger as _ledger_twins
    from keepstate.sync import queues as _queues_twins
else:
    defer_imports(
        globals(),
        _queues_twins="keepstate.sync.queues",
        _ledger_twins="keepstate.sync.ledger",
        _rows="keepstate.engine.index.rows",
        _erasure="keepstate.engine.space.erasure",
        _export="keepstate.engine.space.export",
    )


class Keepstate(Twin[engine.Keepstate]):
    """Spaces in one store. Made by `keepstate.sync.open`.

    A context manager that closes the store at its end. Threads may share it.

    Attributes:
        tenant_id: The tenant whose spaces the handle names, or None.
        author: The author of writes by the handle, or None.
        observer: The observer of its operations, or None.
    """

    @property
    def tenant_id(self) -> str | None:
        """The tenant whose spaces the handle names, or None."""
        return self._inner.tenant_id

    @property
    def author(self) -> str | None:
        """The author of writes by the handle, or None."""
        return self._inner.author

    @property
    def observer(self) -> Observer | None:
        """The observer of its operations, or None."""
        return self._inner.observer

    def __enter__(self) -> Self:
        finish(self._inner.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        finish(self._inner.__aexit__(kind, error, trace))

    def close(self) -> None:
        """Release the store. A second call does nothing. A store that was passed in open stays open."""
        finish(self._inner.close())

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self._inner.url

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            InvalidError: The store is not open yet.
        """
        return self._inner.store

    def space(self, name: str, *, author: str | None = None, record: bool = False) -> Space:
        """Return a space. Makes no call to the store.

        Args:
            name: Any text of 1 to 200 bytes of UTF-8. A tenant's id uses part of these: its own bytes, 5
                more, and one more for each of the characters 0 to 2.
            author: The author of writes there. Default: the author of this handle.
            record: Record every change of its documents. From the next change on, each batch that changes
                documents contains a commit of `main`. The space remembers this, every handle in every process
                follows it, and it cannot be turned off. See `Space.at` and `Space.by`.
        """
        return Space(self._inner.space(name, author=author, record=record))

    def tenant(self, id: str) -> Keepstate:
        """Return the handle of a tenant on the same store. Makes no call to the store.

        The tenant's handle reaches the tenant's spaces only. It is closed with this handle; closing it alone
        does nothing.

        Args:
            id: The tenant's id, any text that is not empty.

        Raises:
            InvalidError: This handle belongs to a tenant already, or the id is empty or too long.
        """
        return Keepstate(self._inner.tenant(id))

    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.OWN] = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[str]: ...
    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.ALL],
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[tuple[str | None, str]]: ...
    def spaces(
        self,
        under: str = "",
        *,
        tenant: TenantScope = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> Iterator[Any]:
        """Yield the names of spaces that are not empty, in the order of their UTF-8 bytes.

        Args:
            under: Only the space of this name and those that continue it after a `/`: `user/1` also finds
                `user/1/notes`, and not `user/10`. With a `/` at its end, only those that continue it.
            tenant: `OWN` yields the spaces of the handle's tenant; without one, those of no tenant. `ALL`
                yields pairs of a tenant and a name, first those of no tenant, and then tenant by tenant.
            after: Only names above this one, which need not exist. For `ALL`, `next` of a page of
                `list_spaces`.
            limit: The largest number of names; by default all.

        Raises:
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        spaces: Any = self._inner.spaces
        return finish_each(spaces(under, tenant=tenant, after=after, limit=limit))

    def list_spaces(
        self, under: str = "", *, tenant: TenantScope = OWN, after: str | None = None, limit: int = 100
    ) -> Page[SpaceInfo]:
        """Return one page of the spaces that are not empty, each with the time of its last change.

        Args:
            under, tenant, after: As for `spaces`. `after=page.next` continues after a page.
            limit: The largest number of spaces in the page.

        Raises:
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        return finish(self._inner.list_spaces(under, tenant=tenant, after=after, limit=limit))

    def tenants(self, *, after: str | None = None, limit: int = 100) -> Page[TenantInfo]:
        """Return one page of the tenants that have data, in the order of their ids' UTF-8 bytes.

        Costs one call of the store for 256 spaces of small tenants, and at most one for each tenant.

        Args:
            after: Only ids above this one, which need not exist. `after=page.next` continues after a page.
            limit: The largest number of tenants in the page.

        Raises:
            NotAllowedError: The handle belongs to a tenant.
        """
        return finish(self._inner.tenants(after=after, limit=limit))

    def drop(self, space: str) -> bool:
        """Delete a space with its log. Return whether there was something to delete.

        Its subjects leave the listing of `find` in the same call. Until then a mark in the index says that
        the space is being dropped, so a crash leaves nothing that the next delivery does not repair.
        """
        return finish(self._inner.drop(space))

    def queues(self, under: str = "", *, tenant: TenantScope = OWN) -> _queues_twins.Queues:
        """Return the queues of all spaces under a name: one worker for them, counts, dead tasks, pauses.

        Makes no call to the store.

        Args:
            under: Only the space of this name and those that continue it after a `/`; see `spaces`.
            tenant: `OWN` covers the spaces of the handle's tenant; without one, those of no tenant. `ALL`
                covers the spaces of all tenants too.

        Raises:
            NotAllowedError: The handle of a tenant asks for `ALL`.
        """
        return _queues_twins.Queues(self._inner.queues(under, tenant=tenant))

    def find(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        owner: str | None = None,
        changed_since: datetime | None = None,
        under: str = "",
        order: Literal["-changed", "changed", "due"] = "-changed",
        tenant: TenantScope = OWN,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[_rows.Found]:
        """Return one page of the sessions, agents, workflows, queues and other subjects of all spaces.

        An index of the tenant answers the call. Every change reaches it by a delivery: a writer delivers
        after its commit, within about a second. The changes of this handle are delivered first. The first
        call of a tenant makes the index, and reads each of its spaces.

        Cost: four round trips; for `ALL`, of each tenant that the page covers.

        Args:
            kind: Only subjects of this kind; see `Found`.
            state: Only subjects in this state.
            owner: Only subjects of this user.
            changed_since: Only subjects that have changed since this time.
            under: Only subjects in the space of this name, or in spaces that continue it after a `/`; see
                `spaces`.
            order: `-changed` begins with the latest change, `changed` with the earliest. `due` shows only
                subjects that are due at some time, and begins with the earliest.
            tenant: `OWN` lists the subjects of the handle's tenant; without one, those of no tenant. `ALL`
                lists first those of no tenant and then tenant by tenant, each in this order.
            after: The `next` of a page of the same listing: continue after that page.
            limit: The largest number of subjects in the page.

        Raises:
            CompactedError: The log of the index no longer reaches back to the cursor.
            HistoryLostError: The store has lost the history that the cursor belongs to.
            InvalidError: The cursor belongs to another listing.
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        return finish(
            self._inner.find(
                kind=kind,
                state=state,
                owner=owner,
                changed_since=changed_since,
                under=under,
                order=order,
                tenant=tenant,
                after=after,
                limit=limit,
            )
        )

    def watch(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        owner: str | None = None,
        under: str = "",
        after: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[_rows.FoundChange]:
        """Yield the changes of a listing of `find`, in the order in which they reach the index.

        Several changes of one subject within a delivery are yielded as one.

        Args:
            kind, state, owner, under: As for `find`.
            after: Start after the `position` of a change, from any process. The default is now.
            timeout_s: End the iteration after this many seconds without a change. The default never ends.

        Raises:
            CompactedError: The log of the index no longer reaches back to `after`.
            HistoryLostError: The store has lost the history that `after` belongs to.
        """
        return finish_each(
            self._inner.watch(
                kind=kind, state=state, owner=owner, under=under, after=after, timeout_s=timeout_s
            )
        )

    def deliver(self) -> int:
        """Deliver all outboxes to the index of `find` now, and return the number of subjects delivered.

        Also completes deliveries of killed processes. A handle of a tenant delivers for the tenant, any other
        handle for the spaces without a tenant. The first call makes the index, and reads each space. Later
        calls read the spaces that have changed since.
        """
        return finish(self._inner.deliver())

    def reindex(self) -> int:
        """Compare the index of `find` with all spaces, correct it, and return the number of its errors.

        Deliveries keep the index correct. Call this after events that they do not see: damaged bytes, or a
        space that was restored from another place. Writers, deliveries and listings continue during the call.
        If it is interrupted, call it again. A handle without a tenant covers spaces of no tenant.

        Cost: a few reads of each row and each space.

        Raises:
            ConflictError: Writers kept changing the same rows.
        """
        return finish(self._inner.reindex())

    def size(self) -> SpaceSize:
        """Return the total size of the handle's spaces, each at a revision of its own.

        Costs one call of the store for each space. A handle without a tenant covers spaces of no tenant.
        """
        return finish(self._inner.size())

    @property
    def usage(self) -> _ledger_twins.UsageLedger:
        """The usage of the tenant, in its space `usage`: what was spent `within` it, and its budgets."""
        return _ledger_twins.UsageLedger(self._inner.usage)

    def set_quota(self, quota: Quota | None) -> None:
        """Bound what the tenant may hold, in every process, from the return of this call on.

        A batch that would exceed it raises `QuotaExceededError` and writes nothing. What each space may hold
        is exact. It costs two reads for each batch of writes, and in this call a scan and a batch for each
        present space; 64 of them go to the store together. What is over the quota already stays, and may
        shrink.

        Totals of all spaces are exact for what one process writes. Of other processes, a process learns by
        counting again, after a second and a millisecond for each space. Its first write reads all sizes.

        The number of `spaces` is not exact: writers that make new spaces at the same time may exceed it. It
        costs a listing of the tenant's spaces before the first write to a new one, and nothing after that.

        Args:
            quota: The quota. None removes it.

        Raises:
            InvalidError: The handle has no tenant.
            NotAllowedError: The tenant is being erased or imported.
        """
        finish(self._inner.set_quota(quota))

    def quota(self) -> Quota | None:
        """Return the quota of the tenant; None without one."""
        return finish(self._inner.quota())

    def erase(self, *, confirm: str) -> _erasure.Erased:
        """Erase the tenant: drop all its spaces, with everything in them and their logs.

        Writers of the tenant, in any process, are rejected until it is complete. So is a write that began
        before: it raises `NotAllowedError`. If the call is interrupted, writers stay rejected, and the next
        call continues. After that the tenant is a new one. Embedded stores rewrite their files, so that no
        erased bytes remain there, while other writers wait.

        Args:
            confirm: The tenant's id once more, because nothing brings the data back.

        Raises:
            InvalidError: The handle has no tenant, or `confirm` is not its id.
        """
        return finish(self._inner.erase(confirm=confirm))

    def erase_owner(self, owner: str) -> _erasure.Erased:
        """Erase the subjects of one owner: sessions and memories of this user, and the state of the user.

        A space of their own is dropped. From a shared space they are expunged, which ends its log; see
        `Space.expunge`. Sessions that have ended or expired are among them. Of a session that several users
        owned one after another, only the parts of this owner go. Tasks, documents, events and approvals
        that your own code has named after a person are not among them: expunge them by their prefix.

        Writers are not rejected: what they write for the owner during the call may remain. An interrupted
        call is completed by the next one. A handle without a tenant covers spaces of no tenant.

        Cost: a few reads of each space of the tenant.

        Args:
            owner: The owner, as `find` shows it.

        Returns:
            The counts of what this call and the interrupted ones before it removed, the archives of its
            histories, and what was not reached, such as a session whose owner cannot be read.
        """
        return finish(self._inner.erase_owner(owner))

    def export(self, path: str | PathLike[str], *, owner: str | None = None) -> _export.Exported:
        """Write all spaces of the tenant, or what is of one owner, into a new file of JSON lines.

        Only the user of this process may read the file. Each space is of one revision, with its history and
        its events, without its log and its leases. Spaces may be of different moments.

        With `owner`, the file has what `erase_owner` erases: the spaces of this owner whole, and from shared
        spaces what has a name under the owner's sessions, memories and state, with the moments of their
        histories at which such a document changed. Moments are not imported. A handle without a tenant covers
        spaces of no tenant. Cost: a few reads of each space, and all of each space with something of the
        owner.

        Args:
            path: The file, which must not exist.
            owner: The owner, as `find` shows it. Default: the whole tenant.

        Returns:
            The counts, and with `owner` what is not in the file, in words.

        Raises:
            AlreadyExistsError: The file exists.
            ConflictError: Writers changed a space all the time while it was read. Nothing was written.
            InvalidError: The handle has no tenant, and no owner is given.
            UnsupportedError: The store is encrypted.
        """
        return finish(self._inner.export(path, owner=owner))

    def import_(self, path: str | PathLike[str]) -> _export.Imported:
        """Import a file that `export` wrote into this tenant, which must have no data.

        Versions, fencing tokens and positions of events stay the same. Writers of the tenant, in any process,
        are rejected until it is complete. If the call is interrupted, the next one with the same file goes
        on.

        Args:
            path: The file. A link is not followed.

        Raises:
            AlreadyExistsError: The tenant has data, or had one of these spaces and dropped it: its revisions
                cannot be used twice.
            CorruptError: The file is truncated, or was changed. Nothing was written.
            InvalidError: It is not an export, or the handle has no tenant.
            NotFoundError: The file does not exist.
        """
        return finish(self._inner.import_(path))

    def sweep(self) -> int:
        """Remove expired entries and unreferenced parts of large values, and return the number removed.

        A tenant's handle sweeps the tenant's spaces, any other handle the spaces of all tenants. An encrypted
        store that was opened without keys loses expired entries only.
        """
        return finish(self._inner.sweep())

    def rotate(self) -> int:
        """Encrypt values of older keys again under the newest key, and return the number of values.

        Other processes may read and write during the rotation. It can be interrupted at any time: the next
        call continues. Versions stay the same, and watches report no change. A tenant's handle rotates the
        tenant's spaces only; remove an older key after a handle without a tenant has rotated the whole store.

        Raises:
            UnsupportedError: The store is not encrypted.
        """
        return finish(self._inner.rotate())
