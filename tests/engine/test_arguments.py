"""Every argument of every public call: a wrong type or size is refused, in words, in both modes.

A call is written once for both modes; `wrong` are values for the one argument that its name tells of.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, ExitStack
from dataclasses import dataclass
from enum import StrEnum
from math import inf, nan
from typing import Any

import pytest

import keepstate
from keepstate import Claim, Fold, InvalidError, sync
from keepstate.stores.memory import MemoryStore

NO_TEXT = (1, None, b"a", ["a"], "\ud800")
NO_NAME = (*NO_TEXT, "", "a" * 513)
NO_TASK_ID = (*NO_TEXT[:1], *NO_TEXT[2:], "", "a" * 201)
NO_STREAM_NAME = (1, None, b"a", ["a"], "", "a" * 201)
NO_AUTHOR = (1, b"a", ["a"], "\ud800", "", "a" * 513)
NO_WAIT = ("1", nan, inf, -1, -0.5, True, [1], 10**400)
NO_LENGTH = (*NO_WAIT, 0)
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
NO_CURSOR = (1, b"a", ["a"], "", "a", "\ud800")
NO_FLAG = (1, None, "yes")


@dataclass(frozen=True)
class Call:
    """A public call with one argument left open."""

    make: Callable[[Any, Any], Any]
    wrong: tuple[Any, ...]
    on: str = "space"


def on_ks(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(make, wrong, "ks")


def on_lease(make: Callable[[Any, Any], Any], wrong: tuple[Any, ...]) -> Call:
    return Call(make, wrong, "lease")


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
    "Keepstate.spaces(under)": on_ks(lambda ks, x: ks.spaces(x), NO_TEXT),
    "Keepstate.spaces(after)": on_ks(lambda ks, x: ks.spaces(after=x), (1, b"a", ["a"], "\ud800")),
    "Keepstate.spaces(limit)": on_ks(
        lambda ks, x: ks.spaces(limit=x), tuple(wrong for wrong in NO_COUNT if wrong is not None)
    ),
    "Keepstate.list_spaces(under)": on_ks(lambda ks, x: ks.list_spaces(x), NO_TEXT),
    "Keepstate.list_spaces(after)": on_ks(lambda ks, x: ks.list_spaces(after=x), (1, b"a", ["a"], "\ud800")),
    "Keepstate.list_spaces(limit)": on_ks(lambda ks, x: ks.list_spaces(limit=x), NO_COUNT),
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
    "Documents.get(key)": Call(lambda space, x: space.documents.get(x), NO_NAME),
    "Documents.get(type)": Call(lambda space, x: space.documents.get("absent", type=x), NO_TYPE[:-1]),
    "Documents.entry(key)": Call(lambda space, x: space.documents.entry(x), NO_NAME),
    "Documents.entry(type)": Call(lambda space, x: space.documents.entry("there", type=x), NO_TYPE),
    "Documents.put(key)": Call(lambda space, x: space.documents.put(x, 1), NO_NAME),
    "Documents.put(value)": Call(lambda space, x: space.documents.put("a", x), NO_VALUE),
    "Documents.put(expected_version)": Call(
        lambda space, x: space.documents.put("a", 1, expected_version=x), NO_REVISION
    ),
    "Documents.put(ttl_s)": Call(lambda space, x: space.documents.put("a", 1, ttl_s=x), NO_LENGTH),
    "Documents.update(key)": Call(lambda space, x: space.documents.update(x, {}), NO_NAME),
    "Documents.update(patch)": Call(lambda space, x: space.documents.update("there", x), (1, None, "a", [1])),
    "Documents.update(default)": Call(
        lambda space, x: space.documents.update("a", str, default=x), NO_VALUE[:1]
    ),
    "Documents.delete(key)": Call(lambda space, x: space.documents.delete(x), NO_NAME),
    "Documents.document(key)": Call(lambda space, x: space.documents.document(x, int), NO_NAME),
    "Documents.document(type)": Call(
        lambda space, x: space.documents.document("a", x), (*NO_TYPE[:-1], None)
    ),
    "Documents.keys(pattern)": Call(lambda space, x: space.documents.keys(x), NO_PATTERN),
    "Documents.items(pattern)": Call(lambda space, x: space.documents.items(x), NO_PATTERN),
    "Documents.keys(after)": Call(lambda space, x: space.documents.keys(after=x), NO_AFTER),
    "Documents.items(after)": Call(lambda space, x: space.documents.items(after=x), NO_AFTER),
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
        }.items()
    },
    "Documents.delete_all(prefix)": Call(lambda space, x: space.documents.delete_all(x), NO_TEXT),
    "Documents.entries(keys)": Call(lambda space, x: space.documents.entries("there", x), NO_NAME),
    "Documents.watch(pattern)": Call(lambda space, x: space.documents.watch(x), NO_PATTERN),
    "Documents.watch(after)": Call(lambda space, x: space.documents.watch(after=x), NO_REVISION),
    "Documents.watch(timeout_s)": Call(lambda space, x: space.documents.watch(timeout_s=x), NO_WAIT),
    "Document.put(value)": Call(lambda space, x: space.documents.document("a", int).put(x), ("1", None, [])),
    "Document.put(expected_version)": Call(
        lambda space, x: space.documents.document("a", int).put(1, expected_version=x), NO_REVISION
    ),
    "Document.put(ttl_s)": Call(
        lambda space, x: space.documents.document("a", int).put(1, ttl_s=x), NO_LENGTH
    ),
    "Document.update(change)": Call(
        lambda space, x: space.documents.document("a", int).update(x, default=1), NO_FUNCTION
    ),
    "Document.update(default)": Call(
        lambda space, x: space.documents.document("a", int).update(lambda old: old, default=x), ("1", None)
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
    "Leases.resume(name)": Call(lambda space, x: space.leases.resume(x, 1), NO_NAME),
    "Leases.resume(token)": Call(lambda space, x: space.leases.resume("l", x), NO_REVISION),
    "Leases.resume(ttl_s)": Call(lambda space, x: space.leases.resume("l", 1, ttl_s=x), NO_LENGTH),
    "Leases.holder(name)": Call(lambda space, x: space.leases.holder(x), NO_NAME),
    "Lease.renew(ttl_s)": on_lease(lambda lease, x: lease.renew(x), NO_LENGTH),
    "Queue.put(payload)": Call(lambda space, x: space.queue.put(x), NO_VALUE),
    "Queue.put(id)": Call(lambda space, x: space.queue.put(1, id=x), NO_TASK_ID),
    "Queue.put(priority)": Call(
        lambda space, x: space.queue.put(1, priority=x), ("1", None, 1.0, True, 2**31)
    ),
    "Queue.put(delay_s)": Call(lambda space, x: space.queue.put(1, delay_s=x), (*NO_WAIT, None)),
    "Queue.put(max_attempts)": Call(lambda space, x: space.queue.put(1, max_attempts=x), NO_COUNT),
    "Queue.put(kind)": Call(lambda space, x: space.queue.put(1, kind=x), (1, "x" * 201, b"a", None)),
    "Queue.put(key)": Call(lambda space, x: space.queue.put(1, key=x), (1, "", "x" * 201, b"a")),
    "Queue.put(keep_s)": Call(lambda space, x: space.queue.put(1, keep_s=x), NO_LENGTH),
    "Queue.put(if_present)": Call(
        lambda space, x: space.queue.put(1, if_present=x), (1, None, "", "skip", ["keep"])
    ),
    "Queue.claim(worker)": Call(lambda space, x: space.queue.claim(x, lease_s=1), NO_NAME),
    "Queue.claim(lease_s)": Call(lambda space, x: space.queue.claim("w", lease_s=x), (*NO_LENGTH, None)),
    "Queue.claim(count)": Call(lambda space, x: space.queue.claim("w", lease_s=1, count=x), NO_COUNT),
    "Queue.claim(wait_s)": Call(
        lambda space, x: space.queue.claim("w", lease_s=1, wait_s=x), (*NO_WAIT, None)
    ),
    "Queue.claim(match)": Call(lambda space, x: space.queue.claim("w", lease_s=1, match=x), (1, "f")),
    "Queue.claim(kinds)": Call(
        lambda space, x: space.queue.claim("w", lease_s=1, kinds=x), ("mail", [], [1], ["x" * 201])
    ),
    "Queue.work(kinds)": Call(lambda space, x: space.queue.work("w", kinds=x), ("mail", [], [1])),
    "Queue.work(worker)": Call(lambda space, x: space.queue.work(x), NO_NAME),
    "Queue.work(lease_s)": Call(lambda space, x: space.queue.work("w", lease_s=x), (*NO_LENGTH, None)),
    "Queue.work(wait_s)": Call(lambda space, x: space.queue.work("w", wait_s=x), NO_WAIT),
    "Queue.work(match)": Call(lambda space, x: space.queue.work("w", match=x), (1, "f")),
    "Queue.heartbeat(task)": Call(lambda space, x: space.queue.heartbeat(x, 1), NO_CLAIM),
    "Queue.heartbeat(lease_s)": Call(lambda space, x: space.queue.heartbeat(Claim("t", 1), x), NO_LENGTH),
    "Queue.complete(task)": Call(lambda space, x: space.queue.complete(x), NO_CLAIM),
    "Queue.complete(result)": Call(lambda space, x: space.queue.complete(Claim("t", 1), x), NO_VALUE),
    "Queue.fail(task)": Call(lambda space, x: space.queue.fail(x, "why"), NO_CLAIM),
    "Queue.fail(retry_in_s)": Call(lambda space, x: space.queue.fail(Claim("t", 1), "why", x), NO_WAIT),
    "Queue.release(task)": Call(lambda space, x: space.queue.release(x), NO_CLAIM),
    "Queue.list(state)": Call(lambda space, x: space.queue.list(x), ("lost", 1, [])),
    "Queue.list(id_prefix)": Call(lambda space, x: space.queue.list(id_prefix=x), (1, b"a", ["a"])),
    "Queue.list(before)": Call(
        lambda space, x: space.queue.list("ready", before=x), (1, b"a", "", "zz", "é")
    ),
    "Queue.list(reverse)": Call(lambda space, x: space.queue.list("ready", reverse=x), NO_FLAG),
    "Queue.list(after)": Call(lambda space, x: space.queue.list("ready", after=x), (1, b"a", "", "zz", "é")),
    "Queue.list(payloads)": Call(lambda space, x: space.queue.list("ready", payloads=x), NO_FLAG),
    "Queue.get(payload)": Call(lambda space, x: space.queue.get("a", payload=x), NO_FLAG),
    "Queue.get_each(ids)": Call(lambda space, x: space.queue.get_each("a", x), (*NO_TASK_ID, None)),
    "Queue.get_each(payloads)": Call(lambda space, x: space.queue.get_each("a", payloads=x), NO_FLAG),
    "Queue.discard(id)": Call(lambda space, x: space.queue.discard(x), (*NO_TASK_ID, None)),
    "Queue.remove(id)": Call(lambda space, x: space.queue.remove(x), (*NO_TASK_ID, None)),
    "Queue.summaries(prefix)": Call(lambda space, x: space.queue.summaries(x), (1, None, b"a", ["a"])),
    "Queue.summaries(newest)": Call(
        lambda space, x: space.queue.summaries(newest=x), tuple(x for x in NO_COUNT if x != 0)
    ),
    "Queue.summaries(payloads)": Call(lambda space, x: space.queue.summaries(payloads=x), NO_FLAG),
    "Queue.take(id)": Call(lambda space, x: space.queue.take(x, "w", lease_s=1), (*NO_TASK_ID, None)),
    "Queue.take(worker)": Call(lambda space, x: space.queue.take("a", x, lease_s=1), (*NO_TEXT, "")),
    "Queue.take(lease_s)": Call(lambda space, x: space.queue.take("a", "w", lease_s=x), NO_LENGTH),
    "Queue.list(limit)": Call(lambda space, x: space.queue.list("ready", limit=x), NO_COUNT),
    "Queue.dead(after)": Call(lambda space, x: space.queue.dead(after=x), (1, b"a", "", "zz", "é")),
    "Queue.dead(limit)": Call(lambda space, x: space.queue.dead(limit=x), NO_COUNT),
    "Queue.get(id)": Call(lambda space, x: space.queue.get(x), (*NO_TASK_ID, None)),
    "Queue.requeue(id)": Call(lambda space, x: space.queue.requeue(x), (*NO_TASK_ID, None)),
    "Task.heartbeat(lease_s)": on_task(lambda task, x: task.heartbeat(x), NO_LENGTH),
    "Task.complete(result)": on_task(lambda task, x: task.complete(x), NO_VALUE),
    "Task.fail(retry_in_s)": on_task(lambda task, x: task.fail("why", x), NO_WAIT),
}

WORDS = r".{20}"
"""What an error says at the least."""

ANYTHING = {
    "EventStream.fold(initial)",
    "Documents.get(default)",
    "Document.get(default)",
    "Queue.fail(error)",
    "Task.fail(error)",
}
"""What takes every object there is."""


def test_every_argument_of_every_public_call_is_tried() -> None:
    twins = (
        sync.Keepstate, sync.Space, sync.Documents, sync.Document, sync.Events, sync.EventStream, sync.Leases,
        sync.Lease, sync.Queue, sync.Task,
    )  # fmt: skip
    there = {
        f"{twin.__name__}.{name}({parameter})"
        for twin in twins
        for name, method in inspect.getmembers(twin, inspect.isfunction)
        if not name.startswith("_")
        for parameter in list(inspect.signature(method).parameters)[1:]
    }

    assert there == set(CALLS) | ANYTHING


@pytest.mark.parametrize("name", CALLS)
def test_a_blocking_call_refuses_a_wrong_argument(name: str) -> None:
    call = CALLS[name]
    with sync.open("memory://") as ks:
        space = ks.space("run/1")
        space.documents.put("there", {"a": 1})
        target: Any = {"ks": ks, "space": space}.get(call.on)
        if call.on == "lease":
            target = space.leases.acquire("held", 60)
        elif call.on == "task":
            space.queue.put(1)
            (target,) = space.queue.claim("w", lease_s=60)
        before = space.revision()

        for wrong in call.wrong:
            with pytest.raises(InvalidError, match=WORDS), ExitStack() as blocks:
                answer = call.make(target, wrong)
                if isinstance(answer, AbstractContextManager):
                    blocks.enter_context(answer)
                elif isinstance(answer, Iterator):
                    next(answer)
        assert space.revision() == before


@pytest.mark.parametrize("name", CALLS)
async def test_an_asynchronous_call_refuses_a_wrong_argument(name: str) -> None:
    call = CALLS[name]
    async with keepstate.open("memory://") as ks:
        space = ks.space("run/1")
        await space.documents.put("there", {"a": 1})
        target: Any = {"ks": ks, "space": space}.get(call.on)
        if call.on == "lease":
            target = await space.leases.acquire("held", 60)
        elif call.on == "task":
            await space.queue.put(1)
            (target,) = await space.queue.claim("w", lease_s=60)
        before = await space.revision()

        for wrong in call.wrong:
            with pytest.raises(InvalidError, match=WORDS):
                async with AsyncExitStack() as blocks:
                    answer = call.make(target, wrong)
                    if isinstance(answer, AbstractAsyncContextManager):
                        await blocks.enter_async_context(answer)
                    elif isinstance(answer, AsyncIterator):
                        await anext(answer)
                    elif isinstance(answer, Awaitable):
                        await answer
        assert await space.revision() == before


NO_STORE = (
    1,
    None,
    b"sqlite:///a",
    [],
    Ellipsis,
    MemoryStore,
    "",
    "a.db",
    "nope://a",
    "sqlite:///\ud800",
    "file:///\0",
)


@pytest.mark.parametrize("open_store", [keepstate.open, sync.open])
@pytest.mark.parametrize("wrong", NO_STORE, ids=ascii)
def test_what_names_no_store_is_refused(open_store: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(InvalidError, match=WORDS):
        open_store(wrong)


@pytest.mark.parametrize("open_store", [keepstate.open, sync.open])
def test_tenant_and_author_are_text(open_store: Callable[..., Any]) -> None:
    for wrong in (*NO_AUTHOR, "t" * 195):
        with pytest.raises(InvalidError, match="`tenant` is"):
            open_store("memory://", tenant=wrong)
    for wrong in NO_AUTHOR:
        with pytest.raises(InvalidError, match="`author` is"):
            open_store("memory://", author=wrong)


class Role(StrEnum):
    PLANNER = "planner"


def test_a_name_that_is_an_enumeration_is_kept_as_its_text() -> None:
    with sync.open("memory://", author=Role.PLANNER, tenant=Role.PLANNER) as ks:
        space = ks.space(Role.PLANNER)
        space.events.append(1)
        space.queue.put("work", id="t")
        space.queue.claim(Role.PLANNER, lease_s=60)
        space.leases.acquire(Role.PLANNER, 60)
        (event,), info = space.events.read(), space.queue.get("t")

        assert info is not None
        assert [type(name) for name in (event.author, info.worker)] == [str, str]
        assert (event.author, info.worker) == (space.leases.holder("planner"), "planner") == ("planner",) * 2
        assert list(ks.spaces()) == ["planner"]


def test_an_error_too_long_for_a_record_or_no_text_is_kept_in_part() -> None:
    with sync.open("memory://") as ks:
        queue = ks.space("run/1").queue
        queue.put(1, id="t", max_attempts=1)
        (task,) = queue.claim("w", lease_s=60)
        task.fail("\ud800" + "é" * (2 << 20))
        (dead,) = queue.dead()

        assert dead.error is not None
        assert dead.error.startswith("\\ud800é") and dead.error.endswith("é…")
        assert 16_000 < len(dead.error.encode()) <= 16 << 10


def test_a_space_s_name_has_room_beside_its_tenant_or_is_refused_at_once() -> None:
    with sync.open("memory://", tenant="n" * 145) as ks:
        ks.space("a" * 50).documents.put("k", 1)

        for act in (ks.space, ks.drop):
            for name in ("", "a" * 51):
                with pytest.raises(InvalidError, match=r"a space of tenant 'nnn.* has 1 to 50 bytes"):
                    act(name)
        assert list(ks.spaces("a" * 50)) == ["a" * 50]
        assert list(ks.spaces("a" * 49)) == []


@pytest.mark.parametrize("wrong", [3, "", "k" * 513, "\ud800"])
def test_a_name_that_cannot_be_is_told_by_its_argument(wrong: Any) -> None:
    with sync.open("memory://") as ks:
        space = ks.space("a")
        with pytest.raises(InvalidError, match=r"^`key` is "):
            space.documents.put(wrong, 1)
        with pytest.raises(InvalidError, match=r"^`name` is "):
            space.leases.acquire(wrong, 60)
