"""What goes wrong with agents' state elsewhere is refused here, or does not come about; on every backend."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
import pytest

from keepstate import Session, Sessions, Threads
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError


@dataclass
class Charge:
    amount: Annotated[float, msgspec.Meta(gt=0)]
    items: list[str] = field(default_factory=list[str])


async def test_a_task_is_never_everybody_s(ks: Keepstate) -> None:
    """The global state that guides warn of: `CURRENT_TASK` of one process, shared across all users."""

    async def process(user: str) -> None:
        session = Session(f"chat-{user}", user_id=user, persistence=ks)
        for step in range(4):
            await session.task.put({"goal": f"of {user}", "status": "in_progress", "steps_completed": step})
            await asyncio.sleep(0)
            assert (await session.task.get()).goal == f"of {user}"

    users = ["ann", "bob", "cy"]
    await asyncio.gather(*map(process, users))

    for user in users:
        task = await Session(f"chat-{user}", user_id=user, persistence=ks).task.get()
        assert (task.goal, task.steps_completed) == (f"of {user}", 3)


async def test_two_who_write_one_session_at_once_mix_nothing(ks: Keepstate) -> None:
    """The race of read, change, write: one of both is lost, or half of each is kept."""
    both = [Session("s", persistence=ks) for _ in range(2)]

    async def turn(number: int) -> None:
        for step in range(4):
            async with both[number].exclusive(ttl_s=30, wait_s=30) as mine, mine.transaction() as turn:
                await turn.conversation.append(
                    *({"role": "user", "content": [number, step]} for _ in range(2))
                )
                await turn.update(lambda state: {**state, "turns": state.get("turns", 0) + 1})

    await asyncio.gather(turn(0), turn(1))

    said = [message["content"] async for message in both[0].conversation.messages()]
    assert said[::2] == said[1::2] and len(said) == 16
    assert await both[0].get_state() == {"turns": 8}


@pytest.mark.parametrize("stored", [None, -5, 0, "480", "much", [480], True], ids=repr)
async def test_nobody_is_charged_by_what_is_no_amount(ks: Keepstate, stored: object) -> None:
    """The unvalidated state: `charge_user(state["amount"])`."""
    charged: list[float] = []
    session = Session("s", persistence=ks)
    await session.update({})
    (name,) = [name async for name in ks.space("session/s").documents.keys("life/*")]
    await ks.space("session/s").documents.put(
        name.replace("data", "Charge"), {"amount": stored}
    )  # by who trusts

    with pytest.raises(ValueError, match="Invalid Charge"):
        charged.append((await session.state(Charge).get()).amount)
    with pytest.raises(InvalidError):
        await session.state(Charge).put({"amount": stored})
    assert charged == []


async def test_what_is_absent_is_no_amount_either(ks: Keepstate) -> None:
    with pytest.raises(NotFoundError):
        await Session("s", persistence=ks).state(Charge).get()


async def test_sessions_that_nobody_ends_do_not_pile_up(ks: Keepstate) -> None:
    """No cleanup: what a million conversations leave is kept for ever."""
    for number in range(5):
        session = Session(f"s-{number}", persistence=ks, ttl_s=0.02)
        await session.conversation.append(*({"role": "user", "content": "x" * 500} for _ in range(10)))
    await asyncio.sleep(0.03)
    before = [(await ks.space(f"session/s-{number}").size()).size_bytes for number in range(5)]

    assert await Sessions(persistence=ks).ids() == []
    assert await Sessions(persistence=ks).sweep() == 55
    for number in range(5):
        names = [name async for name in ks.space(f"session/s-{number}").documents.keys("*")]
        assert names == ["lives"]
        await ks.space(f"session/s-{number}").history.prune(keep_last=1)
        assert (await ks.space(f"session/s-{number}").size()).size_bytes < before[number] / 3


async def test_a_value_that_would_come_back_otherwise_is_refused_and_not_bent(ks: Keepstate) -> None:
    """The state as JSON: keys become texts, tuples lists, and what JSON does not know an error on reading."""
    state: dict[str, Any] = {"seats": {1: "a"}, "pair": (1, 2), "codes": {"x"}, "raw": b"\xff"}
    assert json.loads(json.dumps({"seats": {1: "a"}, "pair": (1, 2)})) != {"seats": {1: "a"}, "pair": (1, 2)}
    session = Session("s", persistence=ks)
    await session.update(state)

    assert await session.get_state() == state
    with pytest.raises(InvalidError, match="client"):
        await session.update({"meta": {"client": object()}})
    assert await session.get_state() == state


async def test_a_default_is_not_shared(ks: Keepstate) -> None:
    """The mutable default: one list for every session of the process."""
    first = await Session("1", persistence=ks).state(Charge).put({"amount": 1})
    first.items.append("mine")
    (await Session("1", persistence=ks).task.get()).data["mine"] = True

    assert (await Session("2", persistence=ks).state(Charge).put({"amount": 2})).items == []
    assert (await Session("2", persistence=ks).task.get()).data == {}
    assert (await Session("1", persistence=ks).state(Charge).get()).items == []


async def test_sending_the_whole_history_again_adds_nothing(ks: Keepstate) -> None:
    """Who does not know what arrived sends all of it again: messages double."""
    threads = Threads(persistence=ks)
    thread = await threads.create("t")
    history = [("m-1", "Book a flight"), ("m-2", "Next Monday"), ("m-3", "In the evening")]
    for upto in (1, 2, 3, 3):
        for id, content in history[:upto]:
            await threads.messages.create(thread.id, role="user", content=content, id=id)

    page = await threads.messages.list(thread.id, order="asc")
    assert [(message.id, message.content) for message in page.data] == history
