"""A whole history as one value and as one file: everything that branches and tags lead to, each part once.

```
"keepstate history 2", a line feed
"B" name head, "T" name head        a branch, a tag
"G" commit graft                    the replacement of pruned parents
"C" record                          a commit
"O" kind object                     a part of a state
```

Each of these lines is a MessagePack array after its length in four bytes. The file ends with the SHA-256 of
everything before. Reading compares every part with its name. An incomplete bundle is rejected before anything
is written.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, Final

import msgspec

from keepstate._files import make_file, mode_of
from keepstate._finish import finish
from keepstate.engine.history.lineage import check_graft, check_lineage, head_of, jumped_from
from keepstate.engine.history.objects import pack_object, serve_work, unpack_object
from keepstate.engine.history.record import (
    CommitRecord,
    Graft,
    Grafts,
    Head,
    check_ref_name,
    id_of,
    link_grafts,
    read_record,
)
from keepstate.errors import CorruptError, InvalidError, UnsupportedError
from keepstate.values import limits
from keepstate.values.codec import PLAIN
from keepstate.values.guards import refuse_chosen_keys
from keepstate.values.merkle import reach
from keepstate.values.refs import Kind, Ref, name_of

_KIND: Final = b"keepstate history "
_MAGIC: Final = _KIND + b"2\n"
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_temporary: Final = count()


class Bundle(msgspec.Struct):
    """A history.

    Attributes:
        branches: Heads by name.
        tags: Heads by name.
        grafts: Grafts by commit.
        commits: Canonical bytes of commits by id.
        objects: Kind and bytes by name, without the roots that commits carry.
    """

    branches: dict[str, Head] = msgspec.field(default_factory=dict[str, Head])
    tags: dict[str, Head] = msgspec.field(default_factory=dict[str, Head])
    grafts: Grafts = msgspec.field(default_factory=dict[bytes, Graft])
    commits: dict[bytes, bytes] = msgspec.field(default_factory=dict[bytes, bytes])
    objects: dict[bytes, tuple[Kind, bytes]] = msgspec.field(default_factory=dict[bytes, tuple[Kind, bytes]])

    def verify(self) -> None:
        """Raise `CorruptError` unless the bundle has everything that its branches and tags lead to.

        Also compares the facts about ancestors in each commit with their records.
        """
        heads = [*self.branches.values(), *self.tags.values()]
        found = self.below([head.commit for head in heads])
        for head in heads:
            right = head_of(head.commit, self._record(head.commit))
            if head.number != right.number or head.jumped not in (b"", right.jumped):
                raise CorruptError(f"a name of commit {head.commit.hex()} has other facts than the commit")
        for id in found.commits:
            try:
                self._verify_lineage(id)
            except CorruptError as error:
                raise CorruptError(f"commit {id.hex()}: {error}") from error

    def _verify_lineage(self, id: bytes) -> None:
        record, graft = self._record(id), self.grafts.get(id)
        if graft is not None:
            check_graft(graft, record, [self._record(parent) for parent in graft.parents])
            return
        parents = [self._record(parent) for parent in record.parents]
        jumped_id = jumped_from(parents[0]) if parents else None
        jumped = self._record(jumped_id) if jumped_id in self.commits else None
        check_lineage(record, parents, jumped)

    def linked(self) -> Grafts:
        """Return the grafts, each with the next one on its line."""
        return link_grafts(self.grafts, self.grafts, lambda id: next(iter(self._record(id).parents), None))

    def ancestors(self, commits: Iterable[bytes]) -> set[bytes]:
        """Return these commits and all their ancestors."""
        todo = [*commits]
        seen = set(todo)
        while todo:
            new = [parent for parent in self._parents(todo.pop()) if parent not in seen]
            seen.update(new)
            todo += new
        return seen

    def below(self, commits: Iterable[bytes], excluded: Collection[bytes] = ()) -> Bundle:
        """Return commits, their ancestors, and the objects of these, without branches and tags.

        Args:
            commits: The commits.
            excluded: Commits to leave out.

        Raises:
            CorruptError: A commit or object is missing.
        """
        found, known = Bundle(), set[bytes]()
        for id in self.ancestors(commits) - set(excluded):
            record = self._record(id)
            found.commits[id] = self.commits[id]
            if id in self.grafts:
                found.grafts[id] = self.grafts[id]
            roots = record.roots()
            finish(serve_work(reach([record.root], known, found.taking(roots)), self._serving(roots)))
            known.difference_update(roots)  # another commit may not carry them
        return found

    def joined(self, other: Bundle) -> Bundle:
        """Return everything in two bundles of a history, with the branches and tags of this one.

        A commit whose parents are in one of the bundles has no graft: the bundle with the graft was made
        without these parents, or when they were dropped.
        """
        commits = {**other.commits, **self.commits}
        grafts = {**self.grafts, **other.grafts}
        return Bundle(
            self.branches,
            self.tags,
            {
                id: graft
                for id, graft in grafts.items()
                if id in commits
                and not all(parent in commits for parent in read_record(commits[id], id).parents)
            },
            commits,
            {**other.objects, **self.objects},
        )

    def taking(self, roots: Mapping[bytes, bytes]) -> Callable[[Ref, bytes], None]:
        """Return a function that adds an object to the bundle, except the roots that a commit carries.

        Carried roots to which other objects refer are added, because another commit may not carry them.
        """

        def take(ref: Ref, data: bytes) -> None:
            if ref.name not in roots:
                self.objects[ref.name] = Kind(ref.kind), data
            for name, root in roots.items():
                if name in data:
                    self.objects[name] = Kind.LIST, root

        return take

    def _serving(self, roots: dict[bytes, bytes]) -> Callable[[Collection[Ref]], Any]:
        async def fetch(wanted: Collection[Ref]) -> dict[bytes, bytes]:
            return {ref.name: self._object(ref.name, roots) for ref in wanted}

        return fetch

    def _object(self, name: bytes, roots: dict[bytes, bytes]) -> bytes:
        if name in roots:
            return roots[name]
        if name not in self.objects:
            raise CorruptError(f"the bundle lacks object {name.hex()}; export it again")
        return self.objects[name][1]

    def _parents(self, id: bytes) -> list[bytes]:
        graft = self.grafts.get(id)
        return graft.parents if graft is not None else self._record(id).parents

    def _record(self, id: bytes) -> CommitRecord:
        if id not in self.commits:
            raise CorruptError(f"the bundle lacks commit {id.hex()}; export it again")
        return read_record(self.commits[id], id)


# ---- writing a file


def check_target(path: str) -> Path:
    """Return the path of a file that is to be written.

    Raises:
        InvalidError: The folder does not exist, or the path is neither a file nor a link.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidError(f"the folder of {path!r} is not there; create it, or name another file")
    with suppress(OSError):  # opening the file reports the error
        mode = target.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):  # a rename would replace /dev/null
            raise InvalidError(f"{path!r} is not a file, and is not replaced; name another file")
    return target


