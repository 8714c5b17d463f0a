"""`KeepstateHistoryProvider`: the messages of sessions, in a space for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Unpack

from keepstate.adapters.base import Adapter, AdapterOptions, BoundSpace, StoreLike
from keepstate.adapters.items import ItemBatch, ItemDocuments, items_at
from keepstate.engine.history.revisions import Revision
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.names import DEFAULT_URL

try:
    from agent_framework import HistoryProvider, Message
    from agent_framework._sessions import filter_new_messages
except ImportError as error:
    raise MissingExtraError.of("agent-framework", "agent-framework-core") from error


class KeepstateHistoryProvider(Adapter, HistoryProvider):
    """A history provider of the Agent Framework on a keepstate store. Give it to an agent.

    The messages of one call are one batch. Like the framework's own providers, it does not store again what a
    call repeats from the end of the session.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        source_id: The name of the provider in an agent. Two providers of one agent on one store need
            different `tenant`s, not only different names.
        load_messages: Load messages before a run.
        store_inputs: Store the input of a run.
        store_context_messages: Store messages that other providers add.
        store_context_from: The names of those providers; None means all.
        store_outputs: Store the output of a run.
        skip_excluded: Do not load messages that a compaction has marked as excluded.
        owner: The person whose sessions these are, if any. A session's own owner comes first:
            `session.state["keepstate"] = {"owner": "ann"}`, with the `source_id` as the key.
        options: `tenant`, `author`, `encryption`, `record` and `ttl_s`; see `AdapterOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "agent-messages"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        source_id: str = "keepstate",
        load_messages: bool = True,
        store_inputs: bool = True,
        store_context_messages: bool = False,
        store_context_from: set[str] | None = None,
        store_outputs: bool = True,
        skip_excluded: bool = False,
        owner: str | None = None,
        **options: Unpack[AdapterOptions],
    ) -> None:
        Adapter.__init__(self, store, **options)
        HistoryProvider.__init__(
            self,
            source_id,
            load_messages=load_messages,
            store_inputs=store_inputs,
            store_context_messages=store_context_messages,
            store_context_from=store_context_from,
            store_outputs=store_outputs,
        )
        self.skip_excluded = skip_excluded
        self._owner = owner

    def space_of(self, session_id: str | None, state: Mapping[str, Any] | None = None) -> BoundSpace:
        """Return the space of a session; its `name` is for `ks.space(name)` and the command line.

        Args:
            session_id: The id of the session.
            state: The state of the provider in the session, which may have an owner.

        Raises:
            InvalidError: There is no id. Messages of different sessions would be mixed.
        """
        if session_id is None:
            raise InvalidError("this run has no session; pass session=agent.create_session() to run()")
        owner = None if state is None else state.get("owner")
        return self.space(session_id, owner=self._owner if owner is None else owner)

    # ---- the framework's methods

    async def get_messages(
        self,
        session_id: str | None,
        *,
        state: dict[str, Any] | None = None,
        at: Revision | None = None,
        **kwargs: Any,
    ) -> list[Message]:
        """Return the messages of a session in order.

        Args:
            session_id: The id of the session.
            state: The state of the provider in the session.
            at: A moment of a session with `record=True`: the id of a commit, `main~3`, or a time. By default
                now.
            kwargs: Not used.

        Raises:
            NotFoundError: There is no such moment, or nothing was recorded.
        """

        async def read(tx: Transaction) -> list[Any]:
            prefix = await self.life(tx).to_read()
            return [] if prefix is None else await ItemDocuments(tx, prefix).read()

        async def work(space: Space) -> list[Any]:
            return await (run_in_transaction(space, read) if at is None else items_at(space, at))

        messages = list(map(Message.from_dict, await self.space_of(session_id, state).call(work)))
        if self.skip_excluded:
            return [one for one in messages if not one.additional_properties.get("_excluded", False)]
        return messages

    async def save_messages(
        self,
        session_id: str | None,
        messages: Sequence[Message],
        *,
        state: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Add messages to a session, all of them or none, without those that repeat its end.

        A cancelled caller waits until they are stored or rejected.

        Args:
            session_id: The id of the session.
            messages: The messages, any number of them.
            state: The state of the provider in the session.
            kwargs: Not used.
        """
        if not messages:
            return
        space = self.space_of(session_id, state)
        given = ItemBatch([message.to_dict() for message in messages])

        async def add(tx: Transaction) -> None:
            documents = ItemDocuments(tx, await self.life(tx).to_write(tx))
            # One more than there may be to repeat: whether the session has more decides about the rest.
            last = list(map(Message.from_dict, await documents.read(len(given) + 1)))
            new = len(filter_new_messages(last, messages))
            if new:
                some = given if new == len(given) else ItemBatch(given[len(given) - new :])
                await documents.add(some, packs=self.shortens_logs)

        await space.transact(add, message="add messages")

    async def clear(self, session_id: str, *, state: dict[str, Any] | None = None) -> None:
        """Remove all messages of a session, however many: it is empty at once.

        Args:
            session_id: The id of the session.
            state: The state of the provider in the session.
        """
        await self.space_of(session_id, state).clear()
