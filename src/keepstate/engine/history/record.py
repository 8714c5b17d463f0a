"""A commit as it is stored. Its name is the digest of these bytes, so that nobody can change it unseen.

The roots of lists change with every append. Those that stand in the state's own encoding, at any depth,
therefore stand in the record itself, as many as fit: an append then writes its message and the record, and
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from keepstate.engine.kernel.stored import StoredMs, corrupt_error, decode_stored
from keepstate.values.digest import DIGEST_SIZE, digest
from keepstate.values.nodes import refs_in
from keepstate.values.refs import Kind, name_of

CARRIED_BYTES: Final = 4_096
"""Of roots in one record."""
NONCE_BYTES: Final = 8
EMPTY_STATE: Final = b"\x80"
"""The encoding of a dict without items."""

_FORMAT: Final = 1
_Name = Annotated[bytes, msgspec.Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]


class CommitRecord(msgspec.Struct, array_like=True, frozen=True):
    """One moment of a state.

    Attributes:
        parents: Names of the commits before; the first is the one that the branch was on.
        root: The state's encoding, with references to what is large.
        carried: Roots of lists that the encoding refers to.
        generation: One more than the highest of the parents'.
        created_ms: When, never before a parent. Nothing is ordered by it.
        author: Who made it.
        message: What for.
        nonce: Random: two who count the same at one moment make two commits, and a merge counts both.
        classes: Registered classes whose objects may stand in the state: those that stand in what this commit
            has made, and those of the commits that it was made from.
    """

    parents: list[_Name]
    root: Annotated[bytes, msgspec.Meta(min_length=1)]
    carried: list[bytes]
    generation: Annotated[int, msgspec.Meta(ge=1)]
    created_ms: StoredMs
    author: str | None
    message: str
    nonce: bytes = b""
    classes: list[str] = msgspec.field(default_factory=list[str])

    def roots(self) -> dict[bytes, bytes]:
        """Return the carried roots by name."""
        return {name_of(Kind.LIST, root): root for root in self.carried}

    def encoding(self) -> bytes:
        """Return the canonical bytes."""
        fields = msgspec.structs.astuple(self)
        return bytes((_FORMAT,)) + msgspec.msgpack.encode(fields if self.classes else fields[:-1])


def id_of(encoding: bytes) -> bytes:
    """Return the name of a commit."""
    return digest("commit", _FORMAT, encoding)


def read_record(encoding: bytes, id: bytes) -> CommitRecord:
    """Return the commit of this name.

    Raises:
        CorruptError: The bytes are another's, or nobody wrote them.
    """
    place = f"commit {id.hex()}"
    if id_of(encoding) != id:
        raise corrupt_error(place, "its bytes have another name")
    if encoding[0] != _FORMAT:
        raise corrupt_error(place, f"it is of format {encoding[0]}")
    return decode_stored(encoding[1:], CommitRecord, place)


def carried(root: bytes, objects: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the roots that a commit of such a state carries, by name, of those that are at hand."""
    found: dict[bytes, bytes] = {}
    size = 0
    for ref in refs_in(root):
        if ref.kind is Kind.LIST and ref.name in objects:
            size += len(objects[ref.name])
            if size > CARRIED_BYTES:
                break
            found[ref.name] = objects[ref.name]
    return found
