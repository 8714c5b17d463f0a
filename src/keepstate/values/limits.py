"""How large things may be: the same numbers on every backend, counted on what the caller gave.

A program that works on one store never meets a limit first on another. Sizes are in bytes.
"""

from typing import Final

from keepstate.errors import InvalidError

KEY_BYTES: Final = 512
VALUE_BYTES: Final = 1 << 20
"""Of one entry; a larger value is kept in parts that its entry names."""
SPACE_BYTES: Final = 200
"""Of a space's name, as UTF-8."""
TOKEN_BYTES: Final = 64
ERROR_BYTES: Final = 16 << 10
"""Of what a failed task keeps of its error, as UTF-8; the rest is cut."""
MESSAGE_BYTES: Final = 64 << 10
"""Of what a commit or transaction is for, as UTF-8."""
PATTERN_BYTES: Final = 8 * KEY_BYTES
"""Of a pattern that names are matched with, as UTF-8."""
TTL_MS: Final = 100 * 366 * 24 * 3600 * 1000
"""A hundred years."""

BATCH_WRITES: Final = 1_000
BATCH_CHECKS: Final = 1_000
BATCH_BYTES: Final = 8 << 20

READ_KEYS: Final = 1_000
READ_BYTES: Final = 8 << 20

PAGE_BYTES: Final = 8 << 20
PAGE_ROWS: Final = 1_024
"""Looked at, not found: a page may be short or empty and still not the last."""

LOG_REVISIONS: Final = 10_000
"""What a space's log keeps, or as many as fit into `LOG_BYTES`."""
LOG_BYTES: Final = 64 << 20
CHANGE_BYTES: Final = 64
"""What a logged change weighs beside its key and values, about: pages end by it."""

DECODED_BYTES: Final = 256 << 20
"""Of one value's encoding before compression; what claims to inflate to more is refused unread."""
INFLATED_BYTES: Final = 64 << 20
"""Of memory that a compressed value may take, beside `EXPANSION` for each of its stored bytes."""
SHARED_BYTES: Final = 256 << 20
"""Of memory that the repeated parts of a state may take, beside `EXPANSION` for each stored byte."""
EXPANSION: Final = 256
"""Bytes of memory that each stored byte may become."""
COMPRESSED_FROM_BYTES: Final = 4 << 10
"""Encodings above it are compressed."""
PLAIN_DEPTH: Final = 255
"""How deep lists and dicts may stand in one another; inside a tuple, set or object the count starts again."""
TAG_DEPTH: Final = 64
"""How deep tuples, sets and objects may stand in one another."""
INNER_DEPTH: Final = 128
"""How deep one of them that is inside another may be, its lists and dicts counted too."""
UNCHECKED_KEYS: Final = 1_000
"""Of one dict or set, whose hashes may be any; those of more are checked."""
STEPS_PER_KEY: Final = 128
"""That a key of a checked dict or set may take to a free slot, on average; honest keys take up to 80."""
TYPE_NAME_BYTES: Final = 200
"""Of the name that a class is registered under, as UTF-8."""
PATTERN_LENGTH: Final = 4096
"""Characters of a compiled regular expression that is stored: reading one compiles it again."""
FRACTION_BYTES: Final = 4 << 10
"""Of the numerator and of the denominator of a stored `Fraction`."""

COUNT: Final = 2**31 - 1
"""Of anything that a caller asks for by number."""


def admit_count(name: str, number: int) -> None:
    """Raise `InvalidError` unless it is an int of 1 to `COUNT`."""
    if type(number) is not int or not 0 < number <= COUNT:
        raise InvalidError(f"`{name}` is {number!r}; it must be 1 to {COUNT}")
