"""Public calls, each with one argument left open, and wrong values for it.

A call is written once for both modes; `wrong` are values for the one argument that its name tells of.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from math import inf, nan
from random import randbytes
from typing import Any

from keepstate import Claim, Fold, Limit, Retry
from tests.engine import wrong_usage
from tests.engine.index import wrong

NO_TEXT = (1, None, b"a", ["a"], "\ud800")
NO_NAME = (*NO_TEXT, "", "a" * 513)
NO_TASK_ID = (*NO_TEXT[:1], *NO_TEXT[2:], "", "a" * 201)
NO_SCHEDULE = (*NO_TEXT, "", "a" * 161)
NO_STREAM_NAME = (1, None, b"a", ["a"], "", "a" * 201)
NO_AUTHOR = (1, b"a", ["a"], "\ud800", "", "a" * 513)
NO_WAIT = ("1", nan, inf, -1, -0.5, True, [1], 10**400)
NO_LENGTH = (*NO_WAIT, 0)
NO_LIMITS = (None, 1, "ab", [1], Limit(running=1), [Limit(running=1)] * 21)
NO_COUNT = ("1", nan, inf, -1, 0, 1.0, True, None, [1], 2**31)
NO_REVISION = ("1", nan, b"", -1, 1.0, True, [1], 2**53, 10**30)
NO_POSITION = ("1", nan, b"", -1, 1.0, True, [1], 2**69, 10**30)
NO_PATTERN = (1, None, b"a", ["*"], "[", "a\\", "*" * 5_000)
NO_VALUE = (object(), lambda: 1)
NO_FUNCTION = (1, None, "f")
NO_TYPE = ("1", 1, [int], {}, (int, str), object(), len)
NO_CLAIM = ("1", None, 1, ("t", 1), Claim("t", "1"), Claim(1, 1))  # type: ignore[arg-type]
NO_REF = (1, None, b"a", ["main"], "", "main~x", "main@noon", "ma#in")
NO_LOAD = (1, None, "a", b"a", [1], [()])
NO_LEASE = ("1", 1, True)
NO_AFTER = (1, b"a", ["a"], "", "a" * 513)
TOO_MANY_IDS = [f"a{number}" for number in range(101)]
NO_MOMENT = (1, "noon", datetime(2026, 1, 1))
NO_CURSOR = (1, b"a", ["a"], "", "a", "\ud800")
NO_CHOICE = ("lost", "", None, True, 1, ["skip"])
NO_FLAG = (1, None, "yes")


@dataclass(frozen=True)
class Call:
    """A public call with one argument left open."""

    make: Callable[[Any, Any], Any]
    wrong: tuple[Any, ...]
    on: str = "space"


def on_ks(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(make, wrong, "ks")


def on_usage(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(lambda space, x: make(space.usage, x), wrong)


def on_lease(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(make, wrong, "lease")


def on_documents(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(lambda space, x: make(space.documents, x), wrong)


def on_queue(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(lambda space, x: make(space.queue, x), wrong)


def on_task(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(make, wrong, "task")


CALLS: dict[str, Call] = {
    "Keepstate.space(name)": on_ks(lambda ks, x: ks.space(x), (*NO_TEXT, "", "a" * 201)),
    "Keepstate.space(author)": on_ks(lambda ks, x: ks.space("s", author=x), NO_AUTHOR),
    "Keepstate.space(record)": on_ks(lambda ks, x: ks.space("s", record=x), (1, None, "yes")),
    "Keepstate.tenant(id)": on_ks(lambda ks, x: ks.tenant(x), (*NO_TEXT, "", "t" * 195)),
    "Keepstate.spaces(tenant)": on_ks(lambda ks, x: ks.spaces(tenant=x), ("all", None, 1)),
    "Keepstate.list_spaces(tenant)": on_ks(lambda ks, x: ks.list_spaces(tenant=x), ("all", None, 1)),
    "Keepstate.tenants(after)": on_ks(lambda ks, x: ks.tenants(after=x), (1, b"a", ["a"], "", "\ud800")),
    "Keepstate.tenants(limit)": on_ks(lambda ks, x: ks.tenants(limit=x), NO_COUNT),
    "Keepstate.set_quota(quota)": on_ks(lambda ks, x: ks.tenant("t").set_quota(x), (1, "1", {})),
    "Keepstate.export(path)": on_ks(lambda ks, x: ks.tenant("t").export(x), (1, None, b"a", "")),
    "Keepstate.export(owner)": on_ks(lambda ks, x: ks.export("none.jsonl", owner=x), (1, b"a", "")),
    "Keepstate.import_(path)": on_ks(lambda ks, x: ks.tenant("t").import_(x), (1, None, b"a", "")),
    "Keepstate.erase(confirm)": on_ks(lambda ks, x: ks.tenant("t").erase(confirm=x), (*NO_TEXT, "")),
    "Keepstate.queues(under)": on_ks(lambda ks, x: ks.queues(x), NO_TEXT),
    "Keepstate.queues(tenant)": on_ks(lambda ks, x: ks.queues(tenant=x), ("all", None, 1)),
    "Keepstate.find(tenant)": on_ks(lambda ks, x: ks.find(tenant=x), ("all", None, 1)),
    "Keepstate.spaces(under)": on_ks(lambda ks, x: ks.spaces(x), NO_TEXT),
    "Keepstate.spaces(after)": on_ks(lambda ks, x: ks.spaces(after=x), (1, b"a", ["a"], "\ud800")),
    "Keepstate.spaces(limit)": on_ks(lambda ks, x: ks.spaces(limit=x), (*NO_COUNT[:7], *NO_COUNT[8:])),
    "Keepstate.list_spaces(under)": on_ks(lambda ks, x: ks.list_spaces(x), NO_TEXT),
    "Keepstate.list_spaces(after)": on_ks(lambda ks, x: ks.list_spaces(after=x), (1, b"a", ["a"], "\ud800")),
    "Keepstate.list_spaces(limit)": on_ks(lambda ks, x: ks.list_spaces(limit=x), NO_COUNT),
    **{name: on_ks(*call) for name, call in wrong.CALLS.items()},
    "Keepstate.drop(space)": on_ks(lambda ks, x: ks.drop(x), (*NO_TEXT, "", "a" * 201)),
    "Space.by(author)": Call(lambda space, x: space.by(x), NO_AUTHOR),
    "Space.by(meta)": Call(
        lambda space, x: space.by(meta=x), (1, "a", {"a": 1}, {1: "a"}, {"": "a"}, {"a": "b" * 1_024})
    ),
    "Space.by(message)": Call(lambda space, x: space.by(message=x), (1, b"a", ["a"], "\ud800", "a" * 70_000)),
    "Space.at(ref)": Call(lambda space, x: space.at(x), NO_REF),
    "Space.at(load)": Call(lambda space, x: space.at(load=x), NO_LOAD),
    "Space.transaction(lease)": Call(lambda space, x: space.transaction(lease=x), NO_LEASE),
    "Space.transaction(message)": Call(lambda space, x: space.transaction(message=x), NO_TEXT),
    "Space.transaction(token)": Call(
        lambda space, x: space.transaction(token=x), tuple(wrong for wrong in NO_NAME if wrong is not None)
    ),
    "Space.transact(fn)": Call(lambda space, x: space.transact(x), NO_FUNCTION),
    "Space.transact(attempts)": Call(
        lambda space, x: space.transact(len, x), tuple(wrong for wrong in NO_COUNT if wrong is not None)
    ),
    "Space.apply(fn)": Call(lambda space, x: space.apply(x), NO_FUNCTION),
    "Space.apply(attempts)": Call(
        lambda space, x: space.apply(len, attempts=x), tuple(wrong for wrong in NO_COUNT if wrong is not None)
    ),
    "Keepstate.erase_owner(owner)": on_ks(lambda ks, x: ks.erase_owner(x), NO_NAME),
    "Space.expunge(prefix)": Call(lambda space, x: space.expunge(x), NO_TEXT),
    "Space.outcome(token)": Call(lambda space, x: space.outcome(x), ("1", None, 1, b"", b"a" * 65)),
    "Space.collection(name)": Call(
        lambda space, x: space.collection(x, int), (*NO_TEXT, "", "a" * 101, "a/b")
    ),
    "Space.collection(type)": Call(lambda space, x: space.collection("a", x), (*NO_TYPE[:-1], None)),
    "Space.collection(index)": Call(
        lambda space, x: space.collection("a", int, index=x),
        (1, "a", [len], {"a": 1}, {1: len}, {"a/b": len}),
    ),
    "Space.collection(version)": Call(
        lambda space, x: space.collection("a", int, index={"a": len}, version=x), NO_COUNT
    ),
    "Documents.get(key)": on_documents(lambda d, x: d.get(x), NO_NAME),
    "Documents.get(type)": on_documents(lambda d, x: d.get("absent", type=x), NO_TYPE[:-1]),
    "Documents.entry(key)": on_documents(lambda d, x: d.entry(x), NO_NAME),
    "Documents.entry(type)": on_documents(lambda d, x: d.entry("there", type=x), NO_TYPE),
    "Documents.put(key)": on_documents(lambda d, x: d.put(x, 1), NO_NAME),
    "Documents.put(value)": on_documents(lambda d, x: d.put("a", x), NO_VALUE),
    "Documents.put(expected_version)": on_documents(
        lambda d, x: d.put("a", 1, expected_version=x), NO_REVISION
    ),
    "Documents.put(ttl_s)": on_documents(lambda d, x: d.put("a", 1, ttl_s=x), NO_LENGTH),
    "Documents.update(key)": on_documents(lambda d, x: d.update(x, {}), NO_NAME),
    "Documents.update(patch)": on_documents(lambda d, x: d.update("there", x), (1, None, "a", [1])),
    "Documents.update(default)": on_documents(lambda d, x: d.update("a", str, default=x), NO_VALUE[:1]),
    "Documents.delete(key)": on_documents(lambda d, x: d.delete(x), NO_NAME),
    "Documents.document(key)": on_documents(lambda d, x: d.document(x, int), NO_NAME),
    "Documents.document(type)": on_documents(lambda d, x: d.document("a", x), (*NO_TYPE[:-1], None)),
    "Documents.keys(pattern)": on_documents(lambda d, x: d.keys(x), NO_PATTERN),
    "Documents.items(pattern)": on_documents(lambda d, x: d.items(x), NO_PATTERN),
    "Documents.keys(after)": on_documents(lambda d, x: d.keys(after=x), NO_AFTER),
    "Documents.items(after)": on_documents(lambda d, x: d.items(after=x), NO_AFTER),
    "Documents.items(unreadable)": on_documents(lambda d, x: d.items(unreadable=x), NO_CHOICE),
    **{
        f"Documents.{call}({argument})": Call(
            lambda space, x, call=call, argument=argument: getattr(space.documents, call)(**{argument: x}),
            wrong,
        )
        for call in ("keys", "items")
        for argument, wrong in {
            "prefix": NO_TEXT,
            "before": NO_AFTER,
            "reverse": NO_FLAG,
            "limit": tuple(wrong for wrong in NO_COUNT if wrong is not None),
        }.items()
    },
    **{
        f"Documents.page({argument})": Call(
            lambda space, x, argument=argument: space.documents.page(**{argument: x}), wrong
        )
        for argument, wrong in {
            "pattern": NO_PATTERN,
            "prefix": NO_TEXT,
            "after": NO_CURSOR,
            "before": NO_CURSOR,
            "reverse": NO_FLAG,
            "limit": NO_COUNT,
            "values": NO_FLAG,
            "unreadable": NO_CHOICE,
        }.items()
    },
    "Documents.delete_all(prefix)": on_documents(lambda d, x: d.delete_all(x), NO_TEXT),
    "Documents.entries(keys)": on_documents(lambda d, x: d.entries("there", x), NO_NAME),
    "Documents.entries(unreadable)": on_documents(lambda d, x: d.entries("there", unreadable=x), NO_CHOICE),
    "Documents.watch(pattern)": on_documents(lambda d, x: d.watch(x), NO_PATTERN),
    "Documents.watch(after)": on_documents(lambda d, x: d.watch(after=x), NO_REVISION),
    "Documents.watch(timeout_s)": on_documents(lambda d, x: d.watch(timeout_s=x), NO_WAIT),
    "Documents.watch(unreadable)": on_documents(lambda d, x: d.watch(unreadable=x), NO_CHOICE),
    "Document.put(value)": on_documents(lambda d, x: d.document("a", int).put(x), ("1", None, [])),
    "Document.put(expected_version)": on_documents(
        lambda d, x: d.document("a", int).put(1, expected_version=x), NO_REVISION
    ),
    "Document.put(ttl_s)": on_documents(lambda d, x: d.document("a", int).put(1, ttl_s=x), NO_LENGTH),
    "Document.update(change)": on_documents(
        lambda d, x: d.document("a", int).update(x, default=1), NO_FUNCTION
    ),
    "Document.update(default)": on_documents(
        lambda d, x: d.document("a", int).update(lambda old: old, default=x), ("1", None)
    ),
    "Events.stream(name)": Call(lambda space, x: space.events.stream(x), NO_STREAM_NAME),
    "Events.append(events)": Call(lambda space, x: space.events.append(x), NO_VALUE),
    "Events.append(stream)": Call(lambda space, x: space.events.append(1, stream=x), NO_STREAM_NAME),
    "Events.append(expected)": Call(
        lambda space, x: space.events.append(1, expected=x), ("any", None, True, 1.0)
    ),
    "Events.last(stream)": Call(lambda space, x: space.events.last(x), NO_STREAM_NAME),
    "Events.read(stream)": Call(lambda space, x: space.events.read(stream=x), NO_STREAM_NAME),
    "Events.read(after)": Call(lambda space, x: space.events.read(after=x), NO_POSITION),
    "Events.read(limit)": Call(lambda space, x: space.events.read(limit=x), NO_COUNT),
    "Events.read(before)": Call(lambda space, x: space.events.read(before=x), NO_POSITION),
    "Events.read(reverse)": Call(lambda space, x: space.events.read(reverse=x), NO_FLAG),
    "Events.read(unreadable)": Call(lambda space, x: space.events.read(unreadable=x), NO_CHOICE),
    "Events.drop(stream)": Call(lambda space, x: space.events.drop(x), NO_STREAM_NAME),
    "Events.follow(stream)": Call(lambda space, x: space.events.follow(stream=x), NO_STREAM_NAME),
    "Events.follow(after)": Call(lambda space, x: space.events.follow(after=x), NO_POSITION),
    "EventStream.append(events)": Call(lambda space, x: space.events.stream("a").append(x), NO_VALUE),
    "EventStream.append(expected)": Call(
        lambda space, x: space.events.stream("a").append(1, expected=x), ("any", None, True, 1.0)
    ),
    "EventStream.read(after)": Call(lambda space, x: space.events.stream("a").read(after=x), NO_POSITION),
    "EventStream.read(limit)": Call(lambda space, x: space.events.stream("a").read(limit=x), NO_COUNT),
    "EventStream.read(before)": Call(lambda space, x: space.events.stream("a").read(before=x), NO_POSITION),
    "EventStream.read(reverse)": Call(lambda space, x: space.events.stream("a").read(reverse=x), NO_FLAG),
    "EventStream.read(unreadable)": Call(
        lambda space, x: space.events.stream("a").read(unreadable=x), NO_CHOICE
    ),
    "EventStream.follow(after)": Call(lambda space, x: space.events.stream("a").follow(after=x), NO_POSITION),
    "Events.append(id)": Call(lambda space, x: space.events.append(1, id=x), (1, b"a", ["a", "b"], "")),
    "Events.append(type)": Call(lambda space, x: space.events.append({}, type=x), (1, b"a", "", "a@0")),
    "Events.append(cause)": Call(lambda space, x: space.events.append(1, cause=x), NO_AUTHOR),
    "Events.append(correlation)": Call(lambda space, x: space.events.append(1, correlation=x), NO_AUTHOR),
    "EventStream.fold(from_base)": Call(
        lambda space, x: space.events.stream("a").fold(len, from_base=x), (1, None, "yes")
    ),
    "EventStream.fold_entry(from_base)": Call(
        lambda space, x: space.events.stream("a").fold_entry(Fold(len), from_base=x), (1, None, "yes")
    ),
    "EventStream.at(moment)": Call(
        lambda space, x: space.events.stream("a").at(x), ("1", None, 1.5, b"", [1])
    ),
    "EventStream.fold(reducer)": Call(lambda space, x: space.events.stream("a").fold(x), NO_FUNCTION),
    "EventStream.fold(cache_every)": Call(
        lambda space, x: space.events.stream("a").fold(len, 0, x), (*NO_COUNT[:7], *NO_COUNT[8:])
    ),
    "EventStream.fold(name)": Call(
        lambda space, x: space.events.stream("a").fold(len, name=x), (1, b"a", ["a"], "\ud800", "", "a" * 101)
    ),
    "EventStream.fold(version)": Call(
        lambda space, x: space.events.stream("a").fold(len, version=x), NO_COUNT
    ),
    "EventStream.fold_entry(fold)": Call(
        lambda space, x: space.events.stream("a").fold_entry(x), NO_FUNCTION
    ),
    "EventStream.truncate(upto)": Call(
        lambda space, x: space.events.stream("a").truncate(x), (*NO_POSITION, None)
    ),
    "EventStream.truncate(folds)": Call(
        lambda space, x: space.events.stream("a").truncate(1, x), NO_FUNCTION
    ),
    "EventStream.append(id)": Call(
        lambda space, x: space.events.stream("a").append(1, id=x), (1, b"a", [], ["a", "b"], "", "a" * 201)
    ),
    "EventStream.append(type)": Call(
        lambda space, x: space.events.stream("a").append({}, type=x), (1, b"a", "", "a@0", "a@b")
    ),
    "EventStream.append(cause)": Call(
        lambda space, x: space.events.stream("a").append(1, cause=x), NO_AUTHOR
    ),
    "EventStream.append(correlation)": Call(
        lambda space, x: space.events.stream("a").append(1, correlation=x), NO_AUTHOR
    ),
    "Leases.acquire(name)": Call(lambda space, x: space.leases.acquire(x, 1), NO_NAME),
    "Leases.acquire(ttl_s)": Call(lambda space, x: space.leases.acquire("a", x), (*NO_LENGTH, None)),
    "Leases.acquire(wait_s)": Call(lambda space, x: space.leases.acquire("a", 1, wait_s=x), (*NO_WAIT, None)),
    "Leases.held(prefix)": Call(lambda space, x: space.leases.held(x), NO_TEXT),
    "Leases.held(after)": Call(lambda space, x: space.leases.held(after=x), NO_CURSOR),
    "Leases.held(before)": Call(lambda space, x: space.leases.held(before=x), NO_CURSOR),
    "Leases.held(limit)": Call(lambda space, x: space.leases.held(limit=x), NO_COUNT),
    "Schedules.put(name)": Call(lambda space, x: space.schedules.put(x, every_s=60), NO_SCHEDULE),
    "Schedules.put(cron)": Call(
        lambda space, x: space.schedules.put("n", cron=x),
        (1, b"a", ["a"], "", "* * * *", "0 0 31 2 *", "\ud800"),
    ),
    "Schedules.put(every_s)": Call(lambda space, x: space.schedules.put("n", every_s=x), (*NO_LENGTH, 0.9)),
    "Schedules.put(zone)": Call(
        lambda space, x: space.schedules.put("n", cron="0 0 * * *", zone=x), (*NO_TEXT, "", "Moon", "../UTC")
    ),
    "Schedules.put(kind)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, kind=x), (1, None, b"a", "\ud800", "a" * 201)
    ),
    "Schedules.put(key)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, key=x), (1, b"a", "\ud800", "", "a" * 201)
    ),
    "Schedules.put(payload)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, payload=x), NO_VALUE
    ),
    "Schedules.put(jitter_s)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, jitter_s=x), (*NO_WAIT, 86_401)
    ),
    "Schedules.put(missed)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, missed=x), (1, None, "no", ["all"])
    ),
    "Schedules.put(missed_within_s)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, missed_within_s=x), NO_LENGTH
    ),
    "Schedules.put(overlap)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, overlap=x), (1, None, "no", ["all"])
    ),
    "Schedules.put(until)": Call(
        lambda space, x: space.schedules.put("n", every_s=60, until=x), (1, "2030", datetime(2030, 1, 1))
    ),
    "Schedules.get(name)": Call(lambda space, x: space.schedules.get(x), NO_SCHEDULE),
    "Schedules.get(payload)": Call(lambda space, x: space.schedules.get("n", payload=x), NO_FLAG),
    "Schedules.list(after)": Call(lambda space, x: space.schedules.list(after=x), NO_CURSOR),
    "Schedules.list(limit)": Call(lambda space, x: space.schedules.list(limit=x), NO_COUNT),
    "Schedules.delete(name)": Call(lambda space, x: space.schedules.delete(x), NO_SCHEDULE),
    "Schedules.pause(name)": Call(lambda space, x: space.schedules.pause(x), NO_SCHEDULE),
    "Schedules.resume(name)": Call(lambda space, x: space.schedules.resume(x), NO_SCHEDULE),
    "Schedules.run_now(name)": Call(lambda space, x: space.schedules.run_now(x), NO_SCHEDULE),
    "Schedules.next(name)": Call(lambda space, x: space.schedules.next(x), NO_SCHEDULE),
    "Schedules.next(n)": Call(lambda space, x: space.schedules.next("n", x), (*NO_COUNT, 1_001)),
    "Leases.resume(name)": Call(lambda space, x: space.leases.resume(x, 1), NO_NAME),
    "Leases.resume(token)": Call(lambda space, x: space.leases.resume("l", x), NO_REVISION),
    "Leases.resume(ttl_s)": Call(lambda space, x: space.leases.resume("l", 1, ttl_s=x), NO_LENGTH),
    "Leases.holder(name)": Call(lambda space, x: space.leases.holder(x), NO_NAME),
    "Lease.renew(ttl_s)": on_lease(lambda lease, x: lease.renew(x), NO_LENGTH),
    "Queue.put(payload)": on_queue(lambda q, x: q.put(x), NO_VALUE),
    "Queue.put(id)": on_queue(lambda q, x: q.put(1, id=x), NO_TASK_ID),
    "Queue.put(priority)": on_queue(lambda q, x: q.put(1, priority=x), ("1", None, 1.0, True, 2**31)),
    "Queue.put(delay_s)": on_queue(lambda q, x: q.put(1, delay_s=x), (*NO_WAIT, None)),
    "Queue.put(max_attempts)": on_queue(lambda q, x: q.put(1, max_attempts=x), NO_COUNT),
    "Queue.put(kind)": on_queue(lambda q, x: q.put(1, kind=x), (1, "x" * 201, b"a", None)),
    "Queue.put(key)": on_queue(lambda q, x: q.put(1, key=x), (1, "", "x" * 201, b"a")),
    "Queue.put(keep_s)": on_queue(lambda q, x: q.put(1, keep_s=x), NO_LENGTH),
    "Queue.put(if_present)": on_queue(lambda q, x: q.put(1, if_present=x), (1, None, "", "skip", ["keep"])),
    "Queue.pause(kind)": Call(lambda space, x: space.queue.pause(x), (1, "x" * 201, b"a")),
    "Queue.resume(kind)": Call(lambda space, x: space.queue.resume(x), (1, "x" * 201, b"a")),
    "Queue.configure(limits)": Call(lambda space, x: space.queue.configure(limits=x), NO_LIMITS),
    "Queue.configure(aging_s)": Call(lambda space, x: space.queue.configure(aging_s=x), NO_LENGTH),
    "Queue.configure(retry)": Call(lambda space, x: space.queue.configure(retry=x), (1, "no", Retry, {})),
    "Queue.run(handlers)": on_queue(lambda q, x: q.run(x), (1, None, {}, {"mail": 1}, {1: len})),
    "Queue.run(concurrency)": on_queue(lambda q, x: q.run(len, concurrency=x), NO_COUNT),
    "Queue.run(lease_s)": on_queue(lambda q, x: q.run(len, lease_s=x), (*NO_LENGTH, None)),
    "Queue.run(timeout_s)": on_queue(lambda q, x: q.run(len, timeout_s=x), NO_LENGTH),
    "Queue.run(drain_s)": on_queue(lambda q, x: q.run(len, drain_s=x), (*NO_WAIT, None)),
    "Queue.run(retry)": on_queue(lambda q, x: q.run(len, retry=x), (1, "Retry", {})),
    "Queue.run(worker)": on_queue(lambda q, x: q.run(len, worker=x), (1, b"a", "", "a" * 513)),
    "Queue.run(stop)": on_queue(lambda q, x: q.run(len, stop=x), (1, "stop")),
    "Queue.run(idle_s)": on_queue(lambda q, x: q.run(len, idle_s=x), NO_WAIT),
    "Queue.claim(worker)": on_queue(lambda q, x: q.claim(x, lease_s=1), NO_NAME),
    "Queue.claim(lease_s)": on_queue(lambda q, x: q.claim("w", lease_s=x), (*NO_LENGTH, None)),
    "Queue.claim(count)": on_queue(lambda q, x: q.claim("w", lease_s=1, count=x), NO_COUNT),
    "Queue.claim(wait_s)": on_queue(lambda q, x: q.claim("w", lease_s=1, wait_s=x), (*NO_WAIT, None)),
    "Queue.claim(match)": on_queue(lambda q, x: q.claim("w", lease_s=1, match=x), (1, "f")),
    "Queue.claim(kinds)": on_queue(
        lambda q, x: q.claim("w", lease_s=1, kinds=x), ("mail", [], [1], ["x" * 201])
    ),
    "Queue.work(kinds)": on_queue(lambda q, x: q.work("w", kinds=x), ("mail", [], [1])),
    "Queue.work(worker)": on_queue(lambda q, x: q.work(x), NO_NAME),
    "Queue.work(lease_s)": on_queue(lambda q, x: q.work("w", lease_s=x), (*NO_LENGTH, None)),
    "Queue.work(wait_s)": on_queue(lambda q, x: q.work("w", wait_s=x), NO_WAIT),
    "Queue.work(match)": on_queue(lambda q, x: q.work("w", match=x), (1, "f")),
    "Queue.heartbeat(task)": on_queue(lambda q, x: q.heartbeat(x, 1), NO_CLAIM),
    "Queue.heartbeat(lease_s)": on_queue(lambda q, x: q.heartbeat(Claim("t", 1), x), NO_LENGTH),
    "Queue.complete(task)": on_queue(lambda q, x: q.complete(x), NO_CLAIM),
    "Queue.complete(result)": on_queue(lambda q, x: q.complete(Claim("t", 1), x), NO_VALUE),
    "Queue.fail(task)": on_queue(lambda q, x: q.fail(x, "why"), NO_CLAIM),
    "Queue.fail(retry_in_s)": on_queue(lambda q, x: q.fail(Claim("t", 1), "why", x), NO_WAIT),
    "Queue.release(task)": on_queue(lambda q, x: q.release(x), NO_CLAIM),
    "Queue.list(state)": on_queue(lambda q, x: q.list(x), ("lost", 1, [])),
    "Queue.list(id_prefix)": on_queue(lambda q, x: q.list(id_prefix=x), (1, b"a", ["a"])),
    "Queue.list(before)": on_queue(lambda q, x: q.list("ready", before=x), (1, b"a", "", "zz", "é")),
    "Queue.list(reverse)": on_queue(lambda q, x: q.list("ready", reverse=x), NO_FLAG),
    "Queue.list(after)": on_queue(lambda q, x: q.list("ready", after=x), (1, b"a", "", "zz", "é")),
    "Queue.list(payloads)": on_queue(lambda q, x: q.list("ready", payloads=x), NO_FLAG),
    "Queue.list(unreadable)": on_queue(lambda q, x: q.list(unreadable=x), NO_CHOICE),
    "Queue.get(payload)": on_queue(lambda q, x: q.get("a", payload=x), NO_FLAG),
    "Queue.get_each(ids)": on_queue(lambda q, x: q.get_each("a", x), (*NO_TASK_ID, None)),
    "Queue.get_each(payloads)": on_queue(lambda q, x: q.get_each("a", payloads=x), NO_FLAG),
    "Queue.discard(id)": on_queue(lambda q, x: q.discard(x), (*NO_TASK_ID, None)),
    "Queue.remove(id)": on_queue(lambda q, x: q.remove(x), (*NO_TASK_ID, None)),
    "Queue.summaries(prefix)": on_queue(lambda q, x: q.summaries(x), (1, None, b"a", ["a"])),
    "Queue.summaries(newest)": on_queue(
        lambda q, x: q.summaries(newest=x), tuple(x for x in NO_COUNT if x != 0)
    ),
    "Queue.summaries(payloads)": on_queue(lambda q, x: q.summaries(payloads=x), NO_FLAG),
    "Queue.take(id)": on_queue(lambda q, x: q.take(x, "w", lease_s=1), (*NO_TASK_ID, None)),
    "Queue.take(worker)": on_queue(lambda q, x: q.take("a", x, lease_s=1), (*NO_TEXT, "")),
    "Queue.take(lease_s)": on_queue(lambda q, x: q.take("a", "w", lease_s=x), NO_LENGTH),
    "Queue.list(limit)": on_queue(lambda q, x: q.list("ready", limit=x), NO_COUNT),
    "Queue.dead(after)": on_queue(lambda q, x: q.dead(after=x), (1, b"a", "", "zz", "é")),
    "Queue.dead(limit)": on_queue(lambda q, x: q.dead(limit=x), NO_COUNT),
    "Queue.dead(unreadable)": on_queue(lambda q, x: q.dead(unreadable=x), NO_CHOICE),
    "Queue.get(id)": on_queue(lambda q, x: q.get(x), (*NO_TASK_ID, None)),
    "Queue.put(at)": on_queue(lambda q, x: q.put(1, at=x), NO_MOMENT),
    "Queue.put(after)": on_queue(
        lambda q, x: q.put(1, id="t", after=x), (1, "t", [1], [""], ["t"], TOO_MANY_IDS)
    ),
    "Queue.put(expires_s)": on_queue(lambda q, x: q.put(1, expires_s=x), NO_LENGTH),
    "Queue.heartbeat(progress)": on_queue(
        lambda q, x: q.heartbeat(Claim("t", 1), 1, progress=x), (*NO_VALUE, randbytes(5_000))
    ),
    "Queue.fail(is_final)": on_queue(lambda q, x: q.fail(Claim("t", 1), "why", is_final=x), NO_FLAG),
    "Queue.result(id)": on_queue(lambda q, x: q.result(x), (*NO_TASK_ID, None)),
    "Queue.result(wait_s)": on_queue(lambda q, x: q.result("t", wait_s=x), (*NO_WAIT, None)),
    "Queue.wait_empty(timeout_s)": on_queue(lambda q, x: q.wait_empty(x), (*NO_LENGTH, None)),
    "Queue.attempts(id)": on_queue(lambda q, x: q.attempts(x), (*NO_TASK_ID, None)),
    "Queue.send(id)": on_queue(lambda q, x: q.send(x, "m", 1), (*NO_TASK_ID, None)),
    "Queue.send(name)": on_queue(lambda q, x: q.send("t", x, 1), (1, None, "", "x" * 201, b"a")),
    "Queue.send(value)": on_queue(lambda q, x: q.send("t", "m", x), NO_VALUE),
    "Queue.send(send_id)": on_queue(lambda q, x: q.send("t", "m", 1, send_id=x), (1, b"a", "", "a" * 513)),
    "Queue.cancel(id)": on_queue(lambda q, x: q.cancel(x), (*NO_TASK_ID, None)),
    "Queue.cancel(by)": on_queue(lambda q, x: q.cancel("t", by=x), NO_AUTHOR),
    "Queue.cancel(reason)": on_queue(lambda q, x: q.cancel("t", reason=x), NO_TEXT),
    "Queue.requeue(ids)": on_queue(lambda q, x: q.requeue(x), (*NO_TASK_ID, None)),
    "Queue.requeue(kind)": on_queue(lambda q, x: q.requeue(kind=x), (1, "x" * 201, b"a")),
    "Queue.requeue(since)": on_queue(lambda q, x: q.requeue(since=x), NO_MOMENT),
    "Queue.requeue(limit)": on_queue(lambda q, x: q.requeue(kind="a", limit=x), NO_COUNT),
    "Queue.rerun(id)": on_queue(lambda q, x: q.rerun(x), (*NO_TASK_ID, None)),
    "Queue.rerun(result)": on_queue(lambda q, x: q.rerun("t", from_step="a", result=x), NO_VALUE),
    "Queue.attach(claim)": on_queue(lambda q, x: q.attach(x), NO_CLAIM),
    "Queue.attach(lease_s)": on_queue(lambda q, x: q.attach(Claim("t", 1), lease_s=x), NO_LENGTH),
    "Queue.begin_step(claim)": on_queue(lambda q, x: q.begin_step(x, "a"), NO_CLAIM),
    "Queue.begin_step(name)": on_queue(lambda q, x: q.begin_step(Claim("t", 1), x), NO_TEXT),
    "Queue.begin_step(once)": on_queue(lambda q, x: q.begin_step(Claim("t", 1), "a", once=x), NO_FLAG),
    "Queue.record_step(claim)": on_queue(lambda q, x: q.record_step(x, "a", 1), NO_CLAIM),
    "Queue.record_step(name)": on_queue(lambda q, x: q.record_step(Claim("t", 1), x, 1), NO_TEXT),
    "Queue.record_step(result)": on_queue(lambda q, x: q.record_step(Claim("t", 1), "a", x), NO_VALUE),
    "Queue.step_result(id)": on_queue(lambda q, x: q.step_result(x, "a"), NO_TASK_ID),
    "Queue.step_result(name)": on_queue(lambda q, x: q.step_result("t", x), NO_TEXT),
    "Queue.rerun(as_id)": on_queue(lambda q, x: q.rerun("t", as_id=x), NO_TASK_ID),
    "Queue.rerun(from_step)": on_queue(
        lambda q, x: q.rerun("t", from_step=x), (1, b"a", "", "a" * 201, "\ud800")
    ),
    "Queue.steps(id)": on_queue(lambda q, x: q.steps(x), (*NO_TASK_ID, None)),
    "Queue.settle(id)": on_queue(lambda q, x: q.settle(x, "a", 1), (*NO_TASK_ID, None)),
    "Queue.settle(name)": on_queue(lambda q, x: q.settle("t", x, 1), (*NO_TASK_ID, None)),
    "Queue.settle(result)": on_queue(lambda q, x: q.settle("t", "a", x), NO_VALUE),
    "Task.step(name)": on_task(lambda task, x: task.step(x, int), (*NO_TASK_ID, None)),
    "Task.step(fn)": on_task(lambda task, x: task.step("a", x), NO_FUNCTION),
    "Task.step(once)": on_task(lambda task, x: task.step("a", int, once=x), NO_FLAG),
    "Task.step(timeout_s)": on_task(lambda task, x: task.step("a", int, timeout_s=x), NO_LENGTH),
    "Task.step(type)": on_task(lambda task, x: task.step("a", int, type=x), NO_TYPE),
    "Task.transact(name)": on_task(lambda task, x: task.transact(x, str), (*NO_TASK_ID, None)),
    "Task.transact(fn)": on_task(lambda task, x: task.transact("a", x), NO_FUNCTION),
    "Task.spawn(name)": on_task(lambda task, x: task.spawn(x, 1, kind="k"), (*NO_TASK_ID, None)),
    "Task.spawn(payload)": on_task(lambda task, x: task.spawn("a", x, kind="k"), NO_VALUE),
    "Task.spawn(kind)": on_task(lambda task, x: task.spawn("a", 1, kind=x), (1, None, "x" * 201)),
    "Task.spawn(put)": on_task(lambda task, x: task.spawn("a", 1, kind="k", priority=x), ("1", 2**31)),
    "Task.sleep(name)": on_task(lambda task, x: task.sleep(x, 1), (*NO_TASK_ID, None)),
    "Task.sleep(seconds)": on_task(lambda task, x: task.sleep("a", x), NO_WAIT),
    "Task.sleep(until)": on_task(lambda task, x: task.sleep("a", until=x), NO_MOMENT),
    "Task.ask(name)": on_task(lambda task, x: task.ask(x, "Go?"), (*NO_TASK_ID, None)),
    "Task.ask(question)": on_task(lambda task, x: task.ask("a", x), (1, "", None)),
    "Task.ask(default)": on_task(lambda task, x: task.ask("a", "Go?", default=x), (1, "yes", None)),
    "Task.ask(subject)": on_task(lambda task, x: task.ask("a", "Go?", subject=x), (object(),)),
    "Task.ask(schema)": on_task(lambda task, x: task.ask("a", "Go?", schema=x), (1, {}, {"type": "x"})),
    "Task.ask(to)": on_task(lambda task, x: task.ask("a", "Go?", to=x), ("ann", [1], [""], 1)),
    "Task.ask(need)": on_task(lambda task, x: task.ask("a", "Go?", need=x), (0, 1.5, "2", True)),
    "Task.ask(expires_s)": on_task(lambda task, x: task.ask("a", "Go?", expires_s=x), NO_LENGTH),
    "Task.receive(name)": on_task(lambda task, x: task.receive(x), (*NO_TASK_ID, None)),
    "Task.receive(timeout_s)": on_task(lambda task, x: task.receive("a", timeout_s=x), NO_WAIT),
    "Task.results(ids)": on_task(lambda task, x: task.results(x), (*NO_TASK_ID, None)),
    "Task.suspend(suspension)": on_task(lambda task, x: task.suspend(x), (1, None, "x")),
    "Task.heartbeat(progress)": on_task(lambda task, x: task.heartbeat(progress=x), NO_VALUE),
    "Task.fail(is_final)": on_task(lambda task, x: task.fail("why", is_final=x), NO_FLAG),
    "Task.later(seconds)": on_task(lambda task, x: task.later(x), NO_WAIT),
    "Task.heartbeat(lease_s)": on_task(lambda task, x: task.heartbeat(x), NO_LENGTH),
    "Task.complete(result)": on_task(lambda task, x: task.complete(x), NO_VALUE),
    "Task.fail(retry_in_s)": on_task(lambda task, x: task.fail("why", x), NO_WAIT),
    **{name: on_usage(*call) for name, call in wrong_usage.CALLS.items()},
}
