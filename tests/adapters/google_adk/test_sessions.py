"""Sessions keep the rules of ADK, and what its own services lose between two writers."""

from __future__ import annotations

import asyncio
import math
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import pytest
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.in_memory_session_service import InMemorySessionService
from google.adk.sessions.session import Session
from google.genai import types

from keepstate.adapters.google_adk import KeepstateSessionService
from keepstate.errors import InvalidError
from tests.adapters.google_adk.events import said, texts

Who = dict[str, Any]
BOTH = pytest.mark.parametrize("per", ["session", "app"])


def service(url: object, per: str = "session", **options: Any) -> KeepstateSessionService:
    return KeepstateSessionService(url, space_per=per, **options)


# ---- what ADK asks of a service


@BOTH
async def test_a_session_comes_back_as_it_was(any_url: str, who: Who, per: str) -> None:
    rich = Event(
        invocation_id="i",
        author="model",
        content=types.Content(
            role="model",
            parts=[
                types.Part.from_bytes(data=b"\0\xff", mime_type="image/png"),
                types.Part(function_call=types.FunctionCall(id="1", name="buy", args={"n": [1, None]})),
            ],
        ),
        actions=EventActions(artifact_delta={"file": 0}, transfer_to_agent="other", escalate=True),
        long_running_tool_ids={"1"},
        grounding_metadata=types.GroundingMetadata(web_search_queries=["query"]),
        custom_metadata={"key": "naïve 🦜"},
        timestamp=1_700_000_000.123,
    )
    async with service(any_url, per) as sessions:
        session = await sessions.create_session(**who, state={"key": [1, {"deep": None}]})
        await sessions.append_event(session, rich)
        await sessions.append_event(session, said("hello"))

        assert await sessions.get_session(**who, session_id=session.id) == session
        assert await sessions.get_session(**who, session_id="other") is None


@BOTH
async def test_state_belongs_to_the_session_the_user_or_the_app(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per) as sessions:
        state = {"own": 1, "user:plan": "pro", "app:rate": 2, "temp:seen": True}
        session = await sessions.create_session(**who, session_id="1", state=state)
        event = said("x", state={"own": 2, "user:plan": None, "app:rate": 3, "temp:seen": False})
        await sessions.append_event(session, event)
        again = await sessions.get_session(**who, session_id="1")
        of_user = await sessions.create_session(**who, session_id="2")
        of_other = await sessions.create_session(app_name="shop", user_id="bob")
        of_other_app = await sessions.create_session(app_name="bank", user_id="ann")

        assert session.state == {"own": 2, "user:plan": None, "app:rate": 3, "temp:seen": False}
        assert event.actions.state_delta == {"own": 2, "user:plan": None, "app:rate": 3}
        assert again is not None
        assert again.state == {"own": 2, "user:plan": None, "app:rate": 3}
        assert of_user.state == {"user:plan": None, "app:rate": 3}
        assert (of_other.state, of_other_app.state) == ({"app:rate": 3}, {})
        assert await sessions.get_user_state(**who) == {"plan": None}
        assert await sessions.get_user_state(app_name="shop", user_id="bob") == {}


async def test_values_that_are_not_json_are_made_so(who: Who) -> None:
    state = {
        "at": datetime(2026, 1, 2, tzinfo=UTC),
        "part": types.Part(text="x"),
        "call": len,
        "pair": (1, 2),
    }
    async with service("memory://") as sessions:
        session = await sessions.create_session(**who)
        await sessions.append_event(session, said("x", state=state))
        again = await sessions.get_session(**who, session_id=session.id)

        assert again is not None
        assert again.state["at"] == "2026-01-02T00:00:00Z"
        assert again.state["part"]["text"] == "x"
        assert "len" in again.state["call"]
        assert again.state["pair"] == [1, 2]
        assert session.state["call"] is len


