"""Rules of a queue: pauses, limits, aging and retries, stored in one entry for all workers.

Invariant: every batch that claims a task checks the version of this entry, 0 for a queue without rules. A
change of rules therefore holds for every claim that is applied after it, also in a process that does not know
the new rules yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated, Any, Final, cast

import msgspec

from keepstate.engine.kernel import layout
from keepstate.engine.kernel.arguments import check_duration_ms, check_flag, require_instance
from keepstate.engine.kernel.executor import Executor
from keepstate.engine.kernel.stored import (
    corrupt_error,
    decode_fields,
    decode_stored,
    describe,
    encode_fields,
)
from keepstate.engine.kernel.subjects import CARRIED, LISTED_QUEUES, subject_in
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.retry import ErrorClass, Retry, name_of
from keepstate.engine.queue.tasks import check_kind
from keepstate.errors import InvalidError
from keepstate.stores.protocol import ABSENT, Entry
from keepstate.values import limits as size_limits

_FORMAT: Final = 1
_LOCATION: Final = describe(layout.QUEUE_RULES)
KINDS_MOST: Final = 100
"""Number of kinds of one queue that can be paused."""
LIMITS_MOST: Final = 20
"""Number of limits of one queue."""
RETRY_BYTES: Final = 16 << 10
"""Size of the rules for another attempt that a queue stores."""

Natural = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound on the tasks of a queue that run at once, or that start within some time.

    Attributes:
        running: The largest number of tasks that are claimed at once.
        starts: The largest number of tasks that start in `per_s` seconds, by the store's clock. So many can
            start at once; each start then comes back evenly, one after `per_s / starts` seconds.
        per_s: See `starts`.
        kind: The kind of the tasks that the limit counts; None for all.
        each_key: Whether each key has this limit for itself. Tasks without a key are then not limited.
    """

    running: int | None = None
    starts: int | None = None
    per_s: float = 1.0
    kind: str | None = None
    each_key: bool = False

    def __post_init__(self) -> None:
        """Raise `InvalidError` for a limit that bounds nothing or has wrong values."""
        if self.running is None and self.starts is None:
            raise InvalidError("a limit has neither `running` nor `starts`; give one of them")
        for name in ("running", "starts"):
            if (number := getattr(self, name)) is not None:
                size_limits.admit_count(name, number, least=0)
        check_duration_ms("per_s", self.per_s)
        check_flag("each_key", self.each_key)
        if self.kind not in (None, ""):
            check_kind("kind", self.kind)


class LimitRule(msgspec.Struct, array_like=True, frozen=True):
    """A limit as it is stored.

    Attributes:
        id: The number of the limit in the keys of its slots. It stays if only the numbers change.
        running: As in `Limit`.
        starts: As in `Limit`.
        per_ms: The time of `per_s`.
        kind: As in `Limit`.
        each_key: As in `Limit`.
        overflows: Whether tasks may hold slots with numbers from `running` on.
    """

    id: Positive
    running: Natural | None
    starts: Natural | None
    per_ms: Positive
    kind: str | None
    each_key: bool
    overflows: bool

    def counts(self, kind: str, key: str | None) -> bool:
        """Return whether the limit counts tasks of a kind and a key."""
        return (self.kind is None or self.kind == kind) and (key is not None or not self.each_key)

    def is_same(self, limit: Limit) -> bool:
        """Return whether another limit bounds the same tasks in the same way, with other numbers."""
        return (
            (self.kind, self.each_key) == (limit.kind, limit.each_key)
            and (self.running is None) == (limit.running is None)
            and (self.starts is None) == (limit.starts is None)
        )


class RetryRule(msgspec.Struct, array_like=True, frozen=True):
    """A `Retry` as it is stored: classes by their names, times in milliseconds, and each of `rules` alike."""

    first_ms: Natural
    factor: float
    longest_ms: Positive
    jitter: float
    never: tuple[str, ...] = ()
    rules: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    later: tuple[Any, ...] = ()


