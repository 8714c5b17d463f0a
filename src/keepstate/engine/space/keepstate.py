"""The handle on a store: spaces by name, and operations on all of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, overload

from keepstate import names
from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._deferral import defer_imports
from keepstate._finish import finish
from keepstate._runner import Mode, Runner
from keepstate.engine.history.recording.recorder import Recorder
from keepstate.engine.kernel.arguments import (
    check_author,
    check_choice,
    check_flag,
    check_meta_function,
    check_path,
    check_space_name,
    check_tenant,
    check_text,
    parse_space_cursor,
    reject_with,
    require_instance,
)
from keepstate.engine.kernel.grants import checks_for, read_record, set_quota
from keepstate.engine.kernel.large_values import collect_parts
from keepstate.engine.kernel.observation import Observation, Observer, Operation, check_observer, observe
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.quotas import Quota
from keepstate.engine.kernel.stored import to_datetime
from keepstate.engine.kernel.subjects import Subject
from keepstate.engine.space.space import Space, SpaceSize
from keepstate.errors import InvalidError, NotAllowedError, UnsupportedError
from keepstate.names import ALL, OWN, TenantScope
from keepstate.stores.protocol import ENCRYPTION_SPACE, LacksKeys, ReplacesKeys, ReportsLastChange, Store
from keepstate.values import codec, limits
from keepstate.values.codec import FORMS, STATES, Codec

if TYPE_CHECKING:
    from keepstate.engine.history import objects as _objects
    from keepstate.engine.index import index as _index
    from keepstate.engine.index import rows as _rows
    from keepstate.engine.space import erasure as _erasure
    from keepstate.engine.space import export as _export
    from keepstate.engine.space import owner_erasure as _owner_erasure
    from keepstate.engine.space import owner_export as _owner_export
    from keepstate.engine.space import queues as _queues
    from keepstate.engine.usage import ledger as _usage
    from keepstate.values import pickles as _pickles
else:
    defer_imports(
        globals(),
        _erasure="keepstate.engine.space.erasure",
        _owner_erasure="keepstate.engine.space.owner_erasure",
        _owner_export="keepstate.engine.space.owner_export",
        _usage="keepstate.engine.usage.ledger",
        _export="keepstate.engine.space.export",
        _index="keepstate.engine.index.index",
        _objects="keepstate.engine.history.objects",
        _pickles="keepstate.values.pickles",
        _queues="keepstate.engine.space.queues",
        _rows="keepstate.engine.index.rows",
    )

_INNER_CALLS = frozenset(
    {"close", "opened", "expire", "stored_names", "everywhere", "space_names", "tenant_ids"}
)
"""The calls of a handle that its spaces and managers make."""
_RECORDERS = 1_024
"""The number of spaces for which a handle caches whether they are recorded, and their newest commit."""


@dataclass(frozen=True, slots=True)
class SpaceInfo:
    """A space in a listing.

    Attributes:
        name: The name of the space, without its tenant.
        changed_at: The time of its last revision, by the store's clock. None if the store does not know it.
        tenant: The tenant that the space belongs to, or None.
    """

    name: str
    changed_at: datetime | None
    tenant: str | None = None


@dataclass(frozen=True, slots=True)
class TenantInfo:
    """A tenant in a listing.

    Attributes:
        id: The id of the tenant, for `Keepstate.tenant`.
    """

    id: str


class Source(Protocol):
    """Opens and releases the store of a handle."""

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        ...

    @property
    def runner(self) -> Runner:
        """The runner of the handle's mode."""
        ...

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        ...

    def now(self) -> Store | None:
        """Return the store if it is open."""
        ...

    async def close(self) -> None:
        """Release the store. The last holder closes it."""
        ...

    def twin(self, mode: Mode) -> Source:
        """Return the same store for the other mode."""
        ...

    def pickled(self) -> tuple[Any, ...]:
        """Return a function and its arguments that rebuild this source."""
        ...


