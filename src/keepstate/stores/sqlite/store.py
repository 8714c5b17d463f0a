"""The SQLite store: a handle of one mode on a database that the process opens once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Annotated, ClassVar, Literal, TypeVar
from urllib.parse import quote
from weakref import finalize

import msgspec

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Runner
from keepstate.errors import (
    ClockError,
    ClosedError,
    CorruptError,
    InvalidError,
    OutcomeUnknownError,
    StorageError,
    StoreFullError,
    StoreUnavailableError,
)
from keepstate.stores.base import SWEPT_BY_FLUSH, StoreBase
from keepstate.stores.hints import SharedUse
from keepstate.stores.local_files import (
    is_forbidden,
    require_regular_companions,
    require_regular_file,
    require_safe_file_system,
    require_single_name,
)
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
from keepstate.stores.sqlite import database as databases
from keepstate.stores.sqlite import queries
from keepstate.stores.sqlite.connection import Execute
from keepstate.stores.sqlite.database import Database
from keepstate.stores.sqlite.flush import Flush
from keepstate.stores.sqlite.readers import LoopBudget, Poller
from keepstate.stores.sqlite.revision import Head
from keepstate.stores.urls import StoreUrl

T = TypeVar("T")

WAIT_S = 10.0
"""Seconds for which a writer waits for other writers."""

_SOONEST_LOOK_S, _LATEST_LOOK_S = 0.001, 0.05
_READ_BY_LOOP = 4
"""Number of entries, of up to 1 MiB each, that an event loop reads at once."""
_COLLECTED_AT_ONCE = 200
"""Number of rows, of up to 1 MiB each, that are removed at once so that no writer waits long."""
_log = logging.getLogger("keepstate.stores")


class Options(msgspec.Struct, frozen=True):
    """Options of a `sqlite:` URL.

    `full` survives a power cut, `normal` a crash of the process. With `unsafe_fs=1` a network file system and
    a file with a second name are accepted. `wait_s` is the number of seconds for which a writer waits for
    others before it fails.
    """

    durability: Literal["full", "normal"] = "full"
    unsafe_fs: bool = False
    wait_s: Annotated[float, msgspec.Meta(gt=0, le=3600)] = WAIT_S


class SqliteStore(StoreBase):
    """A store in one SQLite file that the processes of a host share.

    All handles of a process share one writer. Readers see only data that is as durable as `durability` says,
    if all processes use the same value: the writes of a `normal` process become durable with the next `full`
    write of any process.

    Args:
        path: The file, made absolute when it is opened, and created if it is absent. Its folder must exist.
        durability: The failures that an acknowledged write survives: `full` a power cut, `normal` a crash.
        unsafe_fs: Accept a network file system, where SQLite's locks do not work between hosts, and a file
            that has a hard link or is itself a mount point, although its other path has a log of its own.
        wait_s: Seconds for which a writer waits for others before it fails.
    """

    schemes: ClassVar[Sequence[str]] = ("sqlite",)
    waits: ClassVar[bool] = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        durability: Literal["full", "normal"] = "full",
        unsafe_fs: bool = False,
        wait_s: float = WAIT_S,
        runner: Runner,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        url = f"sqlite:///{quote(os.fspath(path))}{'' if durability == 'full' else f'?{durability=!s}'}"
        super().__init__(url=url, runner=runner, clock=clock)
        self._path, self._wait_s, self._unsafe_fs = os.fspath(path), wait_s, unsafe_fs
        self._durability = Durability.POWER if durability == "full" else Durability.PROCESS
        self._database: Database | None = None
        self._poller: Poller | None = None
        self._loop_budget = LoopBudget()
        # A file of another host may make a read wait for ever.
        self._reads_in_loop = runner.mode == "async" and not unsafe_fs
        self._look_s = _SOONEST_LOOK_S

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> SqliteStore:
        """Return the store that the URL names."""
        options = url.parse_options(Options)
        if url.host or url.user is not None or not url.path or url.path.endswith("/"):
            raise InvalidError(
                f"{url} does not name a file. Use sqlite:///app.db for a file in the working folder, "
                "or sqlite:////var/app.db for an absolute path."
            )
        return cls(url.path, **msgspec.structs.asdict(options), runner=runner)

    def twin(self, runner: Runner) -> SqliteStore:
        """Return an unopened store on the same file for another mode."""
        durability: Literal["full", "normal"] = "full" if self._durability is Durability.POWER else "normal"
        return SqliteStore(
            self._path,
            durability=durability,
            unsafe_fs=self._unsafe_fs,
            wait_s=self._wait_s,
            runner=runner,
            clock=self._clock,
        )

    # ---- opening and closing

    async def _open(self) -> Capabilities:
        use = SharedUse(databases.release)
        try:
            self._database = await self._runner.call(use.acquire, self._acquire)
        except BaseException:
            use.release()
            raise
        self._database.handles.join(self)
        self._forgets = finalize(self, databases.forget, self._database)
        self._forgets.atexit = False
        return Capabilities(durability=self._durability, shared=True)

    def _acquire(self) -> Database:
        if os.path.basename(self._path) == ":memory:" or "\0" in self._path:
            raise InvalidError(
                f"{self._path!r} does not name a file. Use memory:// for a store without a file."
            )
        path = self._path = os.path.abspath(self._path)
        folder = os.path.dirname(os.path.realpath(path))
        if path == os.sep or os.path.isdir(path):
            raise InvalidError(
                f"{path} is a folder. Pass a file in it, such as {os.path.join(path, 'keepstate.db')}"
            )
        if not os.path.isdir(folder):
            raise StoreUnavailableError(
                f"The folder {folder} of {self.url} does not exist. Create it.", url=self.url
            )
        require_regular_file(path)
        require_regular_companions(os.path.realpath(path))
        if not self._unsafe_fs:
            require_safe_file_system(os.path.realpath(path))
            require_single_name(os.path.realpath(path))
        try:
            return databases.acquire(path, self._durability, self._wait_s)
        except OSError as error:
            kind = StorageError if is_forbidden(error) else StoreUnavailableError
            raise kind(
                f"{error.filename or path} cannot be opened or written to ({error.strerror}). keepstate "
                "writes to the file and next to it. Make the file and its folder writable.",
                url=self.url,
            ) from error

    async def _close(self) -> None:
        database, self._database = self._open_database, None
        poller, self._poller = self._poller, None
        database.handles.leave(self)
        self._forgets.detach()
        await self._runner.call(_release, database, poller)

    @property
    def _open_database(self) -> Database:
        if self._database is None:
            raise ClosedError(f"{self!r} is not open. Call open() first.")
        return self._database

    # ---- writing

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        return await self._runner.call(self._apply_here, batches)

    def _apply_here(self, batches: Sequence[Batch]) -> list[Outcome]:
        try:
            return self._write(lambda flush: _apply_all(flush, batches))
        except OutcomeUnknownError as error:
            return [self._unknown_error(batch, error) for batch in batches]
        except (StoreFullError, CorruptError):
            if len(batches) == 1:
                raise
            # The other batches may fit, or meet undamaged pages.
            return [self._apply_alone(batch) for batch in batches]

    def _apply_alone(self, batch: Batch) -> Outcome:
        try:
            return self._apply_here([batch])[0]
        except StorageError as error:
            return error

    def _write(self, work: Callable[[Flush], T]) -> T:
        database = self._open_database
        changed: set[str] = set()

        def work_and_record(flush: Flush) -> T:
            nonlocal changed
            changed = flush.changed
            return work(flush)

        answer = database.write(work_and_record, self._clock)
        for space in changed:
            database.handles.notify(space)
        return answer

    async def _drop(self, space: str, at: int | None) -> bool:
        return await self._runner.call(self._drop_here, space, at)

    def _drop_here(self, space: str, at: int | None) -> bool:
        was_there = self._write(lambda flush: flush.drop(space, at))
        self._collect()
        return was_there

    def _collect(self) -> None:
        """Remove the rows of dropped spaces, including those left by a process that was killed."""
        while self._open_database.read(queries.has_garbage):
            self._write(lambda flush: flush.collect(_COLLECTED_AT_ONCE))

    async def _trim(self, space: str, keep: int) -> None:
        await self._runner.call(self._trim_here, space, keep)

    def _trim_here(self, space: str, keep: int) -> None:
        self._write(lambda flush: flush.trim(space, keep))

    async def _scrub(self) -> Sequence[str]:
        return await self._runner.call(self._scrub_here)

    def _scrub_here(self) -> Sequence[str]:
        self._collect()
        if self._open_database.scrub():
            return ()
        return (f"{self._path}-wal, until no process reads it: erase again, or close the store everywhere",)

    async def _sweep(self, prefix: str, limit: int) -> int:
        return await self._runner.call(self._sweep_here, prefix, limit)

    def _sweep_here(self, prefix: str, limit: int) -> int:
        self._collect()
        clock_ms = self._clock.now_ms()
        spaces = self._open_database.read(
            lambda execute: queries.expired_spaces(execute, prefix, clock_ms, limit)
        )
        removed = 0
        for space in spaces:
            if removed < limit:
                removed += self._write(partial(_sweep_space, space=space, limit=limit - removed))
        return removed

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        if self._reads_in_loop and len(keys) <= _READ_BY_LOOP and self._loop_budget.begin():
            reading = self._open_database.try_read(self._looking(space, queries.read, keys, at_ms))
            self._loop_budget.end()
            if reading is not None:
                return reading
        return await self._runner.call(self._look, space, queries.read, keys, at_ms)

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        return await self._runner.call(self._look, space, queries.scan, prefix, after, limit, reverse, at_ms)

    async def _sizes(self, space: str) -> Sizes:
        return await self._runner.call(self._look, space, queries.sizes)

    async def _changes(self, space: str, after: int, limit: int) -> Changes:
        return await self._runner.call(self._look, space, queries.changes, after, limit)

    async def _last_leap(self, space: str) -> Leap | None:
        database, name = self._open_database, space.encode()
        return await self._runner.call(lambda: database.read(lambda execute: queries.leap(execute, name)))

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        database, names = self._open_database, [space.encode() for space in spaces]
        return await self._runner.call(
            lambda: database.read(lambda execute: queries.changed_ms(execute, names))
        )

    async def _second_clock_ms(self, space: str) -> int:
        clock = self._clock
        return await self._runner.call(self._open_database.second_clock.read_ms, clock, clock.now_ms())

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        database = self._open_database
        return await self._runner.call(
            lambda: database.read(lambda execute: queries.spaces(execute, prefix, after, limit))
        )

    def _look(self, space: str, work: Callable[..., T], *args: object) -> T:
        """Run `work` on one snapshot of the space, and return its result."""
        return self._open_database.read(self._looking(space, work, *args))

    def _looking(self, space: str, work: Callable[..., T], *args: object) -> Callable[[Execute], T]:
        """Return the function that runs `work` on a snapshot of the space."""
        database, clock_ms = self._open_database, self._clock.now_ms()

        def look(execute: Execute) -> T:
            head = Head.read(execute, space.encode())
            database.second_clock.confirm(self._clock, space, clock_ms, head.now_ms)
            head.now_ms = database.latest_ms(head.name, max(head.now_ms, clock_ms))
            return work(execute, head, database.path, *args)

        return look

    # ---- hints

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        database = self._open_database
        if self._poller is None:
            self._poller = await self._runner.call(database.poller)
        deadline_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
        while self._is_open and SYSTEM_CLOCK.monotonic_s() < deadline_s:
            changed = await self._changed()
            if changed:
                return changed
            if await self._nudge.wait(self._look_s):
                break
            self._look_s = min(self._look_s * 1.3, _LATEST_LOOK_S)
        return ()

    async def _changed(self) -> list[str]:
        """Return the changed spaces among those with listeners, if another connection committed."""
        poller = self._poller
        if poller is None or not poller.has_moved():
            return []
        began_s = SYSTEM_CLOCK.monotonic_s()
        changed = await self._runner.call(poller.changed, self._board.spaces())
        self._look_s = max(_SOONEST_LOOK_S, 10 * (SYSTEM_CLOCK.monotonic_s() - began_s))
        return changed


def _apply_all(flush: Flush, batches: Sequence[Batch]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    for batch in batches:
        try:
            outcome = flush.apply(batch)
        except (CorruptError, ClockError) as error:
            outcome = error
        outcomes.append(outcome)
    for space in list(flush.changed):
        try:
            flush.sweep(space, SWEPT_BY_FLUSH)
        except CorruptError as error:
            _log.warning("Expired entries could not be removed for now: %s", error)
    return outcomes


def _sweep_space(flush: Flush, *, space: str, limit: int) -> int:
    return flush.sweep(space, limit)


def _release(database: Database, poller: Poller | None) -> None:
    if poller is not None:
        database.close_poller(poller)
    databases.release(database)
