"""An owner's part of a shared space: what an export of the owner has is what an erasure removes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

import keepstate
from keepstate import Limit, Session
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.owners import UNOWNED
from keepstate.engine.space.space import Space
from keepstate.errors import KeepstateError
from keepstate.names import stored_name
from tests.engine.test_export import entries_of
from tests.engine.test_owner_export import lines_of, said_in

SHARED_ENTRIES = (
    *(layout.PARTS, layout.STATES, layout.COMMITS, layout.GRAFTS, layout.EPOCH, layout.BRANCHES, layout.TAGS),
    *(layout.LEASES, layout.RULES, layout.TOKENS, layout.EXPIRING, layout.OUTBOX, layout.CARRIED),
    *(layout.LINES, layout.TURNS, layout.BLOCKED, layout.HELD, layout.SLOTS, layout.FREED, layout.BUCKETS),
    *(layout.QUEUE_RULES, layout.BLOBS_SIZE),
)
"""Parts of the space as a whole. Leases are exported never; branches and tags are told by moments."""
OWNERS = ("ANN", "BOB")


def name_of(owner: str, text: str) -> str:
    return f"session/{owner}s/{text}" if text != "state" else f"user/{owner}/{text}"


async def put_task(space: Space, owner: str, number: int) -> None:
    key = None if number % 3 == 0 else f"key {number % 2}"
    await space.queue.put({"for": owner}, id=name_of(owner, f"task {number}"), key=key, priority=number % 2)


async def follow_task(space: Space, owner: str, number: int) -> None:
    await put_task(space, owner, 0)
    first = name_of(owner, "task 0")
    await space.queue.put(owner, id=name_of(owner, f"next {number}"), after=[first], if_present="keep")


async def work(space: Space, owner: str, number: int) -> None:
    """Let a worker do something with the first task of either owner."""
    for task in await space.queue.claim("w", lease_s=60):
        if number % 3 == 0:
            await task.complete({"done by": "w"})
        elif number % 3 == 1:
            await task.fail("broken", retry_in_s=number)


async def send(space: Space, owner: str, number: int) -> None:
    await put_task(space, owner, 0)
    await space.queue.send(name_of(owner, "task 0"), "word", {"to": owner}, send_id=str(number))


async def ask(space: Space, owner: str, number: int) -> None:
    id = name_of(owner, f"question {number}")
    await space.approvals.ask(f"Question of {owner}?", id=id, to=["carl"] * (number % 2), need=1 + number % 2)
    if number % 3 == 0:
        await space.approvals.answer(id, number % 2 == 0, by="carl", note=f"note for {owner}")


async def schedule(space: Space, owner: str, number: int) -> None:
    await space.schedules.put(name_of(owner, f"plan {number}"), every_s=60, payload={"for": owner})


async def put_document(space: Space, owner: str, number: int) -> None:
    await space.documents.put(name_of(owner, f"note {number % 2}"), {"of": owner, "n": number})


async def delete_document(space: Space, owner: str, number: int) -> None:
    await space.documents.delete(name_of(owner, f"note {number % 2}"))


async def say(space: Space, owner: str, number: int) -> None:
    await space.events.append({"said": owner}, stream=name_of(owner, f"stream {number % 2}"))


async def spend(space: Space, owner: str, number: int) -> None:
    usage = keepstate.Usage(model="m", input_tokens=number)
    await space.usage.account(name_of(owner, "")).record(usage, id=str(number))


async def name_branch(space: Space, owner: str, number: int) -> None:
    await space.history.branch(name_of(owner, f"draft {number}"))


ACTIONS = (
    put_task, follow_task, work, send, ask, schedule, put_document, delete_document, say, spend, name_branch
)  # fmt: skip


async def fill(ks: Keepstate, actions: Sequence[tuple[Any, str, int]], *, record: bool) -> Space:
    space = ks.space("shared", record=record)
    for owner in OWNERS:
        talk = Session(f"{owner}s", user_id=owner, space=space)
        await talk.conversation.append({"role": "user", "content": f"Secret of {owner}"})
    for act, owner, number in actions:
        with suppress(KeepstateError):  # it was put before, and differently
            await act(space, owner, number)
    return space


async def keys_of(ks: Keepstate, space: str = "shared") -> dict[bytes, bytes]:
    found = await entries_of(await ks.opened(), stored_name(ks.tenant_id, space))
    return {entry.key: entry.value for entry in found if not entry.key.startswith(SHARED_ENTRIES)}


def keys_in(path: Path) -> set[bytes]:
    """Return the keys of the entries in a file."""
    lines = [line for line in lines_of(path) if "version" in line]
    keys = {
        bytes.fromhex(line["key"]) if "key" in line else layout.named_key(layout.DOCUMENTS, line["document"])
        for line in lines
    }
    return {key for key in keys if not key.startswith(SHARED_ENTRIES)}


DRAWN = st.lists(st.tuples(st.sampled_from(ACTIONS), st.sampled_from(OWNERS), st.integers(0, 5)), max_size=14)


@given(actions=DRAWN, record=st.booleans())
@settings(deadline=None)
def test_what_is_exported_of_a_shared_space_is_what_an_erasure_removes(
    actions: Sequence[tuple[Any, str, int]], record: bool
) -> None:
    asyncio.run(compare(actions, record=record))


async def compare(actions: Sequence[tuple[Any, str, int]], *, record: bool) -> None:
    """Compare the keys of an export with those that an erasure removes afterwards."""
    async with keepstate.open("memory://") as store:
        with TemporaryDirectory() as folder:
            path, ks = Path(folder) / "ann.jsonl", store.tenant("t")
            await fill(ks, actions, record=record)
            before = await keys_of(ks)

            exported = await ks.export(path, owner="ANN")
            imported = await store.tenant("u").import_(path)
            await ks.erase_owner("ANN")

            after = await keys_of(ks)
            followers = {key for key in before if key.startswith(layout.FOLLOWERS)}
            assert keys_in(path) - followers == before.keys() - after.keys() - followers
            assert b"BOB" not in said_in(path)
            assert exported.entries == imported.entries
            assert exported.moments == sum("moment" in line for line in lines_of(path))
            assert (exported.moments > 0) == record


async def test_tasks_approvals_and_schedules_go_on_after_an_import(ks: Keepstate, tmp_path: Path) -> None:
    path, space, there = (
        tmp_path / "ann.jsonl",
        ks.tenant("t").space("shared"),
        ks.tenant("u").space("shared"),
    )
    await space.queue.configure(limits=[Limit(running=1, each_key=True)])
    for owner in OWNERS:
        await Session(f"{owner}s", user_id=owner, space=space).conversation.append(
            {"role": "user", "content": owner}
        )
        for number in range(3):
            await space.queue.put({"of": owner}, id=name_of(owner, f"task {number}"), key="key")
        await ask(space, owner, 1)
        await schedule(space, owner, 1)
    (held,) = await space.queue.claim("w", lease_s=0.001)  # the tasks of the key are in a line from now on
    assert held.id == name_of("ANN", "task 0")

    await ks.tenant("t").export(path, owner="ANN")
    await ks.tenant("u").import_(path)

    assert (await there.queue.counts())["ready"] == 2
    claimed = [task for _ in range(3) for task in await there.queue.claim("w", lease_s=60)]
    assert {task.id for task in claimed} == {name_of("ANN", f"task {number}") for number in range(3)}
    assert [task.payload for task in claimed] == [{"of": "ANN"}] * 3
    (question,) = await there.approvals.pending(to="carl")
    assert (await there.approvals.answer(question.id, True, by="carl")).votes[0].by == "carl"
    assert [plan.name for plan in await there.schedules.list()] == [name_of("ANN", "plan 1")]
    assert (await there.schedules.list())[0].next_at == (await space.schedules.list())[0].next_at


async def test_a_person_reads_what_happened_in_a_shared_space(tmp_path: Path) -> None:
    path, name = tmp_path / "ann.jsonl", name_of("ANN", "note 0")
    async with keepstate.open("memory://", author="ANN") as ks:
        space = ks.space("shared", record=True)
        await Session("ANNs", user_id="ANN", space=space).conversation.append(
            {"role": "user", "content": "Hello"}
        )
        async with space.transaction(message="first") as tx:
            await tx.documents.put(name, {"n": 1})
        async with ks.space("shared", record=True, author="BOB").transaction(message="of BOB") as tx:
            await tx.documents.put(name, {"n": 2})
            await tx.documents.put(name_of("BOB", "note 0"), {"n": 7})
        await space.documents.delete(name)
        await space.history.tag(name_of("ANN", "here"))
        await ask(space, "ANN", 0)

        exported = await ks.export(path, owner="ANN")

    moments = [line for line in lines_of(path) if "moment" in line][-3:]
    told = [{key: line[key] for key in line if key not in ("moment", "at")} for line in moments]
    assert told == [
        {"author": "ANN", "message": "first", "documents": {name: {"n": 1}}},
        {"documents": {name: {"n": 2}}},
        {
            "author": "ANN",
            "message": f"delete {name}",
            "documents": {},
            "deleted": [name],
            "tags": [name_of("ANN", "here")],
        },
    ]
    values = [line["value"] for line in lines_of(path) if "approval" in line]
    assert values[0]["answer"] is True
    assert values[1]["question"] == "Question of ANN?"
    assert (values[-1]["kind"], values[-1]["note"]) == ("answered", "note for ANN")
    assert exported.not_included == [UNOWNED]
