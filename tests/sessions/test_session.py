"""Sessions by a clock that only the test turns, and as other processes and users meet them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pydantic
import pytest

from keepstate import Session, Sessions, Threads, sync
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError, NotOwnerError, PrunedError
from keepstate.sessions.namespace import HeadRecord
from tests.engine.conftest import Turned

HELLO = {"role": "user", "content": "hello"}


async def head_of(session: Session, turned: Turned) -> HeadRecord | None:
    found: HeadRecord | None = await turned.ks.space(f"session/{session.session_id}").documents.get("session")
    return found


async def test_every_use_renews_a_session_reading_too(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks, ttl_s=60)
    await session.conversation.append(HELLO)
    for use in (session.get_state, session.conversation.count, session.task.get, session.get_context):
        turned.clock.advance(55_000)
        await use()
    await session.update({"a": 1})
    turned.clock.advance(59_000)
    assert await session.conversation.count() == 1

    turned.clock.advance(60_000)
    assert await session.is_new()
    assert await session.conversation.count() == 0 and await session.get_state() == {}


async def test_a_session_without_a_time_to_live_forgets_nothing(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks)
    await session.conversation.append(HELLO)
    await session.task.put({"goal": "g"})
    turned.clock.advance(100 * 365 * 86_400_000)

    again = Session("s", persistence=turned.ks)
    assert not await again.is_new()
    assert [message async for message in again.conversation.messages()] == [HELLO]
    assert (await again.task.get()).goal == "g"


async def test_fields_that_a_later_version_has_added_to_the_lives_of_a_session_survive_its_end(
    turned: Turned,
) -> None:
    documents = turned.space.documents
    session = Session("s", space=turned.space)
    await session.task.put({"goal": "g"})
    (name,) = [key async for key in documents.keys("*lives")]
    await documents.update(name, lambda lives: lives | {"region": "eu"})

    await session.end()
    again = Session("s", space=turned.space)
    await again.task.put({"goal": "h"})
    await again.sweep()

    assert await documents.get(name) == {
        "count": 2, "first_kept": 2, "owners": [], "region": "eu",
    }  # fmt: skip


async def test_asking_whether_it_is_new_is_no_use(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks, ttl_s=60)
    await session.update({"a": 1})
    turned.clock.advance(40_000)
    assert not await session.is_new()
    assert await Sessions(persistence=turned.ks).ids() == ["s"]
    turned.clock.advance(40_000)

    assert await session.is_new()


async def test_a_session_that_is_read_again_and_again_is_written_sixteen_times_in_its_time(
    turned: Turned,
) -> None:
    session = Session("s", persistence=turned.ks, ttl_s=3600)
    await session.update({"a": 1})
    before = await turned.ks.space("session/s").revision()
    for _ in range(3600):
        turned.clock.advance(1_000)
        await session.get_state()

    assert 10 <= await turned.ks.space("session/s").revision() - before <= 16


async def test_a_session_lives_as_long_as_the_longest_time_that_it_was_written_with(turned: Turned) -> None:
    def session(ttl_s: float | None) -> Session:
        return Session("s", persistence=turned.ks, ttl_s=ttl_s)

    await session(60).update({"a": 1})
    await session(1).update({"b": 2})  # who thinks of no time lets nothing end sooner
    turned.clock.advance(59_000)
    assert await session(None).get_state() == {"a": 1, "b": 2}  # who reads changes nothing
    turned.clock.advance(61_000)
    assert await session(None).get_state() == {}

    await session(60).update({"c": 3})
    await session(None).update({})
    for _ in range(2):
        turned.clock.advance(10**12)
        assert await session(1).get_state() == {"c": 3}


async def test_who_reads_by_another_time_writes_nothing(turned: Turned) -> None:
    await Session("s", persistence=turned.ks, ttl_s=None).update({"a": 1})
    before = await turned.ks.space("session/s").revision()
    for ttl_s in (1, 60, None, 3600):
        await Session("s", user_id="u", persistence=turned.ks, ttl_s=ttl_s).get_state()

    assert await turned.ks.space("session/s").revision() == before


async def test_a_transaction_that_began_in_a_life_that_ended_applies_nothing(turned: Turned) -> None:
    session = Session("s", persistence=turned.ks, ttl_s=60)
    await session.update({"a": 1})
    with pytest.raises(Exception, match="Read it again and retry"):
        async with session.transaction() as inside:
            await inside.update({"b": 2})
            turned.clock.advance(61_000)

    assert await session.get_state() == {}


async def test_history_older_than_retention_is_gone_and_the_session_goes_on(turned: Turned) -> None:
    session, sessions = Session("s", persistence=turned.ks), Sessions(persistence=turned.ks)
    for number in range(5):
        await session.update({"n": number})
    await session.end()
    assert await sessions.sweep() == 1
    assert (await session.at("main#3")).states == {"data": {"n": 2}}
    turned.clock.advance(10)

    assert await sessions.sweep(history_older_than=timedelta(milliseconds=1)) == 0
    with pytest.raises((PrunedError, NotFoundError)):
        await session.at("main#3")
    await session.update({"n": 7})
    assert (await session.at()).states == {"data": {"n": 7}}


@dataclass
class Plain:
    amount: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Struct(msgspec.Struct):
    amount: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


class Pydantic(pydantic.BaseModel):
    amount: int
    at: datetime = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("model", [Plain, Struct, Pydantic])
async def test_a_model_validates_for_session_and_user(turned: Turned, model: type[Any]) -> None:
    session = Session("s", user_id="u", persistence=turned.ks)
    for state in (session.state(model), session.user.state(model)):
        assert await state.put(model(amount=1)) == model(amount=1) == await state.get()
        with pytest.raises(ValueError, match="Invalid"):
            await state.put({"amount": "much"})

    await session.end()
    with pytest.raises(NotFoundError):
        await session.state(model).get()
    assert await session.user.state(model).get() == model(amount=1)


async def test_preferences_with_a_model_are_the_same_preferences(turned: Turned) -> None:
    @dataclass
    class Preferences:
        seat: str = "aisle"

    user = Session("s", user_id="u", persistence=turned.ks).user
    await user.update_preferences({"seat": "window", "budget": 500})

    assert await user.state(Preferences, name="preferences").get() == Preferences("window")
    await user.state(Preferences, name="preferences").update({"seat": "middle"})
    assert await user.get_preferences() == {"seat": "middle", "budget": 500}
    await user.update_preferences({"seat": 7})
    with pytest.raises(ValueError, match="state of user 'u'"):
        await user.state(Preferences, name="preferences").get()


async def test_closing_a_state_of_a_session_leaves_the_session_open(tmp_path: Any) -> None:
    async with Session("s", persistence=f"sqlite:///{tmp_path}/s.db") as session:
        async with session.state(Plain) as state:
            await state.put(Plain(1))

        assert await session.state(Plain).get() == Plain(1)


async def test_both_modes_share_a_session() -> None:
    async with Session("two colours", user_id="u", ttl_s=None) as session:
        await session.conversation.append(HELLO)
        with sync.Session("two colours", user_id="u", ttl_s=None) as blocking:
            assert list(blocking.conversation.messages()) == [HELLO]
            with blocking.transaction() as inside:
                inside.task.put({"goal": "g"})
                inside.conversation.append(HELLO)
            with blocking.exclusive(ttl_s=5) as inside:
                assert inside.update(lambda state: {**state, "n": 1}) == {"n": 1}
            blocking.conversation.fork("f").append(HELLO)
            blocking.user.remember("trips", 1)
            with sync.Threads() as threads:
                threads.create("two colours")
                assert threads.messages.create("two colours", role="user", content="x").content == "x"
            with sync.Sessions() as sessions:
                assert "two colours" in sessions.ids()

        assert await session.conversation.count() == 2 and (await session.task.get()).goal == "g"
        assert len([m async for m in session.conversation.get_fork("f").messages()]) == 3
        assert await session.user.histories() == {"trips": [1]}
        await session.end()


@pytest.mark.parametrize(
    "wrong",
    [
        {"session_id": ""},
        {"session_id": 7},
        {"session_id": "s" * 200},
        {"user_id": ""},
        {"user_id": 7},
        {"ttl_s": 0},
        {"ttl_s": -1},
        {"ttl_s": "1"},
        {"persistence": 7},
        {"space": "session"},
        {"space": "both"},
    ],
    ids=repr,
)
async def test_what_makes_no_session_is_refused(wrong: dict[str, Any], turned: Turned) -> None:
    if wrong.get("space") == "both":
        wrong = {"space": turned.space, "persistence": turned.ks}

    with pytest.raises(InvalidError):
        Session(**{"session_id": "s", **wrong})


async def test_wrong_arguments_are_refused_before_anything_is_done(ks: Keepstate) -> None:
    session = Session("s", user_id="u", persistence=ks)

    for asking in (
        session.get_context(0),
        session.update(7),  # type: ignore[arg-type]
        session.update(lambda state: None),  # type: ignore[arg-type, return-value]
        session.user.update_preferences(lambda state: [1]),  # type: ignore[arg-type, return-value]
        session.user.remember("", 1),
        session.user.history("trips", limit=501),
        session.user.histories(limit=0),
        session.conversation.append(),
        session.conversation.window(0),
        session.conversation.search("x", limit=0),
        session.conversation.merge("f", prefer="mine"),  # type: ignore[arg-type]
        session.conversation.summarise(),
        session.conversation.get_context(0),
    ):
        with pytest.raises(InvalidError):
            await asking
    assert await session.is_new() and [name async for name in ks.spaces()] == []
    with pytest.raises(InvalidError):
        Threads(persistence=ks, space=ks.space("x"))


async def test_the_cost_of_a_message_does_not_grow_with_the_conversation(turned: Turned) -> None:
    talk = Session("s", persistence=turned.ks).conversation
    for number in range(40):
        await talk.append({"role": "user", "content": f"{number:0100d}"})
    store = await turned.ks.opened()
    sizes = [await size_of_next(talk, store)]
    for number in range(0, 2_000, 400):
        await talk.append(*({"role": "user", "content": f"{n:0100d}"} for n in range(number, number + 400)))

    # The context has as many messages then as fit; what is written says which, and nothing of the others.
    sizes.append(await size_of_next(talk.within(1_000), store))
    assert sizes[1] <= 1.6 * sizes[0]


async def size_of_next(talk: Any, store: Any) -> int:
    before = (await store.read("session/s", [])).revision
    await talk.append({"role": "user", "content": "x" * 100})
    changes = await store.changes("session/s", before)
    return sum(len(change.new) for change in changes.items if change.new is not None)


async def test_what_an_exclusive_block_raises_is_not_hidden_by_its_end(ks: Keepstate) -> None:
    with pytest.raises(ValueError, match="what went wrong") as caught:
        async with Session("s", persistence=ks).exclusive():
            await ks.close()
            raise ValueError("what went wrong")
    assert "could not be released" in "".join(caught.value.__notes__)


# ---- what another handle did to a context that this one has seen


async def texts_of(session: Session) -> list[str]:
    return [message["content"] for message in (await session.get_context()).recent]


async def test_a_context_has_what_another_handle_added_and_edited(ks: Keepstate) -> None:
    mine, theirs = Session("s", persistence=ks), Session("s", persistence=ks)
    await mine.conversation.append({"role": "user", "content": "one"})
    assert await texts_of(mine) == ["one"]

    number = await theirs.conversation.append({"role": "user", "content": "two"})
    assert await texts_of(mine) == ["one", "two"]
    await theirs.conversation.edit(number, "second")
    assert await texts_of(mine) == ["one", "second"]
    await theirs.conversation.clear()
    await theirs.conversation.append({"role": "user", "content": "three"})

    assert await texts_of(mine) == ["three"]


async def test_a_context_is_that_of_the_generation_that_another_handle_began(ks: Keepstate) -> None:
    mine, theirs = Session("s", persistence=ks), Session("s", persistence=ks)
    await mine.conversation.append({"role": "user", "content": "old"})
    await mine.update({"step": "old"})
    assert await texts_of(mine) == ["old"]

    await theirs.end()
    assert (await mine.get_context()).session == {}
    await theirs.conversation.append({"role": "user", "content": "new"})

    assert await texts_of(mine) == ["new"]
    assert (await mine.get_context()).session == {}


async def test_a_context_is_rejected_if_another_user_owns_the_session_now(ks: Keepstate) -> None:
    mine = Session("s", user_id="ann", persistence=ks)
    await mine.conversation.append({"role": "user", "content": "mine"})
    assert await texts_of(mine) == ["mine"]

    await mine.end()
    await Session("s", user_id="bob", persistence=ks).conversation.append({"role": "user", "content": "his"})

    with pytest.raises(NotOwnerError):
        await mine.get_context()
    with pytest.raises(NotOwnerError):
        await mine.conversation.get_context()
