"""`KeepstateStepStore`: runs, their events, snapshots and tool effects.

```
run/<run>                       {"record", "conversation", "parent", "started_us"}: a collection
state/<run>                     the numbers of a run; see `_RunState`
event/<run>/<number>            an event of a run
snapshot/<run>/<number>         {"fields", "digests"}: a snapshot, with the digests of its messages
message/<digest>                a message, once for all snapshots of all runs
applied/<run>/<kind>/<key>      the idempotency key of an event or snapshot
effect/<run>/<tool call>        the last record of a tool call
```
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from functools import partial
from hashlib import sha256
from typing import Any, ClassVar, Final, Unpack

import msgspec

from keepstate.adapters.base import OneSpaceAdapter, RecordingOptions, StoreLike, read_each
from keepstate.engine.documents.collection import Collection
from keepstate.engine.kernel.stored import to_microseconds
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError, MissingExtraError
from keepstate.names import DEFAULT_URL, segment
from keepstate.values import limits

try:
    from pydantic import TypeAdapter
    from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
    from pydantic_ai_harness.step_persistence import (
        ContinuableSnapshot,
        RunRecord,
        StepEvent,
        ToolEffectRecord,
    )
    from pydantic_core import PydanticSerializationError

    from keepstate.adapters.pydantic_values import PLAIN, dump, in_batches, unstorable
except ImportError as error:
    raise MissingExtraError.of("pydantic-ai-harness", "pydantic-ai-harness") from error

_RUNS: Final = TypeAdapter(list[RunRecord], config=PLAIN)
_EVENTS: Final = TypeAdapter(list[StepEvent], config=PLAIN)
_EFFECTS: Final = TypeAdapter(list[ToolEffectRecord], config=PLAIN)
_SNAPSHOTS: Final = TypeAdapter(list[ContinuableSnapshot], config=PLAIN)
_DIGEST_BYTES: Final = 16
_PRUNED_AT_ONCE: Final = 400


class _RunState(msgspec.Struct):
    """The numbers of a run.

    Attributes:
        events: The number of its events.
        snapshots: The number of its snapshots, pruned ones included.
        complete: The number of the latest complete snapshot; -1 if there is none.
        first: The lowest number that was not pruned, apart from `kept`.
        kept: An older complete snapshot that was not pruned, because no later one is complete; or -1.
    """

    events: int = 0
    snapshots: int = 0
    complete: int = -1
    first: int = 0
    kept: int = -1


class KeepstateStepStore(OneSpaceAdapter):
    """The `StepStore` of the harness on a keepstate store, for `StepPersistence` and `ConversationSearch`.

    Each message is stored once, however many snapshots and runs repeat it. Events and snapshots with an
    idempotency key are stored once. A run id is registered once; a second registration raises `InvalidError`,
    which is a ValueError.

    Args:
        store: A store URL, the path of an SQLite file, an open store, or a handle on one.
        name: The name of the runs, to keep those of several applications apart.
        owner: The person whose runs these are, if they belong to one. `erase` drops their space.
        max_snapshots_per_run: The number of snapshots to keep of a run: the latest ones, and the latest
            complete one. None keeps all. Messages of deleted snapshots stay.
        options: `tenant`, `author`, `encryption` and `record`; see `RecordingOptions`.

    Raises:
        InvalidError: An argument is wrong, or the URL names no store.
    """

    kind: ClassVar[str] = "pydantic-steps"

    def __init__(
        self,
        store: StoreLike = DEFAULT_URL,
        *,
        name: str = "main",
        owner: str | None = None,
        max_snapshots_per_run: int | None = None,
        **options: Unpack[RecordingOptions],
    ) -> None:
        if max_snapshots_per_run is not None:
            limits.admit_count("max_snapshots_per_run", max_snapshots_per_run)
        self._most = max_snapshots_per_run
        super().__init__(store, name=name, owner=owner, **options)

    # ---- runs

    async def register_run(self, record: RunRecord) -> None:
        """Store the record of a run.

        Raises:
            InvalidError: The run is registered. Also a ValueError.
        """
        started_at = record.started_at
        value = {
            "record": dump(_RUNS, [record], f"the record of run {record.run_id!r}")[0],
            "conversation": None if record.conversation_id is None else segment(record.conversation_id),
            "parent": None if record.parent_run_id is None else segment(record.parent_run_id),
            "started_us": to_microseconds(
                started_at if started_at.tzinfo else started_at.replace(tzinfo=UTC)
            ),
        }

        async def work(tx: Transaction) -> None:
            runs = _runs(tx)
            if await runs.get(segment(record.run_id)) is not None:
                raise InvalidError(f"run {record.run_id!r} is already in the store; give each run its own id")
            await runs.put(segment(record.run_id), value)

        await self._bound.transact(work, turn=record.run_id)

    async def get_run(self, *, run_id: str) -> RunRecord | None:
        """Return the record of a run, or None."""
        found = await self._bound.call(lambda space: _runs(space).get(segment(run_id)))
        return None if found is None else _RUNS.validate_python([found["record"]])[0]

    async def list_runs(
        self, *, parent_run_id: str | None = None, conversation_id: str | None = None
    ) -> list[RunRecord]:
        """Return the runs of a parent, of a conversation, or all, the first one started first."""
        index: tuple[str, ...] = ("started",)
        if conversation_id is not None:
            index = "conversation", segment(conversation_id)
        elif parent_run_id is not None:
            index = "parent", segment(parent_run_id)

        async def work(space: Space) -> list[dict[str, Any]]:
            return [*await _runs(space).by(*index, limit=limits.COUNT - 1)]

        runs = _RUNS.validate_python([found["record"] for found in await self._bound.call(work)])
        return [
            run
            for run in runs
            if conversation_id in (None, run.conversation_id) and parent_run_id in (None, run.parent_run_id)
        ]

    # ---- events

    async def append_event(self, event: StepEvent) -> None:
        """Append an event to its run, unless the run has one with its idempotency key."""
        value = dump(_EVENTS, [event], f"an event of run {event.run_id!r}")[0]
        run = segment(event.run_id)

        async def work(tx: Transaction) -> None:
            if await _is_applied(tx, run, "event", event.idempotency_key):
                return
            state = await _state(tx, run)
            await tx.documents.put(f"event/{run}/{state.events:010}", value)
            state.events += 1
            await _put_state(tx, run, state)

        await self._bound.transact(work, turn=event.run_id)

    async def list_events(self, *, run_id: str) -> list[StepEvent]:
        """Return the events of a run, in order."""

        async def work(space: Space) -> list[Any]:
            events = space.documents.items(prefix=f"event/{segment(run_id)}/")
            return [value async for _, value in events]

        return _EVENTS.validate_python(await self._bound.call(work))

    # ---- snapshots

    async def save_snapshot(self, snapshot: ContinuableSnapshot) -> None:
        """Append a snapshot to its run, unless the run has had one with its idempotency key.

        The snapshot is visible as a whole. If it brings more than 400 messages that the store does not have,
        the others are written before.
        """
        run = segment(snapshot.run_id)
        what = f"a snapshot of run {snapshot.run_id!r}"
        fields: Any = dump(_SNAPSHOTS, [replace(snapshot, messages=[])], what)[0]
        messages = _Messages(snapshot.messages, what)
        batches = messages.batches(await self._bound.call(lambda space: messages.find(space, run)))
        for batch in batches[:-1]:
            await self._bound.transact(partial(_put_each, values=batch), turn=snapshot.run_id)

        async def work(tx: Transaction) -> None:
            if await _is_applied(tx, run, "snapshot", snapshot.idempotency_key):
                return
            state = await _state(tx, run)
            await _put_each(tx, batches[-1])
            value = {"fields": fields, "digests": b"".join(messages.digests)}
            await tx.documents.put(_snapshot_name(run, state.snapshots), value)
            if snapshot.state == "complete":
                state.complete = state.snapshots
            state.snapshots += 1
            await self._prune(tx, run, state)
            await _put_state(tx, run, state)

        await self._bound.transact(work, turn=snapshot.run_id)

    async def _prune(self, tx: Transaction, run: str, state: _RunState) -> None:
        """Delete the snapshots of a run that are not to be kept, some at once."""
        if self._most is None:
            return
        if state.kept not in (-1, state.complete):
            await tx.documents.delete(_snapshot_name(run, state.kept))
            state.kept = -1
        end = min(state.snapshots - self._most, state.first + _PRUNED_AT_ONCE)
        for number in range(state.first, end):
            if number == state.complete:
                state.kept = number
            else:
                await tx.documents.delete(_snapshot_name(run, number))
        state.first = max(state.first, end)

    async def latest_snapshot(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> ContinuableSnapshot | None:
        """Return the latest complete snapshot of a run, or None.

        Args:
            run_id: The run.
            include_interrupted: Return the latest one, also if it was interrupted.
        """
        run = segment(run_id)

        async def work(tx: Transaction) -> Any:
            state = await _state(tx, run)
            number = state.snapshots - 1 if include_interrupted else state.complete
            return None if number < 0 else await tx.documents.get(_snapshot_name(run, number))

        found = (await self._bound.transact(work, turn=run_id)).value
        return None if found is None else (await self._restored([found]))[0]

    async def list_snapshots(
        self, *, run_id: str, include_interrupted: bool = False
    ) -> list[ContinuableSnapshot]:
        """Return the snapshots of a run that were not pruned, in order; interrupted ones only if asked."""

        async def work(space: Space) -> list[Any]:
            snapshots = space.documents.items(prefix=f"snapshot/{segment(run_id)}/")
            return [value async for _, value in snapshots]

        found = await self._bound.call(work)
        return await self._restored(
            [each for each in found if include_interrupted or each["fields"]["state"] == "complete"]
        )

    async def _restored(self, found: Sequence[Mapping[str, Any]]) -> list[ContinuableSnapshot]:
        each = [_split(snapshot["digests"]) for snapshot in found]
        names = [*dict.fromkeys(_message_name(digest) for digests in each for digest in digests)]
        stored = await self._bound.call(lambda space: read_each(space.documents, names))
        return [
            replace(
                _SNAPSHOTS.validate_python([snapshot["fields"]])[0],
                messages=ModelMessagesTypeAdapter.validate_python(
                    [stored[_message_name(digest)].value for digest in digests]
                ),
            )
            for snapshot, digests in zip(found, each, strict=True)
        ]

    # ---- tool effects

    async def record_tool_effect(self, record: ToolEffectRecord) -> None:
        """Store the state of a tool call, in place of its former one."""
        name = _effect_name(record.run_id, record.tool_call_id)
        value = dump(_EFFECTS, [record], f"the effect of tool call {record.tool_call_id!r}")[0]

        async def work(tx: Transaction) -> None:
            await tx.documents.put(name, value)

        await self._bound.transact(work, turn=name)

    async def get_tool_effect(self, *, run_id: str, tool_call_id: str) -> ToolEffectRecord | None:
        """Return the state of a tool call, or None."""
        name = _effect_name(run_id, tool_call_id)
        found = await self._bound.call(lambda space: space.documents.get(name))
        return None if found is None else _EFFECTS.validate_python([found])[0]

    async def list_unresolved_tool_effects(self, *, run_id: str) -> list[ToolEffectRecord]:
        """Return the tool calls of a run that have begun and not ended, the first one started first."""

        async def work(space: Space) -> list[Any]:
            effects = space.documents.items(prefix=_effect_name(run_id, None))
            return [value async for _, value in effects if value["status"] == "started"]

        effects = _EFFECTS.validate_python(await self._bound.call(work))
        return sorted(effects, key=lambda effect: effect.started_at)


class _Messages:
    """The messages of a snapshot, by digest.

    Attributes:
        digests: The digests, in order.
    """

    def __init__(self, messages: Sequence[ModelMessage], what: str) -> None:
        self._messages: dict[bytes, tuple[ModelMessage, int]] = {}
        self.digests: list[bytes] = []
        for message in messages:
            try:
                text = ModelMessagesTypeAdapter.dump_json([message])
            except PydanticSerializationError as error:
                raise unstorable(what, error) from error
            digest = sha256(text).digest()[:_DIGEST_BYTES]
            self._messages[digest] = message, len(text)
            self.digests.append(digest)

    async def find(self, space: Space, run: str) -> set[bytes]:
        """Return digests of messages that are stored: those of the last snapshot, or all of the first one."""
        last = (await _state(space, run)).snapshots - 1
        if last >= 0:
            snapshot = await space.documents.get(_snapshot_name(run, last))
            return set() if snapshot is None else set(_split(snapshot["digests"]))
        names = {_message_name(digest): digest for digest in self._messages}
        return {names[name] for name in await read_each(space.documents, [*names])}

    def batches(self, known: set[bytes]) -> list[dict[str, Any]]:
        """Return the documents of the other messages, in batches; the last one may be empty."""
        new = ((each, size) for each, (_, size) in self._messages.items() if each not in known)
        return [
            {
                _message_name(digest): ModelMessagesTypeAdapter.dump_python(
                    [self._messages[digest][0]], mode="json"
                )[0]
                for digest in batch
            }
            for batch in in_batches(new)
        ]


# ---- names and values


def _runs(target: Space | Transaction) -> Collection[dict[str, Any]]:
    index = {"started": _by_time, "conversation": _by_conversation, "parent": _by_parent}
    return target.collection("run", dict[str, Any], index=index)


def _by_time(stored: Mapping[str, Any]) -> tuple[int]:
    return (stored["started_us"],)


def _by_conversation(stored: Mapping[str, Any]) -> tuple[str, int] | None:
    return None if stored["conversation"] is None else (stored["conversation"], stored["started_us"])


def _by_parent(stored: Mapping[str, Any]) -> tuple[str, int] | None:
    return None if stored["parent"] is None else (stored["parent"], stored["started_us"])


async def _state(target: Space | Transaction, run: str) -> _RunState:
    return msgspec.convert(await target.documents.get(f"state/{run}", {}), _RunState)


async def _put_state(tx: Transaction, run: str, state: _RunState) -> None:
    await tx.documents.put(f"state/{run}", msgspec.structs.asdict(state))


async def _is_applied(tx: Transaction, run: str, kind: str, key: str | None) -> bool:
    """Return whether something with an idempotency key was stored before, and note the key."""
    if key is None:
        return False
    name = f"applied/{run}/{kind}/{segment(key)}"
    if await tx.documents.get(name) is not None:
        return True
    await tx.documents.put(name, True)
    return False


async def _put_each(tx: Transaction, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        await tx.documents.put(name, value)


def _split(digests: bytes) -> list[bytes]:
    return [digests[at : at + _DIGEST_BYTES] for at in range(0, len(digests), _DIGEST_BYTES)]


def _message_name(digest: bytes) -> str:
    return f"message/{digest.hex()}"


def _snapshot_name(run: str, number: int) -> str:
    return f"snapshot/{run}/{number:010}"


def _effect_name(run_id: str, tool_call_id: str | None) -> str:
    return f"effect/{segment(run_id)}/" + ("" if tool_call_id is None else segment(tool_call_id))
