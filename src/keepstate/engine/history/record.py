"""Stored records of a history: commits, the heads of branches and tags, and grafts.

The name of a commit is the digest of its bytes, so a changed commit is noticed. The root of a list changes
with every append. The record of a commit therefore carries the roots of the lists in its state, as many as
fit. An append then writes its items and the record, and nothing else.

A head is a small entry that is logged with its value, so it can be watched. A commit never changes, so the
parents that pruning leaves it are stored apart, as grafts. One entry has all grafts. A walk over commits
reads it, and therefore fails if another caller prunes meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from hashlib import sha256
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.stored import (
    StoredMs,
    corrupt_error,
    decode_fields,
    decode_stored,
    describe,
    encode_fields,
)
from keepstate.engine.kernel.unit import UNWRITTEN, Unit
from keepstate.errors import CorruptError, InvalidError
from keepstate.stores.protocol import Entry, Store
from keepstate.values.nodes import refs_in
from keepstate.values.refs import DIGEST_SIZE, Kind, digest, name_of
from keepstate.values.touched import Touched, read_touched

NAME_BYTES: Final = 200
"""Size of the name of a branch or tag."""
CARRIED_BYTES: Final = 4_096
"""Size of the roots in one record."""
NONCE_BYTES: Final = 8
EMPTY_STATE: Final = b"\x80"
"""The encoding of a dict without items."""

_FORMAT: Final = 2
_CHECKSUM_BYTES: Final = 8
_RESERVED: Final = re.compile(r"[~#@\x00-\x1f]")
_Name = Annotated[bytes, msgspec.Meta(min_length=DIGEST_SIZE, max_length=DIGEST_SIZE)]
_NoneOrName = Annotated[bytes, msgspec.Meta(max_length=DIGEST_SIZE)]


# ---- commits


class CommitRecord(msgspec.Struct, array_like=True, frozen=True):
    """A stored commit.

    Attributes:
        parents: Names of the parents; the first is the previous head of the branch.
        root: The encoding of the state, with references to large parts.
        carried: Roots of lists that the encoding refers to.
        generation: One more than the highest generation of the parents.
        created_ms: The time of the commit, never before a parent's. Nothing is ordered by it.
        author: The author.
        message: The commit message.
        nonce: Random bytes. Without them, two equal increments at one moment would be the same commit, and a
            merge would count only one.
        number: Its number in its line of first parents, from 1.
        skip: The commit that it jumps to; see `lineage`. Empty if that is its first parent, or there is none.
        skip_number: The number of `skip`; 0 if `skip` is empty.
        spread_ms: The milliseconds from the earliest time of its stretch to its own time.
        merges: Whether a commit of its stretch has more than one parent.
        touched: What it touched, compared with its first parent; see `values.touched`.
        stretch: What its stretch touched; empty if the stretch is this commit alone.
        meta: The caller's notes on it, by key.
        classes: Registered classes whose objects the state may contain: those of the parts that this commit
            made, and those of the commits that it was made from.
    """

    parents: list[_Name]
    root: Annotated[bytes, msgspec.Meta(min_length=1)]
    carried: list[bytes]
    generation: Annotated[int, msgspec.Meta(ge=1)]
    created_ms: StoredMs
    author: str | None
    message: str
    nonce: Annotated[bytes, msgspec.Meta(max_length=NONCE_BYTES)]
    number: Annotated[int, msgspec.Meta(ge=1)]
    skip: _NoneOrName
    skip_number: Annotated[int, msgspec.Meta(ge=0)]
    spread_ms: StoredMs
    merges: bool
    touched: Annotated[bytes, msgspec.Meta(min_length=1)]
    stretch: bytes = b""
    meta: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    classes: list[str] = msgspec.field(default_factory=list[str])

    @property
    def skip_at(self) -> int:
        """The number of the commit that it jumps to; 0 if there is none."""
        return self.skip_number or self.number - 1

    @property
    def low_ms(self) -> int:
        """The earliest time of its stretch."""
        return self.created_ms - self.spread_ms

    def own_touched(self) -> Touched:
        """Return what the commit touched."""
        return read_touched(self.touched)

    def stretch_touched(self) -> Touched:
        """Return what its stretch touched."""
        return read_touched(self.stretch or self.touched)

    def roots(self) -> dict[bytes, bytes]:
        """Return the carried roots by name."""
        return {name_of(Kind.LIST, root): root for root in self.carried}

    def encoding(self) -> bytes:
        """Return the canonical bytes."""
        fields = [*msgspec.structs.astuple(self)]
        while not fields[-1]:  # a field without a default is never empty there: `touched` comes before them
            fields.pop()
        return bytes((_FORMAT,)) + msgspec.msgpack.encode(fields, order="deterministic")


def id_of(encoding: bytes) -> bytes:
    """Return the name of a commit."""
    return digest("commit", _FORMAT, encoding)


def read_record(encoding: bytes, id: bytes) -> CommitRecord:
    """Return the commit with this name.

    Raises:
        CorruptError: The bytes are damaged, or belong to another commit.
    """
    location = f"commit {id.hex()}"
    if id_of(encoding) != id:
        raise corrupt_error(location, "its bytes have another name")
    if encoding[0] != _FORMAT:
        raise corrupt_error(location, f"it is of format {encoding[0]}")
    return decode_stored(encoding[1:], CommitRecord, location)


def carried(root: bytes, objects: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """Return the list roots that the commit of a state carries, by name, taken from `objects`."""
    found: dict[bytes, bytes] = {}
    size = 0
    refs = refs_in(root)
    orders = {ref.order.name for ref in refs if ref.order is not None}  # they change less often than lists
    for ref in refs:
        if ref.kind is Kind.LIST and ref.name in objects and ref.name not in orders:
            size += len(objects[ref.name])
            if size > CARRIED_BYTES:
                break
            found[ref.name] = objects[ref.name]
    return found


# ---- heads


class Head(msgspec.Struct, array_like=True, frozen=True):
    """The commit of a branch or tag.

    Attributes:
        commit: The name of the commit.
        number: Its number by first parents, from 1.
        jumped: The commit whose record decides about the jump of the next commit; see `lineage`. It is read
            with the commit. Empty if none does, or it is not known.
    """

    commit: _Name
    number: Annotated[int, msgspec.Meta(ge=1)]
    jumped: _NoneOrName = b""


_WHOLE_HEAD: Final = bytes((0x90 + len(Head.__struct_fields__),))
"""The first byte of a MessagePack head with all known fields. That of a longer one is greater."""


def check_ref_name(what: str, name: object) -> str:
    """Return the name of a branch or tag.

    Raises:
        InvalidError: The name is too long, or could be mistaken for another form of revision.
    """
    text = check_text(what, name)
    if not 0 < len(text.encode()) <= NAME_BYTES or _RESERVED.search(text):
        raise InvalidError(
            f"`{what}` is {text[:40]!r}; a name has 1 to {NAME_BYTES} bytes, without ~ # @ and control "
            "characters"
        )
    if is_whole_id(text):
        raise InvalidError(f"`{what}` is {text!r}, which looks like the id of a commit; choose another name")
    return text


def is_whole_id(text: str) -> bool:
    """Return whether the text is the complete id of a commit."""
    return len(text) == 2 * DIGEST_SIZE and all(letter in "0123456789abcdef" for letter in text)


async def read_head(unit: Unit, part: bytes, name: str) -> Head | None:
    """Return the head of a branch or tag. The unit's batch applies only if it does not move."""
    entry = await unit.get(layout.named_key(part, name))
    return None if entry is None else decode_head(entry.key, entry.value)