class QueueRules(msgspec.Struct, array_like=True, frozen=True):
    """The rules of one queue.

    Attributes:
        format: The format of the record.
        is_paused: Whether no task is claimed.
        paused: The kinds whose tasks are not claimed, sorted.
        limits: The limits.
        last_limit: The largest number that a limit ever had.
        limit_epoch: The number of changes of limits. Lines that an earlier limit blocked are looked at again.
        uncounted: The numbers of new limits. Claimed tasks do not have slots of them yet.
        aging_ms: The milliseconds of waiting that one point of priority is worth; None for no aging.
        order_epoch: The number of changes of aging.
        lanes: Kinds with turns of their own, so that no claim steps over them one by one.
        retry: The fields of a `RetryRule`, with those of later versions; None for the default.
        later: Fields added by a later version of keepstate. They are written back unchanged.
    """

    format: Annotated[int, msgspec.Meta(ge=1, le=_FORMAT)] = _FORMAT
    is_paused: bool = False
    paused: tuple[str, ...] = ()
    limits: tuple[LimitRule, ...] = ()
    last_limit: Natural = 0
    limit_epoch: Natural = 0
    uncounted: tuple[int, ...] = ()
    aging_ms: Positive | None = None
    order_epoch: Natural = 0
    lanes: tuple[str, ...] = ()
    retry: tuple[Any, ...] | None = None
    later: tuple[Any, ...] = ()

    def permits(self, kind: str) -> bool:
        """Return whether tasks of a kind may be claimed."""
        return not self.is_paused and kind not in self.paused

    def has_line(self, kind: str, key: str | None) -> bool:
        """Return whether tasks of a kind and a key wait in a line."""
        return key is not None or self.aging_ms is not None or kind in self.lanes

    def lane_of(self, kind: str) -> int:
        """Return the number of the lane of a kind; 0 for the one of all kinds without a lane."""
        return self.lanes.index(kind) + 1 if kind in self.lanes else 0

    def order_of(self, priority: int, at_ms: int) -> int:
        """Return the order of a task by priority and by the time from which it waits; the least is first."""
        return -priority if self.aging_ms is None else at_ms - priority * self.aging_ms

    def limits_of(self, kind: str, key: str | None) -> list[LimitRule]:
        """Return the limits that count tasks of a kind and a key."""
        return [limit for limit in self.limits if limit.counts(kind, key)]

    def with_lanes(self, kinds: Sequence[str]) -> QueueRules:
        """Return the rules with lanes for these kinds, as far as there is room."""
        lanes = [*self.lanes, *(kind for kind in kinds if kind not in self.lanes)][:KINDS_MOST]
        return msgspec.structs.replace(self, lanes=tuple(lanes))


NO_RULES: Final = QueueRules()


class KnownRules(msgspec.Struct, frozen=True):
    """Rules as they were read.

    Attributes:
        rules: The rules.
        version: The version of their entry; 0 without one.
        revision: A revision of the space at which they held.
    """

    rules: QueueRules = NO_RULES
    version: int = ABSENT
    revision: int = 0


def decode_rules(stored: bytes) -> QueueRules:
    """Decode the rules of a queue.

    Raises:
        CorruptError: They are not rules of a queue.
    """
    rules = decode_fields(decode_stored(stored, list[Any], _LOCATION), QueueRules, _LOCATION)
    if rules.retry is not None:
        _retry_in(rules.retry)
    return rules


def _retry_in(fields: tuple[Any, ...]) -> Retry:
    rule = decode_fields(fields, RetryRule, _LOCATION)
    rules: dict[ErrorClass, Retry] = {name: _retry_in(each) for name, each in rule.rules}
    first_s, longest_s = rule.first_ms / 1000, rule.longest_ms / 1000
    try:
        return Retry(first_s, rule.factor, longest_s, rule.jitter, rule.never, rules)
    except InvalidError as error:
        raise corrupt_error(_LOCATION, error) from error


def _retry_fields(retry: Retry, *, is_rule: bool = False) -> tuple[Any, ...]:
    if is_rule and retry.rules:
        raise InvalidError("one of the `rules` of `retry` has `rules` itself; a queue stores them one deep")
    rules = tuple((name_of(kind), _retry_fields(rule, is_rule=True)) for kind, rule in retry.rules.items())
    never = tuple(map(name_of, retry.never))
    first_ms, longest_ms = ceil(retry.first_s * 1000), ceil(retry.longest_s * 1000)
    return (first_ms, float(retry.factor), longest_ms, float(retry.jitter), never, rules)


async def pause_ms(unit: Unit, attempt: int, error: object, spread: float, retry: Retry | None) -> int | None:
    """Return the milliseconds until the next attempt by rules for errors, or by those of the queue.

    See `Retry.pause_s`.
    """
    if retry is None:
        stored = (await read_rules(unit)).retry
        retry = Retry() if stored is None else _retry_in(stored)
    pause_s = retry.pause_s(attempt, error, spread)
    return None if pause_s is None else ceil(pause_s * 1000)


def known_rules(entry: Entry | None, revision: int) -> KnownRules:
    """Return the rules in an entry as it was read at a revision; an absent entry means none."""
    if entry is None:
        return KnownRules(revision=revision)
    return KnownRules(decode_rules(entry.value), entry.version, revision)


