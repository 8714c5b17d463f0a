"""Watches on a `Session`: each change of all that it has, once, in order, and again from any position."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

import pytest

from keepstate.errors import InvalidError, NotOwnerError
from keepstate.sessions.session import Session
from keepstate.sessions.session_watch import SessionChange
from tests.contracts.sessions.conversations import said
from tests.contracts.sessions.stage import SessionStage


def seen(changes: list[SessionChange]) -> list[tuple[str, str, str, int | None]]:
    """Return what some changes tell of, without values and positions."""
    return [(change.part, change.kind, change.name, change.number) for change in changes]


class WatchContract(SessionStage):
    """What a watch tells, whatever the session is kept in."""

    async def take(self, session: Session, after: str, count: int) -> list[SessionChange]:
        """Return the first changes after a position."""
        changes: list[SessionChange] = []
        watch = cast("AsyncGenerator[SessionChange]", session.watch(after=after))
        async with aclosing(watch):
            while len(changes) < count:
                changes.append(await anext(watch))
        return changes

    async def test_a_watch_tells_each_change_of_a_session_and_its_user(self) -> None:
        session = self.session(user_id="ann")
        begin = await session.position()
        await session.conversation.append(said("hello"), said("again"))
        await session.conversation.edit(0, "Hello")
        fork = await session.conversation.fork("f/1")
        await fork.append(said("what if"))
        await session.conversation.pop()
        await session.task.put({"goal": "g"})
        await session.update({"a": 1})
        await session.update({"a": 2})
        await session.conversation.clear()
        await session.end()
        await session.conversation.append(said("second life"))

        changes = await self.take(session, begin, 14)
        assert seen(changes) == [
            ("session", "created", "", None),
            ("conversation", "created", "", 0),
            ("conversation", "created", "", 1),
            ("conversation", "updated", "", 0),
            ("conversation", "created", "f/1", None),
            ("conversation", "created", "f/1", 2),
            ("conversation", "deleted", "", 1),
            ("task", "created", "task", None),
            ("state", "created", "data", None),
            ("state", "updated", "data", None),
            ("conversation", "deleted", "", None),
            ("session", "deleted", "", None),
            ("session", "created", "", None),
            ("conversation", "created", "", 0),
        ]
        assert [each.new for each in changes[1:4]] == [said("hello"), said("again"), said("Hello")]
        assert (changes[9].old, changes[9].new) == ({"a": 1}, {"a": 2})

    async def test_a_watch_tells_of_the_user_whichever_session_changes_him(self) -> None:
        session, other = self.session(user_id="ann"), self.session("other", user_id="ann")
        begin = await session.position()
        await other.user.update_preferences({"tone": "short"})
        await other.user.remember("trips", "Rome")
        await other.user.remember("trips", "Oslo")
        await other.update({"not": "told"})
        await self.session(user_id="ann").task.put({"goal": "g"})

        changes = await self.take(session, begin, 5)
        assert sorted(seen(changes), key=str) == [
            ("session", "created", "", None),
            ("task", "created", "task", None),
            ("user", "created", "preferences", None),
            ("user", "created", "trips", 0),
            ("user", "created", "trips", 1),
        ]
        of_user = [change for change in changes if change.part == "user"]
        assert [each.new for each in of_user] == [{"tone": "short"}, "Rome", "Oslo"]

    async def test_a_watch_goes_on_behind_any_position(self) -> None:
        session = self.session(user_id="ann")
        begin = await session.position()
        for number in range(3):
            await session.update({"n": number})
            await session.user.update_preferences({"n": number})
            await session.conversation.append(said(f"m{number}"))
        await session.end()
        await session.update({"n": 3})
        changes = await self.take(session, begin, 13)

        for index in range(len(changes)):
            again = await self.take(session, changes[index].position, len(changes) - index - 1)
            # What one batch changed is told again, unless all of it was told.
            rest = sorted(map(str, seen(changes[index + 1 :])))
            assert sorted(map(str, seen(again)))[: len(rest)] == rest or len(again) == len(rest)
        last = changes[-1].position
        await session.update({"n": 4})
        (change,) = await self.take(session, last, 1)
        assert (change.part, change.new) == ("state", {"n": 4})

    async def test_a_sweep_of_what_ended_is_no_change(self) -> None:
        session = self.session()
        await session.update({"n": 1})
        await session.end()
        begin = await session.position()
        await session.update({"n": 2})
        assert await self.sessions().sweep() == 1
        await session.update({"n": 3})

        changes = await self.take(session, begin, 3)
        assert seen(changes) == [
            ("session", "created", "", None),
            ("state", "created", "data", None),
            ("state", "updated", "data", None),
        ]

    async def test_a_watch_ends_when_another_user_becomes_the_owner(self) -> None:
        session = self.session()
        begin = await session.position()
        await session.update({"n": 1})
        await self.session(user_id="bob").update({"secret": 1})

        with pytest.raises(NotOwnerError):
            await self.take(session, begin, 3)
        with pytest.raises(NotOwnerError):
            await self.session(user_id="ann").position()

    async def test_no_other_user_hears_what_came_before_the_owner_of_an_ended_session(self) -> None:
        nobodys = self.session()
        unborn = await nobodys.position()
        await nobodys.update({"n": 1})
        unowned = await nobodys.position()
        await nobodys.conversation.append(said("before the login"))
        await self.session(user_id="ann").update({"n": 2})
        await self.session(user_id="ann").end()

        for begin in (unborn, unowned):
            with pytest.raises(NotOwnerError):
                await self.take(self.session(), begin, 1)

    async def test_what_is_no_position_of_the_session_is_refused(self) -> None:
        session, other = self.session(user_id="ann"), self.session("other", user_id="ann")
        await session.update({"n": 1})
        await other.update({"n": 1})
        position = await session.position()
        wrong: list[Any] = ["", "x", 7, f"{position}.1", position.rpartition(".")[0], f"{position}x"]
        for after in wrong:
            with pytest.raises(InvalidError):
                await self.take(session, after, 1)
        with pytest.raises(InvalidError):
            await self.take(self.session("plain"), position, 1)
        async with session.transaction() as inside:
            with pytest.raises(InvalidError):
                await inside.position()

    async def test_no_other_user_hears_of_an_ended_session_from_a_position_of_before(self) -> None:
        owned = self.session(user_id="ann")
        await owned.conversation.append(said("mine"))
        begin = await owned.position()
        await owned.conversation.append(said("secret"))
        await owned.end()
        position = ".".join([begin.split(".")[0], begin.rpartition(".")[2]])

        with pytest.raises(NotOwnerError):
            await self.take(self.session(), position, 1)
        assert [change.part for change in await self.take(owned, begin, 1)] == ["conversation"]
