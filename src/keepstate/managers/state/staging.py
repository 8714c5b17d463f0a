"""Writes that wait for `flush`: what each key has become since, over what is stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, cast

import msgspec

from keepstate._runner import Lock, Runner
from keepstate.engine.documents.documents import MISSING, Documents
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.kernel.fifo_lock import FifoLock
from keepstate.errors import AttemptsExhaustedError, ClosedError, InvalidError, StorageError
from keepstate.managers.binding import Folder, Together
from keepstate.values import codec

Change: TypeAlias = Callable[[Any], Any]
Patch: TypeAlias = Mapping[str, Any] | Change

_FLUSHED_AT_ONCE: Final = 300
_ATTEMPTS: Final = 100


class Staged(msgspec.Struct, frozen=True):
    """What is to become of one key.

    Attributes:
        value: What it begins with; `MISSING` for nothing, `STORED` for what is stored then.
        changes: What is done to that, in order.
        first: What the first change gets where there is nothing.
        ttl_s: How long it lives.
    """

    value: Any
    changes: tuple[Change, ...] = ()
    first: bytes = codec.encode({})
    ttl_s: float | None = None

    @property
    def is_deleted(self) -> bool:
        """Whether nothing is left of it."""
        return self.value is MISSING and not self.changes

    def changed(self, stored: Any) -> Any:
        """Return the value over what is stored, or `MISSING`."""
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


class _Stored(msgspec.Struct, frozen=True):
    def __repr__(self) -> str:
        return "STORED"


STORED: Final = _Stored()
"""Says that a staged change begins with what is stored when it is flushed."""


class Staging:
    """The keys that wait, in the order in which they were first written.

    What reads and writes again comes in turns: nothing is stored twice, and no change is lost between two.

    Args:
        runner: How the caller waits.
        applied: How work is applied.
    """

    def __init__(self, runner: Runner, applied: Together) -> None:
        self.keys: dict[str, Staged] = {}
        self._lock, self._turns, self._applied = Lock(), FifoLock(runner), applied

    def put(self, key: str, value: object, ttl_s: float | None) -> None:
        """Stage a value: a copy, as it would be stored.

        Raises:
            InvalidError: It would not come back equal.
        """
        staged = Staged(codec.encode(value), ttl_s=ttl_s)
        with self._lock:
            self.keys[key] = staged

    async def get(self, folder: Folder, key: str, default: Any) -> Any:
        """Return what a key is, staged or stored, or the default."""
        if key not in self.keys:
            return await folder.space.documents.get(folder.name(key), default)
        return await self._turns.run(lambda: self._get(folder, key, default))

    async def _get(self, folder: Folder, key: str, default: Any) -> Any:
        staged = self.keys.get(key)
        if staged is None:  # it was flushed before this call's turn
            return await folder.space.documents.get(folder.name(key), default)
        value = await _computed(folder, key, staged)
        return default if value is MISSING else value

    async def delete(self, folder: Folder, key: str) -> bool:
        """Stage that nothing is there, and return whether there was something."""
        staged = self.keys.get(key)
        if staged is None:
            existed = await folder.space.documents.entry(folder.name(key)) is not None
        else:
            existed = not staged.is_deleted  # not computed: what cannot be, can be deleted
        with self._lock:
            self.keys[key] = Staged(MISSING)
        return existed

    async def change(self, folder: Folder, key: str, patch: Patch, first: object, ttl_s: float | None) -> Any:
        """Stage a change of what is there, and return what comes of it now; what raises is not staged."""
        if callable(patch):
            reject_coroutine_function(patch)  # staged changes are computed where nothing is awaited
            change = patch
        else:
            change = _merging(key, patch)
        return await self._turns.run(lambda: self._change(folder, key, change, first, ttl_s))

    async def _change(
        self, folder: Folder, key: str, change: Change, first: object, ttl_s: float | None
    ) -> Any:
        for _ in range(_ATTEMPTS):
            before = self.keys.get(key)
            staged = _with_change(before, change, first, ttl_s)
            value = await _computed(folder, key, staged)
            with self._lock:
                if self.keys.get(key) is before:  # else the change might not fit what was saved meanwhile
                    self.keys[key] = staged
                    return value
        raise AttemptsExhaustedError(
            f"the staged key {key!r} was saved or deleted {_ATTEMPTS} times while its change was computed; "
            "let fewer write it at once, and let the change not write it",
            attempts=_ATTEMPTS,
        )

    # ---- storing what waits

    async def flush(self, folder: Folder, keys: Sequence[str]) -> int:
        """Store what is staged of some keys of a folder, and return how many those are.

        At most 300 apply together. One that fails holds no other back, and stays staged.
        """
        stored = 0
        for begin in range(0, len(keys), _FLUSHED_AT_ONCE):
            page = keys[begin : begin + _FLUSHED_AT_ONCE]
            stored += await self._turns.run(partial(self._flush, folder, page))
        return stored

    async def _flush(self, folder: Folder, keys: Sequence[str]) -> int:
        present = {key: self.keys.get(key) for key in keys}
        staged = {key: each for key, each in present.items() if each is not None}
        if staged:
            await self._store(folder, staged)
        return len(staged)

    async def _store(self, folder: Folder, staged: Mapping[str, Staged]) -> None:
        async def work(inside: Folder) -> None:
            for key, each in staged.items():
                await _store_one(inside.space.documents, inside.name(key), each)

        try:
            await self._applied(folder, work, message=f"save {len(staged)} staged keys")
        except (StorageError, ClosedError):
            raise
        except Exception as error:  # of a caller's change: the others are stored without it
            if len(staged) == 1:
                error.add_note(f"the staged key {next(iter(staged))!r} was not stored")
                raise
            await self._store_apart(folder, staged)
            return
        with self._lock:
            for key, each in staged.items():
                if self.keys.get(key) is each:  # else it was saved or deleted meanwhile
                    del self.keys[key]

    async def _store_apart(self, folder: Folder, staged: Mapping[str, Staged]) -> None:
        """Store keys one by one; the last failure is raised."""
        failure: Exception | None = None
        for key, each in staged.items():
            try:
                await self._store(folder, {key: each})
            except Exception as error:  # noqa: BLE001 - raised when all others are stored
                failure = error
        if failure is not None:
            raise failure


def admit_patch(patch: object) -> None:
    """Raise `InvalidError` for what changes nothing."""
    if not isinstance(patch, Mapping) and not callable(patch):
        raise InvalidError(f"`patch` is {patch!r}; give a dict or a function")


def _with_change(before: Staged | None, change: Change, first: object, ttl_s: float | None) -> Staged:
    """Return what is to become of a key that one more change is done to."""
    if before is None or before.is_deleted:
        return Staged(STORED if before is None else MISSING, (change,), codec.encode(first), ttl_s)
    first_bytes = before.first if before.changes else codec.encode(first)
    return Staged(before.value, (*before.changes, change), first_bytes, before.ttl_s)


async def _computed(folder: Folder, key: str, staged: Staged) -> Any:
    """Return a copy of what a key becomes, or `MISSING`."""
    stored: Any = MISSING
    if staged.value is STORED:
        stored = await folder.space.documents.get(folder.name(key), MISSING)
    value = staged.changed(stored)
    return value if value is MISSING else codec.decode(codec.encode(value))


async def _store_one(documents: Documents, key: str, staged: Staged) -> None:
    """Do to a document what was staged."""
    if staged.is_deleted:
        await documents.delete(key)
        return
    if staged.value is STORED:
        found = await documents.entry(key)
        value = staged.changed(MISSING if found is None else found.value)
        if found is not None:  # its time to live goes on
            await documents.update(key, lambda _: value)
            return
    else:
        value = staged.changed(MISSING)
    await documents.put(key, value, ttl_s=staged.ttl_s)


def _merging(key: str, patch: Mapping[Any, Any]) -> Change:
    """Return the change that puts top-level keys into a dict."""
    new: dict[Any, Any] = codec.decode(codec.encode(dict(patch)))

    def merged(value: Any) -> Any:
        if not isinstance(value, dict):
            raise InvalidError(
                f"{key!r} holds {type(value).__name__}, and no dict merges into that; give a function"
            )
        return {**cast("dict[Any, Any]", value), **new}  # type: ignore[redundant-cast]  # pyright needs it

    return merged
