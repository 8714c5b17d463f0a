"""The file store: a handle of one colour on a journal that the process opens once."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import ClassVar
from urllib.parse import quote
from weakref import finalize

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._files import make_folder
from keepstate._runner import Runner
from keepstate.errors import (
    ClosedError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.base import StoreBase
from keepstate.stores.file import shared as registry
from keepstate.stores.file.frames import Format
from keepstate.stores.file.io import SYSTEM_FILES, Files
from keepstate.stores.file.shared import SharedJournal
from keepstate.stores.local_files import require_regular_file, require_single_name
from keepstate.stores.protocol import Batch, Capabilities, Changes, Durability, Leap, Outcome, Page, Reading
from keepstate.stores.urls import StoreUrl

JOURNAL = "keepstate.journal"
"""The name of the journal in a folder that was given instead of a file."""


class Options(msgspec.Struct, frozen=True):
    """What a `file:` URL may say after its question mark.

    `format` is how the journal is written: `msgpack` (a new one is), or `json`, for people who read it; and
    `msgpack-zstd` or `json-zstd`, where each frame is compressed if that saves a tenth. A journal of another
    format is rewritten when it is opened. Left out, a journal stays as it is. With
    `unsafe_fs=1` a journal with a second name is taken.
    """

    format: Format | None = None
    unsafe_fs: bool = False


class FileStore(StoreBase):
    """Keeps spaces in memory and every change of them in one journal file: for one process, and power-safe.

    The process holds `PATH.lock` while the store is open; all its handles share one writer. A flush is one
    frame and one sync; what is not yet on the disk is not read. When the journal has grown to three times
    what the present state takes, it is written anew; writers wait meanwhile.

    Args:
        path: The journal, whose folder must be there; or, with a slash at its end, a folder that is to hold
            `keepstate.journal`, and is made.
        format: How the journal is written; see `Options`.
        unsafe_fs: Take a journal that has a hard link or is itself a mount point, whose other path has a lock
            of its own.
        files: The operating system, for tests of its failures.
    """

    schemes: ClassVar[Sequence[str]] = ("file",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        format: Format | None = None,
        unsafe_fs: bool = False,
        runner: Runner,
        clock: Clock = SYSTEM_CLOCK,
        files: Files = SYSTEM_FILES,
    ) -> None:
        url = f"file:///{quote(os.fspath(path))}{'' if format is None else f'?{format=!s}'}"
        super().__init__(url=url, runner=runner, clock=clock)
        self._path, self._files = os.fspath(path), files
        self._format: Format | None = format
        self._unsafe_fs = unsafe_fs
        self._claim: _Claim | None = None

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> FileStore:
        """Return the store that the URL names."""
        options = url.parse_options(Options)
        if url.host or url.user is not None or not url.path:
            raise InvalidError(
                f"{url} names no file; file:///agents.journal is one in the working folder, "
                "file:////var/agents.journal an absolute one"
            )
        return cls(url.path, format=options.format, unsafe_fs=options.unsafe_fs, runner=runner)

    def twin(self, runner: Runner) -> FileStore:
        """Return a store on the same journal for another colour, not yet opened."""
        return FileStore(
            self._path,
            format=self._format,
            unsafe_fs=self._unsafe_fs,
            runner=runner,
            clock=self._clock,
            files=self._files,
        )

    # ---- opening and closing

    async def _open(self) -> Capabilities:
        self._path = os.path.abspath(self._path) + (os.sep if self._path.endswith("/") else "")
        claim = self._claim = _Claim()
        finalize(self, claim.release)  # a handle that is dropped while open holds the lock no longer
        try:
            await self._runner.call(self._take, claim)
        except BaseException:
            claim.release()
            raise
        claim.shared.join(self._board.hint)
        return Capabilities(durability=Durability.POWER, shared=False)

    def _take(self, claim: _Claim) -> None:
        claim.take(registry.acquire(self._find_journal(), self._format, self._files, self._clock))

    def _find_journal(self) -> str:
        path = self._path
        try:
            if path.endswith(os.sep):
                make_folder(path)
                path = os.path.join(path, JOURNAL)
        except OSError as error:
            raise StorageError(
                f"the folder {path} cannot be made ({error.strerror})", url=self.url
            ) from error
        if os.path.isdir(path):
            raise InvalidError(
                f"{path} is a folder, and {self.url} names one file: write "
                f"file:///{quote(os.path.join(path, JOURNAL))}"
            )
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(folder):
            raise StoreUnavailableError(
                f"the folder {folder} of {self.url} is not there; make it", url=self.url
            )
        require_regular_file(path)
        if not self._unsafe_fs:
            require_single_name(os.path.realpath(path))
        return path

    async def _close(self) -> None:
        claim = self._claim
        assert claim is not None
        claim.shared.leave(self._board.hint)
        await self._runner.call(claim.release)

    @property
    def _shared(self) -> SharedJournal:
        if self._claim is None:
            raise ClosedError(f"{self!r} is not open; open it first")
        return self._claim.shared

    # ---- writing

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await self._runner.call(self._apply_here, batches)

    def _apply_here(self, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            return self._shared.flush(batches, self._clock)
        except OutcomeUnknownError as error:
            return [self._unknown_error(batch, error) for batch in batches]
        except StoreFullError:
            if len(batches) == 1:
                raise
            return [self._apply_alone(batch) for batch in batches]  # the smaller ones may find room

    def _apply_alone(self, batch: Batch) -> Outcome:
        try:
            return self._apply_here([batch])[0]
        except StorageError as error:
            return error

    async def _drop(self, space: str) -> None:
        await self._runner.call(self._shared.drop, space, self._clock)

    async def _sweep(self, prefix: str, limit: int) -> int:
        return await self._runner.call(self._shared.sweep, prefix, limit, self._clock)

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        self._shared.settle()
        with self._shared.lock:
            clock_ms = self._shared.reading_ms(space, self._clock)
            return self._shared.state_of(space).read(space, keys, clock_ms, at_ms)

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        self._shared.settle()
        with self._shared.lock:
            clock_ms = self._shared.reading_ms(space, self._clock)
            return self._shared.state_of(space).scan(prefix, after, limit, reverse, clock_ms, at_ms)

    async def _last_leap(self, space: str) -> Leap | None:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.state_of(space).leap

    async def _second_clock_ms(self, space: str) -> int:
        return await self._runner.call(self._shared.second_ms, self._clock)

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.state_of(space).changes(space, after, limit)

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.spaces.page(prefix, after, limit)


class _Claim:
    """A handle's part in a shared journal, given back once, also if the handle did not wait for it."""

    shared: SharedJournal

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._taken = self._released = False

    def take(self, shared: SharedJournal) -> None:
        """Take part, unless that was given up meanwhile."""
        with self._lock:
            self.shared, self._taken = shared, True
            if self._released:
                registry.release(shared)

    def release(self) -> None:
        """Give the part back; twice is once."""
        with self._lock:
            if self._released:
                return
            self._released = True
            if self._taken:
                registry.release(self.shared)
