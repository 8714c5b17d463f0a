"""A whole history as one value, and as one file: all that branches and tags lead to, each thing once.

```
"keepstate history 1", a line feed
"B" name head, "T" name head        a branch, a tag
"G" commit graft                    what comes before a commit that lost its parents
"C" record                          a commit
"O" kind object                     a part of a state
```

Each of these lines is an array in MessagePack behind its length of four bytes. The file ends with the SHA-256
of all before. What is read is compared with its name, and must be whole: a bundle that lacks something is
refused before anything is written.
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
from keepstate.engine.history.grafts import Graft, Grafts
from keepstate.engine.history.heads import Head, admit_ref_name
from keepstate.engine.history.objects import packed, unpacked
from keepstate.engine.history.record import CommitRecord, id_of, read_record
from keepstate.errors import CorruptError, InvalidError, UnsupportedError
from keepstate.values import limits
from keepstate.values.codec import PLAIN
from keepstate.values.hash_flooding import refuse_chosen_keys
from keepstate.values.merkle import reach
from keepstate.values.refs import Kind, Ref, name_of

_KIND: Final = b"keepstate history "
_MAGIC: Final = _KIND + b"1\n"
_DIGEST_BYTES: Final = 32
_LENGTH_BYTES: Final = 4
_halves: Final = count()


class Bundle(msgspec.Struct):
    """A history.

    Attributes:
        branches: Heads by name.
        tags: Likewise.
        grafts: By commit.
        commits: Their canonical bytes by id.
        objects: Kind and bytes by name, but for roots that commits carry.
    """

    branches: dict[str, Head] = msgspec.field(default_factory=dict[str, Head])
    tags: dict[str, Head] = msgspec.field(default_factory=dict[str, Head])
    grafts: Grafts = msgspec.field(default_factory=dict[bytes, Graft])
    commits: dict[bytes, bytes] = msgspec.field(default_factory=dict[bytes, bytes])
    objects: dict[bytes, tuple[Kind, bytes]] = msgspec.field(default_factory=dict[bytes, tuple[Kind, bytes]])

    def verify(self) -> None:
        """Raise `CorruptError` unless it holds all that its branches and tags lead to."""
        self.led_to([head.commit for head in (*self.branches.values(), *self.tags.values())])

    def reached(self, commits: Iterable[bytes]) -> set[bytes]:
        """Return these commits and all before them."""
        todo = [*commits]
        seen = set(todo)
        while todo:
            new = [parent for parent in self._parents(todo.pop()) if parent not in seen]
            seen.update(new)
            todo += new
        return seen

    def led_to(self, commits: Iterable[bytes], there: Collection[bytes] = ()) -> Bundle:
        """Return commits, all before them, and what these hold: without branches and tags.

        Args:
            commits: The commits.
            there: Those that are left out.

        Raises:
            CorruptError: It lacks something of that.
        """
        found, known = Bundle(), set[bytes]()
        for id in self.reached(commits) - set(there):
            record = self._record(id)
            found.commits[id] = self.commits[id]
            if id in self.grafts:
                found.grafts[id] = self.grafts[id]
            roots = record.roots()
            _serve(reach([record.root], known, found._take(roots)), self, roots)
            known.difference_update(roots)  # another commit may not carry them
        return found

    def _take(self, roots: Mapping[bytes, bytes]) -> Callable[[Ref, bytes], None]:
        def take(ref: Ref, data: bytes) -> None:
            if ref.name not in roots:
                self.objects[ref.name] = Kind(ref.kind), data

        return take

    def _parents(self, id: bytes) -> list[bytes]:
        graft = self.grafts.get(id)
        return graft.parents if graft is not None else self._record(id).parents

    def _record(self, id: bytes) -> CommitRecord:
        if id not in self.commits:
            raise CorruptError(f"the bundle lacks commit {id.hex()}; export it again")
        return read_record(self.commits[id], id)


def _serve(work: Any, bundle: Bundle, roots: dict[bytes, bytes]) -> None:
    try:
        wanted = next(work)
        while True:
            found: dict[bytes, bytes] = {}
            for ref in wanted:
                if ref.name in roots:
                    found[ref.name] = roots[ref.name]
                elif ref.name in bundle.objects:
                    found[ref.name] = bundle.objects[ref.name][1]
                else:
                    raise CorruptError(f"the bundle lacks object {ref.name.hex()}; export it again")
            wanted = work.send(found)
    except StopIteration:
        return


# ---- as a file


def admit_target(path: str) -> Path:
    """Return where a file is to be.

    Raises:
        InvalidError: Its folder does not exist, or what has its name is neither a file nor a link.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise InvalidError(f"the folder of {path!r} is not there; make it, or name another file")
    with suppress(OSError):  # what opens it says why it cannot
        mode = target.lstat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISLNK(mode):  # a rename would take the place of /dev/null
            raise InvalidError(f"{path!r} is not a file, and is not replaced; name another file")
    return target


