"""Size limits: the same numbers on every backend, counted on the caller's data.

A program that works on one store never meets a limit first on another. Sizes are in bytes.
"""

from typing import Final

from keepstate.errors import InvalidError

KEY_BYTES: Final = 512
VALUE_BYTES: Final = 1 << 20
"""Size of one entry; a larger value is stored in parts that its entry names."""
SPACE_BYTES: Final = 200
"""Size of a space's name, as UTF-8."""
TOKEN_BYTES: Final = 64
TOKEN_KEPT_MS: Final = 24 * 3600 * 1000
"""Time for which a space knows the token of a caller's transaction."""
TOKEN_NOTE_BYTES: Final = 16 << 10
"""Size of the note that is stored with the token of a caller's transaction."""
ERROR_BYTES: Final = 16 << 10
"""Size of the error stored with a failed task, as UTF-8; the rest is cut."""
ATTEMPT_ERROR_BYTES: Final = 4 << 10
"""Size of the error stored with an ended attempt at a task, as UTF-8; the rest is cut."""
ATTEMPTS_KEPT: Final = 20
"""Number of ended attempts stored with a task: the last ones."""
AFTER_TASKS: Final = 100
"""Number of tasks that one task can wait for."""
TASK_MESSAGES: Final = 200
"""Number of messages that a task has not received."""
STEPS: Final = 10_000
"""Number of steps of a task."""
STEPS_BYTES: Final = 64 << 20
"""Size of the encoded results of all steps of a task."""
PROGRESS_BYTES: Final = 4 << 10
"""Size of the encoded progress of a task."""
APPROVERS: Final = 100
"""Number of people and groups that an approval is assigned to."""
APPROVAL_EVENTS: Final = 1_000
"""Number of lines in the log of an approval."""
ANSWER_BYTES: Final = 64 << 10
"""Size of the encoded answer to an approval."""
LINK_BODY_BYTES: Final = 64 << 10
"""Size of the body of a request by a link to an approval."""
LINK_BODY_DEPTH: Final = 32
"""Nesting depth of arrays and objects in the body of a request by a link to an approval."""
LINK_SUBJECT_CHARACTERS: Final = 256 << 10
"""Characters of the subject of an approval, as text, that the page of a link shows."""
NOTE_BYTES: Final = 4 << 10
"""Size of the note on an answer, of the reason of a withdrawal, or of the source or reason of a memory."""
BUDGETS: Final = 32
"""Number of budgets of an account of usage."""
RESERVATIONS: Final = 1_000
"""Number of reservations of an account of usage at one time."""
ACCOUNT_BYTES: Final = 360
"""Size of the name of an account of usage, as UTF-8."""
MODEL_BYTES: Final = 100
"""Size of the name of a model, as UTF-8."""
USE_KNOWN_MS: Final = 30 * 24 * 3600 * 1000
"""Time for which an account of usage knows the id of a use."""
LARGEST_USAGE: Final = 10**12
"""The largest number of tokens or calls of a use or a budget."""
MEMORY_BYTES: Final = 1 << 20
"""Size of the text of a memory, or of a query for memories, as UTF-8."""
MEMORY_ID_BYTES: Final = 200
"""Size of the id of a memory, escaped, as UTF-8."""
MEMORIES_MATRIX: Final = 50_000
"""Number of vectors of memories that are searched in memory; more need a `VectorIndex`."""
VECTOR_NUMBERS: Final = 16_384
"""Number of numbers in the vector of a memory."""
MESSAGE_BLOCKS: Final = 1_000
"""Number of blocks, parts, items or calls of a message of a conversation."""
MESSAGE_BYTES: Final = 64 << 10
"""Size of the message of a commit or transaction, and of the question of an approval, as UTF-8."""
META_BYTES: Final = 1 << 10
"""Size of the notes on a commit, keys and values together, as UTF-8."""
PATTERN_BYTES: Final = 8 * KEY_BYTES
"""Size of a pattern that names are matched with, as UTF-8."""
TTL_MS: Final = 100 * 366 * 24 * 3600 * 1000
"""A hundred years."""

BATCH_WRITES: Final = 1_000
BATCH_CHECKS: Final = 1_000
BATCH_BYTES: Final = 8 << 20

READ_KEYS: Final = 1_000
READ_BYTES: Final = 8 << 20

PAGE_BYTES: Final = 8 << 20
PAGE_ROWS: Final = 1_024
"""Number of rows examined, not matched: a page may be short or empty without being the last."""

COUNTED_PARTS: Final = 64
"""Number of parts of a space that are counted by themselves; further ones count as their section."""

LOG_REVISIONS: Final = 10_000
"""Number of revisions in a space's log, or as many as fit into `LOG_BYTES`."""
LOG_BYTES: Final = 64 << 20
CHANGE_BYTES: Final = 64
"""Approximate overhead of a logged change, besides its key and values; counts towards the page size."""

DECODED_BYTES: Final = 256 << 20
"""Size of one value's encoding before compression; a larger claimed size is rejected unread."""
INFLATED_BYTES: Final = 64 << 20
"""Memory of a compressed value, in addition to `EXPANSION` for each stored byte."""
SHARED_BYTES: Final = 256 << 20
"""Memory of the repeated parts of a state, in addition to `EXPANSION` for each stored byte."""
EXPANSION: Final = 256
"""Bytes of memory that each stored byte may expand to."""
COMPRESSED_FROM_BYTES: Final = 4 << 10
"""Encodings above this size are compressed."""
PLAIN_DEPTH: Final = 255
"""Nesting depth of lists and dicts; the count restarts inside a tuple, set or object."""
TAG_DEPTH: Final = 64
"""Nesting depth of tuples, sets and objects."""
INNER_DEPTH: Final = 128
"""Depth of a tuple, set or object inside another one, including its lists and dicts."""
UNCHECKED_KEYS: Final = 1_000
"""Number of keys of a dict or set whose hashes are not checked."""
STEPS_PER_KEY: Final = 128
"""Average steps that a key of a checked dict or set may take to a free slot; honest keys take up to 80."""
TYPE_NAME_BYTES: Final = 200
"""Size of the name that a class is registered under, as UTF-8."""
PATTERN_LENGTH: Final = 4096
"""Characters of a stored regular expression, because each read compiles it again."""
FRACTION_BYTES: Final = 4 << 10
"""Size of the numerator, and of the denominator, of a stored `Fraction`."""

LARGEST_QUOTA: Final = 2**53 - 1
"""The largest quota."""

COUNT: Final = 2**31 - 1
"""The largest number of items that a caller may ask for."""


def admit_count(name: str, number: object, least: int = 1, most: int = COUNT) -> None:
    """Raise `InvalidError` unless the argument is an int between two bounds, which are allowed."""
    if type(number) is not int or not least <= number <= most:
        raise InvalidError(f"`{name}` is {number!r}. It must be {least} to {most}.")