async def test_events_are_selected_by_time_and_number(who: Who) -> None:
    async with service("memory://") as sessions:
        session = await sessions.create_session(**who)
        for n, at in enumerate([1.0, 5.0, 3.0, 4.0, 6.0]):  # times need not grow
            await sessions.append_event(session, said(str(n), timestamp=at))

        async def selected(**config: Any) -> list[str]:
            found = await sessions.get_session(
                **who, session_id=session.id, config=GetSessionConfig(**config)
            )
            assert found is not None
            return texts(found.events)

        assert await selected() == ["0", "1", "2", "3", "4"]
        assert await selected(num_recent_events=0) == []
        assert await selected(num_recent_events=2) == ["3", "4"]
        assert await selected(num_recent_events=9) == ["0", "1", "2", "3", "4"]
        assert await selected(after_timestamp=4.0) == ["1", "3", "4"]
        assert await selected(after_timestamp=4.0, num_recent_events=2) == ["3", "4"]
        assert await selected(after_timestamp=4.0, num_recent_events=0) == []
        assert await selected(after_timestamp=math.inf) == []


@BOTH
async def test_a_listing_has_the_sessions_of_an_app_by_their_time(any_url: str, per: str) -> None:
    async with service(any_url, per) as sessions:
        made = {}
        for app, user, id in [
            ("shop", "ann", "1"),
            ("shop", "ann", "2/3"),
            ("shop", "an", "3"),
            ("sho", "ann", "4"),
            ("shop/x", "ann", "5"),
            ("A" * 300, "B" * 300, "C" * 300),
        ]:
            state = {"own": id, "user:name": user}
            made[id] = await sessions.create_session(app_name=app, user_id=user, session_id=id, state=state)
        await sessions.append_event(made["1"], said("x", timestamp=made["1"].last_update_time + 60))
        await sessions.delete_session(app_name="shop", user_id="ann", session_id="none")

        async def listed(app: str, user: str | None = None) -> list[tuple[str, str]]:
            found = (await sessions.list_sessions(app_name=app, user_id=user)).sessions
            assert all(each.state == {"own": each.id, "user:name": each.user_id} for each in found)
            assert all(each.events == [] and each.app_name == app for each in found)
            return [(each.user_id, each.id) for each in found]

        assert await listed("shop") == [("ann", "2/3"), ("an", "3"), ("ann", "1")]
        assert await listed("shop", "ann") == [("ann", "2/3"), ("ann", "1")]
        assert await listed("shop", "n") == await listed("none") == []
        assert await listed("A" * 300) == [("B" * 300, "C" * 300)]


async def test_ids_are_stripped_and_taken_once(who: Who) -> None:
    async with service("memory://") as sessions:
        made = await sessions.create_session(**who, session_id=" 1 ")
        with pytest.raises(AlreadyExistsError):
            await sessions.create_session(**who, session_id="1", state={"app:x": 1})
        random = await sessions.create_session(**who, session_id="  ")

        assert made.id == "1"
        assert len(random.id) == 36
        assert await sessions.get_session(**who, session_id=" 1") == made
        await sessions.delete_session(**who, session_id="1\n")
        assert await sessions.get_session(**who, session_id="1") is None
        assert (await sessions.create_session(**who, session_id="1")).state == {}


async def test_a_partial_event_is_not_stored(who: Who) -> None:
    async with service("memory://") as sessions:
        session = await sessions.create_session(**who)
        partial = said("hel", state={"x": 1}, partial=True)

        assert await sessions.append_event(session, partial) is partial
        assert (session.events, session.state) == ([], {})
        assert await sessions.get_session(**who, session_id=session.id) == session


# ---- two writers


