"""The Lua scripts of `scripts/` as they are sent: constants, then a script with its parts."""

from __future__ import annotations

from functools import cache
from hashlib import sha1
from pathlib import Path
from typing import Final, NamedTuple

from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.clock_leaps import LEAP_MS
from keepstate.stores.records import RETRY_KEPT_MS
from keepstate.values import limits
from keepstate.values.key import OBJECTS, PART_BYTES, WITH_VALUES, stamp_suffix, stored_key

FORMAT: Final = 1
"""The layout that `parts/space.lua` describes; each space's state holds the number."""

LOG_SLACK: Final = 64
"""Number of revisions by which a log may exceed its limit, so that not every batch cuts the log."""

_FOLDER = Path(__file__).parent / "scripts"
# While a slot moves, a script runs only if all its keys are there, so none names a key that it does not need.
_KEYS: Final = {"read": 2, "changes": 2, "scan": 3, "sizes": 4}
_ALL_KEYS = 5
_texts: dict[bytes, bytes] = {}
_CONSTANTS: Final = {
    "FORMAT": FORMAT,
    "STAMP_TAG": stamp_suffix(0, 0)[0],
    "TEXT_TAG": stored_key(OBJECTS, "")[1],
    "PART_BYTES": PART_BYTES,
    "COUNTED_PARTS": limits.COUNTED_PARTS,
    "OBJECTS": OBJECTS,
    "WITH_VALUES": WITH_VALUES,
    "CHANGE_BYTES": limits.CHANGE_BYTES,
    "RETRY_KEPT_MS": RETRY_KEPT_MS,
    "LEAP_MS": LEAP_MS,
    "SWEPT_BY_FLUSH": SWEPT_BY_FLUSH,
    "VALUE_BYTES": limits.VALUE_BYTES,
    "LOG_REVISIONS": limits.LOG_REVISIONS,
    "LOG_BYTES": limits.LOG_BYTES,
    "LOG_SLACK": LOG_SLACK,
    "READ_BYTES": limits.READ_BYTES,
    "BATCH_BYTES": limits.BATCH_BYTES,
    "PAGE_BYTES": limits.PAGE_BYTES,
    "PAGE_ROWS": limits.PAGE_ROWS,
}


class Script(NamedTuple):
    """A script's text, and its digest, by which a server that has it cached runs it."""

    text: bytes
    sha: bytes
    keys: int
    """Number of a space's keys that it uses, from the first."""

    def call(self, keys: tuple[bytes, ...], *arguments: bytes) -> tuple[bytes, ...]:
        """Return the command that runs it."""
        return (b"EVALSHA", self.sha, b"%d" % self.keys, *keys[: self.keys], *arguments)


@cache
def script(name: str) -> Script:
    """Return the script `scripts/{name}.lua`."""
    constants = "".join(f"local {constant} = {value}\n" for constant, value in _CONSTANTS.items())
    text = (constants + _joined("--> space\n" + (_FOLDER / f"{name}.lua").read_text())).encode()
    made = Script(text, sha1(text, usedforsecurity=False).hexdigest().encode(), _KEYS.get(name, _ALL_KEYS))
    _texts[made.sha] = made.text
    return made


def _joined(text: str) -> str:
    """Return a script with the parts that it names inserted, and without comments."""
    lines: list[str] = []
    for line in text.splitlines():
        code, _, said = line.partition("--")
        if said.startswith("> "):
            lines.append(_joined((_FOLDER / "parts" / f"{said[2:]}.lua").read_text()))
        elif code.strip():
            lines.append(code.strip())
    return "\n".join(lines)


def text_of(sha: bytes) -> bytes:
    """Return the text of a script by its digest."""
    return _texts[sha]