async def read_rules(unit: Unit) -> QueueRules:
    """Return the rules of a queue, and make the unit's commit depend on them."""
    entry = await unit.get(layout.QUEUE_RULES)
    return NO_RULES if entry is None else decode_rules(entry.value)


def put_rules(unit: Unit, rules: QueueRules) -> None:
    """Write the rules of a queue."""
    unit.put(layout.QUEUE_RULES, msgspec.msgpack.encode(encode_fields(rules)))


async def note_listed_kinds(unit: Unit) -> None:
    """Note that the listed queues have changed, so that workers over many spaces look again."""
    page = await unit.store.scan(unit.space, LISTED_QUEUES, limit=size_limits.PAGE_ROWS)
    unit.subjects |= {subject_in(CARRIED, entry) for entry in page.entries}


@dataclass(frozen=True, slots=True)
class ActiveRules:
    """The rules of a queue at one revision.

    Attributes:
        is_paused: Whether the whole queue is paused.
        paused_kinds: The kinds that are paused by themselves, sorted.
        limits: The limits given to `configure`.
        aging_s: The seconds of waiting that count as one point of priority, or None.
        retry: The rules for errors given to `configure`, with the names of classes, or None.
    """

    is_paused: bool
    paused_kinds: tuple[str, ...]
    limits: tuple[Limit, ...]
    aging_s: float | None
    retry: Retry | None = None


