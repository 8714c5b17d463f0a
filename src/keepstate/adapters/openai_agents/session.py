"""`KeepstateSession`: a session of the OpenAI Agents SDK in a space of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeAlias, TypeVar, Unpack

from keepstate.adapters.base import Adapter, AdapterOptions, StoreLike
from keepstate.adapters.items import ItemBatch, ItemDocuments, items_at
from keepstate.engine.history.revisions import Revision
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError, ClosedError, MissingExtraError
from keepstate.names import DEFAULT_URL

if TYPE_CHECKING:
    from agents.run_context import RunContextWrapper


try:
    from agents.items import TResponseInputItem
    from agents.memory import SessionSettings
    from agents.memory import session as sdk
    from agents.memory.session_settings import coerce_session_settings, resolve_session_limit
except ImportError as error:
    raise MissingExtraError.of("openai-agents", "openai-agents") from error

T = TypeVar("T")

Items: TypeAlias = list[TResponseInputItem]

_SNAPSHOT: Final[Any] = getattr(sdk, "_CompactionSnapshot", None)
"""A class that is private to the SDK. Without it, the SDK replaces all items by `_atomic_replace_items`."""


class SessionClosedError(ClosedError, RuntimeError):
    """The session was closed. The SDK's own sessions raise `RuntimeError`."""