@BOTH
async def test_an_event_on_an_older_state_is_refused_and_changes_nothing(
    any_url: str, who: Who, per: str
) -> None:
    async with service(any_url, per) as one, service(any_url, per) as two:
        stale = await one.create_session(**who)
        current = await two.get_session(**who, session_id=stale.id)
        assert current is not None
        await two.append_event(current, said("first", state={"key": 1}))
        refused = said("second", state={"key": 2, "user:key": 2, "app:key": 2, "temp:key": 2})
        with pytest.raises(StaleSessionError, match="modified in storage"):
            await one.append_event(stale, refused)
        again = await one.get_session(**who, session_id=stale.id)

        assert (stale.events, stale.state) == ([], {})
        assert "temp:key" in refused.actions.state_delta
        assert again is not None
        assert texts(again.events) == ["first"]
        assert again.state == {"key": 1}


@BOTH
async def test_one_of_two_writers_of_one_loop_is_refused(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per) as sessions:
        id = (await sessions.create_session(**who)).id
        for n in range(8):
            copies = [await sessions.get_session(**who, session_id=id) for _ in range(2)]
            results = await asyncio.gather(
                *(sessions.append_event(each, said(f"{n}")) for each in copies if each is not None),
                return_exceptions=True,
            )
            assert sorted(type(each).__name__ for each in results) == ["Event", "StaleSessionError"]
        last = await sessions.get_session(**who, session_id=id)

        assert last is not None
        assert texts(last.events) == [str(n) for n in range(8)]


@BOTH
async def test_guarded_counters_lose_nothing(shared_url: str, per: str) -> None:
    """Each writer reads, adds one and writes, through a session of its own."""

    async def count(user: str, scope: str) -> None:
        async with service(shared_url, per, guard_shared=True) as sessions:
            who = {"app_name": "shop", "user_id": "ann"}
            await sessions.create_session(**who, session_id=f"{scope} {user}")
            for _ in range(10):
                while True:
                    session = await sessions.get_session(**who, session_id=f"{scope} {user}")
                    assert session is not None
                    changes = {scope: session.state.get(scope, 0) + 1}
                    try:
                        await sessions.append_event(session, said("x", state=changes))
                        break
                    except StaleSessionError:
                        continue

    await asyncio.gather(*(count(user, scope) for user in "ab" for scope in ("app:n", "user:n")))
    async with service(shared_url, per) as sessions:
        last = await sessions.create_session(app_name="shop", user_id="ann")

    assert last.state == {"app:n": 20, "user:n": 20}


@BOTH
async def test_guarded_state_is_checked_only_where_an_event_changes_it(who: Who, per: str) -> None:
    async with service("memory://", per, guard_shared=True) as sessions:
        one = await sessions.create_session(**who, session_id="1", state={"app:a": 1, "user:a": 1})
        two = await sessions.create_session(**who, session_id="2")
        await sessions.append_event(two, said("x", state={"app:a": 2}))
        await sessions.append_event(one, said("y", state={"user:a": 2, "own": 1}))
        await sessions.append_event(one, said("z", state={"user:a": 3}))
        with pytest.raises(StaleSessionError, match="state of the app"):
            await sessions.append_event(one, said("!", state={"user:a": 4, "app:a": 3}))
        with pytest.raises(StaleSessionError, match="state of the user"):
            await sessions.append_event(two, said("!", state={"user:a": 9, "app:a": 9}))
        last = await sessions.get_session(**who, session_id="1")

        assert last is not None
        assert last.state == {"own": 1, "app:a": 2, "user:a": 3}
        await sessions.append_event(last, said("!", state={"user:a": 4, "app:a": 3}))
        assert await sessions.get_session(**who, session_id="1") == last


# ---- one event, twice


@BOTH
async def test_an_event_that_is_sent_again_is_stored_once(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per) as sessions:
        session = await sessions.create_session(**who, session_id="1")
        lost = session.model_copy(deep=True)  # of a call that failed after the event was stored
        event = said("x", state={"app:n": 1, "n": 1, "temp:n": 1})
        await sessions.append_event(session, event.model_copy(deep=True))
        other = await sessions.create_session(**who, session_id="2")
        await sessions.append_event(other, said("y", state={"app:n": 2}))
        await sessions.append_event(lost, event)
        await sessions.append_event(lost, event)
        again = await sessions.get_session(**who, session_id="1")

        assert again is not None
        assert texts(again.events) == texts(lost.events) == ["x"]
        assert again.state == {"app:n": 2, "n": 1}
        await sessions.append_event(lost, said("z"))
        with pytest.raises(StaleSessionError):
            await sessions.append_event(session, said("!"))


