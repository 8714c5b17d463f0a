"""The entries of a `Conversation`: ids that count once, pages, and messages that are removed."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from keepstate.errors import InvalidError, NotFoundError
from keepstate.sessions.conversation import Conversation
from tests.contracts.sessions.conversations import CALL, RESULT, said, texts
from tests.contracts.sessions.stage import SessionStage


class EntryContract(SessionStage):
    """What a `Conversation` stores with its messages, and how messages are removed."""

    async def numbered(self, count: int) -> Conversation:
        conversation = self.session().conversation
        await conversation.append(*(said(f"m{number}") for number in range(count)))
        return conversation

    async def test_an_entry_has_what_was_stored_with_its_message(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("a"), id="r/1", author="ann", meta={"tokens": 7, "via": ["web"]})
        await conversation.append(said("b"))
        await conversation.edit(0, "A")

        first, second = await conversation.page()
        assert (first.number, first.id, first.author) == (0, "r/1", "ann")
        assert (first.meta, first.status, first.message) == ({"tokens": 7, "via": ["web"]}, "done", said("A"))
        assert (second.number, second.id, second.meta) == (1, None, {})
        assert timedelta() <= second.at - first.at < timedelta(minutes=5) and second.at.tzinfo is not None
        assert await conversation.get_context() == [said("A"), said("b")]

    async def test_an_id_is_appended_once_whatever_it_says(self) -> None:
        conversation = self.session().conversation
        ids = ["1", "1/", "1%2F", "naïve 🦜", "x" * 300]
        numbers = [await conversation.append(said(id), id=id) for id in ids]
        again = [await conversation.append(said("again"), id=id) for id in ids]

        assert numbers == again == [0, 1, 2, 3, 4] and await texts(conversation) == ids
        fork = await conversation.fork("f")
        assert await fork.append(said("in the fork"), id="1") == 5
        await conversation.pop(5)
        assert await conversation.append(said("again"), id="1") == 0 and await conversation.count() == 0

    async def test_an_id_that_comes_many_times_at_once_is_appended_once(self) -> None:
        talks = [self.session("new").conversation for _ in range(20)]

        async def append(number: int) -> int:
            return await talks[number].append(said(f"{number % 5}"), id=f"{number % 5}")

        numbers = await self.together(*(append(number) for number in range(20)))

        conversation = self.session("new").conversation
        assert sorted(await texts(conversation)) == ["0", "1", "2", "3", "4"]
        for entry in await conversation.page():
            assert {numbers[n] for n in range(20) if f"{n % 5}" == entry.id} == {entry.number}

    async def test_of_many_requests_at_once_on_a_new_session_none_is_lost(self) -> None:
        talks = [self.session("busy", user_id="ann").conversation for _ in range(20)]

        async def ask(number: int) -> list[int]:
            talk = talks[number]
            return [await talk.append(said(f"{number}:{turn}"), id=f"{number}:{turn}") for turn in range(2)]

        numbers = await self.together(*(ask(number) for number in range(20)))

        entries = await self.session("busy", user_id="ann").conversation.page()
        assert [entry.number for entry in entries] == list(range(40))
        assert [
            [e.number for e in entries if e.id and e.id.startswith(f"{n}:")] for n in range(20)
        ] == numbers
        assert all(first < second for first, second in numbers)

    async def test_pages_lead_through_a_conversation_in_both_directions(self) -> None:
        conversation = await self.numbered(12)
        for number in (3, 4, 8):
            await conversation.delete(number)
        shown = [0, 1, 2, 5, 6, 7, 9, 10, 11]

        page = await conversation.page(limit=4)
        assert [entry.number for entry in page] == shown[-4:] and page.next is None
        back = await conversation.page(before=page.previous, limit=4)
        assert [entry.number for entry in back] == shown[1:5]
        first = await conversation.page(before=back.previous, limit=4)
        assert [entry.number for entry in first] == shown[:1] and first.previous is None
        there = await conversation.page(after=first.next, limit=4)
        assert [entry.number for entry in there] == shown[1:5]
        assert [entry.number for entry in await conversation.page(after=2, before=9)] == [5, 6, 7]
        assert await conversation.page(after=11) == [] == await self.session("absent").conversation.page()

    async def test_popped_messages_leave_the_conversation_and_the_context(self) -> None:
        conversation = await self.numbered(3)
        await conversation.append(CALL, RESULT)

        assert [entry.message for entry in await conversation.pop()] == [RESULT]
        assert (await conversation.get_context())[-1] == CALL
        assert await conversation.append(RESULT) == 5 and (await conversation.get_context())[-1] == RESULT
        assert [entry.number for entry in await conversation.pop(3)] == [2, 3, 5]
        assert await texts(conversation) == ["m0", "m1"] and await conversation.count() == 2
        assert [entry.number for entry in await conversation.pop(9)] == [0, 1]
        assert await conversation.pop() == [] == await conversation.get_context()
        assert await conversation.append(said("new")) == 6 and await conversation.window() == [said("new")]

    async def test_a_deleted_message_is_gone_from_all_that_reads(self) -> None:
        conversation = await self.numbered(3)
        await conversation.append(CALL, RESULT, said("m5"))
        await conversation.delete(1)
        await conversation.delete(3)

        assert [number async for number, _ in conversation.items()] == [0, 2, 4, 5]
        assert await conversation.get_context() == [said("m0"), said("m2"), said("m5")]
        assert await conversation.count() == 4 and await conversation.search("m1") == []
        assert await conversation.window(3) == [said("m2"), RESULT, said("m5")]
        for asking in (conversation.get(1), conversation.original(1), conversation.edit(1, "x")):
            with pytest.raises(NotFoundError, match="removed"):
                await asking
        assert await conversation.clear() == 4 and await conversation.count() == 0

    async def test_an_answer_is_replaced_in_one_batch(self) -> None:
        conversation = await self.numbered(3)

        assert await conversation.replace(1, [said("b"), said("c", "assistant")]) == [3, 4]
        assert await texts(conversation) == ["m0", "b", "c"]
        assert await conversation.get_context() == [said("m0"), said("b"), said("c", "assistant")]
        assert await conversation.replace(4, []) == [] and await texts(conversation) == ["m0", "b"]
        for wrong in ([{"content": "nobody"}], said("no list"), "text", [said("x")] * 401):
            with pytest.raises(InvalidError):
                await conversation.replace(0, wrong)  # type: ignore[arg-type]  # wrong on purpose
        for absent in (-1, 4, 5, True, "0"):
            with pytest.raises(NotFoundError):
                await conversation.replace(absent, [])  # type: ignore[arg-type]  # wrong on purpose
        assert await texts(conversation) == ["m0", "b"]

    async def test_a_long_context_is_cut_off_at_any_message(self) -> None:
        conversation = await self.numbered(70)
        await conversation.delete(20)
        await conversation.replace(40, [said("new")])

        kept = [said(f"m{number}") for number in range(40) if number != 20]
        assert await conversation.get_context() == [*kept, said("new")]
        await conversation.append(*(said(f"n{number}") for number in range(40)))
        assert len(await conversation.get_context()) == 80
        assert len(await self.session().conversation.within(50).get_context()) < 80
        await conversation.replace(0, [said("only")])
        assert await conversation.get_context() == [said("only")] == await conversation.window()

    async def test_forks_and_their_parents_remove_for_themselves(self) -> None:
        conversation = await self.numbered(4)
        await conversation.delete(1)
        fork = await conversation.fork("f", at=2)
        await fork.append(said("own"), said("own 2"), said("own 3"))
        await fork.delete(4)
        await fork.delete(0)
        await conversation.delete(2)

        assert await texts(fork) == ["m2", "own", "own 3"] and await texts(conversation) == ["m0", "m3"]
        assert [number async for number, _ in fork.items()] == [2, 3, 5]
        assert await conversation.merge("f") == 2 and await conversation.merge("f") == 0
        assert await texts(conversation) == ["m0", "m3", "own", "own 3"]
        with pytest.raises(NotFoundError):
            await conversation.fork("g", at=1)

    async def test_a_moment_before_a_removal_has_the_messages(self) -> None:
        session = self.session()
        conversation = session.conversation
        await conversation.append(said("a"), said("b"))
        await conversation.replace(1, [said("c")])

        assert [each["content"] for each in (await session.at("main~1")).messages] == ["a", "b"]
        assert [each["content"] for each in (await session.at()).messages] == ["a", "c"]

    async def test_what_is_no_argument_of_an_entry_is_refused(self) -> None:
        conversation = self.session().conversation
        wrong: list[Any] = [
            conversation.append(said("a"), id=""),
            conversation.append(said("a"), id=7),  # type: ignore[arg-type]  # wrong on purpose
            conversation.append(said("a"), said("b"), id="one"),
            conversation.append(said("a"), author=7),  # type: ignore[arg-type]  # wrong on purpose
            conversation.append(said("a"), meta="x"),  # type: ignore[arg-type]  # wrong on purpose
            conversation.append(said("a"), meta={1: "x"}),  # type: ignore[dict-item]  # wrong on purpose
            conversation.append(said("a"), meta={"x": object()}),
            conversation.page(limit=0),
            conversation.page(before="x"),
            conversation.page(after=-1),
            conversation.pop(0),
            conversation.pop(401),
        ]
        for asking in wrong:
            with pytest.raises(InvalidError):
                await asking
        with pytest.raises(NotFoundError):
            await conversation.delete(0)
        assert await conversation.count() == 0
