"""`Session`: three kinds of state, each where it belongs, nobody else's, and with an end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

import msgspec
import pytest

from keepstate.errors import (
    ConflictError,
    InvalidError,
    LeaseLostError,
    NotAllowedError,
    NotFoundError,
    NotOwnerError,
)
from keepstate.sessions.namespace import ANY_USER
from keepstate.sessions.session import Session
from keepstate.sessions.session_records import TaskState
from tests.contracts.sessions.stage import IDS, SessionStage


@dataclass
class Booking:
    """What a session books."""

    amount: Annotated[float, msgspec.Meta(gt=0)]
    options: list[str] = field(default_factory=list[str])


def said(role: str, content: str) -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content}


async def answer(turn: Session, text: str) -> int:
    """Add an answer and count a step, and return the number of the answer."""
    number = await turn.conversation.append(said("assistant", text))
    await turn.task.update(lambda task: TaskState(steps_completed=task.steps_completed + 1))
    return number


class SessionContract(SessionStage):
    """What a `Session` does, whatever it is kept in."""

    # ---- the three kinds

    async def test_conversation_task_and_user_are_there_for_the_next_who_asks(self) -> None:
        session = self.session(user_id="user_456")
        await session.conversation.append(
            said("user", "Book a flight to NYC"), said("assistant", "What dates?")
        )
        await session.task.put({"goal": "Book flight to NYC", "status": "in_progress", "steps_remaining": 3})
        await session.user.update_preferences({"airline": "Delta", "seat": "aisle"})
        await session.user.remember("past_bookings", {"to": "NYC"})

        again = self.session(user_id="user_456")
        assert [message["content"] async for message in again.conversation.messages()] == [
            "Book a flight to NYC",
            "What dates?",
        ]
        assert await again.conversation.context_tokens() > 8
        assert await again.task.get() == TaskState(
            goal="Book flight to NYC", status="in_progress", steps_remaining=3
        )
        assert await again.user.get_preferences() == {"airline": "Delta", "seat": "aisle"}
        assert await again.user.histories() == {"past_bookings": [{"to": "NYC"}]}

    async def test_a_new_session_is_empty_and_reading_it_writes_nothing(self) -> None:
        session = self.session(user_id="u")

        assert await session.task.get() == TaskState()
        assert [message async for message in session.conversation.messages()] == []
        assert await session.conversation.get_context() == [] and await session.conversation.count() == 0
        assert await session.get_state() == {} and not await session.task.delete()
        assert await session.user.get_preferences() == {} and await session.user.history("trips") == []
        assert await session.is_new() and not await session.end()
        assert (await session.get_context()).tokens == 0
        with pytest.raises(NotFoundError):
            await session.conversation.get(0)

    async def test_a_task_s_data_comes_back_equal_and_of_its_types(self) -> None:
        data = {
            "at": datetime(2026, 1, 2, tzinfo=UTC),
            "pair": (1, 2),
            "codes": {"a"},
            "raw": b"\0",
            "n": {1: 2},
        }
        session = self.session()
        await session.task.put(TaskState(data=data))
        await session.task.update({"current_step": "comparing_prices"})

        assert (await self.session().task.get()).data == data

    async def test_what_is_no_value_is_neither_kept_nor_read(self) -> None:
        session = self.session(user_id="u")
        for wrong in ({"status": "dreaming"}, {"steps_completed": -1}, {"data": 7}, {"gaol": "x"}):
            with pytest.raises(ValueError, match="task in session 's'"):
                await session.task.put(wrong)
        booking, travel = session.state(Booking), session.user.state(Booking, name="travel")
        for state in (booking, travel):
            await state.put(Booking(480, ["window"]))
            for change in ({"amount": 0}, {"amount": None}, {"amuont": 1}):
                with pytest.raises(InvalidError):
                    await state.update(change)

            assert await state.get() == Booking(480, ["window"])
        await session.state(Booking, name="data").put({"amount": 5})
        await session.update({"amount": "five"})
        with pytest.raises(ValueError, match="Invalid data in session 's'"):
            await session.state(Booking, name="data").get()

    async def test_updates_of_many_at_once_are_all_kept(self) -> None:
        def more(state: dict[str, Any]) -> dict[str, Any]:
            return {**state, "count": state.get("count", 0) + 1}

        async def work(session: Session) -> None:
            for _ in range(4):
                await session.update(more)
                await session.user.update_preferences(more)
                await session.user.remember("trips", 1)
                await session.conversation.append(said("user", "x"))

        await self.together(*(work(self.session(user_id="u")) for _ in range(3)))

        session = self.session(user_id="u")
        assert await session.get_state() == {"count": 12} == await session.user.get_preferences()
        assert await session.user.history("trips") == [1] * 12
        assert await session.conversation.count() == 12

    async def test_preferences_are_changed_by_functions_of_the_colour(self) -> None:
        user = self.session(user_id="u").user

        async def later(old: dict[str, Any]) -> dict[str, Any]:
            return {**old, "seat": "aisle"}

        if self.mode_name == "async":
            await user.update_preferences(later)
        else:
            with pytest.raises(InvalidError, match="plain function"):
                await user.update_preferences(later)
        assert await user.update_preferences(lambda old: {**old, "seat": "aisle"}) == {"seat": "aisle"}
        with pytest.raises(InvalidError, match="remember"):
            user.state(Booking, name="history")

    async def test_keys_that_are_no_text_are_refused_and_what_was_there_stays(self) -> None:
        session = self.session(user_id="u")

        def with_a_flag(old: dict[str, Any]) -> dict[Any, Any]:
            return {**old, True: 1}

        def in_a_list(old: dict[str, Any]) -> list[dict[str, Any]]:
            return [old]

        for update in (session.update, session.user.update_preferences):
            await update({"seat": "aisle"})
            wrong: list[Any] = [{2026: "x"}, with_a_flag, in_a_list, 3]
            for change in wrong:
                with pytest.raises(
                    InvalidError, match=r"has the key .*keys are text|Pass a dict|Return a dict"
                ):
                    await update(change)

        assert await session.get_state() == await session.user.get_preferences() == {"seat": "aisle"}

    # ---- whose it is

    async def test_no_session_and_no_user_is_taken_for_another(self) -> None:
        for number, id in enumerate(IDS):
            session = self.session(id, user_id=id)
            await session.conversation.append(said("user", f"I am {number}"))
            await session.update({"n": number})
            await session.user.update_preferences({"n": number})
            await session.user.remember(id, number)

        for number, id in enumerate(IDS):
            session = self.session(id, user_id=id)
            assert [each["content"] async for each in session.conversation.messages()] == [f"I am {number}"]
            assert await session.get_state() == await session.user.get_preferences() == {"n": number}
            assert await session.user.histories() == {id: [number]}
        assert sorted(await self.sessions().ids()) == sorted(IDS)

    async def test_what_was_handed_out_is_a_copy(self) -> None:
        session, told = self.session(user_id="u"), {"options": ["a"]}
        await session.update(told)
        await session.task.put({"data": told})
        await session.user.update_preferences(told)
        told["options"].append("mine")
        (await session.get_state())["options"].append("b")
        (await session.task.get()).data["options"].append("b")
        TaskState().data["options"] = ["everybody's"]
        (await session.user.get_preferences())["options"].append("b")

        for kept in (await session.get_state(), await session.user.get_preferences()):
            assert kept == {"options": ["a"]}
        assert (await session.task.get()).data == {"options": ["a"]}
        assert (await self.session("other").task.get()).data == {}

    async def test_an_owned_session_opens_for_its_owner_only(self) -> None:
        owned = self.session(user_id="ann")
        await owned.update({"secret": 1})
        await owned.conversation.append(said("user", "only mine"))
        await owned.conversation.fork("other way")

        for user_id in ("bob", None):
            other = self.session(user_id=user_id)
            for ask in (
                other.get_state,
                other.get_context,
                other.conversation.count,
                other.conversation.get_context,
                other.conversation.clear,
                other.conversation.get_fork("other way").count,
                other.task.get,
                other.task.delete,
                other.state(Booking).get,
                other.is_new,
                other.end,
                other.sweep,
                other.at,
            ):
                with pytest.raises(NotAllowedError) as refused:
                    await ask()
                assert refused.value.code == "not_owner"
                assert isinstance(refused.value, NotOwnerError)
                assert refused.value.user_id == user_id and "ann" not in str(refused.value)
            for write in (other.update({}), other.conversation.append(said("user", "x")), other.task.put({})):
                with pytest.raises(NotOwnerError):
                    await write
            with pytest.raises(NotOwnerError):
                async with other.transaction() as inside:
                    await inside.update({})
            with pytest.raises(NotOwnerError):
                async with other.exclusive(wait_s=0):
                    pass
        assert await owned.get_state() == {"secret": 1} and await owned.conversation.count() == 1

    async def test_what_was_said_before_a_session_had_its_owner_is_the_owners(self) -> None:
        nobodys = self.session()
        await nobodys.conversation.append(said("user", "before the login"))
        before = (await nobodys.at()).messages
        owned = self.session(user_id="ann")
        await owned.update({"step": 1})

        for user_id in ("bob", None):
            with pytest.raises(NotOwnerError):
                await self.session(user_id=user_id).at("main~1")
        for allowed in (owned, self.session(user_id=ANY_USER)):
            moment = await allowed.at("main~1")
            assert (moment.user_id, moment.messages) == (None, before)

        await owned.end()
        for stranger in (self.session(), self.session(user_id="bob")):
            await stranger.update({"next": 1})
            with pytest.raises(NotOwnerError):
                await stranger.at("main#1")
            with pytest.raises(NotOwnerError):
                await stranger.conversation.page(at="main#1")
        assert (await owned.at("main#1")).messages == before

    async def test_the_application_opens_a_session_of_any_user_and_its_owner_stays(self) -> None:
        anybodys = self.session(user_id=ANY_USER)
        await anybodys.update({"visits": 1})
        await self.session().update({"visits": 2})  # a session without an owner opens for every caller
        await self.session(user_id="ann").update({"visits": 3})  # the first user who writes is its owner

        assert await anybodys.update({"note": "kept"}) == {"visits": 3, "note": "kept"}
        assert (await anybodys.at()).user_id == "ann"
        assert await self.session(user_id="ann").get_state() == {"visits": 3, "note": "kept"}
        with pytest.raises(NotOwnerError):
            await self.session().get_state()
        for nobody, why in ((anybodys, "ANY_USER"), (self.session(), "without a user")):
            with pytest.raises(InvalidError, match=why):
                await nobody.user.get_preferences()
        assert (await anybodys.get_context()).user == {}

    async def test_an_ended_session_may_have_another_owner_who_sees_nothing_of_the_first(self) -> None:
        first, second = self.session(user_id="ann"), self.session(user_id="bob")
        await first.update({"secret": 1})
        await first.end()
        await second.update({"own": 2})

        assert await second.get_state() == {"own": 2} == (await second.at()).states["data"]
        with pytest.raises(NotOwnerError):
            await second.at("main#1")
        with pytest.raises(NotOwnerError):
            await first.get_state()
        assert await self.sessions().ids(user_id="ann") == []
        assert await self.sessions().ids(user_id="bob") == ["s"]

    async def test_ids_of_sessions_come_in_pages_by_owner_and_time(self) -> None:
        for number in range(5):
            await self.session(f"a{number}", user_id="ann").update({"n": number})
            await self.session(f"b{number}", user_id="bob").update({"n": number})
        await self.session("a1", user_id="ann").update({"n": 0})
        sessions = self.sessions()

        first = await sessions.ids(user_id="ann", limit=3)
        assert len(first) == 3 and first.next is not None
        rest = await sessions.ids(user_id="ann", limit=3, after=first.next)
        assert sorted([*first, *rest]) == ["a0", "a1", "a2", "a3", "a4"] and rest.next is None
        assert len(await sessions.ids()) == 10 and await sessions.ids(user_id="eve") == []
        hour = timedelta(hours=1)
        now = await self.session("a1", user_id="ann").conversation._store.namespace.target.now()  # pyright: ignore[reportPrivateUsage]
        assert len(await sessions.ids(active_since=now - hour)) == 10
        assert await sessions.ids(active_since=now + hour) == []
        wrong: list[dict[str, Any]] = [{"user_id": 1}, {"limit": 0}, {"after": "x"}, {"active_since": 7}]
        for options in wrong:
            with pytest.raises(InvalidError):
                await sessions.ids(**options)

    # ---- together

    async def test_a_transaction_changes_all_of_a_session_or_nothing(self) -> None:
        session = self.session()
        with pytest.raises(RuntimeError):
            async with session.transaction() as inside:
                await inside.conversation.append(said("user", "lost"))
                await inside.update({"lost": True})
                raise RuntimeError
        assert await session.is_new()
        async with session.transaction(message="turn 1") as inside:
            number = await inside.conversation.append(said("user", "kept"))
            await inside.task.put({"goal": "g", "status": "in_progress"})
            await inside.state(Booking).put({"amount": 1})
            assert [message["content"] async for message in inside.conversation.messages()] == ["kept"]

        assert (number, await session.conversation.count()) == (0, 1)
        assert (await session.task.get()).goal == "g" and (await session.state(Booking).get()).amount == 1
        assert (await session.at("main~0")).messages == [said("user", "kept")]
        with pytest.raises(InvalidError, match="inside a transaction"):
            async with session.transaction() as inside, inside.transaction():
                pass

    async def test_turns_that_meet_run_again_and_none_is_lost(self) -> None:
        sessions = [self.session() for _ in range(5)]
        numbers = await self.together(
            *(session.transact(lambda turn: answer(turn, "x")) for session in sessions)
        )

        assert sorted(numbers) == list(range(5))
        assert await self.session().conversation.count() == 5
        assert (await self.session().task.get()).steps_completed == 5

    async def test_a_turn_that_meets_another_is_refused_after_its_last_attempt(self) -> None:
        _, mine, others = await self.beside_others("s")
        calls: list[int] = []

        async def overtaken(turn: Session, text: str) -> None:
            calls.append(await answer(turn, text))
            if len(calls) == 1:
                await others.conversation.append(said("user", "first"))

        with pytest.raises(ConflictError):
            await mine.transact(lambda turn: overtaken(turn, "mine"), attempts=1)
        assert calls == [0] and await others.conversation.count() == 1

        calls.clear()
        await mine.transact(lambda turn: overtaken(turn, "mine"))
        assert calls == [1, 2] and await others.conversation.count() == 3
        for wrong in (0, -1, "1"):
            given: Any = wrong
            with pytest.raises(InvalidError, match="attempts"):
                await mine.transact(lambda turn: answer(turn, "x"), attempts=given)

    async def test_a_turn_that_raises_changes_nothing_and_an_inner_turn_joins_the_outer(self) -> None:
        session = self.session()
        with pytest.raises(ZeroDivisionError):
            await session.transact(lambda turn: 1 / 0)
        assert await session.is_new()

        async with session.transaction() as outer:
            await outer.update({"outer": True})
            assert await outer.transact(lambda turn: answer(turn, "inner")) == 0
            assert await session.is_new()
        async with session.exclusive(ttl_s=0.02) as late:
            await self.pass_time(30)
            with pytest.raises(LeaseLostError):
                await late.transact(lambda turn: answer(turn, "late"))

        assert await session.get_state() == {"outer": True} and await session.conversation.count() == 1

    async def test_a_user_is_part_of_a_transaction_only_in_the_same_space(self) -> None:
        session = self.session(user_id="u")

        async with session.transaction() as inside:
            await inside.update({"a": 1})
            if self.in_passed_space:
                await inside.user.update_preferences({"a": 1})
            else:
                for asking in (inside.user.get_preferences(), inside.user.remember("trips", 1)):
                    with pytest.raises(
                        InvalidError, match=r"'user/u'.*not part of this transaction.*'session/s'"
                    ):
                        await asking
        assert await session.user.get_preferences() == ({"a": 1} if self.in_passed_space else {})

    async def test_one_at_a_time_is_exclusive_and_who_is_late_writes_nothing(self) -> None:
        first, second = self.session(user_id="u"), self.session(user_id="u")
        async with first.exclusive(ttl_s=60) as inside:
            await inside.update({"by": "first"})
            with pytest.raises(ConflictError):
                async with second.exclusive(ttl_s=60, wait_s=0):
                    pass
            await second.update({"beside": True})  # who does not ask for it is not held up
        async with second.exclusive(ttl_s=0.02) as late:
            await self.pass_time(30)
            async with first.exclusive(ttl_s=60) as inside:
                await inside.renew()
                await inside.update({"by": "first again"})
                async with inside.transaction() as tx:
                    await tx.conversation.append(said("user", "fenced"))
                for writing in (
                    late.update({"by": "late"}),
                    late.conversation.append(said("user", "late")),
                    late.task.put({"goal": "late"}),
                    late.renew(),
                ):
                    with pytest.raises(LeaseLostError):
                        await writing

        assert await first.get_state() == {"by": "first again", "beside": True}
        assert await first.conversation.count() == 1
        with pytest.raises(InvalidError, match="not yielded by exclusive"):
            await first.renew()
        async with first.exclusive() as inside:
            with pytest.raises(InvalidError, match="would wait for itself"):
                async with inside.exclusive():
                    pass

    # ---- how long

    async def test_a_session_whose_time_is_up_is_new_and_its_past_can_be_read(self) -> None:
        session = self.session(user_id="u", ttl_s=0.03)
        async with session.transaction() as inside:
            await inside.conversation.append(said("user", "first life"))
            await inside.task.put({"goal": "g"})
        await session.user.remember("trips", "NYC")
        await self.pass_time(40)
        again = self.session(user_id="u", ttl_s=None)

        assert await again.is_new() and await again.conversation.count() == 0
        assert await again.task.get() == TaskState() and await again.user.history("trips") == ["NYC"]
        assert await again.conversation.append(said("user", "second life")) == 0
        assert [each async for each in again.conversation.messages()] == [said("user", "second life")]
        moment = await again.at()
        assert (moment.life, moment.messages) == (2, [said("user", "second life")])
        first = [await again.at(f"main#{number}") for number in (1, 2)]
        assert any(moment.messages == [said("user", "first life")] for moment in first)

    async def test_sweeping_removes_what_is_over_and_nothing_else(self) -> None:
        over, living = self.session("over"), self.session("living")
        for session in (over, living):
            await session.conversation.append(*(said("user", f"m{n}") for n in range(5)))
            await session.task.put({"goal": "g"})
        assert await over.end() and await over.is_new()
        await over.update({"life": 2})
        assert await over.end()
        sessions = self.sessions()

        assert await sessions.ids() == ["living"]
        assert await sessions.sweep() == 8
        assert await sessions.sweep() == 0 == await living.sweep()
        assert await living.conversation.count() == 5 and (await living.task.get()).goal == "g"
        assert await over.update({"life": 3}) == {"life": 3}
        assert (await over.at()).life == 3

    # ---- what a model is told

    async def test_a_context_has_recent_session_and_user_within_its_budget(self) -> None:
        session = self.session(user_id="u")
        await session.conversation.append(said("system", "You book flights."))
        for number in range(60):
            await session.conversation.append(said("user", f"message {number} of some length"))
            await session.user.remember("trips", f"trip number {number} to some place")
        await session.task.put({"goal": "Book"})
        await session.user.update_preferences({"seat": "aisle"})

        for budget in (300, 600, 2_000, 8_000):
            context = await session.get_context(budget, history=40)
            assert context.tokens <= budget
            assert context.recent[0] == said("system", "You book flights.")
            assert context.recent[-1] == said("user", "message 59 of some length")
            assert context.session["task"]["goal"] == "Book"
            assert context.user["preferences"] == {"seat": "aisle"}
            assert "trip number 59" in str(context.user) or budget == 300
            assert context.background is not None and "aisle" in context.background["content"]
        context = await session.get_context(8_000, history=40)
        assert len(context.recent) == 61 and len(context.user["history"]["trips"]) == 40
        with pytest.raises(InvalidError, match="raise max_tokens"):
            await session.get_context(20)