async def test_shared_changes_of_an_event_apply_once_though_its_session_was_not_written(who: Who) -> None:
    """The process was killed between the batches; others have changed the state since."""

    class Killed(BaseException):
        pass

    class Dies(KeepstateSessionService):
        dies = False

        async def _apply(self, places: Any, shared: Any, check: Any, write: Any, message: str) -> Any:
            async def die(tx: Any) -> Any:
                raise Killed

            return await super()._apply(places, shared, check, die if self.dies else write, message)

    async with Dies("memory://") as sessions:
        session = await sessions.create_session(**who, session_id="1")
        other = await sessions.create_session(**who, session_id="2")
        event = said("x", state={"user:n": 1, "own": 1})
        sessions.dies = True
        with pytest.raises(Killed):
            await sessions.append_event(session, event)
        sessions.dies = False
        await sessions.append_event(other, said("y", state={"user:n": 2}))
        await sessions.append_event(session, event)
        again = await sessions.get_session(**who, session_id="1")

        assert again is not None
        assert again.state == {"user:n": 2, "own": 1}
        assert texts(again.events) == ["x"]


# ---- markers


async def test_a_session_without_a_marker_is_judged_by_its_last_event_or_time(who: Who) -> None:
    async with service("memory://") as sessions:
        session = await sessions.create_session(**who)
        await sessions.append_event(session, said("1"))
        wire = Session.model_validate_json(session.model_dump_json())
        wire.last_update_time -= 0.0001
        old = Session.model_validate_json(session.model_dump_json())
        await sessions.append_event(wire, said("2"))
        with pytest.raises(StaleSessionError):
            await sessions.append_event(old, said("!"))
        empty = Session(**who, id=session.id, last_update_time=wire.last_update_time - 1)
        with pytest.raises(StaleSessionError):
            await sessions.append_event(empty, said("!"))
        empty.last_update_time = wire.last_update_time
        await sessions.append_event(empty, said("3"))
        again = await sessions.get_session(**who, session_id=session.id)

        assert again is not None
        assert texts(again.events) == ["1", "2", "3"]


async def test_a_session_of_another_service_or_of_an_earlier_life_is_refused(who: Who) -> None:
    async with service("memory://") as sessions:
        session = await sessions.create_session(**who, session_id="1")
        foreign = session.model_copy(deep=True)
        foreign._storage_update_marker = "2026-01-02 03:04:05"
        with pytest.raises(StaleSessionError, match="another service"):
            await sessions.append_event(foreign, said("!"))
        await sessions.delete_session(**who, session_id="1")
        with pytest.raises(SessionNotFoundError):
            await sessions.append_event(session, said("!", state={"app:n": 1}))
        await sessions.create_session(**who, session_id="1")
        with pytest.raises(StaleSessionError):
            await sessions.append_event(session, said("!", state={"app:n": 1}))
        again = await sessions.get_session(**who, session_id="1")

        assert again is not None
        assert (again.events, again.state) == ([], {})


# ---- ends


@BOTH
async def test_a_deleted_session_leaves_no_documents(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per) as sessions:
        session = await sessions.create_session(**who, session_id="1", state={"secret": 1})
        for n in range(3):
            await sessions.append_event(session, said(str(n)))
        await sessions.delete_session(**who, session_id="1")
        await sessions.delete_session(**who, session_id="1")
        assert await sessions.sweep() == 0

        async def names(ks: Any) -> list[str]:
            return [
                key async for each in ks.spaces("adk/") async for key in ks.space(each).documents.keys("*")
            ]

        assert [name for name in await sessions.call(names) if "lives" not in name] == []