def write_bundle(bundle: Bundle, path: str) -> None:
    """Write a file for its owner alone, whole or not at all.

    One that is there is replaced and keeps its permissions; of a link, the link itself is replaced.

    Raises:
        InvalidError: Its folder does not exist, it is not a file, or the file cannot be written there.
    """
    target = admit_target(path)
    # Its own for each call: two of one process may write to the same file at once.
    half = target.with_name(f".{target.name}.{os.getpid()}.{next(_halves)}.half")
    seen = sha256()
    try:
        with open(make_file(str(half), mode=mode_of(target)), "wb") as file:
            for line in _lines(bundle):
                file.write(line)
                seen.update(line)
            file.write(seen.digest())
            file.flush()
            os.fsync(file.fileno())
        half.replace(target)
    except OSError as error:
        raise InvalidError(f"{path} cannot be written: {error.strerror}; name another file") from error
    finally:
        with suppress(OSError):
            half.unlink()


def _lines(bundle: Bundle) -> Iterator[bytes]:
    yield _MAGIC
    for name, head in bundle.branches.items():
        yield _line("B", name, head)
    for name, head in bundle.tags.items():
        yield _line("T", name, head)
    for id, graft in bundle.grafts.items():
        yield _line("G", id, graft)
    for record in bundle.commits.values():
        yield _line("C", _packed(record))
    for kind, data in bundle.objects.values():
        yield _line("O", int(kind), _packed(data))


def _packed(data: bytes) -> bytes:
    """Return the stored form, which keeps to the budget of what is read, whatever compression would save."""
    small = packed(data)
    return small if len(data) <= limits.EXPANSION * len(small) else PLAIN + data


def _line(*parts: object) -> bytes:
    line = msgspec.msgpack.encode(parts)
    return len(line).to_bytes(_LENGTH_BYTES) + line


def is_bundle(begin: bytes) -> bool:
    """Whether a file that begins so is a bundle, be it of a later format."""
    return begin.startswith(_KIND)


def read_bundle(path: str) -> Bundle:
    """Return the history in a file, verified.

    Raises:
        InvalidError: There is no such file, or it is no bundle.
        UnsupportedError: A later version of keepstate has written it.
        CorruptError: It is damaged, or lacks something.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InvalidError(f"{path} cannot be read: {error.strerror}") from error
    return bundle_of(data, path)


def bundle_of(data: bytes, path: str) -> Bundle:
    """Return the history in the content of a file, verified; raises what `read_bundle` does."""
    if is_bundle(data) and not data.startswith(_MAGIC):
        raise UnsupportedError(f"{path} is a bundle of a later format; read it with a newer keepstate")
    if not data.startswith(_MAGIC):
        raise InvalidError(f"{path} is no bundle of a history")
    try:
        bundle = _read(data)
        bundle.verify()
    except CorruptError as error:
        raise CorruptError(f"{path} is damaged: {error}", place=path) from error
    return bundle


def _read(data: bytes) -> Bundle:
    end = len(data) - _DIGEST_BYTES
    if end < len(_MAGIC) or sha256(data[:end]).digest() != data[end:]:
        raise CorruptError("its digest is another's; it is cut off or was changed")
    bundle = Bundle()
    place, left = len(_MAGIC), limits.EXPANSION * len(data)
    while place < end:
        begin = place + _LENGTH_BYTES
        place = begin + int.from_bytes(data[place:begin])
        refuse_chosen_keys(data[begin:place])
        try:
            kind, *parts = msgspec.msgpack.decode(data[begin:place], type=list[Any])
            left -= _take(bundle, kind, *parts)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
            raise CorruptError(f"a line of it is none: {error}") from error
        if left < 0:
            raise CorruptError(f"its parts inflate to over {limits.EXPANSION} times its size")
    return bundle


def _take(bundle: Bundle, kind: str, first: Any, second: Any = None) -> int:
    """Take what a line holds, and return how many bytes of commits and objects that is."""
    match kind:
        case "B":
            bundle.branches[admit_ref_name("branch", first)] = msgspec.convert(second, Head)
        case "T":
            bundle.tags[admit_ref_name("tag", first)] = msgspec.convert(second, Head)
        case "G":
            bundle.grafts[first] = msgspec.convert(second, Graft)
        case "C":
            record = unpacked(first, "a commit")
            bundle.commits[id_of(record)] = record
            return len(record)
        case "O":
            encoding = unpacked(second, "an object")
            bundle.objects[name_of(Kind(first), encoding)] = Kind(first), encoding
            return len(encoding)
        case _:
            raise CorruptError(f"it has a line of kind {kind!r}; it is of a newer keepstate")
    return 0