class KeepstateSession(Adapter):
    """A session of the OpenAI Agents SDK: the items of one conversation.

    Processes, threads and event loops may use one session at the same time. Each call is one batch: all of
    its items are added, or none. Reading the last items costs as much as they have, not as the whole session.

    Args:
        session_id: The id of the session: any text.
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        session_settings: The settings of the session, such as `SessionSettings(limit=50)`.
        owner: The person whose session it is, if any. `erase(owner)` removes all sessions of an owner. The
            same id of another owner is another session.

    Attributes:
        session_id: The id.
        session_settings: The settings.
        options: `tenant`, `author`, `encryption`, `record` and `ttl_s`; see `AdapterOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "openai"
    session_id: str
    session_settings: SessionSettings | None = None

    def __init__(
        self,
        session_id: str,
        store: StoreLike = DEFAULT_URL,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        owner: str | None = None,
        **options: Unpack[AdapterOptions],
    ) -> None:
        super().__init__(store, **options)
        self.session_settings = (
            SessionSettings() if session_settings is None else coerce_session_settings(session_settings)
        )
        self._owner, self._is_closed = owner, False
        self._begin(session_id)

    def _begin(self, session_id: str) -> None:
        self.session_id = check_text("session_id", session_id)
        self._space = self.space(session_id, owner=self._owner)

    @property
    def name(self) -> str:
        """The name of the space of the session, for `ks.space(name)` and the command line."""
        return self._space.name

    def other(self, session_id: str) -> Self:
        """Return the session of another id, with the same store, owner and settings, without a call to it.

        It uses the handles of this session, so a server can make one for each request. To close it closes no
        handle.
        """
        session = self._copy()
        session._begin(session_id)
        return session

    # ---- the protocol

    async def get_items(
        self,
        limit: int | None = None,
        *,
        at: Revision | None = None,
        wrapper: RunContextWrapper[Any] | None = None,
    ) -> Items:
        """Return the items in order.

        Args:
            limit: The number of items to return: the latest ones. 0 returns none, a negative number all. By
                default the limit of the session's settings, or all.
            at: A moment of a session with `record=True`: the id of a commit, `main~3`, or a time. By default
                now.
            wrapper: The context that the SDK passes to sessions; not used.

        Raises:
            NotFoundError: There is no such moment, or nothing was recorded.
        """
        self._check_open()
        wanted = resolve_session_limit(limit, self.session_settings)
        last = None if wanted is None or wanted < 0 else wanted
        if last == 0:
            return []
        if at is not None:
            items = await self._space.call(lambda space: items_at(space, at))
            return items if last is None else items[-last:]

        return await self._read(last)

    async def add_items(self, items: Items, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Add items, all of them or none. A cancelled caller waits until they are stored or rejected.

        Args:
            items: The items, any number of them.
            wrapper: The context that the SDK passes to sessions; not used.

        Raises:
            TypeError: An item has a value that JSON does not have. Nothing was added.
            SessionClosedError: The session is closed; also without items.
        """
        self._check_open()
        if not items:
            return
        plain = ItemBatch(items)

        await self._write(lambda documents: documents.add(plain, packs=self.shortens_logs), "add items")

    async def pop_item(self, *, wrapper: RunContextWrapper[Any] | None = None) -> TResponseInputItem | None:
        """Remove and return the last item; None if there is none.

        Args:
            wrapper: The context that the SDK passes to sessions; not used.
        """
        self._check_open()

        async def pop(tx: Transaction) -> TResponseInputItem | None:
            prefix = await self.life(tx).to_read()
            return None if prefix is None else await ItemDocuments(tx, prefix).pop()

        return (await self._space.transact(pop, message="pop an item")).value

    async def clear_session(self, *, wrapper: RunContextWrapper[Any] | None = None) -> None:
        """Remove all items, however many: the session is empty at once, and its documents are then deleted.

        Args:
            wrapper: The context that the SDK passes to sessions; not used.
        """
        self._check_open()
        await self._space.clear()

    # ---- replacing, for the SDK's compaction

    async def _atomic_replace_items(self, items: Items) -> bool:
        """Replace all items in one batch. Return False for a subclass, for which the SDK clears and adds."""
        if type(self) is not KeepstateSession:
            return False
        self._check_open()
        plain = ItemBatch(items)

        async def replace(tx: Transaction) -> None:
            await self._replace(tx, plain)

        await self._space.transact(replace, message="replace items")
        await self._sweep_ended()
        return True

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[TResponseInputItem], bool] | None = None
    ) -> Any:
        """Return the last items, and the function that replaces them if they are still the last ones.

        None for a subclass, which may transform items in methods that are not called here.
        """
        if _SNAPSHOT is None or type(self) is not KeepstateSession:
            return None
        self._check_open()
        read = await self._read(limit + 1)
        items = read[-limit:] if limit > 0 else []

        async def replace_suffix(start: int, output: Items) -> bool:
            expected, added = items[start:], ItemBatch(output)
            if not expected:
                return False

            async def replace(tx: Transaction) -> bool:
                prefix = await self.life(tx).to_read()
                now = [] if prefix is None else await ItemDocuments(tx, prefix).read()
                if now[-len(expected) :] != expected:
                    return False
                kept = now[: -len(expected)]
                while prune_prefix is not None and kept and prune_prefix(kept[0]):
                    del kept[0]
                await self._replace(tx, ItemBatch([*kept, *added]))
                return True

            is_done = (await self._space.transact(replace, message="replace items")).value
            if is_done:
                await self._sweep_ended()
            return is_done

        return _SNAPSHOT(items, len(read) <= limit, replace_suffix)

    async def _replace(self, tx: Transaction, items: ItemBatch) -> None:
        """Begin a generation with these items."""
        life = self.life(tx)
        await life.end()
        await ItemDocuments(tx, await life.to_write(tx)).add(items)

    # ---- moments and copies

    async def fork(self, session_id: str, *, at: Revision | None = None) -> Self:
        """Copy the items into a session that is new or empty, and return that session; see `other`.

        Args:
            session_id: The id of the copy.
            at: The moment to copy, of a session with `record=True`; see `get_items`. By default now.

        Raises:
            AlreadyExistsError: The other session has items. Nothing was copied.
            NotFoundError: There is no such moment, or nothing was recorded.
        """
        plain = ItemBatch(await self.get_items(-1, at=at))
        copied = self.other(session_id)

        async def add(documents: ItemDocuments) -> None:
            if (await documents.head()).next:
                raise AlreadyExistsError(f"session {session_id!r} has items; clear it, or choose another id")
            await documents.add(plain)

        await copied._write(add, f"fork {self.session_id}")
        return copied

    # ---- how

    async def _read(self, last: int | None) -> Items:
        async def read(tx: Transaction) -> Items:
            prefix = await self.life(tx).to_read()
            return [] if prefix is None else await ItemDocuments(tx, prefix).read(last)

        return await self._space.call(lambda space: run_in_transaction(space, read))

    async def _write(self, work: Callable[[ItemDocuments], Awaitable[T]], message: str) -> T:
        async def write(tx: Transaction) -> T:
            return await work(ItemDocuments(tx, await self.life(tx).to_write(tx)))

        return (await self._space.transact(write, message=message)).value

    async def _sweep_ended(self) -> None:
        """Delete the documents of generations that have ended."""

        async def sweep(space: Space) -> None:
            await self.life(space).sweep()
            await self._space.shorten_log(space)

        await self._space.call(sweep)

    def _check_open(self) -> None:
        if self._is_closed:
            raise SessionClosedError(f"{type(self).__name__} is closed; create a new one")

    def close(self) -> None:
        """Close the session, and the store for blocking calls unless it was passed in. Twice is allowed."""
        self._is_closed = True
        super().close()

    async def aclose(self) -> None:
        """Close the session, and the store for this event loop and blocking calls. Twice is allowed."""
        self._is_closed = True
        await super().aclose()
