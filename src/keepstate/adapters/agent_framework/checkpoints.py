"""`KeepstateCheckpointStorage`: checkpoints of workflows as commits, in a space for each context.

Each checkpoint is a commit after that of its previous checkpoint, so it costs what has changed. Next to it:

    checkpoint/ID                  {id, workflow, order, branch, commit}
    of/WORKFLOW/ORDER/ID           the id, so that a listing is in order of time

A tag keeps the commit of each checkpoint, and a branch is at the last commit of each chain. `ORDER` is the
timestamp in microseconds, and then the place in the chain.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, Final, Self, TypedDict, Unpack, cast

from keepstate.adapters.base import StoreAdapter, StoreLike, StoreOptions, outlast_cancellation
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.space.joint_work import run_in_transaction
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import ConflictError, InvalidError, MissingExtraError, NotFoundError
from keepstate.names import DEFAULT_URL, segment

try:
    from agent_framework import WorkflowCheckpoint
    from agent_framework._workflows._checkpoint_encoding import (
        decode_checkpoint_value,
        encode_checkpoint_value,
    )
    from agent_framework.exceptions import WorkflowCheckpointException
except ImportError as error:
    raise MissingExtraError.of("agent-framework", "agent-framework-core") from error

_CHECKPOINT: Final = "checkpoint/"
_OF: Final = "of/"
_CHAIN: Final = "chain/"
_BEGIN: Final = datetime(1, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PAGE: Final = 200
"""Number of checkpoints that one batch deletes."""


class _Record(TypedDict):
    """The record of a checkpoint, besides its commit.

    Attributes:
        id: Its id.
        workflow: The name of its workflow.
        order: Its time and its place in its chain, as text that sorts.
        branch: The branch on which it was committed.
        commit: The id of its commit.
    """

    id: str
    workflow: str
    order: str
    branch: str
    commit: str


class KeepstateCheckpointStorage(StoreAdapter):
    """A checkpoint storage of the Agent Framework on a keepstate store. Give it to a `WorkflowBuilder`.

    A call is one batch. Runs in any number of processes may use one storage at the same time.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        context_id: The run, conversation or user whose checkpoints these are: any text. `get_latest` looks
            only at the checkpoints of one context, so give each its own.
        owner: The person whose checkpoints these are, if any. `erase(owner)` removes all of an owner.
        allowed_checkpoint_types: Classes of yours that a checkpoint may contain, each as `module:qualname`,
            as for `FileCheckpointStorage`. Pickles of other classes are never loaded.

    Attributes:
        context_id: The context.
        options: `tenant`, `author` and `encryption`; see `StoreOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "workflow-checkpoints"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        context_id: str = "main",
        owner: str | None = None,
        allowed_checkpoint_types: Iterable[str] = (),
        **options: Unpack[StoreOptions],
    ) -> None:
        super().__init__(store, **options)
        self._allowed = _check_types(allowed_checkpoint_types)
        self._begin(context_id, owner)

    def _begin(self, context_id: str, owner: str | None) -> None:
        self.context_id, self._owner = check_text("context_id", context_id), owner
        self._space = self.space(context_id, owner=owner)

    @property
    def name(self) -> str:
        """The name of the space of the context, for `ks.space(name)` and the command line."""
        return self._space.name

    def other(self, context_id: str, *, owner: str | None = None) -> Self:
        """Return the storage of another context, with the same store and types, without a call to it.

        It uses the handles of this storage, so a server can make one for each request. To close it closes no
        handle.

        Args:
            context_id: The context.
            owner: The person whose checkpoints they are. By default the owner of this storage.
        """
        storage = self._copy()
        storage._begin(context_id, self._owner if owner is None else owner)
        return storage

    def conflict(self, error: ConflictError) -> Exception:
        """Return the framework's error for a conflict."""
        return WorkflowCheckpointException(str(error))

    # ---- the framework's methods

    async def save(self, checkpoint: WorkflowCheckpoint) -> str:
        """Store a copy of a checkpoint, and return its id. The same checkpoint is stored once.

        A cancelled caller waits until it is stored or rejected.

        Raises:
            WorkflowCheckpointException: A value cannot be stored, or the timestamp is not of ISO 8601.
        """
        id, state = checkpoint.checkpoint_id, _encode(checkpoint)
        time = _microseconds(checkpoint.timestamp, id)
        previous = checkpoint.previous_checkpoint_id

        async def save(tx: Transaction) -> None:
            former, base = await self._former(tx, id, previous)
            if former is not None and dict(await tx.history.checkout(former["commit"])) == state:
                return
            depth = 0 if base is None else int(base["order"].partition(".")[2]) + (base is not former)
            commit, branch = await self._commit(tx, checkpoint, state, base, is_again=former is not None)
            if former is not None:
                await tx.documents.delete(_listed(former))
                await tx.history.delete_tag(_name(id))
            await tx.history.tag(_name(id), commit)
            record = _Record(
                id=id,
                workflow=checkpoint.workflow_name,
                order=f"{time:020}.{depth:08}",
                branch=branch,
                commit=commit,
            )
            await tx.documents.put(_name(id), record)
            await tx.documents.put(_listed(record), id)

        try:
            await self._space.transact(save)
        except InvalidError as error:
            raise WorkflowCheckpointException(f"checkpoint {id!r} cannot be stored: {error}") from error
        return id

    async def load(self, checkpoint_id: str) -> WorkflowCheckpoint:
        """Return a copy of the checkpoint with an id.

        Raises:
            WorkflowCheckpointException: There is none, or it contains a type that is not allowed.
        """

        async def read(tx: Transaction) -> dict[str, Any] | None:
            record = await _record(tx, checkpoint_id)
            return None if record is None else dict(await tx.history.checkout(record["commit"]))

        state = await self._space.call(lambda space: run_in_transaction(space, read))
        if state is None:
            raise WorkflowCheckpointException(f"No checkpoint found with ID {checkpoint_id}")
        return self._decode(state)

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        """Return copies of all checkpoints of a workflow, in order of time.

        Raises:
            WorkflowCheckpointException: One contains a type that is not allowed.
        """

        async def read(tx: Transaction) -> list[dict[str, Any]]:
            records = [await _record(tx, id) for id in await _ids(tx, workflow_name)]
            return [dict(await tx.history.checkout(one["commit"])) for one in records if one is not None]

        states = await self._space.call(lambda space: run_in_transaction(space, read))
        return [self._decode(state) for state in states]

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        """Return the ids of all checkpoints of a workflow, in order of time."""
        return await self._space.call(lambda space: _ids(space, workflow_name))

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        """Return a copy of the latest checkpoint of a workflow; None if there is none.

        Raises:
            WorkflowCheckpointException: It contains a type that is not allowed.
        """

        async def read(tx: Transaction) -> dict[str, Any] | None:
            for id in await _ids(tx, workflow_name, last=1):
                if (record := await _record(tx, id)) is not None:
                    return dict(await tx.history.checkout(record["commit"]))
            return None

        state = await self._space.call(lambda space: run_in_transaction(space, read))
        return None if state is None else self._decode(state)

    async def delete(self, checkpoint_id: str) -> bool:
        """Delete the checkpoint with an id, and return whether it existed. `prune` frees its room."""

        async def delete(tx: Transaction) -> bool:
            record = await _record(tx, checkpoint_id)
            if record is not None:
                await _forget(tx, record)
            return record is not None

        return (await self._space.transact(delete)).value

    # ---- more

    async def prune(self, *, workflow_name: str, keep_last: int) -> int:
        """Delete old checkpoints of a workflow, and return their number; free the room of deleted ones.

        Args:
            workflow_name: The workflow.
            keep_last: The number of checkpoints to keep, the latest ones; 0 keeps none.
        """
        if type(keep_last) is not int or keep_last < 0:
            raise InvalidError(f"`keep_last` is {keep_last!r}; give a number of checkpoints, from 0")

        async def work(space: Space) -> int:
            ids = await _ids(space, workflow_name)
            old = ids[: len(ids) - keep_last]
            for begin in range(0, len(old), _PAGE):
                page = old[begin : begin + _PAGE]

                async def forget(tx: Transaction, page: list[str] = page) -> None:
                    for id in page:
                        if (record := await _record(tx, id)) is not None:
                            await _forget(tx, record)

                await run_in_transaction(space, forget, turn="adapter")
            await space.history.prune(keep_last=1)
            return len(old)

        return await outlast_cancellation(self._space.call(work))

    # ---- how

    async def _former(
        self, tx: Transaction, id: str, previous: str | None
    ) -> tuple[_Record | None, _Record | None]:
        """Return the record of a checkpoint, and that of the commit that its next commit follows."""
        names = [_name(id)] if previous is None else [_name(id), _name(previous)]
        found = await tx.documents.entries(*names)
        records = [cast("_Record | None", found[name].value if name in found else None) for name in names]
        return records[0], records[0] or (None if previous is None else records[1])

    async def _commit(
        self,
        tx: Transaction,
        checkpoint: WorkflowCheckpoint,
        state: dict[str, Any],
        base: _Record | None,
        *,
        is_again: bool,
    ) -> tuple[str, str]:
        """Commit a state, and return the ids of its commit and its branch."""
        message = f"{checkpoint.workflow_name[:200]}, iteration {checkpoint.iteration_count}"
        branch = _CHAIN + segment(checkpoint.checkpoint_id)
        if base is None:
            commit = await tx.history.commit(state, branch=branch, message=message, expected_head="")
            return commit.id, branch
        if await _head(tx, base["branch"]) == base["commit"]:
            branch = base["branch"]
        else:
            if is_again:  # the branch with the name of this checkpoint may exist
                branch += "/" + base["commit"]
            await tx.history.branch(branch, base["commit"])
        commit = await tx.history.commit(state, branch=branch, message=message, expected_head=base["commit"])
        return commit.id, branch

    def _decode(self, state: dict[str, Any]) -> WorkflowCheckpoint:
        return WorkflowCheckpoint.from_dict(decode_checkpoint_value(state, allowed_types=self._allowed))


def _check_types(types: Iterable[str]) -> frozenset[str]:
    names: list[object] = [types] if isinstance(types, str) else [*types]
    for name in names:
        if not isinstance(name, str) or [bool(part) for part in name.split(":")] != [True, True]:
            raise InvalidError(
                f"`allowed_checkpoint_types` has {name!r}; give each class as 'module:qualname', such as "
                "'my_app.models:Order'"
            )
    return frozenset(cast("list[str]", names))


def _encode(checkpoint: WorkflowCheckpoint) -> dict[str, Any]:
    """Return a checkpoint as plain values, in the framework's own form."""
    try:
        return cast("dict[str, Any]", encode_checkpoint_value(checkpoint.to_dict()))
    except Exception as error:  # anything that pickling an object of the caller raises
        raise WorkflowCheckpointException(
            f"checkpoint {checkpoint.checkpoint_id!r} cannot be stored: {error}"
        ) from error


def _microseconds(timestamp: str, id: str) -> int:
    """Return a time as a number that is never negative. A time without a zone is taken as UTC."""
    try:
        time = datetime.fromisoformat(timestamp)
        return ((time if time.tzinfo else time.replace(tzinfo=UTC)) - _BEGIN) // _MICROSECOND
    except (TypeError, ValueError) as error:
        raise WorkflowCheckpointException(
            f"checkpoint {id!r} has the timestamp {timestamp!r}; it must be of ISO 8601"
        ) from error


def _name(id: str) -> str:
    """Return the name of a checkpoint's document, which is also that of its tag."""
    return _CHECKPOINT + segment(check_text("checkpoint_id", id))


def _listed(record: _Record) -> str:
    return f"{_OF}{segment(record['workflow'])}/{record['order']}/{segment(record['id'])}"


async def _record(tx: Transaction, id: str) -> _Record | None:
    return cast("_Record | None", await tx.documents.get(_name(id)))


async def _ids(target: Space | Transaction, workflow: str, *, last: int | None = None) -> list[str]:
    """Return the ids of the checkpoints of a workflow in order of time, or the last ones."""
    prefix = f"{_OF}{segment(check_text('workflow_name', workflow))}/"
    found = target.documents.items(prefix=prefix, reverse=last is not None, limit=last)
    return [id async for _, id in found]


async def _head(tx: Transaction, branch: str) -> str | None:
    """Return the id of a branch's last commit, or None if there is no such branch."""
    try:
        return (await tx.history.checkout(branch, load=False)).commit.id
    except NotFoundError:
        return None


async def _forget(tx: Transaction, record: _Record) -> None:
    """Delete what leads to a checkpoint. Other checkpoints of its chain keep their tags."""
    await tx.documents.delete(_name(record["id"]))
    await tx.documents.delete(_listed(record))
    await tx.history.delete_tag(_name(record["id"]))
    if await _head(tx, record["branch"]) == record["commit"]:
        await tx.history.delete_branch(record["branch"])