def decode_head(key: bytes, stored: bytes) -> Head:
    """Decode the head that is stored under a key.

    Raises:
        CorruptError: The bytes are damaged.
    """
    try:
        return decode_stored(stored, Head, "")
    except CorruptError:  # describing the key takes longer than decoding, so only on failure
        return decode_stored(stored, Head, key)


def put_head(unit: Unit, part: bytes, name: str, head: Head) -> None:
    """Move a branch or tag to a commit. Fields that a later version of keepstate has added are kept."""
    key = layout.named_key(part, name)
    before = unit.as_applied(key, UNWRITTEN)
    fields: list[Any] = [head.commit, head.number]
    if head.jumped:
        fields.append(head.jumped)
    if before is not None and before.value[:1] > _WHOLE_HEAD:
        later = decode_stored(before.value, list[Any], key)[len(Head.__struct_fields__) :]
        fields = [head.commit, head.number, head.jumped, *later]
    unit.put(key, msgspec.msgpack.encode(fields))


async def heads(unit: Unit, part: bytes) -> AsyncIterator[tuple[str, Head]]:
    """Yield all branches, or all tags, without checks. Those that the unit has written come first."""
    own = unit.written(part)
    for key, value in own.items():
        if value is not None:
            yield layout.name_of(part, key), decode_head(key, value)
    async for entry in scan_entries(unit.store, unit.space, part):
        if entry.key not in own:
            yield layout.name_of(part, entry.key), decode_head(entry.key, entry.value)


