"""Exit codes of the command, by the error that ended it."""

from __future__ import annotations

from typing import Final

from keepstate.errors import (
    AlreadyExistsError,
    AttemptsExhaustedError,
    ConflictError,
    InvalidError,
    KeepstateError,
    MissingExtraError,
    NotFoundError,
    StorageError,
    StoreUnavailableError,
    UnsupportedError,
)

OK: Final = 0
FAILED: Final = 1
USAGE: Final = 2
UNAVAILABLE: Final = 3
CONFLICT: Final = 4
DAMAGED: Final = 5
INTERRUPTED: Final = 130

HELP: Final = (
    "Exit codes: 0 done, 1 not found or failed, 2 wrong usage, 3 store not reached, 4 conflict, "
    "5 store full, not writable, damaged or lost, 130 interrupted."
)

_CODES: Final[tuple[tuple[type[KeepstateError], int], ...]] = (
    (InvalidError, USAGE),
    (MissingExtraError, USAGE),
    (StoreUnavailableError, UNAVAILABLE),
    (ConflictError, CONFLICT),
    (AlreadyExistsError, CONFLICT),
    (AttemptsExhaustedError, CONFLICT),
    (UnsupportedError, USAGE),
    (StorageError, DAMAGED),
    (NotFoundError, FAILED),
)


def code_of(error: KeepstateError) -> int:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), FAILED)
