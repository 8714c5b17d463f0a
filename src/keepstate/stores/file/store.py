"""The file store: a handle of one mode on a journal that the process opens once."""

from __future__ import annotations

import os
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
from keepstate.stores.hints import SharedUse
from keepstate.stores.local_files import require_regular_file, require_single_name
from keepstate.stores.protocol import (
    Batch,
    Capabilities,
    Changes,
    Durability,
    Leap,
    Outcome,
    Page,
    Reading,
    Sizes,
)
from keepstate.stores.urls import StoreUrl

JOURNAL = "keepstate.journal"
"""The name of the journal in a folder that was passed instead of a file."""


class Options(msgspec.Struct, frozen=True):
    """Options of a `file:` URL.

    `format` is the format of the journal: `msgpack` (the default of a new journal), or `json` for people who
    read it; `msgpack-zstd` and `json-zstd` compress each frame if that saves a tenth. A journal of another
    format is rewritten when it is opened. Without `format` a journal stays as it is. With `unsafe_fs=1` a
    journal with a second name is accepted.
    """

    format: Format | None = None
    unsafe_fs: bool = False


class FileStore(StoreBase):
    """A store in memory with every change in one journal file: for one process, and safe in a power cut.

    The process holds `PATH.lock` while the store is open, and all its handles share one writer. A flush is
    one frame and one sync. Readers do not see changes that are not on the disk. When the journal has grown to
    three times the size of the present state, it is rewritten, and writers wait for that.

    Args:
        path: The journal, whose folder must exist. With a slash at its end, a folder for
            `keepstate.journal`, which is created.
        format: The format of the journal; see `Options`.
        unsafe_fs: Accept a journal that has a hard link or is itself a mount point, although its other path
            has a lock of its own.
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
        self._use: SharedUse[SharedJournal] | None = None

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> FileStore:
        """Return the store that the URL names."""
        options = url.parse_options(Options)
        if url.host or url.user is not None or not url.path:
            raise InvalidError(
                f"{url} does not name a file. Use file:///agents.journal for a file in the working folder, "
                "or file:////var/agents.journal for an absolute path."
            )
        return cls(url.path, **msgspec.structs.asdict(options), runner=runner)

    def twin(self, runner: Runner) -> FileStore:
        """Return an unopened store on the same journal for another mode."""
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
        use = self._use = SharedUse(registry.release)
        finalize(self, use.release)  # a handle that is dropped while open releases the lock
        try:
            await self._runner.call(use.acquire, self._acquire)
        except BaseException:
            use.release()
            raise
        use.shared.handles.join(self)
        return Capabilities(durability=Durability.POWER, shared=False)

    def _acquire(self) -> SharedJournal:
        return registry.acquire(self._find_journal(), self._format, self._files, self._clock)

    def _find_journal(self) -> str:
        path = self._path
        try:
            if path.endswith(os.sep):
                make_folder(path)
                path = os.path.join(path, JOURNAL)
        except OSError as error:
            raise StorageError(
                f"The folder {path} cannot be created ({error.strerror}).", url=self.url
            ) from error
        if os.path.isdir(path):
            raise InvalidError(
                f"{path} is a folder, but {self.url} must name a file. Write "
                f"file:///{quote(os.path.join(path, JOURNAL))}"
            )
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(folder):
            raise StoreUnavailableError(
                f"The folder {folder} of {self.url} does not exist. Create it.", url=self.url
            )
        require_regular_file(path)
        if not self._unsafe_fs:
            require_single_name(os.path.realpath(path))
        return path

    async def _close(self) -> None:
        use = self._use
        assert use is not None
        use.shared.handles.leave(self)
        await self._runner.call(use.release)

    @property
    def _shared(self) -> SharedJournal:
        if self._use is None:
            raise ClosedError(f"{self!r} is not open. Call open() first.")
        return self._use.shared

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
            return [self._apply_alone(batch) for batch in batches]  # the smaller batches may fit

    def _apply_alone(self, batch: Batch) -> Outcome:
        try:
            return self._apply_here([batch])[0]
        except StorageError as error:
            return error

    async def _drop(self, space: str, at: int | None) -> bool:
        return await self._runner.call(self._shared.drop, space, at, self._clock)

    async def _trim(self, space: str, keep: int) -> None:
        await self._runner.call(self._shared.trim, space, keep)

    async def _scrub(self) -> Sequence[str]:
        await self._runner.call(self._shared.scrub)
        return ()

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

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        self._shared.settle()
        with self._shared.lock:
            return [self._shared.state_of(space).written_ms or None for space in spaces]

    async def _second_clock_ms(self, space: str) -> int:
        return await self._runner.call(self._shared.second_ms, self._clock)

    async def _sizes(self, space: str) -> Sizes:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.state_of(space).sizes(self._shared.reading_ms(space, self._clock))

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.state_of(space).changes(space, after, limit)

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        self._shared.settle()
        with self._shared.lock:
            return self._shared.spaces.page(prefix, after, limit)
