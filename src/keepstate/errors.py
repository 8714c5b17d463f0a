"""The error tree: one root, branches by what the handler does.

```
KeepstateError
├── ConflictError            somebody wrote first: read again, try again
│   ├── LeaseLostError       the lease ran out or was taken: stop, acquire it again
│   └── MergeConflictError   both sides changed the same: give a rule, or change one of them
├── AttemptsExhaustedError   retried as often as was allowed
├── NotFoundError            (also KeyError) the thing to change is absent
├── AlreadyExistsError       the thing to create is there
├── InvalidError             (also ValueError) the call is wrong: mend it
│   └── TransitionError      the state machine does not allow this step
├── NotAllowedError          the caller has no right to it: ask for another, or as another
│   └── NotOwnerError        it belongs to another user
├── NotLoadedError           the part was left out when loading: load it
├── PrunedError              retention dropped it
├── ClosedError              opened elsewhere, or closed: open it here
├── UnsupportedError         this store or platform cannot do it
├── MissingExtraError        (also ImportError) a package is not installed: install it
├── StateError               a typed state key was misused
│   └── StateConflictError   (also ConflictError) computed from an older state: compute it again
├── TaskFailedError          an agent's task ended without a result
└── StorageError             the store could not do it
    ├── StoreUnavailableError   not reached, nothing written: later
    │   └── OutcomeUnknownError    applied or not is not known: ask by its token
    ├── StoreFullError          no room left
    ├── ClockError              a clock is wrong by more than an hour: set it
    ├── CorruptError            stored bytes are damaged: stop
    ├── HistoryLostError        the store forgot what it had acknowledged
    └── CompactedError          the log no longer reaches back that far
```

Every error has a stable `code`, says whether the same call may succeed when it is `retryable`, carries its
facts as attributes, and pickles.
"""

from __future__ import annotations

from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar


class KeepstateError(Exception):
    """Every error that keepstate raises by itself.

    Args:
        message: What happened, to which key, space or store, and what to do.
        facts: Attributes that the class declares; an undeclared one is a `TypeError`.
    """

    code: ClassVar[str] = "keepstate"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self._facts = facts
        kind: Any = type(self)  # which mypy does not take for hashable by itself
        for name, fact in facts.items():
            if name not in _declared(kind):
                raise TypeError(f"{type(self).__name__} declares no fact {name!r}")
            setattr(self, name, fact)

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self._facts)


@cache
def _declared(error: type[KeepstateError]) -> frozenset[str]:
    return frozenset(name for base in error.__mro__ for name in get_annotations(base))


def _rebuild(error: type[KeepstateError], message: str, facts: dict[str, Any]) -> KeepstateError:
    return error(message, **facts)


class KeepstateDeprecationWarning(DeprecationWarning):
    """Something will go with the next minor release; the message names what comes instead."""


class ConflictError(KeepstateError):
    """Somebody else changed what this write was built on; nothing of it was applied.

    `actual` is the version (or `created`) found under `key`; with `key` None, the revision of the space.
    """

    code = "conflict"
    retryable = True
    space: str | None = None
    key: bytes | None = None
    actual: int | None = None


class LeaseLostError(ConflictError):
    """The lease that guarded this call is no longer held by the caller."""

    code = "lease_lost"
    retryable = False
    name: str | None = None
    token: int | None = None


class MergeConflictError(ConflictError):
    """Two sides of a merge changed the same to different values. `conflicts` says where."""

    code = "merge_conflict"
    retryable = False
    conflicts: tuple[Any, ...] = ()


class AttemptsExhaustedError(KeepstateError):
    """A conflict came back as often as attempts were allowed; nothing was applied."""

    code = "attempts_exhausted"
    retryable = True
    attempts: int | None = None


class TaskFailedError(KeepstateError):
    """An agent's task ended without a result: it said so, or took too many steps."""

    code = "task_failed"
    task: str | None = None


class NotFoundError(KeepstateError, KeyError):
    """What should be changed or loaded is absent."""

    code = "not_found"


class AlreadyExistsError(KeepstateError):
    """What should be created is there already."""

    code = "already_exists"


class InvalidError(KeepstateError, ValueError):
    """The call cannot work as given. `path` names the part of a value that is at fault."""

    code = "invalid"
    path: str | None = None


class TransitionError(InvalidError):
    """The step is not allowed in the present state."""

    code = "transition"
    current: str | None = None
    wanted: str | None = None


class NotAllowedError(KeepstateError):
    """The caller has no right to do this. Nothing was read or written."""

    code = "not_allowed"


class NotOwnerError(NotAllowedError):
    """The data belongs to another user. `user_id` is the user of the call, None if the call named none."""

    code = "not_owner"
    user_id: str | None = None


class NotLoadedError(KeepstateError):
    """The part was left out when its state was loaded."""

    code = "not_loaded"


class PrunedError(KeepstateError):
    """Retention was told to drop it."""

    code = "pruned"


class ClosedError(KeepstateError):
    """The handle is closed, or belongs to another process or event loop."""

    code = "closed"


class UnsupportedError(KeepstateError):
    """This store or platform cannot do it. `key` is the document that cannot be read here, if it is one."""

    code = "unsupported"
    key: str | None = None


class MissingExtraError(KeepstateError, ImportError):
    """A package that this part needs is not installed. `install` is the command that mends it."""

    code = "missing_extra"
    install: str | None = None


class StateError(KeepstateError):
    """A typed state key was declared or used wrongly, or what is stored is no value of it.

    `state_key` is its name, `path` the part of the value at fault, `stored_version` the version that wrote
    it.
    """

    code = "state"
    state_key: str | None = None
    path: str | None = None
    stored_version: int | None = None


class StateConflictError(StateError, ConflictError):
    """The state has moved on since the batch was computed, or two tools changed one exclusive key.

    `tools` are the names of the two.
    """

    code = "state_conflict"
    retryable = True
    tools: tuple[str, ...] = ()


class StorageError(KeepstateError):
    """The store could not do it. `url` names the store, without its password."""

    code = "storage"
    url: str | None = None
    space: str | None = None


class StoreUnavailableError(StorageError):
    """The store could not be reached; but for `OutcomeUnknownError` nothing was written.

    `is_read_only` where it was reached, and takes no writes: it is a replica, or set so.
    """

    code = "unavailable"
    retryable = True
    is_read_only: bool = False


class OutcomeUnknownError(StoreUnavailableError):
    """The store may have applied the batch or not; `space.outcome(token)` answers it and settles it.

    Without a token, which an embedded store has only if the caller gave one, opening it again shows it.
    """

    code = "outcome_unknown"
    retryable = False
    token: bytes | None = None


class StoreFullError(StorageError):
    """There is no room for the write; nothing of it was applied."""

    code = "full"


class ClockError(StorageError):
    """Two clocks differ by more than an hour, and the space's time would leap; nothing was written.

    `clock_ms` is the time that the space would have taken, `second_ms` that of the clock to confirm it.
    """

    code = "clock"
    clock_ms: int | None = None
    second_ms: int | None = None


class CorruptError(StorageError):
    """Stored bytes are not what was written. `place` is the file, row or key that is damaged.

    `key` is the document that cannot be read, if it is one.
    """

    code = "corrupt"
    place: str | None = None
    key: str | None = None


class HistoryLostError(StorageError):
    """The store no longer has a revision that it had acknowledged (a failover, or a restored backup)."""

    code = "history_lost"
    revision: int | None = None


class CompactedError(StorageError):
    """The log was cut above the revision asked for; `floor` is the oldest that can be asked for now."""

    code = "compacted"
    floor: int | None = None
