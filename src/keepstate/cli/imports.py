"""The command `import`: chat transcripts become histories, and bundles become histories again."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import sha256
from io import BufferedReader
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, Final, cast

import msgspec
from cyclopts import Parameter
from rich.progress import BarColumn, TextColumn

from keepstate.cli import exits
from keepstate.cli.chat import gist
from keepstate.cli.databases import MAGIC, pieces_in
from keepstate.cli.display import counted, plain, progress, said, shortened
from keepstate.cli.session import PLAIN, Session
from keepstate.cli.transcripts import Piece, Transcript
from keepstate.engine.history.bundle import is_bundle
from keepstate.engine.history.paths import CODEC
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import AlreadyExistsError, InvalidError, KeepstateError, NotFoundError
from keepstate.values.merkle import MerkleValue
from keepstate.values.refs import digest

_STDIN: Final = "-"
_MESSAGES: Final = "messages"
_ABOUT: Final = "conversation"
"""The document with the other fields that a file has for a conversation."""
_SOURCE: Final = "source"
"""The document with the file that a conversation was imported from: its name, and a digest of its path."""
_BY_BATCH: Final = 200
_BATCH_BYTES: Final = 2 << 20
_GIST: Final = 48
_ATTEMPTS: Final = 64


class _Totals(msgspec.Struct):
    """The result of an import."""

    conversations: int = 0
    messages: int = 0
    added: int = 0
    present: int = 0


async def import_(
    file: Annotated[str, Parameter(allow_leading_hyphen=True)],
    *,
    space: Annotated[
        str | None,
        Parameter(help="The prefix of the spaces, or the space of a bundle; default: the file's name."),
    ] = None,
    key: Annotated[
        str | None, Parameter(help="The key of the messages of a conversation, if they are not found.")
    ] = None,
    by_index: Annotated[
        bool, Parameter(negative="", help="Name conversations by their index in the file, not by their ids.")
    ] = False,
    session: Session = PLAIN,
) -> int:
    """Import chat transcripts, one commit for each message, or a history that export wrote.

    A transcript is JSON or JSON lines, with one conversation or many, or a database of another library. Each
    conversation becomes the list `messages` in the history of a space, PREFIX/ID. Messages that are already
    there are compared and not written again, so you can run an interrupted import again.

    Args:
        file: The file; - reads a transcript from standard input.
    """
    prefix = space if space is not None else "chat" if file == _STDIN else Path(file).stem
    with _opened(file) as stream:
        if is_bundle(stream.peek()):
            if file == _STDIN:
                raise InvalidError("standard input holds a history that export wrote; give the file's name")
            return await _import_bundle(file, prefix, session)
        prefix = prefix.rstrip("/") or prefix
        transcript = Transcript(file, stream, key=key, by_index=by_index)
        size = None if file == _STDIN else _size(file)
        is_database = stream.peek().startswith(MAGIC)
        if is_database and file == _STDIN:
            raise InvalidError("standard input holds an SQLite database; give the file's name")
        # The beginning of the file is read before a store is created.
        pieces = pieces_in(file) if is_database else transcript.pieces()
        path = None if file == _STDIN or space is not None else file
        begun = perf_counter()
        async with session.opened(makes=True) as ks:
            importer = _Importer(ks, prefix, path)
            await _take_all(importer, transcript, pieces, None if is_database else size)
        _show(importer, transcript.left_out, perf_counter() - begun, session)
        return exits.OK


async def _import_bundle(file: str, space: str, session: Session) -> int:
    async with session.opened(makes=True) as ks:
        commits = await ks.space(space).history.import_bundle(file)
    text = f"{counted(commits, 'commit')} imported into the history of {space}"
    session.write({"space": space, "commits": commits}, text)
    return exits.OK


async def _take_all(
    importer: _Importer, transcript: Transcript, pieces: Iterator[Piece], size: int | None
) -> None:
    columns = TextColumn("importing"), BarColumn(), TextColumn("{task.description}")
    with progress(*columns, total=size) as tell:
        try:
            for piece in pieces:
                await importer.take(piece)
                tell(completed=transcript.read_bytes, description=_counted(importer.totals))
        except KeepstateError:
            if importer.totals.messages:
                done = f"keepstate: {_counted(importer.totals)} were imported before the error"
                said().print(f"{done}; run the import again to continue there", markup=False)
            raise


@dataclass(slots=True)
class _Known:
    """A conversation as it is in the store.

    Attributes:
        head: The last commit; None without commits.
        digests: The digests of its messages.
    """

    head: str | None
    digests: list[bytes]


class _Importer:
    """Appends messages that are not there yet.

    Args:
        ks: The handle on the store.
        prefix: The prefix of the names of spaces.
        file: The file, if the prefix is its name. Another file of the same name gets another prefix.

    Attributes:
        prefix: The prefix of the names of spaces.
        totals: The counts so far.
        first: The space of the first conversation, once it is known.
    """

    def __init__(self, ks: Keepstate, prefix: str, file: str | None) -> None:
        self._ks, self.prefix, self._name = ks, prefix, prefix
        self._source = None if file is None else _source_of(file)
        self._known: dict[str, _Known] = {}
        self.totals = _Totals()
        self.first: str | None = None
        self._seen: set[str] = set()

    async def take(self, piece: Piece) -> None:
        """Compare messages with the stored ones, and append the others.

        Raises:
            AlreadyExistsError: Another conversation is there.
        """
        number = 1
        while True:
            try:
                await self._take(piece)
                break
            except AlreadyExistsError:
                if self.totals.messages or not await self._is_of_another_file(piece):
                    raise
                number += 1
                self.prefix, self.first = f"{self._name}-{number}", None

    async def _is_of_another_file(self, piece: Piece) -> bool:
        """Return whether a file of the same name in another folder was imported under this prefix."""
        there = await self._space(piece).documents.get(_SOURCE)
        return self._source is not None and there is not None and there != self._source

    async def _take(self, piece: Piece) -> None:
        space = self._space(piece)
        self.first = self.first or space.name
        if space.name not in self._known and piece.start == 0:
            self._known = {}  # the last conversation has usually ended; if not, it is read again
        digests: list[bytes] = []
        size = begin = 0
        for index, message in enumerate(piece.messages):
            made = CODEC.to_merkle(message)
            digests.append(_digest(made))
            size += len(made.encoding) + sum(map(len, made.objects.values()))
            if size > _BATCH_BYTES or len(digests) == _BY_BATCH:
                await self._append(space, piece, begin, digests)
                digests, size, begin = [], 0, index + 1
        if digests or not piece.messages:
            await self._append(space, piece, begin, digests)
        self._seen.add(space.name)
        self.totals.conversations = len(self._seen)

    def _space(self, piece: Piece) -> Space:
        try:
            return self._ks.space(self.prefix if piece.id is None else f"{self.prefix}/{piece.id}")
        except InvalidError as error:
            where = f"{piece.place(0)}: " if piece.messages else ""
            raise InvalidError(f"{where}{error}; --by-index names conversations by their indexes") from error

    async def _append(self, space: Space, piece: Piece, begin: int, digests: Sequence[bytes]) -> None:
        before = self._known.get(space.name)
        start = piece.start + begin

        async def append(tx: Transaction) -> tuple[_Known, int]:
            known = await _read(tx, before)
            if start > len(known.digests):
                raise AlreadyExistsError(
                    f"{space.name!r} lost messages during the import: {start} then, {len(known.digests)} now"
                )
            there = known.digests[start:]
            for index, (own, found) in enumerate(zip(digests, there, strict=False)):
                if own != found:
                    raise _other_error(piece.place(begin + index), start + index, space.name)
            head = known.head
            for index in range(begin + len(there), begin + len(digests)):
                head = await _append_message(tx, piece, index)
            if begin == 0 and piece.fields and await tx.documents.get(_ABOUT) != piece.fields:
                await tx.documents.put(_ABOUT, piece.fields)
            if start == 0 and self._source is not None and await tx.documents.get(_SOURCE) is None:
                await tx.documents.put(_SOURCE, self._source)
            new = digests[len(there) :]
            return _Known(head, [*known.digests, *new]), len(new)

        self._known[space.name], added = await space.transact(append, attempts=_ATTEMPTS)
        self.totals.messages += len(digests)
        self.totals.added += added
        self.totals.present += len(digests) - added


async def _read(tx: Transaction, known: _Known | None) -> _Known:
    """Return the stored conversation; it is read only if it has changed."""
    try:
        head = (await tx.history.find()).id
    except NotFoundError:
        return _Known(None, [])
    if known is not None and known.head == head:
        return known
    try:
        state = await tx.history.checkout(load=[_MESSAGES])
    except NotFoundError:
        return _Known(head, [])
    there: Any = state[_MESSAGES]
    if not isinstance(there, list):
        raise AlreadyExistsError(f"{tx.space!r} has a {_MESSAGES!r} that is not a list; give another --space")
    return _Known(head, [_digest(CODEC.to_merkle(message)) for message in cast("list[object]", there)])


def _digest(made: MerkleValue) -> bytes:
    # Only the encoding shows the order of keys, which a large dict does not keep.
    return digest("message", 1, made.encoding)


async def _append_message(tx: Transaction, piece: Piece, index: int) -> str:
    message = piece.messages[index]
    text = shortened(gist(message), _GIST).encode(errors="replace").decode()
    try:
        made = await tx.history.append(_MESSAGES, message, author=message["role"], message=text)
    except InvalidError as error:
        raise InvalidError(f"{piece.place(index)}: {error}") from error
    return made.id


def _other_error(place: str, number: int, space: str) -> AlreadyExistsError:
    return AlreadyExistsError(
        f"{place} differs from the stored messages[{number}] of {space!r}; give another --space, or "
        "--by-index if several conversations of the file have the same id"
    )


# ---- files and output


@contextmanager
def _opened(file: str) -> Generator[BufferedReader]:
    try:
        with open(sys.stdin.fileno() if file == _STDIN else file, "rb", closefd=file != _STDIN) as stream:
            yield stream
    except BrokenPipeError:
        raise
    except OSError as error:
        raise InvalidError(f"{file} cannot be read ({error.strerror})") from error


def _source_of(file: str) -> dict[str, str]:
    path = Path(file).resolve()
    return {"file": path.name, "folder": sha256(bytes(path.parent)).hexdigest()[:16]}


def _size(file: str) -> int:
    return Path(file).stat().st_size


def _counted(totals: _Totals) -> str:
    return f"{counted(totals.conversations, 'conversation')}, {counted(totals.messages, 'message')}"


def _show(importer: _Importer, left_out: int, seconds: float, session: Session) -> None:
    totals = importer.totals
    done = f"{totals.added:,} imported, {totals.present:,} already there"
    if left_out:
        done += f"; {counted(left_out, 'line')} without a message left out"
    session.write(
        {
            "space": importer.prefix,
            **msgspec.to_builtins(totals),
            "left_out": left_out,
            "seconds": round(seconds, 3),
        },
        f"{_counted(totals)} in {seconds:.1f} s: {done}",
    )
    if importer.first is not None and not session.json:
        see = session.command("spaces", importer.prefix), session.command("log", importer.first)
        said().print(plain(f"see: {see[0]}; {see[1]}"))
