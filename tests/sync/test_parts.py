"""Each part of a space, used without `await`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from keepstate import (
    NO_STREAM,
    Claim,
    ConflictError,
    DocumentChange,
    InvalidError,
    LeaseLostError,
    NotFoundError,
    sync,
)
from keepstate.engine.queue.tasks import STATES


def test_a_document_is_put_read_changed_and_deleted(space: sync.Space) -> None:
    documents = space.documents

    version = documents.put("plan", {"step": 1})
    assert documents.update("plan", {"step": 2}) == {"step": 2}
    assert documents.update("plan", lambda plan: {**plan, "done": True}) == {"step": 2, "done": True}
    entry = documents.entry("plan")
    assert entry is not None and entry.version == version + 2
    assert documents.delete("plan") and documents.get("plan", "none") == "none"


def test_errors_come_out_as_they_are(space: sync.Space) -> None:
    with pytest.raises(NotFoundError):
        space.documents.update("absent", {"step": 2})


def test_names_and_values_are_plain_iterators(ks: sync.Keepstate, space: sync.Space) -> None:
    space.documents.put("a", 1)
    space.documents.put("b", 2)

    assert next(space.documents.keys()) == "a"
    assert list(space.documents.keys("b*")) == ["b"]
    assert dict(space.documents.items()) == {"a": 1, "b": 2}
    assert list(ks.spaces("run/")) == ["run/42"]


def test_a_document_of_a_known_type_is_a_twin_too(space: sync.Space) -> None:
    counter = space.documents.document("counter", int)

    assert counter.key == "counter" and counter.get() is None and counter.get(5) == 5
    counter.put(1)
    assert counter.update(lambda count: count + 1) == 2
    assert counter.delete()


def test_a_watch_gives_changes_in_order_and_knows_how_far(space: sync.Space) -> None:
    with space.documents.watch("*", timeout_s=0.01) as changes:
        start = changes.revision
        space.documents.put("a", 1)
        space.documents.put("a", 2)

        assert next(changes) == DocumentChange("a", "created", None, 1, start + 1)
        assert [change.new for change in changes] == [2]
        assert changes.revision == start + 2


def test_events_are_appended_read_and_followed(space: sync.Space) -> None:
    stream = space.events.stream("messages")
    first = stream.append({"role": "user"}, expected=NO_STREAM)
    space.events.append({"role": "agent"}, stream="messages", expected=first)

    assert stream.name == "messages" and [event.data["role"] for event in stream.read()] == ["user", "agent"]
    assert next(stream.follow(after=first)).data == {"role": "agent"}
    assert stream.last() == space.events.last("messages")
    with pytest.raises(ConflictError):
        stream.append({"role": "user"}, expected=NO_STREAM)


def test_claimed_tasks_are_twins_that_a_queue_takes_back(space: sync.Space) -> None:
    queue = space.queue
    for payload in range(4):
        queue.put(payload, id=f"task-{payload}")

    first, second = queue.claim("w", lease_s=60, count=2)
    assert (first.id, first.payload, first.attempt, first.worker, first.lease_s) == ("task-0", 0, 1, "w", 60)
    first.heartbeat()
    first.complete("by itself")
    queue.complete(second, "by the queue")
    (third,) = queue.claim("w", lease_s=60)
    queue.release(third)
    fourth = next(queue.work("w", wait_s=0))
    queue.fail(Claim(fourth.id, fourth.token), "told by its claim", retry_in_s=0)

    assert queue.counts() == {**dict.fromkeys(STATES, 0), "ready": 2, "done": 2}
    assert {task.result for task in queue.list("done")} == {"by itself", "by the queue"}


def test_work_ends_when_no_task_has_come(space: sync.Space) -> None:
    space.queue.put("only")

    assert [task.payload for task in space.queue.work("w", wait_s=0)] == ["only"]


def test_a_transaction_applies_all_at_its_end_and_nothing_if_it_raises(space: sync.Space) -> None:
    with space.transaction(message="begin") as tx:
        tx.documents.put("plan", 1)
        tx.events.append("planned")
        tx.queue.put("work")
        assert (tx.space, tx.message, tx.revision) == ("run/42", "begin", 0)
    with pytest.raises(ZeroDivisionError), space.transaction() as failing:
        failing.documents.put("plan", 1 // 0)

    assert tx.revision == space.revision() == 1
    assert space.documents.get("plan") == 1 and len(space.events.read()) == 1


def test_transact_gives_the_function_a_blocking_transaction_and_its_answer_back(space: sync.Space) -> None:
    given: list[sync.Transaction] = []

    def step(tx: sync.Transaction) -> int:
        given.append(tx)
        plan: int = tx.documents.get("plan")
        if len(given) == 1:
            space.documents.put("plan", 10)  # somebody else, between the reading and the writing
        tx.documents.put("plan", plan + 1)
        return plan + 1

    space.documents.put("plan", 0)

    assert space.transact(step) == space.documents.get("plan") == 11
    assert [type(tx) for tx in given] == [sync.Transaction] * 2


def test_a_lease_guards_a_transaction_until_it_is_lost(space: sync.Space) -> None:
    with space.leases.acquire("driver", 60) as lease:
        assert (lease.name, lease.ttl_s, lease.is_held()) == ("driver", 60, True)
        assert space.leases.holder("driver") == "tester"
        lease.renew(30)
        lease.check()
        with space.transaction(lease=lease) as tx:
            tx.documents.put("plan", 1)

    assert not lease.is_held() and not lease.release()
    with pytest.raises(LeaseLostError), space.transaction(lease=lease) as tx:
        tx.documents.put("plan", 2)


def test_an_outcome_can_be_asked_for(space: sync.Space) -> None:
    space.documents.put("plan", 1)

    assert space.outcome(b"no batch has this token") is None


def test_a_handle_drops_and_sweeps_its_spaces(ks: sync.Keepstate, space: sync.Space) -> None:
    space.documents.put("plan", 1)

    ks.drop("run/42")

    assert list(ks.spaces()) == [] and ks.sweep() == 0


def test_a_part_is_the_same_object_each_time(space: sync.Space) -> None:
    assert space.documents is space.documents and space.queue is space.queue


def test_what_is_shown_is_what_the_asynchronous_object_shows(space: sync.Space) -> None:
    assert repr(space.documents) == "<Documents of 'run/42'>"
    assert repr(space).startswith("<Space 'run/42' of <Keepstate ")


def test_a_block_for_with_that_is_entered_by_async_with_is_told_so(space: sync.Space) -> None:
    async def enter(block: Any) -> None:
        async with block:
            pass

    with sync.open("memory://") as ks:
        blocks: list[Any] = [ks, space.transaction(), sync.StateManager(persistence=ks)]
        for block in blocks:
            with pytest.raises(InvalidError, match="is blocking: use `with`"):
                asyncio.run(enter(block))


def test_a_block_is_entered_once(space: sync.Space) -> None:
    for block, name in ((space.transaction(), "transaction"), (space.documents.watch(), "watch")):
        with block:
            pass
        with pytest.raises(InvalidError, match=rf"the result of {name}\(\) was entered twice"), block:
            pass
