"""The error tree: one root, branches by what the handler does.

```
KeepstateError
├── ConflictError            another writer was first: read again and retry
│   ├── LeaseLostError       the lease expired or was taken over: stop, acquire it again
│   ├── ApprovalClosedError  the approval was answered before, has expired or was withdrawn: read it
│   └── MergeConflictError   both sides changed the same value: pass a rule, or change one side
├── AttemptsExhaustedError   all allowed attempts failed
├── NotFoundError            (also KeyError) the thing to change does not exist
├── AlreadyExistsError       the thing to create exists already
├── InvalidError             (also ValueError) the call is wrong: correct it
│   └── TransitionError      the state machine does not allow this step
│       └── StepUnknownError    whether a step with `once` was done is unknown: settle it
├── NotAllowedError          the caller does not have the right to do this
│   └── NotOwnerError        it belongs to another user
├── QuotaExceededError       a quota is used up: delete something, or raise it
│   └── BudgetExceededError     a budget of usage is used up: wait for its next period, or raise it
├── NotLoadedError           the part was excluded when loading: load it
├── PrunedError              retention deleted it
├── ClosedError              closed, or opened in another process or event loop: open it here
├── UnsupportedError         this store or platform cannot do it
├── MissingExtraError        (also ImportError) a package is not installed: install it
├── StateError               a typed state key was misused
│   └── StateConflictError   (also ConflictError) computed from an older state: compute it again
├── TaskFailedError          a task ended without a result
├── TaskCancelledError       a task was cancelled
└── StorageError             the store could not do it
    ├── StoreUnavailableError   the store was not reached, nothing written: retry later
    │   └── OutcomeUnknownError    the write may or may not be applied: call outcome(token)
    ├── StoreFullError          not enough space left
    ├── ClockError              a clock is wrong by more than an hour: set it
    ├── CorruptError            stored bytes are damaged: stop
    ├── HistoryLostError        the store lost acknowledged writes: read again
    └── CompactedError          the log no longer reaches back that far
```

Every error has a stable `code`, is `retryable` if the same call may succeed later, has its facts as
attributes, and can be pickled.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from functools import cache
from inspect import get_annotations
from typing import Any, ClassVar, Self


class KeepstateError(Exception):
    """Base class of every error that keepstate raises.

    Args:
        message: The event, the key, space or store that it concerns, and advice.
        facts: Attributes that the class declares. An undeclared one raises `TypeError`.
    """

    code: ClassVar[str] = "keepstate"
    retryable: ClassVar[bool] = False

    def __init__(self, message: str = "", **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self._facts = facts
        kind: Any = type(self)  # mypy does not accept the type itself as hashable
        for name, fact in facts.items():
            if name not in _declared(kind):
                raise TypeError(f"{type(self).__name__} declares no fact {name!r}")
            setattr(self, name, fact)

    @property
    def facts(self) -> dict[str, Any]:
        """The attributes that the error was given, by name."""
        return dict(self._facts)

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
    """Warning for a name that the next minor release removes. The message names the replacement."""


class ConflictError(KeepstateError):
    """Another writer changed data that this write was based on. Nothing was applied.

    `actual` is the version (or `created`) found under `key`; with `key` None, the revision of the space.
    """

    code = "conflict"
    retryable = True
    space: str | None = None
    key: bytes | None = None
    actual: int | None = None


class LeaseLostError(ConflictError):
    """The caller no longer holds the lease that fences this call."""

    code = "lease_lost"
    retryable = False
    name: str | None = None
    token: int | None = None


class ApprovalClosedError(ConflictError):
    """The approval takes no answer any more. Nothing was written.

    `approval` is its id, `state` is `answered`, `expired` or `withdrawn`.
    """

    code = "approval_closed"
    retryable = False
    approval: str | None = None
    state: str | None = None


class MergeConflictError(ConflictError):
    """Two sides of a merge changed the same data to different values. `conflicts` lists the paths."""

    code = "merge_conflict"
    retryable = False
    conflicts: tuple[Any, ...] = ()


class AttemptsExhaustedError(KeepstateError):
    """All allowed attempts ended in a conflict. Nothing was applied."""

    code = "attempts_exhausted"
    retryable = True
    attempts: int | None = None


class TaskFailedError(KeepstateError):
    """A task ended without a result: in a queue it is dead, as an agent's it failed or took too many steps.

    `task` is the id or the name of the task.
    """

    code = "task_failed"
    task: str | None = None


class TaskCancelledError(KeepstateError):
    """A task of a queue was cancelled. `by` is the canceller and `reason` the reason, if they were given."""

    code = "task_cancelled"
    task: str | None = None
    by: str | None = None
    reason: str | None = None


class NotFoundError(KeepstateError, KeyError):
    """The thing to change or load does not exist."""

    code = "not_found"


class AlreadyExistsError(KeepstateError):
    """The thing to create exists already."""

    code = "already_exists"


class InvalidError(KeepstateError, ValueError):
    """The call has a wrong argument. `path` is the part of a value that is at fault.

    `key` is the name of the document, if its value cannot be read.
    """

    code = "invalid"
    path: str | None = None
    key: str | None = None


class TransitionError(InvalidError):
    """The current state does not allow this transition."""

    code = "transition"
    current: str | None = None
    wanted: str | None = None


class StepUnknownError(TransitionError):
    """A step with `once` was begun, and whether it was done is unknown. `task` and `step` are their names.

    Find out, and tell it with `queue.settle(task, step, result)`, or `NOT_DONE`.
    """

    code = "step_unknown"
    task: str | None = None
    step: str | None = None


class NotAllowedError(KeepstateError):
    """The caller does not have the right to do this. Nothing was read or written.

    `tenant` is the tenant whose erasure refused a write.
    """

    code = "not_allowed"
    tenant: str | None = None


class NotOwnerError(NotAllowedError):
    """The data belongs to another user. `user_id` is the user of the call, None if the call named none."""

    code = "not_owner"
    user_id: str | None = None


class QuotaExceededError(KeepstateError):
    """The write would exceed a quota. Nothing was written.

    `quota` is its name, `most` what it allows, `used` what the space has, `space` its stored name.
    """

    code = "quota_exceeded"
    space: str | None = None
    quota: str | None = None
    most: int | Decimal | None = None
    used: int | Decimal | None = None


class BudgetExceededError(QuotaExceededError):
    """The use would exceed a budget. Nothing was written.

    `budget` is its name, `quota` is `cost`, `tokens` or `calls`, `most` what the budget allows of it, `used`
    what is used or reserved, `resets_at` the time at which its next period begins.
    """

    code = "budget_exceeded"
    budget: str | None = None
    resets_at: datetime | None = None


class NotLoadedError(KeepstateError):
    """The part was excluded when its state was loaded."""

    code = "not_loaded"


class PrunedError(KeepstateError):
    """Retention deleted the requested data."""

    code = "pruned"


class ClosedError(KeepstateError):
    """The handle is closed, or belongs to another process or event loop."""

    code = "closed"


class UnsupportedError(KeepstateError):
    """This store or platform does not support the operation. `key` is the unreadable document, if any."""

    code = "unsupported"
    key: str | None = None


class MissingExtraError(KeepstateError, ImportError):
    """A required package is not installed. `install` is the command that installs it."""

    code = "missing_extra"
    install: str | None = None

    @classmethod
    def of(cls, extra: str, needs: str) -> Self:
        """Return the error of a module that needs the packages of an extra, such as `a2a-sdk 1.3`."""
        install = f"pip install 'keepstate[{extra}]'"
        return cls(f"this needs {needs}: {install}", install=install)


class StateError(KeepstateError):
    """A typed state key was declared or used wrongly, or its stored value does not have its type.

    `state_key` is the name of the key, `path` the part of the value at fault, `stored_version` the version
    that wrote the value.
    """

    code = "state"
    state_key: str | None = None
    path: str | None = None
    stored_version: int | None = None


class StateConflictError(StateError, ConflictError):
    """The state changed after the batch was computed, or two tools changed one exclusive key.

    `tools` are the names of the two tools.
    """

    code = "state_conflict"
    retryable = True
    tools: tuple[str, ...] = ()


class StorageError(KeepstateError):
    """Base class of errors of a store. `url` names the store, without its password."""

    code = "storage"
    url: str | None = None
    space: str | None = None


class StoreUnavailableError(StorageError):
    """The store could not be reached. Nothing was written, except possibly with `OutcomeUnknownError`.

    `is_read_only` is True if the store was reached but accepts no writes: a replica, or one set to read-only.
    """

    code = "unavailable"
    retryable = True
    is_read_only: bool = False


class OutcomeUnknownError(StoreUnavailableError):
    """The batch may or may not have been applied. `space.outcome(token)` settles which one it is.

    An embedded store has a token only if the caller passed one. Without a token, open the store again and
    read.
    """

    code = "outcome_unknown"
    retryable = False
    token: bytes | None = None


class StoreFullError(StorageError):
    """The store does not have enough space for the write. Nothing was applied."""

    code = "full"


class ClockError(StorageError):
    """Two clocks differ by more than an hour, so the space's time would jump. Nothing was written.

    `clock_ms` is the time that the space would have had, `second_ms` the time of the confirming clock.
    """

    code = "clock"
    clock_ms: int | None = None
    second_ms: int | None = None


class CorruptError(StorageError):
    """Stored bytes are damaged. `place` is the damaged file, row or key.

    `key` is the unreadable document, if any.
    """

    code = "corrupt"
    place: str | None = None
    key: str | None = None


class HistoryLostError(StorageError):
    """The store lost a revision that it had acknowledged (a failover, or a restored backup)."""

    code = "history_lost"
    revision: int | None = None


class CompactedError(StorageError):
    """The log was cut after the requested revision. `floor` is the oldest one still available."""

    code = "compacted"
    floor: int | None = None


class Suspended(BaseException):
    """End of an attempt at a task that waits; no error, so that no handler catches it by accident.

    The worker returns the task to the queue when the handler has ended. The handler lets it pass.

    Args:
        wait_s: Seconds after which the task goes on in any case; None for never.
        messages: The names of the messages of which one wakes the task.
        after: The ids of the tasks whose end wakes the task.
    """

    def __init__(
        self, wait_s: float | None = None, *, messages: tuple[str, ...] = (), after: tuple[str, ...] = ()
    ) -> None:
        super().__init__("the task waits; let this pass")
        self.wait_s, self.messages, self.after = wait_s, messages, after