class RuleControl:
    """Reads and changes the rules of the queue of a space, or of a transaction on it."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    async def rules(self) -> ActiveRules:
        """Return the rules that hold now: pauses, limits, aging and retries."""
        found, _ = await self._executor.run(read_rules)
        limits = [
            Limit(
                running=rule.running,
                starts=rule.starts,
                per_s=rule.per_ms / 1000,
                kind=rule.kind,
                each_key=rule.each_key,
            )
            for rule in found.limits
        ]
        aging_s = None if found.aging_ms is None else found.aging_ms / 1000
        retry = None if found.retry is None else _retry_in(found.retry)
        return ActiveRules(found.is_paused, found.paused, tuple(limits), aging_s, retry)

    async def configure(
        self, *, limits: Sequence[Limit] = (), aging_s: float | None = None, retry: Retry | None = None
    ) -> None:
        """Set the rules of the queue, stored for all workers, instead of those set before.

        Rules hold for every claim from now on, in every process. Tasks that are held go on: under a limit
        that is lowered below their number, none starts until enough of them have ended.

        Args:
            limits: Bounds on the tasks that run at once or start within some time, at most 20. A task that
                one of them holds back is stepped over and holds back no other one.
            aging_s: Let this many seconds of waiting count as one point of priority. Without it, tasks of a
                lower priority wait for all tasks of a higher one.
            retry: The rules for errors where a worker or a call of `fail` gives none. Classes of errors are
                stored by their names, and its `rules` have none themselves. Without it, they are `Retry()`.
        """
        rules = check_limits(limits)
        aging_ms = None if aging_s is None else check_duration_ms("aging_s", aging_s)
        fields = None if retry is None else check_retry(retry)

        async def work(unit: Unit) -> None:
            await configure(unit, rules, aging_ms, fields)

        await self._executor.run(work)

    async def pause(self, kind: str | None = None) -> None:
        """Claim no more tasks, in no process, until `resume`. Tasks that are held go on.

        Tasks can still be put, and taken by their id.

        Args:
            kind: Pause only tasks of this kind, at most 100 kinds at a time.
        """
        await self._set_paused(kind, is_paused=True)

    async def resume(self, kind: str | None = None) -> None:
        """Undo `pause`. Claims that wait for a task wake at once.

        Args:
            kind: Resume only this kind. A kind that was paused by itself stays paused if the queue is
                resumed.
        """
        await self._set_paused(kind, is_paused=False)

    async def _set_paused(self, kind: str | None, *, is_paused: bool) -> None:
        name = None if kind is None else check_kind("kind", kind) if kind != "" else ""

        async def work(unit: Unit) -> None:
            await change_pause(unit, name, is_paused=is_paused)

        await self._executor.run(work)


async def change_pause(unit: Unit, kind: str | None, *, is_paused: bool) -> None:
    """Pause or resume a kind, or the whole queue.

    Raises:
        InvalidError: Too many kinds would be paused.
    """
    rules = await read_rules(unit)
    if kind is None:
        changed = msgspec.structs.replace(rules, is_paused=is_paused)
    else:
        paused = {*rules.paused, kind} if is_paused else {*rules.paused} - {kind}
        if len(paused) > KINDS_MOST:
            raise InvalidError(
                f"{KINDS_MOST} kinds of queue {unit.name!r} are paused already; resume some of them, or "
                "pause the whole queue"
            )
        changed = msgspec.structs.replace(rules, paused=tuple(sorted(paused)))
        if is_paused:
            changed = changed.with_lanes([kind])
    if changed != rules:
        put_rules(unit, changed)
        await note_listed_kinds(unit)


def check_limits(limits: object) -> list[Limit]:
    """Return limits as a list.

    Raises:
        InvalidError: They are not limits, or too many.
    """
    if not isinstance(limits, Sequence) or isinstance(limits, str | bytes):
        raise InvalidError(f"`limits` is {limits!r:.100}; give a list of Limit")
    given = list(cast("Sequence[Limit]", limits))
    for limit in given:
        require_instance("limits", limit, Limit)
    if len(given) > LIMITS_MOST:
        raise InvalidError(f"`limits` has {len(given)} limits; a queue has at most {LIMITS_MOST}")
    return given


class _PlainRetry(msgspec.Struct, forbid_unknown_fields=True):
    first_s: float = 1.0
    factor: float = 2.0
    longest_s: float = 300.0
    jitter: float = 0.1
    never: tuple[str, ...] = ()
    rules: dict[str, _PlainRetry] = {}

    def build(self) -> Retry:
        rules: dict[ErrorClass, Retry] = {name: rule.build() for name, rule in self.rules.items()}
        return Retry(self.first_s, self.factor, self.longest_s, self.jitter, self.never, rules)


class _PlainRules(msgspec.Struct, forbid_unknown_fields=True):
    limits: tuple[dict[str, Any], ...] = ()
    aging_s: float | None = None
    retry: _PlainRetry | None = None


def arguments_in(plain: object) -> dict[str, Any]:
    """Return the arguments of `configure` that plain data has, such as JSON of a command.

    Raises:
        InvalidError: They are not rules of a queue.
    """
    try:
        rules = msgspec.convert(plain, _PlainRules)
        limits = [Limit(**each) for each in rules.limits]
    except (msgspec.ValidationError, TypeError) as error:
        raise InvalidError(f"these are not rules of a queue: {error}") from error
    retry = None if rules.retry is None else rules.retry.build()
    return {"limits": limits, "aging_s": rules.aging_s, "retry": retry}


def check_retry(retry: Retry) -> tuple[Any, ...]:
    """Return the fields of rules for errors as they are stored.

    Raises:
        InvalidError: They are not such rules, or have too many classes of errors.
    """
    require_instance("retry", retry, Retry)
    fields = _retry_fields(retry)
    if (size := len(msgspec.msgpack.encode(fields))) > RETRY_BYTES:
        raise InvalidError(f"`retry` has {size} bytes as it is stored; a queue stores {RETRY_BYTES}")
    return fields


async def configure(
    unit: Unit, limits: Sequence[Limit], aging_ms: int | None, retry: tuple[Any, ...] | None
) -> None:
    """Replace the limits, the aging and the rules for errors of a queue."""
    rules = await read_rules(unit)
    changed = msgspec.structs.replace(_with_limits(rules, limits), retry=retry)
    if aging_ms != rules.aging_ms:
        changed = msgspec.structs.replace(changed, aging_ms=aging_ms, order_epoch=rules.order_epoch + 1)
    if changed != rules:
        put_rules(unit, changed)
        await note_listed_kinds(unit)


def _with_limits(rules: QueueRules, limits: Sequence[Limit]) -> QueueRules:
    former, last = list(rules.limits), rules.last_limit
    made: list[LimitRule] = []
    uncounted: list[int] = []
    for limit in limits:
        same = next((rule for rule in former if rule.is_same(limit)), None)
        overflows = False
        if same is None:
            last += 1
            number = last
            if limit.running is not None:
                uncounted.append(number)
        else:
            former.remove(same)
            number, overflows = same.id, same.overflows or (limit.running or 0) < (same.running or 0)
            uncounted += [number] if number in rules.uncounted else []
        per_ms = check_duration_ms("per_s", limit.per_s)
        made.append(
            LimitRule(
                number, limit.running, limit.starts, per_ms, limit.kind, limit.each_key, overflows
            )
        )  # fmt: skip
    if tuple(made) == rules.limits:
        return rules
    return msgspec.structs.replace(
        rules,
        limits=tuple(made),
        last_limit=last,
        limit_epoch=rules.limit_epoch + 1,
        uncounted=tuple(uncounted),
    ).with_lanes([limit.kind for limit in limits if limit.kind is not None and not limit.each_key])
