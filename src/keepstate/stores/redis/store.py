"""The Redis store: spaces on a Redis or Valkey server, or spread over a cluster of them.

Every batch is one script, which checks it and applies it whole. A call carries the mark that this handle has
seen last, and its reply counts only if the server still has that mark. So a failover that lost writes is
detected by the handles that saw them.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from copy import copy
from functools import lru_cache, partial
from itertools import count
from typing import ClassVar, cast

from keepstate._clock import SYSTEM_CLOCK, Clock
from keepstate._runner import Runner, Signal
from keepstate.errors import (
    HistoryLostError,
    OutcomeUnknownError,
    StorageError,
    StoreUnavailableError,
)
from keepstate.stores.admission import check_read_size, require_logged
from keepstate.stores.clock_leaps import check_server_clock
from keepstate.stores.hints import HintListener
from keepstate.stores.marks import HighWaterMarks, MarkedStore, apply_except
from keepstate.stores.protocol import (
    NONCE_BYTES,
    Batch,
    Capabilities,
    Change,
    Changes,
    Entry,
    Leap,
    Mark,
    Outcome,
    Page,
    Reading,
    Setting,
    Sizes,
)
from keepstate.stores.redis.client import Client, Node, Unit
from keepstate.stores.redis.encoding import (
    APPLIED,
    CLOCK,
    LARGE,
    LOST,
    SpaceKeys,
    State,
    decode_changes,
    decode_entry,
    decode_sizes,
    decode_state,
    encode_batch,
    encode_mark,
    entry_fields,
    has_lost,
    keys_of,
    lex_range,
    mark_of,
    outcome_of,
    record_field,
    script_error,
    unread_error,
)
from keepstate.stores.redis.hint_lines import HintLines
from keepstate.stores.redis.options import CLUSTER, RedisOptions, access, addresses
from keepstate.stores.redis.registry import Registry
from keepstate.stores.redis.scripts import script
from keepstate.stores.redis.settings import inspect, settings_of, weakest
from keepstate.stores.redis.wire import Refusal, Reply, Words, pack, refused
from keepstate.stores.urls import StoreUrl
from keepstate.values import limits

_SURELY_SMALL = limits.READ_BYTES // limits.VALUE_BYTES
"""Number of keys whose values always fit in one reply."""

_POLL_EVERY_S = 0.5
"""Interval in which watched spaces are polled if the user may not publish."""

_KEYS_CACHED = 8192
_TIME = pack((b"TIME",))


class RedisStore(MarkedStore):
    """A store on `redis://HOST:PORT/DATABASE`, `rediss://…`, or `redis+cluster://HOST:PORT,HOST:PORT`.

    Args:
        url: The URL, with the options of `RedisOptions`.
        runner: The handle's mode.
        clock: Time and randomness of this process.
    """

    schemes: ClassVar[Sequence[str]] = ("redis", "rediss", "redis+cluster")

    def __init__(self, url: StoreUrl, *, runner: Runner, clock: Clock = SYSTEM_CLOCK) -> None:
        options = url.parse_options(RedisOptions)
        super().__init__(url=str(url), runner=runner, clock=clock, retry_for_s=options.retry_for_s)
        self._url, self._options, self._marks = url, options, HighWaterMarks()
        self._keys_of = lru_cache(maxsize=_KEYS_CACHED)(partial(keys_of, options.prefix))
        self._client = self._new_client()
        self._registry = Registry(self._client, options.prefix, self._keys_of)
        self._lines: HintLines | None = None
        self._ending: list[Signal] = []
        self._has_hints = True
        self._swept_last: str | None = None

    @classmethod
    def from_url(cls, url: StoreUrl, *, runner: Runner) -> RedisStore:
        """Return the unopened store that the URL names."""
        return cls(url, runner=runner)

    def twin(self, runner: Runner) -> RedisStore:
        """Return an unopened store on the same server for another mode."""
        return RedisStore(self._url, runner=runner, clock=self._clock)

    # ---- opening and closing

    def _new_client(self) -> Client:
        return Client(
            addresses(self._url),
            access(self._url, self._options),
            is_cluster=self._url.scheme == CLUSTER,
            runner=self._runner,
            clock=self._clock,
            max_connections=self._options.max_connections,
        )

    async def _open(self) -> Capabilities:
        try:
            found = [
                await inspect(
                    node,
                    self._probed_at(node),
                    url=self.url,
                    is_cluster=self._client.is_cluster,
                    unsafe_policy=self._options.unsafe_policy,
                )
                for node in await self._client.masters()
            ]
        except OutcomeUnknownError as error:
            await self._give_up()
            raise StoreUnavailableError(str(error), url=self.url) from error
        except BaseException:
            await self._give_up()
            raise
        offered = weakest(found)
        self._has_hints = offered.hints
        return offered.capabilities

    async def _give_up(self) -> None:
        """Disconnect, and start again with a new client, because the store may be opened again."""
        given_up, self._client = self._client, self._new_client()
        self._registry = Registry(self._client, self._options.prefix, self._keys_of)
        await given_up.close()

    def _probed_at(self, node: Node) -> SpaceKeys:
        """Return keys in a slot of this node, of a name that is too long for a space."""
        names = (f"{number:0{limits.SPACE_BYTES + 1}}" for number in count())
        return next(keys for keys in map(self._keys_of, names) if self._client.node_of(keys.slot) is node)

    async def settings(self) -> list[Setting]:
        """Return the present settings of each server that decide its durability."""
        self._check_open()
        return await settings_of(await self._client.masters(), is_cluster=self._client.is_cluster)

    async def close(self) -> None:
        """Stop the waiter, wait for flushes, and release connections; a second call does nothing."""
        if self._is_open and (lines := self._lines) is not None:
            self._runner.check(self)
            lines.end()
        await super().close()

    async def _close(self) -> None:
        for ended in list(self._ending):
            await ended.wait(self._options.timeout_s)
        await self._client.close()

    # ---- applying

    async def _apply(self, batches: Sequence[Batch]) -> list[Outcome]:
        if len(batches) == 1 and (outcome := await self._apply_one(batches[0])) is not None:
            return [outcome]
        # Read the marks first: a caller that finds no mark after a loss must also find nothing listed.
        marks = {batch.space: self._marks.of(batch.space) for batch in batches}
        unlisted = [
            batch.space for batch in batches if batch.writes and not self._registry.is_listed(batch.space)
        ]
        failed = await self._registry.enlist(unlisted) if unlisted else {}
        if void := self._marks.loss_errors(batches, url=self.url):
            return await apply_except(void, batches, self._apply)
        # The batches of a space are one unit: the server never refuses one and accepts the next.
        by_space: dict[str, list[int]] = {}
        for at, batch in enumerate(batches):
            if batch.space not in failed:
                by_space.setdefault(batch.space, []).append(at)
        nonces = [self._clock.random_bytes(2 * NONCE_BYTES) for _ in batches]
        units = [
            self._unit(space, [(batches[at], nonces[at]) for at in indexes], marks[space])
            for space, indexes in by_space.items()
        ]
        outcomes: dict[int, Outcome] = {}
        for (space, indexes), answer in zip(by_space.items(), await self._client.run(units), strict=True):
            for i, at in enumerate(indexes):
                reply = copy(answer) if isinstance(answer, StorageError) else answer[i]
                outcomes[at] = self._outcome(batches[at], marks[space], nonces[at], reply)
        return [
            outcomes[at] if at in outcomes else copy(failed[batch.space]) for at, batch in enumerate(batches)
        ]

    async def _apply_one(self, batch: Batch) -> Outcome | None:
        """Apply a single batch, as most flushes are, with less work; return None if `_apply` has to do it."""
        mark = self._marks.of(batch.space)
        if not self._registry.is_listed(batch.space) or self._marks.loss_errors((batch,), url=self.url):
            return None
        where, nonces = self._keys_of(batch.space), self._clock.random_bytes(2 * NONCE_BYTES)
        words = self._words(batch, where, mark, nonces)
        (answer,) = await self._client.run([Unit(where.slot, (words,))])
        reply = answer if isinstance(answer, StorageError) else answer[0]
        return self._outcome(batch, mark, nonces, reply)

    def _unit(self, space: str, batches: Sequence[tuple[Batch, bytes]], mark: Mark | None) -> Unit:
        where, last = self._keys_of(space), len(batches) - 1
        return Unit(
            where.slot,
            [
                self._words(batch, where, mark, nonces, sweeps=at == last)
                for at, (batch, nonces) in enumerate(batches)
            ],
        )

    def _words(
        self, batch: Batch, where: SpaceKeys, mark: Mark | None, nonces: bytes, *, sweeps: bool = True
    ) -> Words:
        is_cluster, clock_ms = self._client.is_cluster, self._clock.now_ms()
        arguments = encode_batch(batch, mark, nonces, clock_ms, sweeps=sweeps, is_cluster=is_cluster)
        return script("apply").call(where.keys, *arguments)

    def _outcome(
        self, batch: Batch, mark: Mark | None, nonces: bytes, reply: Reply | StorageError
    ) -> Outcome:
        if isinstance(reply, StorageError):
            return reply
        if isinstance(reply, Refusal):
            return refused(reply, self.url, batch.space)
        fields = cast("list[Reply]", reply)
        if fields[0] == LOST and mark is not None:
            return self._record_loss(batch.space, mark)
        if fields[0] == CLOCK:
            return self._leap_error(batch.space, cast("int", fields[1]), self._clock.now_ms())
        if fields[0] == APPLIED:
            self._marks.record(batch.space, *mark_of(fields, nonces[:NONCE_BYTES]))
        return outcome_of(batch, fields, self.url)

    def _record_loss(self, space: str, mark: Mark) -> HistoryLostError:
        """Record that the space lost a mark, and that names may be lost too."""
        self._registry.doubt()
        return super()._record_loss(space, mark)

    # ---- reading

    async def _read(self, space: str, keys: Sequence[bytes], at_ms: int | None) -> Reading:
        where, mark = self._keys_of(space), self._marks.of(space)
        if len(keys) <= _SURELY_SMALL:
            reading = await self._read_small(space, where, mark, keys, at_ms)
            if reading is not None:
                return reading
        reply = await self._ask("read", space, mark, (_judged_at(at_ms), *keys))
        if reply[0] == LARGE:
            check_read_size(space, cast("int", reply[1]))
        state = self._seen_state(space, reply[1])
        now_ms = cast("int", reply[2])
        check_server_clock(space, now_ms, state.clock_ms, self._clock, url=self.url)
        found = _entries(keys, cast("list[bytes | None]", reply[3:]), now_ms if at_ms is None else at_ms)
        return Reading(found, state.revision, now_ms)

    async def _read_small(
        self, space: str, where: SpaceKeys, mark: Mark | None, keys: Sequence[bytes], at_ms: int | None
    ) -> Reading | None:
        """Read without a script, in half of the server's time; return None if the slot is moving.

        The time is read first, so a change after it has a later time. The mark's record is read before the
        state too: in between the log can lose it only by a change that moves the floor.
        """
        packet = [_TIME]
        if mark is not None:
            packet.append(pack((b"HGET", where.keys[1], record_field(mark.revision))))
        packet.append(pack((b"HMGET", where.keys[0], *entry_fields(keys))))
        try:
            replies = await self._client.ask(where.slot, b"".join(packet), len(packet))
        except OutcomeUnknownError as error:
            raise unread_error(error) from error
        if replies is None:
            return None
        stored = cast("list[bytes | None]", replies[-1])
        state = decode_state(stored[0], space)
        if mark is not None and has_lost(state, mark, cast("bytes | None", replies[1])):
            raise self._record_loss(space, mark)
        self._marks.record(space, state.revision, state.nonce)
        now_ms = max(_time_ms(replies[0]), state.clock_ms)
        if keys:  # without keys no expiry is judged
            check_server_clock(space, now_ms, state.clock_ms, self._clock, url=self.url)
        found = _entries(keys, stored[1:], now_ms if at_ms is None else at_ms)
        return Reading(found, state.revision, now_ms)

    async def _scan(
        self, space: str, prefix: bytes, after: bytes | None, limit: int, reverse: bool, at_ms: int | None
    ) -> Page:
        mark = self._marks.of(space)
        start, end = lex_range(prefix, after, reverse=reverse)
        direction = b"reverse" if reverse else b"forward"
        most = b"%d" % min(limit, limits.PAGE_ROWS)
        reply = await self._ask("scan", space, mark, (start, end, most, direction, _judged_at(at_ms)))
        state = self._seen_state(space, reply[1])
        found = cast("list[bytes]", reply[4:])
        entries = [
            decode_entry(key, head, value, 0)
            for key, head, value in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]
        following, now_ms = cast("bytes | None", reply[2]), cast("int", reply[3])
        check_server_clock(space, now_ms, state.clock_ms, self._clock, url=self.url)
        return Page(cast("list[Entry]", entries), following, state.revision, now_ms, state.nonce)

    async def _sizes(self, space: str) -> Sizes:
        reply = await self._ask("sizes", space, self._marks.of(space), ())
        state, now_ms = self._seen_state(space, reply[1]), cast("int", reply[2])
        check_server_clock(space, now_ms, state.clock_ms, self._clock, url=self.url)
        parts = decode_sizes(cast("bytes", reply[3]), space)
        return Sizes({part: size for part, size in parts if size.entries}, state.revision, now_ms)

    async def _last_leap(self, space: str) -> Leap | None:
        reply = await self._ask("read", space, self._marks.of(space), (b"",))
        return self._seen_state(space, reply[1]).leap

    async def _changed_ms(self, spaces: Sequence[str]) -> list[int | None]:
        try:
            states = await self._registry.states(spaces)
        except OutcomeUnknownError as error:
            raise unread_error(error) from error
        return [state.clock_ms or None for state in states]

    async def _second_clock_ms(self, space: str) -> int:
        replies = await self._client.ask(self._keys_of(space).slot, _TIME, 1)
        return self._clock.now_ms() if replies is None else _time_ms(replies[0])

    async def _changes(self, space: str, after: int, limit: int, under: Mark | None = None) -> Changes:
        mark = under or self._marks.of(space)
        reply = await self._ask(
            "changes", space, mark, (b"%d" % after, b"%d" % min(limit, limits.PAGE_BYTES))
        )
        # A reply under another handle's mark proves nothing about the own mark, which is compared later.
        state = self._seen_state(space, reply[1], is_own=under is None)
        require_logged(space, after, floor=state.floor, revision=state.revision, url=self.url)
        upto = cast("int", reply[2])
        nonces = {after: cast("bytes", reply[3]), upto: cast("bytes", reply[4])}
        if after == 0:
            nonces[0] = b""
        items: list[Change] = []
        for stored, nonce, body in zip(reply[5::3], reply[6::3], reply[7::3], strict=True):
            revision = cast("int", stored)
            nonces[revision] = cast("bytes", nonce)
            items += decode_changes(revision, cast("bytes | None", body))
        return Changes(items, upto, state.floor, nonces)

    async def _ask(self, name: str, space: str, mark: Mark | None, arguments: Sequence[bytes]) -> list[Reply]:
        """Run a script that only reads, and return its reply."""
        try:
            return await self._run(name, space, mark, arguments)
        except OutcomeUnknownError as error:
            raise unread_error(error) from error

    async def _run(self, name: str, space: str, mark: Mark | None, arguments: Sequence[bytes]) -> list[Reply]:
        where = self._keys_of(space)
        words = script(name).call(where.keys, encode_mark(mark), *arguments)
        (answer,) = await self._client.run([Unit(where.slot, (words,))])
        if isinstance(answer, StorageError):
            raise answer
        (reply,) = answer
        if isinstance(reply, Refusal):
            raise refused(reply, self.url, space)
        fields = cast("list[Reply]", reply)
        if fields[0] == LOST and mark is not None:
            raise self._record_loss(space, mark)
        if fields[0] == CLOCK:
            raise self._leap_error(space, cast("int", fields[1]), self._clock.now_ms())
        if (error := script_error(space, fields, self.url)) is not None:
            raise error
        return fields

    def _seen_state(self, space: str, stored: Reply, *, is_own: bool = True) -> State:
        state = decode_state(cast("bytes | None", stored), space)
        if is_own:
            self._marks.record(space, state.revision, state.nonce)
        return state

    # ---- hints

    def listen(self, spaces: Collection[str]) -> HintListener:
        """Return a listener that receives every hint of these spaces from now on."""
        listener = super().listen(spaces)
        if (lines := self._lines) is not None:
            lines.want(spaces)
        return listener

    async def _watch_others(self, ended: Signal) -> None:
        lines = self._lines = HintLines(self._client, self._keys_of, self._runner.mode)
        closed = self._runner.signal()
        self._ending.append(closed)
        try:
            await super()._watch_others(ended)
        finally:
            await lines.close()
            self._ending.remove(closed)
            closed.set()

    async def _wait(self, spaces: Collection[str], timeout_s: float) -> Collection[str]:
        if not self._has_hints or self._lines is None:
            await self._runner.sleep(min(timeout_s, _POLL_EVERY_S))
            return spaces
        await self._client.masters()
        return await self._lines.wait(self._board.spaces, timeout_s)

    # ---- all spaces

    async def _spaces(self, prefix: str, after: str | None, limit: int) -> list[str]:
        names: list[str] = []
        while len(names) < limit:
            page = await self._named(prefix, after, limit)
            names += [name for name, state in page if state.exists]
            if not page:
                break
            after = page[-1][0]
        return names[:limit]

    async def _named(self, prefix: str, after: str | None, limit: int) -> list[tuple[str, State]]:
        try:
            return await self._registry.page(prefix, after, limit)
        except OutcomeUnknownError as error:
            raise unread_error(error) from error

    async def _drop(self, space: str, at: int | None) -> bool:
        nonce = self._clock.random_bytes(NONCE_BYTES)
        _, revision, marked = await self._run(
            "drop", space, self._marks.of(space), (nonce, self._clock_now(), b"%d" % (at or 0))
        )
        self._marks.record(space, cast("int", revision), cast("bytes", marked))
        return marked == nonce

    async def _trim(self, space: str, keep: int) -> None:
        is_left = True
        while is_left:
            _, revision, nonce, left = await self._run("trim", space, self._marks.of(space), (b"%d" % keep,))
            self._marks.record(space, cast("int", revision), cast("bytes", nonce))
            is_left = left == 1

    def _clock_now(self) -> bytes:
        return b"%d" % self._clock.now_ms()

    async def _scrub(self) -> Sequence[str]:
        return (
            "the append-only file and snapshots of the server, until it rewrites them",
            "its replicas' files",
        )

    async def _sweep(self, prefix: str, limit: int) -> int:
        removed, last = 0, self._swept_last
        if last is not None and not last.startswith(prefix):
            last = None
        async with aclosing(self._due_from(prefix, last)) as spaces:
            async for space in spaces:
                while swept := await self._sweep_space(space, min(limit - removed, limits.BATCH_WRITES)):
                    removed += swept
                    if removed == limit:
                        self._swept_last = space  # the next call starts after it, so each space gets its turn
                        return removed
        return removed

    async def _due_from(self, prefix: str, last: str | None) -> AsyncGenerator[str]:
        """Yield the spaces with entries that expire: those after `last`, then those up to it."""
        after, turned = last, last is None
        while True:
            page = await self._named(prefix, after, limits.PAGE_ROWS)
            for space, state in page:
                if turned and last is not None and space > last:
                    return
                if state.due_ms:
                    yield space
            if not page and turned:
                return
            after, turned = (page[-1][0], turned) if page else (None, True)

    async def _sweep_space(self, space: str, limit: int) -> int:
        arguments = (self._clock.random_bytes(NONCE_BYTES), b"%d" % limit, self._clock_now())
        _, count, revision, nonce = await self._run("sweep", space, self._marks.of(space), arguments)
        self._marks.record(space, cast("int", revision), cast("bytes", nonce))
        return cast("int", count)


def _time_ms(reply: Reply) -> int:
    seconds, micros = cast("list[bytes]", reply)
    return int(seconds) * 1000 + int(micros) // 1000


def _judged_at(at_ms: int | None) -> bytes:
    return b"" if at_ms is None else b"%d" % at_ms


def _entries(keys: Sequence[bytes], stored: Sequence[bytes | None], now_ms: int) -> list[Entry | None]:
    return [
        decode_entry(key, head, value, now_ms)
        for key, head, value in zip(keys, stored[::2], stored[1::2], strict=True)
    ]