@BOTH
async def test_a_session_that_is_not_used_ends(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per, ttl_s=1.5) as sessions:
        session = await sessions.create_session(**who, session_id="1", state={"user:name": "Ann"})
        await sessions.append_event(session, said("x"))
        await asyncio.sleep(1.6)

        assert await sessions.get_session(**who, session_id="1") is None
        assert (await sessions.list_sessions(app_name="shop")).sessions == []
        with pytest.raises(SessionNotFoundError):
            await sessions.append_event(session, said("y"))
        assert await sessions.sweep() == 3
        assert (await sessions.create_session(**who, session_id="1")).state == {"user:name": "Ann"}


@BOTH
async def test_nothing_of_an_erased_user_is_left_in_any_app(any_url: str, who: Who, per: str) -> None:
    async with service(any_url, per) as sessions:
        for app in ("shop", "bank"):
            for user in ("ann", "an"):
                await sessions.create_session(app_name=app, user_id=user, state={"user:x": user, "app:x": 1})
        await sessions.erase("ann")
        state = await sessions.get_user_state(app_name="bank", user_id="ann")
        listed = [(await sessions.list_sessions(app_name=app)).sessions for app in ("shop", "bank")]

        assert state == {}
        assert [[each.user_id for each in found] for found in listed] == [["an"], ["an"]]
        assert listed[0][0].state == {"user:x": "an", "app:x": 1}


# ---- arguments


async def test_wrong_arguments_are_told(who: Who, tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="space_per"):
        service("memory://", "user")
    with pytest.raises(InvalidError, match="guard_shared"):
        service("memory://", guard_shared="yes")
    async with service(tmp_path / "adk.db") as sessions:
        with pytest.raises(InvalidError, match="user_id"):
            await sessions.list_sessions(app_name="shop", user_id="")
        with pytest.raises(InvalidError, match="app_name"):
            await sessions.create_session(app_name="", user_id="ann")


@BOTH
async def test_a_recorded_session_keeps_its_moments(who: Who, per: str) -> None:
    async with service("memory://", per, record=True) as sessions:
        session = await sessions.create_session(**who, session_id="1")
        await sessions.append_event(session, said("x", state={"n": 1}))
        await sessions.append_event(session, said("y", state={"n": 2}))
        place = sessions._places("shop", "ann", "1").session

        async def messages(ks: Any) -> list[str]:
            return [commit.message async for commit in ks.space(place.space, record=True).history.log()]

        assert (await sessions.call(messages))[:2] == ["append an event of user"] * 2


async def test_it_answers_as_the_service_in_memory_does(who: Who) -> None:
    """The same calls, at random, give the same answers."""
    random = Random(7)
    async with service("memory://") as sessions:
        both = (InMemorySessionService(), sessions)
        for step in range(150):
            id, user = random.choice("ab"), random.choice(["ann", "bob"])
            key = {"app_name": "shop", "user_id": user, "session_id": id}
            state = {
                random.choice(["", "user:", "app:", "temp:"]) + random.choice("xy"): step for _ in range(2)
            }
            call = random.choice(["create", "append", "append", "append", "delete", "list"])
            answers: list[Any] = []
            for each in both:
                if call == "create" and await each.get_session(**key) is None:
                    made = await each.create_session(**key, state=state)
                    answers.append((made.id, made.state))
                elif call == "append" and (session := await each.get_session(**key)) is not None:
                    event = said(str(step), state=dict(state), timestamp=float(step), id=str(step))
                    answers.append(await each.append_event(session, event))
                    answers.append((session.state, texts(session.events)))
                elif call == "delete":
                    await each.delete_session(**key)
                    answers.append(await each.get_user_state(app_name="shop", user_id=user))
                else:
                    found = (await each.list_sessions(app_name="shop")).sessions
                    answers.append(sorted((one.user_id, one.id, sorted(one.state.items())) for one in found))
            half = len(answers) // 2
            assert answers[:half] == answers[half:], (step, call, key)