def write_bundle(bundle: Bundle, path: str) -> None:
    """Write a file that only its owner can read, completely or not at all.

    An existing file is replaced, and its permissions stay. Of a link, the link itself is replaced.

    Raises:
        InvalidError: The folder does not exist, the path is not a file, or it cannot be written.
    """
    target = check_target(path)
    # A name of its own for each call, because two threads may write the same file at once.
    temporary = target.with_name(f".{target.name}.{os.getpid()}.{next(_temporary)}.half")
    seen = sha256()
    try:
        with open(make_file(str(temporary), mode=mode_of(target)), "wb") as file:
            for line in _lines(bundle):
                file.write(line)
                seen.update(line)
            file.write(seen.digest())
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}; name another file") from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _lines(bundle: Bundle) -> Iterator[bytes]:
    yield _MAGIC
    for name, head in bundle.branches.items():
        yield _line("B", name, head)
    for name, head in bundle.tags.items():
        yield _line("T", name, head)
    for id, graft in bundle.grafts.items():
        yield _line("G", id, graft)
    for record in bundle.commits.values():
        yield _line("C", _pack(record))
    for kind, data in bundle.objects.values():
        yield _line("O", int(kind), _pack(data))


def _pack(data: bytes) -> bytes:
    """Return the stored form, uncompressed if it would expand more than readers allow."""
    small = pack_object(data)
    return small if len(data) <= limits.EXPANSION * len(small) else PLAIN + data


def _line(*parts: object) -> bytes:
    line = msgspec.msgpack.encode(parts)
    return len(line).to_bytes(_LENGTH_BYTES) + line


# ---- reading a file


def is_bundle(begin: bytes) -> bool:
    """Return whether a file with this beginning is a bundle, perhaps of another format."""
    return begin.startswith(_KIND)


def read_bundle(path: str) -> Bundle:
    """Return the history in a file, verified.

    Raises:
        InvalidError: The file does not exist, or is not a bundle.
        UnsupportedError: A later version of keepstate wrote the file.
        CorruptError: The file is damaged or incomplete.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidError(f"{path} cannot be read: {error.strerror}") from error
    return bundle_of(data, path)


def bundle_of(data: bytes, path: str) -> Bundle:
    """Return the history in the content of a file, verified. Raises the errors of `read_bundle`."""
    if is_bundle(data) and not data.startswith(_MAGIC):
        raise UnsupportedError(
            f"{path} is a bundle of another format; read it with the keepstate that wrote it"
        )
    if not data.startswith(_MAGIC):
        raise InvalidError(f"{path} is not a bundle of a history")
    try:
        bundle = _read(data)
        bundle.verify()
    except CorruptError as error:
        raise CorruptError(f"{path} is damaged: {error}", place=path) from error
    return bundle


def _read(data: bytes) -> Bundle:
    end = len(data) - _DIGEST_BYTES
    if end < len(_MAGIC) or sha256(data[:end]).digest() != data[end:]:
        raise CorruptError("its digest does not match; it was truncated or changed")
    bundle = Bundle()
    at, left = len(_MAGIC), limits.EXPANSION * len(data)
    while at < end:
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(data[at:begin])
        refuse_chosen_keys(data[begin:at])
        try:
            kind, *parts = msgspec.msgpack.decode(data[begin:at], type=list[Any])
            left -= _take_line(bundle, kind, *parts)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise CorruptError(f"a line is damaged: {error}") from error
        if left < 0:
            raise CorruptError(f"its parts expand to more than {limits.EXPANSION} times its size")
    return bundle


def _take_line(bundle: Bundle, kind: str, first: Any, second: Any = None) -> int:
    """Add the content of a line, and return the size of the commit or object in it."""
    match kind:
        case "B":
            bundle.branches[check_ref_name("branch", first)] = msgspec.convert(second, Head)
        case "T":
            bundle.tags[check_ref_name("tag", first)] = msgspec.convert(second, Head)
        case "G":
            bundle.grafts[first] = msgspec.convert(second, Graft)
        case "C":
            record = unpack_object(first, "a commit")
            bundle.commits[id_of(record)] = record
            return len(record)
        case "O":
            encoding = unpack_object(second, "an object")
            bundle.objects[name_of(Kind(first), encoding)] = Kind(first), encoding
            return len(encoding)
        case _:
            raise CorruptError(f"a line has the kind {kind!r}; a newer keepstate wrote it")
    return 0
