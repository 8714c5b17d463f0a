"""Writes that wait for `flush`: the changes of each key, applied over its stored value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate._runner import Lock, Runner
from keepstate.engine.documents.documents import MISSING, Documents
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.kernel.locks import FifoLock
from keepstate.errors import AttemptsExhaustedError, ClosedError, InvalidError, StorageError
from keepstate.managers.binding import ApplyWork, Namespace
from keepstate.values import codec

Change: TypeAlias = Callable[[Any], Any]
Patch: TypeAlias = Mapping[str, Any] | Change

_FLUSHED_AT_ONCE: Final = 300
_ATTEMPTS: Final = 100


class Staged(msgspec.Struct, frozen=True):
    """The pending write of one key.

    Attributes:
        value: The start value; `MISSING` for none, `STORED` for the value stored at the flush.
        changes: Changes of the start value, in order.
        first: Start value of the first change if there is none.
        ttl_s: Time to live in seconds.
    """

    value: Any
    changes: tuple[Change, ...] = ()
    first: bytes = codec.encode({})
    ttl_s: float | None = None

    @property
    def is_deleted(self) -> bool:
        """True if the write deletes the key."""
        return self.value is MISSING and not self.changes

    def apply_to(self, stored: Any) -> Any:
        """Return the value over a stored value, or `MISSING`."""
        value = (
            stored
            if self.value is STORED
            else codec.decode(self.value)
            if self.value is not MISSING
            else MISSING
        )
        for change in self.changes:
            value = change(codec.decode(self.first) if value is MISSING else value)
        return value


class _StoredValue(msgspec.Struct, frozen=True):
    def __repr__(self) -> str:
        return "STORED"


STORED: Final = _StoredValue()
"""Marks a staged change that starts with the value stored at the flush."""


class Staging:
    """The staged keys, in the order of their first write.

    Operations that read and write are serialized, so that nothing is stored twice and no change is lost.

    Args:
        runner: The runner of the mode.
        applied: Applies work as one batch.
    """

    def __init__(self, runner: Runner, apply: ApplyWork) -> None:
        self.keys: dict[str, Staged] = {}
        self._lock, self._queue, self._apply = Lock(), FifoLock(runner), apply

    def put(self, key: str, value: object, ttl_s: float | None) -> None:
        """Stage a copy of a value.

        Raises:
            InvalidError: The value would not decode to an equal value.
        """
        staged = Staged(codec.encode(value), ttl_s=ttl_s)
        with self._lock:
            self.keys[key] = staged

    async def get(self, namespace: Namespace, key: str, default: Any) -> Any:
        """Return the staged or stored value of a key, or the default."""
        if key not in self.keys:
            return await namespace.get(key, default=default)
        return await self._queue.run(lambda: self._get(namespace, key, default))

    async def _get(self, namespace: Namespace, key: str, default: Any) -> Any:
        staged = self.keys.get(key)
        if staged is None:  # flushed before this call's turn
            return await namespace.get(key, default=default)
        value = await _compute(namespace, key, staged)
        return default if value is MISSING else value

    async def delete(self, namespace: Namespace, key: str) -> bool:
        """Stage a deletion, and return whether the key existed."""
        staged = self.keys.get(key)
        if staged is None:
            existed = await namespace.space.documents.entry(namespace.name(key)) is not None
        else:
            existed = not staged.is_deleted  # not computed, so that a failing change can be deleted
        with self._lock:
            self.keys[key] = Staged(MISSING)
        return existed

    async def change(
        self, namespace: Namespace, key: str, patch: Patch, first: object, ttl_s: float | None
    ) -> Any:
        """Stage a change, and return the value that it gives now. A change that raises is not staged."""
        if callable(patch):
            reject_coroutine_function(patch)  # staged changes are computed where nothing can be awaited
            change = patch
        else:
            change = _make_merge(key, patch)
        return await self._queue.run(lambda: self._change(namespace, key, change, first, ttl_s))

    async def _change(
        self, namespace: Namespace, key: str, change: Change, first: object, ttl_s: float | None
    ) -> Any:
        for _ in range(_ATTEMPTS):
            before = self.keys.get(key)
            staged = _add_change(before, change, first, ttl_s)
            value = await _compute(namespace, key, staged)
            with self._lock:
                if self.keys.get(key) is before:  # otherwise the change may not fit a value saved since
                    self.keys[key] = staged
                    return value
        raise AttemptsExhaustedError(
            f"the staged key {key!r} was saved or deleted {_ATTEMPTS} times while its change was computed. "
            "Reduce concurrent writes of the key, and do not write it inside the change.",
            attempts=_ATTEMPTS,
        )

    # ---- flush

    async def flush(self, namespace: Namespace, keys: Sequence[str]) -> int:
        """Store the staged writes of some keys of a namespace, and return their number.

        At most 300 apply together. A write that fails stays staged and does not affect the others.
        """
        stored = 0
        for begin in range(0, len(keys), _FLUSHED_AT_ONCE):
            page = keys[begin : begin + _FLUSHED_AT_ONCE]
            stored += await self._queue.run(partial(self._flush, namespace, page))
        return stored

    async def _flush(self, namespace: Namespace, keys: Sequence[str]) -> int:
        pending = {key: self.keys.get(key) for key in keys}
        staged = {key: each for key, each in pending.items() if each is not None}
        if staged:
            await self._store(namespace, staged)
        return len(staged)

    async def _store(self, namespace: Namespace, staged: Mapping[str, Staged]) -> None:
        async def work(inside: Namespace) -> None:
            for key, each in staged.items():
                await _store_one(inside.space.documents, inside.name(key), each)

        try:
            await self._apply(namespace, work, message=f"save {len(staged)} staged keys")
        except (StorageError, ClosedError):
            raise
        except Exception as error:  # of a caller's change: store the others without it
            if len(staged) == 1:
                error.add_note(f"The staged key {next(iter(staged))!r} was not stored.")
                raise
            await self._store_separately(namespace, staged)
            return
        with self._lock:
            for key, each in staged.items():
                if self.keys.get(key) is each:  # otherwise it was saved or deleted since
                    del self.keys[key]

    async def _store_separately(self, namespace: Namespace, staged: Mapping[str, Staged]) -> None:
        """Store keys one by one, and raise the last failure."""
        failure: Exception | None = None
        for key, each in staged.items():
            try:
                await self._store(namespace, {key: each})
            except Exception as error:  # noqa: BLE001 - raised after all others are stored
                failure = error
        if failure is not None:
            raise failure


def check_patch(patch: object) -> None:
    """Raise `InvalidError` unless the patch is a dict or a function."""
    if not isinstance(patch, Mapping) and not callable(patch):
        raise InvalidError(f"`patch` is {patch!r}. Pass a dict or a function.")


def _add_change(before: Staged | None, change: Change, first: object, ttl_s: float | None) -> Staged:
    """Return the pending write of a key with one more change."""
    if before is None or before.is_deleted:
        return Staged(STORED if before is None else MISSING, (change,), codec.encode(first), ttl_s)
    first_bytes = before.first if before.changes else codec.encode(first)
    return Staged(before.value, (*before.changes, change), first_bytes, before.ttl_s)


async def _compute(namespace: Namespace, key: str, staged: Staged) -> Any:
    """Return a copy of the value that a write gives, or `MISSING`."""
    stored: Any = MISSING
    if staged.value is STORED:
        stored = await namespace.get(key, default=MISSING)
    value = staged.apply_to(stored)
    return value if value is MISSING else codec.decode(codec.encode(value))


async def _store_one(documents: Documents, key: str, staged: Staged) -> None:
    """Write a staged key to its document."""
    if staged.is_deleted:
        await documents.delete(key)
        return
    if staged.value is STORED:
        found = await documents.entry(key)
        value = staged.apply_to(MISSING if found is None else found.value)
        if found is not None:  # its time to live continues
            await documents.update(key, lambda _: value)
            return
    else:
        value = staged.apply_to(MISSING)
    await documents.put(key, value, ttl_s=staged.ttl_s)


def _make_merge(key: str, patch: Mapping[Any, Any]) -> Change:
    """Return the change that puts top-level keys into a dict."""
    new: dict[Any, Any] = codec.decode(codec.encode(dict(patch)))

    def merge(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidError(
                f"{key!r} holds {type(value).__name__}, which is not a dict. Pass a function to change it."
            )
        return {**cast("dict[Any, Any]", value), **new}  # type: ignore[redundant-cast]  # pyright needs it

    return merge