async def scan_entries(store: Store, space: str, prefix: bytes, *, limit: int = 256) -> AsyncIterator[Entry]:
    """Yield the entries under a prefix, page by page, without checks.

    Args:
        store: The store.
        space: The stored name of the space.
        prefix: The prefix.
        limit: The number of entries in a page.
    """
    after: bytes | None = None
    while True:
        page = await store.scan(space, prefix, after=after, limit=limit)
        for entry in page.entries:
            yield entry
        after = page.next
        if after is None:
            return


# ---- grafts


class Graft(msgspec.Struct, array_like=True, frozen=True):
    """The replacement of a commit's pruned parents.

    No jump leads over the number of a graft, because the ground below may be pruned.

    Attributes:
        parents: The nearest kept ancestors.
        skipped: The number of first parents that were pruned before the first of them, or before the
            beginning.
        goes_on: Whether the first of them is on the commit's line of first parents. If not, the line ends
            here.
        number: The number of the commit.
        below: The next commit with a graft on its line of first parents; empty if there is none, or it is
            not known.
        later: Fields added by a later version of keepstate. They are written back unchanged.
    """

    parents: list[_Name]
    skipped: Annotated[int, msgspec.Meta(ge=0)]
    goes_on: bool
    number: Annotated[int, msgspec.Meta(ge=1)]
    below: _NoneOrName = b""
    later: tuple[Any, ...] = ()


Grafts: TypeAlias = dict[bytes, Graft]


def link_grafts(
    grafts: Grafts, linked: Iterable[bytes], first_parent: Callable[[bytes], bytes | None]
) -> Grafts:
    """Return grafts with `below` set.

    Args:
        grafts: The grafts.
        linked: The commits whose grafts are linked; the others are left without `below`.
        first_parent: Returns the original first parent of a commit without a graft, or None.
    """
    found: dict[bytes, bytes] = {}

    def first_at(id: bytes) -> bytes:
        """Return the first commit with a graft on a line, from a commit on; empty if there is none."""
        passed: list[bytes] = []
        at: bytes | None = id
        while at is not None and at not in grafts and at not in found:
            passed.append(at)
            at = first_parent(at)
        answer = b"" if at is None else at if at in grafts else found[at]
        found.update(dict.fromkeys(passed, answer))
        return answer

    below = {id: first_at(grafts[id].parents[0]) for id in linked if id in grafts and grafts[id].goes_on}
    return {id: msgspec.structs.replace(graft, below=below.get(id, b"")) for id, graft in grafts.items()}


async def read_grafts(unit: Unit) -> Grafts:
    """Return all grafts by commit. The unit's batch applies only if they do not change."""
    entry = await unit.get(layout.GRAFTS)
    return {} if entry is None else decode_grafts(await unit.value(entry))


def put_grafts(unit: Unit, grafts: Grafts) -> None:
    """Write all grafts."""
    unit.put(layout.GRAFTS, encode_grafts(grafts))


def encode_grafts(grafts: Grafts) -> bytes:
    """Encode grafts, followed by a checksum.

    The checksum comes last because a value that begins with one could begin like a value in parts.
    """
    encoded = msgspec.msgpack.encode({id: encode_fields(graft) for id, graft in grafts.items()})
    return encoded + _checksum(encoded)


def decode_grafts(stored: bytes) -> Grafts:
    """Decode grafts and verify their checksum, which is the only protection against a changed graft.

    Raises:
        CorruptError: The bytes are damaged.
    """
    location = describe(layout.GRAFTS)
    encoded = stored[:-_CHECKSUM_BYTES]
    if stored[-_CHECKSUM_BYTES:] != _checksum(encoded):
        raise corrupt_error(location, "its checksum does not match")
    stored_grafts = decode_stored(encoded, dict[_Name, list[Any]], location)
    return {id: decode_fields(fields, Graft, location) for id, fields in stored_grafts.items()}


def _checksum(encoded: bytes) -> bytes:
    return sha256(encoded).digest()[:_CHECKSUM_BYTES]