class Keepstate:
    """Spaces in one store. Made by `keepstate.open`.

    An asynchronous context manager, and awaitable: both open the store. Otherwise the first operation opens
    it. For blocking code, `keepstate.sync.open` returns the same without `await`.

    Attributes:
        tenant_id: The tenant whose spaces the handle names, or None.
        author: The author of writes by the handle, or None.
        observer: The observer of its operations, or None.
    """

    tenant_id: str | None
    meta: Callable[[], Mapping[str, str]] | None
    observer: Observer | None

    def __init__(
        self,
        source: Source,
        *,
        tenant: str | None = None,
        author: str | None = None,
        meta: Callable[[], Mapping[str, str]] | None = None,
        read: Callable[[bytes], Any] | None = None,
        pickle: _pickles.SignedPickle | None = None,
        observe: Observer | None = None,
    ) -> None:
        self.tenant_id = check_tenant("tenant", tenant)
        self.author = check_author(author)
        self.meta = check_meta_function(meta)
        self._source, self._read, self._pickle = source, read, pickle
        self.decode = codec.decode if read is None else partial(_decode_by, read)
        """Decodes a stored value in the form that the handle reads, or as `type` if one is given."""
        self._recorders: dict[str, Recorder] = {}
        self._cache: _objects.ObjectCache | None = None
        self._lender: Keepstate | None = None
        self._indexes: _index.Index | None = None
        self._blocking: dict[str, Keepstate] = {}
        self.observer = observe
        self.observation = None if observe is None else _observe(self, observe)

    def __repr__(self) -> str:
        state = "open" if self._source.now() is not None else "not open"
        of = "" if self.tenant_id is None else f" of tenant {self.tenant_id!r}"
        return f"<Keepstate {self._source.url}{of} {state}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self._source.pickled(), self._options())

    def _options(self) -> dict[str, Any]:
        return {
            "tenant": self.tenant_id,
            "author": self.author,
            "meta": self.meta,
            "read": self._read,
            "pickle": self._pickle,
            "observe": self.observer,
        }

    # ---- opening and closing

    def __await__(self) -> Generator[Any, None, Self]:
        return self._ready().__await__()

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> Self:
        return await self._ready()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ready(self) -> Self:
        await self._source.opened()
        return self

    async def close(self) -> None:
        """Release the store. A second call does nothing. A store that was passed in open stays open."""
        if self._lender is not None:
            return
        try:
            for inner in self._blocking.values():
                await self.runner.call(finish, inner.close())
            if self._indexes is not None:
                await self._indexes.close()
        finally:
            self.runner.close()
            await self._source.close()

    @property
    def url(self) -> str:
        """The URL of the store, without a password."""
        return self._source.url

    def in_mode(self, mode: Mode) -> Keepstate:
        """Return a handle on the same data for another mode. The caller closes it."""
        return Keepstate(self._source.twin(mode), **self._options())

    def for_blocking(self) -> Keepstate:
        """Return the handle on the same data for blocking calls, which is closed with this one.

        It opens a store of its own with its first operation. `keepstate.sync.of` wraps it for callers.
        """
        if self._lender is not None and self.tenant_id is not None:
            return self._lender.for_blocking().tenant(self.tenant_id)
        if "handle" not in self._blocking:  # if two threads create one, the first one counts
            self._blocking.setdefault("handle", self.in_mode("blocking"))
        return self._blocking["handle"]

    @property
    def store(self) -> Store:
        """The opened store.

        Raises:
            InvalidError: The store is not open yet.
        """
        store = self._source.now()
        if store is None:
            raise InvalidError(f"{self!r} has no open store; enter it first, or call an operation")
        return store

    # ---- spaces

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
        return Space(
            self,
            check_space_name("name", name, self.tenant_id),
            author=self.author if author is None else check_author(author),
            record=check_flag("record", record),
        )

    def tenant(self, id: str) -> Keepstate:
        """Return the handle of a tenant on the same store. Makes no call to the store.

        The tenant's handle reaches the tenant's spaces only. It is closed with this handle; closing it alone
        does nothing.

        Args:
            id: The tenant's id, any text that is not empty.

        Raises:
            InvalidError: This handle belongs to a tenant already, or the id is empty or too long.
        """
        if self.tenant_id is not None:
            raise InvalidError(
                f"{self!r} belongs to a tenant, and tenants cannot be nested; use a handle without `tenant`"
            )
        if not check_text("id", id):
            raise InvalidError("`id` is empty; name a tenant")
        options: dict[str, Any] = self._options() | {"tenant": id}
        handle = Keepstate(self._source, **options)
        handle._lender = self
        return handle

    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.OWN] = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[str]: ...
    @overload
    def spaces(
        self,
        under: str = "",
        *,
        tenant: Literal[TenantScope.ALL],
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[tuple[str | None, str]]: ...
    async def spaces(
        self,
        under: str = "",
        *,
        tenant: TenantScope = OWN,
        after: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[Any]:
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
        if limit is not None:
            limits.admit_count("limit", limit)
        count = 0
        async with aclosing(self.space_names(under, tenant, after)) as found:
            async for pair in found:
                yield pair[1] if tenant is OWN else pair
                count += 1
                if count == limit:
                    return

    async def list_spaces(
        self,
        under: str = "",
        *,
        tenant: TenantScope = OWN,
        after: str | None = None,
        limit: int = 100,
    ) -> Page[SpaceInfo]:
        """Return one page of the spaces that are not empty, each with the time of its last change.

        Args:
            under, tenant, after: As for `spaces`. `after=page.next` continues after a page.
            limit: The largest number of spaces in the page.

        Raises:
            NotAllowedError: The handle of a tenant lists `ALL`.
        """
        limits.admit_count("limit", limit)
        found: list[tuple[str | None, str]] = []
        async with aclosing(self.space_names(under, tenant, after)) as pairs:
            async for pair in pairs:
                found.append(pair)
                if len(found) > limit:
                    break
        shown, store = found[:limit], await self.opened()
        stored = [names.stored_name(*pair) for pair in shown]
        times: Sequence[int | None] = [None] * len(shown)
        if shown and isinstance(store, ReportsLastChange):
            times = await store.changed_ms(stored)
        has_more = len(found) > limit
        return Page(
            (
                SpaceInfo(name, None if at_ms is None else to_datetime(at_ms), of)
                for (of, name), at_ms in zip(shown, times, strict=True)
            ),
            next=None if not has_more else shown[-1][1] if tenant is OWN else stored[-1],
        )

    async def tenants(self, *, after: str | None = None, limit: int = 100) -> Page[TenantInfo]:
        """Return one page of the tenants that have data, in the order of their ids' UTF-8 bytes.

        Costs one call of the store for 256 spaces of small tenants, and at most one for each tenant.

        Args:
            after: Only ids above this one, which need not exist. `after=page.next` continues after a page.
            limit: The largest number of tenants in the page.

        Raises:
            NotAllowedError: The handle belongs to a tenant.
        """
        limits.admit_count("limit", limit)
        self._require_administrator("tenants() lists all tenants")
        found: list[TenantInfo] = []
        async with aclosing(self.tenant_ids(check_tenant("after", after))) as ids:
            async for id in ids:
                found.append(TenantInfo(id))
                if len(found) > limit:
                    break
        return Page(found[:limit], next=found[limit - 1].id if len(found) > limit else None)

    def _require_administrator(self, what: str) -> None:
        if self.tenant_id is not None:
            raise NotAllowedError(f"{what}, and {self!r} belongs to one; use a handle without `tenant`")

    async def space_names(
        self, under: str, tenant: TenantScope, after: str | None
    ) -> AsyncGenerator[tuple[str | None, str]]:
        """Yield the tenant and the name of each space."""
        check_text("under", under)
        check_choice("tenant", tenant, OWN, ALL)
        if after is not None:
            check_text("after", after)
        owner, behind, first = self.tenant_id, after, self
        if tenant is ALL:
            self._require_administrator("tenant=ALL lists the spaces of all tenants")
            owner, behind = parse_space_cursor(after)
            first = self if owner is None else self.tenant(owner)
        async with aclosing(first._names(under, behind)) as found:
            async for name in found:
                yield owner, name
        if tenant is OWN:
            return
        async with aclosing(self.tenant_ids(owner)) as ids:
            async for id in ids:
                async with aclosing(self.tenant(id)._names(under, None)) as found:
                    async for name in found:
                        yield id, name

    async def tenant_ids(self, after: str | None = None) -> AsyncGenerator[str]:
        """Yield the ids of tenants that have spaces, also spaces of keepstate's own."""
        store, last = await self.opened(), after
        place = names.TENANTS if after is None else names.behind(after)
        while page := await store.spaces(names.TENANTS, after=place):
            for stored in page:
                id, _ = names.parts_of(stored)
                assert id is not None
                if id != last:
                    yield id
                    last = id
            place = page[-1] if last is None else names.behind(last)

    async def _names(self, under: str, after: str | None) -> AsyncGenerator[str]:
        store, start = await self.opened(), under
        if start and not start.endswith("/"):
            name = self.stored_name(start)
            is_above = after is None or start.encode() > after.encode()
            if is_above and not names.is_reserved(name) and await store.spaces(name, limit=1) == [name]:
                yield start
            start += "/"
        prefix = names.stored_name(self.tenant_id, start)
        if len(prefix.encode()) > limits.SPACE_BYTES:
            return
        behind = None if after is None else names.stored_name(self.tenant_id, after)
        async with aclosing(self.stored_names(prefix, behind)) as found:
            async for stored in found:
                tenant, name = names.parts_of(stored)
                if tenant != self.tenant_id:
                    return  # spaces of tenants are sorted after those without one
                if not name.startswith(names.RESERVED):
                    yield name

    async def drop(self, space: str) -> bool:
        """Delete a space with its log. Return whether there was something to delete.

        Its subjects leave the listing of `find` in the same call. Until then a mark in the index says that
        the space is being dropped, so a crash leaves nothing that the next delivery does not repair.
        """
        return await self.index.drop(self.tenant_id, check_space_name("space", space, self.tenant_id))

    def queues(self, under: str = "", *, tenant: TenantScope = OWN) -> _queues.Queues:
        """Return the queues of all spaces under a name: one worker for them, counts, dead tasks, pauses.

        Makes no call to the store.

        Args:
            under: Only the space of this name and those that continue it after a `/`; see `spaces`.
            tenant: `OWN` covers the spaces of the handle's tenant; without one, those of no tenant. `ALL`
                covers the spaces of all tenants too.

        Raises:
            NotAllowedError: The handle of a tenant asks for `ALL`.
        """
        return _queues.Queues(self, under, tenant)

    # ---- subjects

    async def find(
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
        by = kind, state, owner, changed_since, under, order
        check_choice("tenant", tenant, OWN, ALL)
        if tenant is OWN:
            return await self.index.find(self.tenant_id, by, after, limit)
        self._require_administrator("tenant=ALL lists the subjects of all tenants")
        return await self.index.find_everywhere(self.tenant_ids, by, after, limit)

    async def watch(
        self,
        *,
        kind: str | None = None,
        state: str | None = None,
        owner: str | None = None,
        under: str = "",
        after: str | None = None,
        timeout_s: float | None = None,
    ) -> AsyncIterator[_rows.FoundChange]:
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
        by = kind, state, owner, None, under, "-changed"
        async with aclosing(self.index.watch(self.tenant_id, by, after, timeout_s)) as changes:
            async for change in changes:
                yield change

    async def deliver(self) -> int:
        """Deliver all outboxes to the index of `find` now, and return the number of subjects delivered.

        Also completes deliveries of killed processes. A handle of a tenant delivers for the tenant, any other
        handle for the spaces without a tenant. The first call makes the index, and reads each space. Later
        calls read the spaces that have changed since.
        """
        return await self.index.deliver(self.tenant_id)

    async def reindex(self) -> int:
        """Compare the index of `find` with all spaces, correct it, and return the number of its errors.

        Deliveries keep the index correct. Call this after events that they do not see: damaged bytes, or a
        space that was restored from another place. Writers, deliveries and listings continue during the call.
        If it is interrupted, call it again. A handle without a tenant covers spaces of no tenant.

        Cost: a few reads of each row and each space.

        Raises:
            ConflictError: Writers kept changing the same rows.
        """
        return await self.index.reindex(self.tenant_id)

    # ---- sizes, usage and quotas

    async def size(self) -> SpaceSize:
        """Return the total size of the handle's spaces, each at a revision of its own.

        Costs one call of the store for each space. A handle without a tenant covers spaces of no tenant.
        """
        store, entries, size_bytes = await self.opened(), 0, 0
        async with aclosing(self.space_names("", OWN, None)) as pairs:
            async for pair in pairs:
                parts = (await store.sizes(names.stored_name(*pair))).parts.values()
                entries += sum(part.entries for part in parts)
                size_bytes += sum(part.size_bytes for part in parts)
        return SpaceSize(entries, size_bytes)

    @property
    def usage(self) -> _usage.UsageLedger:
        """The usage of the tenant, in its space `usage`: what was spent `within` it, and its budgets."""
        return self.space(names.USAGE_SPACE).usage

    async def set_quota(self, quota: Quota | None) -> None:
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
        tenant = self._require_tenant("set_quota")
        if quota is not None:
            require_instance("quota", quota, Quota)
        await set_quota(await self.opened(), self.runner, names.beginning(tenant), quota)

    async def quota(self) -> Quota | None:
        """Return the quota of the tenant; None without one."""
        record, *_ = await read_record(await self.opened(), names.beginning(self._require_tenant("quota")))
        return None if record is None else record.quota

    # ---- erasure, export and import

    async def erase(self, *, confirm: str) -> _erasure.Erased:
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
        tenant = self._require_tenant("erase")
        _erasure.check_confirmation(tenant, confirm)
        return await _erasure.erase_tenant(await self.opened(), tenant)

    async def erase_owner(self, owner: str) -> _erasure.Erased:
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
        return await _owner_erasure.erase_owner(self, self.tenant_id, owner)

    async def export(self, path: str | PathLike[str], *, owner: str | None = None) -> _export.Exported:
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
        name = check_path("path", path)
        if owner is not None:
            return await _owner_export.export_owner(self, self.tenant_id, owner, name)
        return await _export.export_tenant(await self.opened(), self._require_tenant("export"), name)

    async def import_(self, path: str | PathLike[str]) -> _export.Imported:
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
        tenant, name = self._require_tenant("import_"), check_path("path", path)
        return await _export.import_tenant(await self.opened(), self.runner, tenant, name)

    def _require_tenant(self, call: str) -> str:
        if self.tenant_id is None:
            raise InvalidError(f"{self!r} has no tenant; call `ks.tenant(id).{call}`")
        return self.tenant_id

    # ---- expired entries and encryption keys

    async def sweep(self) -> int:
        """Remove expired entries and unreferenced parts of large values, and return the number removed.

        A tenant's handle sweeps the tenant's spaces, any other handle the spaces of all tenants. An encrypted
        store that was opened without keys loses expired entries only.
        """
        store = await self.opened()
        removed = 0
        while swept := await self.expire(1_000):
            removed += swept
        if isinstance(store, LacksKeys):
            return removed  # without keys, every part would look unreferenced
        async for stored in self.stored_names():
            try:
                removed += await collect_parts(store, stored, await checks_for(store, stored))
            except NotAllowedError:
                continue  # its tenant is being erased
        return removed

    async def rotate(self) -> int:
        """Encrypt values of older keys again under the newest key, and return the number of values.

        Other processes may read and write during the rotation. It can be interrupted at any time: the next
        call continues. Versions stay the same, and watches report no change. A tenant's handle rotates the
        tenant's spaces only; remove an older key after a handle without a tenant has rotated the whole store.

        Raises:
            UnsupportedError: The store is not encrypted.
        """
        store = await self.opened()
        if not isinstance(store, ReplacesKeys):
            raise UnsupportedError(f"{self.url} is not encrypted; open it with `encryption`")
        return await store.rotate(names.beginning(self.tenant_id))

    # ---- for spaces and managers

    @property
    def index(self) -> _index.Index:
        """The indexes of the store, which its handles share."""
        if self._lender is not None:
            return self._lender.index
        if self._indexes is None:
            self._indexes = _index.Index(self.opened, self.runner, self.clock)
        return self._indexes

    def note_subjects(
        self, space: str, subjects: AbstractSet[Subject], due_ms: Mapping[Subject, int]
    ) -> None:
        """Note that a batch has changed subjects of a space, which are then delivered in the background."""
        self.index.note(self.tenant_id, space, subjects, due_ms)

    def stored_name(self, space: str) -> str:
        """Return the stored name of one of its spaces."""
        return names.stored_name(self.tenant_id, space)

    async def stored_names(self, prefix: str = "", after: str | None = None) -> AsyncGenerator[str]:
        """Yield the stored names of its tenant's spaces, or of all spaces without a tenant."""
        start = prefix or names.beginning(self.tenant_id)
        store = await self.opened()
        while page := await store.spaces(start, after=after):
            for name in page:
                if name != ENCRYPTION_SPACE:
                    yield name
            after = page[-1]

    async def expire(self, limit: int) -> int:
        """Remove at most `limit` expired entries, and return the number removed."""
        return await (await self.opened()).sweep(names.beginning(self.tenant_id), limit=limit)

    async def everywhere(self) -> AsyncIterator[tuple[str | None, Space]]:
        """Yield all spaces that are not empty, each with its tenant; a tenant's handle yields its own."""
        async for stored in self.stored_names():
            tenant, name = names.parts_of(stored)
            if names.is_reserved(stored):
                continue
            handle = self if tenant in (None, self.tenant_id) else self.tenant(tenant)
            yield tenant, handle.space(name)

    def begin_operation(self, name: str, of: object) -> tuple[Observation, Operation]:
        """Begin an operation of an observed handle."""
        assert self.observation is not None
        return self.observation, self.observation.begin(name, None, self.tenant_id, self.author, of=of)

    @property
    def runner(self) -> Runner:
        """The runner of the handle's mode."""
        return self._source.runner

    @property
    def clock(self) -> Clock:
        """Time and randomness of this process."""
        return SYSTEM_CLOCK

    @property
    def pickle(self) -> _pickles.SignedPickle | None:
        """The pickler for objects of unregistered classes, if the caller gave one."""
        return self._pickle

    async def opened(self) -> Store:
        """Return the store, opened on the first call."""
        return self._source.now() or await self._source.opened()

    @property
    def states(self) -> Codec:
        """The codec of values in histories."""
        if self._pickle is not None:
            return self._pickle.states
        return STATES if self._read is None else FORMS

    def recorder(self, space: str) -> Recorder:
        """Return the recorder of a space, by its stored name."""
        if self._lender is not None:
            return self._lender.recorder(space)
        recorder = self._recorders.get(space)
        if recorder is None:
            if len(self._recorders) >= _RECORDERS:
                self._recorders = {}
            recorder = self._recorders.setdefault(space, Recorder(self._objects))
        return recorder

    def _objects(self) -> _objects.ObjectCache:
        """Return the cache of the objects of histories, for the recorders of all spaces."""
        if self._cache is None:  # if two threads create one, each keeps its own
            self._cache = _objects.ObjectCache()
        return self._cache


def _observe(ks: Keepstate, observer: Observer) -> Observation:
    """Make a handle report its operations to the observer."""
    check_observer(observer)
    observe(ks, "keepstate", _INNER_CALLS)
    return Observation(observer, ks.clock)


def _decode_by(read: Callable[[bytes], Any], encoded: bytes, type: Any = None) -> Any:
    return read(encoded) if type is None else codec.decode(encoded, type=type)


def _rebuild(source: tuple[Any, ...], options: dict[str, Any]) -> Keepstate:
    make, *args = source
    return Keepstate(make(*args), **options)
