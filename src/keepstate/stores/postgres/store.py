"""The PostgreSQL store: a space is serial by the lock on its row, and durable by the server's own log."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, ClassVar

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Runner
from keepstate.errors import HistoryLostError, StoreUnavailableError, UnsupportedError
from keepstate.stores.base import SWEPT_BY_FLUSH
from keepstate.stores.clock_leaps import check_server_clock
from keepstate.stores.marks import HighWaterMarks, MarkedStore, apply_except
from keepstate.stores.postgres import queries
from keepstate.stores.postgres.client import Client, Settings, Watcher
from keepstate.stores.postgres.flush import Flush
from keepstate.stores.postgres.options import PostgresOptions, connection_parameters, read_options
from keepstate.stores.postgres.queries import StoredSetting, judge_settings
from keepstate.stores.postgres.wire import (
    byteas,
    from_byteas,
    from_int8,
    from_int8s,
    from_record,
    int8,
    int8_or_null,
)
from keepstate.stores.protocol import (
    NONCE_BYTES,
    Batch,
    Capabilities,
    Changes,
    Durability,
    Leap,
    Mark,
    Outcome,
    Page,
    Reading,
    Setting,
    Sizes,
)
from keepstate.stores.retries import RETRY_FOR_S
from keepstate.stores.urls import StoreUrl
from keepstate.values import limits
from keepstate.values.key import successor

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

_OLDEST_SERVER = 130_000
_NO_KEY = b""
"""A key that no entry has, to read only the state of a space."""


class PostgresStore(MarkedStore):
    """A store in a schema of a PostgreSQL database; each handle has connections of its own.

    Args:
        url: A `postgresql://` URL in its parts.
        options: The options of the URL that configure the store itself.
        runner: The handle's mode.
        clock: Time and randomness of this process; the spaces' time is the server's.
        retry_for_s: Seconds for which to retry a call that the server did not answer.
    """

    schemes: ClassVar[Sequence[str]] = ("postgresql",)

    def __init__(
        self,
        url: StoreUrl,
        options: PostgresOptions,
        *,
        runner: Runner,
        clock: Clock = SYSTEM_CLOCK,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        super().__init__(url=str(url), runner=runner, clock=clock, retry_for_s=retry_for_s)
        self._url, self._options = url, options
        self._client = self._new_client()
        self._watcher = Watcher(self._client, clock=clock)
        self._marks = HighWaterMarks()

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> PostgresStore:
        """Return the store that the URL names."""
        options = read_options(url)
        return cls(url, options, runner=runner, retry_for_s=options.retry_for_s)

    def twin(self, runner: Runner) -> PostgresStore:
        """Return an unopened store on the same schema for another mode."""
        return PostgresStore(
            self._url, self._options, runner=runner, clock=self._clock, retry_for_s=self._retry_for_s
        )

    @property
    def connections(self) -> int:
        """Return the number of connections that calls share now; a watch has one more."""
        return self._client.connections

    # ---- opening and closing

    def _new_client(self) -> Client:
        return Client(
            url=self.url,
            parameters=connection_parameters(self._url),
            schema=self._options.schema,
            max_connections=self._options.max_connections,
            timeout_s=self._options.timeout_s,
            runner=self._runner,
            clock=self._clock,
        )

    async def _open(self) -> Capabilities:
        try:
            settings = await self._client.prepare()
            return self._offered(settings)
        except BaseException:
            self._client.close()
            self._client = self._new_client()  # it may be opened again
            self._watcher = Watcher(self._client, clock=self._clock)
            raise

    async def _close(self) -> None:
        self._watcher.close()
        self._client.close()

    def _offered(self, settings: Settings) -> Capabilities:
        if settings.version < _OLDEST_SERVER:
            raise UnsupportedError(
                f"{self.url} runs PostgreSQL {settings.version // 10_000}. Use PostgreSQL 13 or newer."
            )
        if settings.is_standby:
            raise StoreUnavailableError(
                f"{self.url} is a standby and takes no writes. Name the primary, or several hosts with "
                "target_session_attrs=read-write.",
                url=self.url,
            )
        durability = Durability.POWER
        if not settings.syncs_files:
            durability = Durability.PROCESS
        if not settings.syncs_commits:
            durability = Durability.NONE  # the server's own crash loses the last commits
        return Capabilities(durability=durability, shared=True, fails_over=settings.may_fail_over)

    async def settings(self) -> list[Setting]:
        """Return the server's settings that decide its durability, as they are for this connection."""
        self._check_open()
        answer = await self._client.ask("settings_listed")
        names, values, sources = (from_byteas(answer.get_value(0, column)) for column in range(3))
        stored = {
            name.decode(): StoredSetting(value.decode(), source.decode())
            for name, value, source in zip(names, values, sources, strict=True)
        }
        return judge_settings(stored, has_standby=answer.get_value(0, 3) == b"\x01")

    # ---- applying

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        flush = Flush.of(batches, self._marks)
        if void := self._marks.loss_errors(batches, url=self.url):
            return await apply_except(void, batches, self._apply)
        randomness = self._clock.random_bytes(NONCE_BYTES * (len(flush.spaces) + len(batches)))
        clock_ms = self._clock.now_ms()
        if (put := flush.lone_put(randomness[:NONCE_BYTES], clock_ms)) is not None:
            answer = await self._client.change("put", *put)
            outcome = flush.lone_outcome(answer.get_value(0, 0) or b"", self._marks)
            if outcome is not None:
                return [outcome]
        answer = await self._client.change("apply", *flush.values(randomness, clock_ms, swept=SWEPT_BY_FLUSH))
        fields = from_record(answer.get_value(0, 0))
        outcomes = flush.outcomes(fields, self._marks, self.url, self._leap_error, clock_ms)
        for batch, outcome in zip(batches, outcomes, strict=True):
            if type(outcome) is HistoryLostError:
                self._revisions.pop(batch.space, None)
        return outcomes

    async def _drop(self, space: str, at: int | None) -> bool:
        mark = self._marks.of(space)
        fresh, clock_ms = self._clock.random_bytes(NONCE_BYTES), self._clock.now_ms()
        values = space.encode(), *_marked(mark), fresh, int8(clock_ms), int8(at or 0)
        answer = await self._client.change("drop", *values)
        revision, nonce, leapt_ms = from_record(answer.get_value(0, 0))
        if leapt_ms is not None:
            raise self._leap_error(space, from_int8(leapt_ms), clock_ms)
        if from_int8(revision) < 0 and mark is not None:
            raise self._record_loss(space, mark)
        self._marks.record(space, from_int8(revision), nonce or b"")
        return nonce == fresh

    async def _trim(self, space: str, keep: int) -> None:
        mark = self._marks.of(space)
        answer = await self._client.change("trim", space.encode(), *_marked(mark), int8(keep))
        revision, nonce = from_record(answer.get_value(0, 0))
        if from_int8(revision) < 0 and mark is not None:
            raise self._record_loss(space, mark)
        self._marks.record(space, from_int8(revision), nonce or b"")

    async def _scrub(self) -> Sequence[str]:
        return ("deleted rows of the database, until VACUUM", "the server's write-ahead log and standbys")

    async def _sweep(self, prefix: str, limit: int) -> int:
        removed, start = 0, prefix.encode()
        following: bytes | None = int8(0)
        while following is not None and removed < limit:
            answer = await self._client.ask("expired", following, int8(limit - removed))
            names, following = from_record(answer.get_value(0, 0))
            for name in from_byteas(names):
                if removed < limit and name.startswith(start):
                    removed += await self._sweep_space(name.decode(), limit - removed)
        return removed

    async def _sweep_space(self, space: str, limit: int) -> int:
        mark = self._marks.of(space)
        flush = Flush((space,), (mark,), ((),), ())
        randomness, clock_ms = self._clock.random_bytes(NONCE_BYTES), self._clock.now_ms()
        values = flush.values(randomness, clock_ms, swept=min(limit, limits.BATCH_WRITES))
        fields = from_record((await self._client.change("apply", *values)).get_value(0, 0))
        (revision,), (nonce,), (swept,) = from_int8s(fields[4]), from_byteas(fields[5]), from_int8s(fields[6])
        if revision < 0 and mark is not None:
            raise self._record_loss(space, mark)
        self._marks.record(space, revision, nonce)
        if swept:
            self.notify(space)
        return swept

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        mark = self._marks.of(space)
        revision = int8(mark.revision if mark else 0)
        if len(keys) <= 1:
            key = keys[0] if keys else _NO_KEY
            answer = await self._client.ask("get", space.encode(), key, revision)
            found, state, stored_ms = queries.one_entry(key, answer.get_value(0, 0) or b"", at_ms)
            if mark is None or state[0] != mark.revision or state[2] != mark.nonce:
                self._verify(space, mark, *state)
            if not keys:  # without keys no expiry is judged
                return Reading((), found.revision, found.now_ms)
            check_server_clock(space, found.now_ms, stored_ms, self._clock, url=self.url)
            return found
        asked = self._client.ask(
            "read", space.encode(), byteas(keys), revision, int8(limits.READ_BYTES), int8_or_null(at_ms)
        )
        fields = self._verified(space, mark, await asked)
        self._check_clock(space, fields[4], fields[11])
        return queries.entries(space, keys, fields)

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        mark = self._marks.of(space)
        low, high = queries.scan_range(prefix, after, reverse=reverse)
        answer = await self._client.ask(
            "scan", space.encode(), low, high, int8(reverse), int8(limit), int8(limits.PAGE_ROWS),
            int8(limits.PAGE_BYTES), int8(mark.revision if mark else 0), int8_or_null(at_ms),
        )  # fmt: skip
        fields = self._verified(space, mark, answer)
        self._check_clock(space, fields[10], fields[11])
        return queries.page(fields)

    async def _sizes(self, space: str) -> Sizes:
        mark = self._marks.of(space)
        answer = await self._client.ask("sizes", space.encode(), int8(mark.revision if mark else 0))
        fields = self._verified(space, mark, answer)
        self._check_clock(space, fields[4], fields[5])
        return queries.sizes(fields)

    def _check_clock(self, space: str, now: bytes | None, stored: bytes | None) -> None:
        check_server_clock(space, from_int8(now), from_int8(stored), self._clock, url=self.url)

    async def _last_leap(self, space: str) -> Leap | None:
        answer = await self._client.ask("leap", space.encode())
        stored = answer.get_value(0, 0) if answer.ntuples else None
        return None if stored is None else Leap(*from_int8s(stored))

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        answer = await self._client.ask("changed", byteas([space.encode() for space in spaces]))
        names = from_byteas(answer.get_value(0, 0))
        times = dict(zip(names, from_int8s(answer.get_value(0, 1)), strict=True))
        return [times.get(space.encode()) for space in spaces]

    async def _second_clock_ms(self, space: str) -> int:
        # No space has an empty name, so the answer has the server's clock.
        answer = await self._client.ask("get", b"", _NO_KEY, int8(0))
        return queries.one_entry(_NO_KEY, answer.get_value(0, 0) or b"", None)[0].now_ms

    async def _changes(self, space: str, after: int, limit: int, under: Mark | None = None) -> Changes:
        mark = under or self._marks.of(space)
        answer = await self._client.ask(
            "changes", space.encode(), int8(after), int8(limit), int8(limits.PAGE_BYTES),
            int8(mark.revision if mark else 0),
        )  # fmt: skip
        # An answer under another handle's mark proves nothing about the own mark, which is compared later.
        return queries.changes(space, after, self._verified(space, mark, answer, is_own=under is None))

    def _verified(
        self, space: str, mark: Mark | None, answer: PGresult, *, is_own: bool = True
    ) -> queries.Fields:
        """Return the fields of a record that begins with the space's state, if the mark still holds."""
        fields = from_record(answer.get_value(0, 0))
        state = from_int8(fields[0]), from_int8(fields[1]), fields[2], fields[3]
        if is_own:
            self._verify(space, mark, *state)
        elif mark is not None and not queries.still_holds(mark, *state):
            raise self._record_loss(space, mark)
        return fields

    def _verify(
        self,
        space: str,
        mark: Mark | None,
        revision: int,
        floor: int,
        nonce: bytes | None,
        marked: bytes | None,
    ) -> None:
        if mark is not None and not queries.still_holds(mark, revision, floor, nonce, marked):
            raise self._record_loss(space, mark)
        self._marks.record(space, revision, nonce or b"")

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        low = prefix.encode()
        answer = await self._client.ask("spaces", low, successor(low), (after or "").encode(), int8(limit))
        return [name.decode() for name in from_byteas(answer.get_value(0, 0))]

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        return await self._watcher.wait(spaces, timeout_s, nudge=self._nudge)


def _marked(mark: Mark | None) -> tuple[bytes, bytes]:
    return (int8(mark.revision), mark.nonce) if mark else (int8(0), b"")
