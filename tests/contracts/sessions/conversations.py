"""`Conversation`: every message is kept, what a model sees has a budget, and a fork copies nothing."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import AlreadyExistsError, InvalidError, MergeConflictError, NotFoundError
from keepstate.sessions.conversation import Conversation
from tests.contracts.sessions.stage import SessionStage


def said(content: str, role: str = "user") -> dict[str, Any]:
    """Return a message."""
    return {"role": role, "content": content}


CALL = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "function": {"name": "search"}}]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "three flights"}


async def texts(conversation: Conversation) -> list[str]:
    """Return what is said in a conversation."""
    return [message["content"] async for message in conversation.messages()]


class ConversationContract(SessionStage):
    """What a `Conversation` does, whatever it is kept in."""

    async def talk(self, *contents: str) -> Conversation:
        conversation = self.session().conversation
        for content in contents:
            await conversation.append(said(content))
        return conversation

    async def test_messages_have_numbers_in_the_order_in_which_they_came(self) -> None:
        conversation = await self.talk("a", "b")

        assert await conversation.append(said("c"), said("d")) == 3
        assert [item async for item in conversation.items(after=1)] == [(2, said("c")), (3, said("d"))]
        assert await conversation.window(2) == [said("c"), said("d")] and await conversation.count() == 4
        assert await conversation.get(0) == said("a")
        with pytest.raises(InvalidError):
            await conversation.append(said("e"), {"content": "nobody says this"})
        assert await conversation.count() == 4

    async def test_an_edit_stands_in_the_place_of_a_message_that_stays(self) -> None:
        conversation = await self.talk("a", "b", "c")
        await conversation.edit(1, "B")
        await conversation.edit(2, said("C", "assistant"))
        await conversation.edit(1, "BB")

        assert await texts(conversation) == ["a", "BB", "C"]
        assert await conversation.get_context() == [said("a"), said("BB"), said("C", "assistant")]
        assert await conversation.original(1) == said("b")
        for absent in (-1, 3, True, "1"):
            with pytest.raises(NotFoundError):
                await conversation.edit(absent, "x")  # type: ignore[arg-type]  # wrong on purpose
        await conversation.append(CALL, RESULT)
        with pytest.raises(InvalidError, match="tool calls"):
            await conversation.edit(3, said("no call"))
        await conversation.edit(4, {**RESULT, "content": "two flights"})
        assert (await conversation.get_context())[-1]["content"] == "two flights"

    async def test_the_context_stays_within_its_budget_also_when_edited(self) -> None:
        conversation = self.session().conversation.within(100)
        for number in range(30):
            await conversation.append(said(f"message number {number}"))
        await conversation.edit(29, "x" * 200)

        assert 0 < await conversation.context_tokens() <= 100
        assert (await conversation.get_context())[-1] == said("x" * 200)
        assert len(await conversation.get_context(60)) < len(await conversation.get_context())
        assert len(await texts(conversation)) == 30

    @pytest.mark.parametrize("reads", range(5))
    async def test_a_context_is_of_one_moment_however_others_write_meanwhile(self, reads: int) -> None:
        store, mine, others = await self.beside_others(f"s{reads}")
        conversation = mine.conversation.within(2_000)
        await conversation.append(*(said(f"m{number} {'x' * 40}") for number in range(15)))
        await conversation.append(CALL, RESULT, *(said(f"later {number}") for number in range(3)))
        await conversation.edit(17, "later, edited")

        async def much() -> None:
            for _ in range(20):
                await others.conversation.within(2_000).append(said("y" * 1_600))

        async def edited() -> None:
            await others.conversation.within(2_000).edit(17, "z" * 7_000)

        for write in (edited, much):
            before = await conversation.get_context()
            store.meanwhile, store.after_reads = write, reads
            found = await conversation.get_context()
            if store.meanwhile is not None:  # so many reads are not needed
                store.meanwhile = None
                await write()
            assert found in (before, await conversation.get_context())

    async def test_summaries_stand_for_what_has_left(self) -> None:
        def summarise(messages: list[dict[str, Any]]) -> str:
            return f"{len(messages)} messages"

        conversation = self.session().conversation.within(300, summarise=summarise)
        for number in range(40):
            await conversation.append(said(f"And what about flight number {number}?"))

        assert (await conversation.get_context())[0] == said("11 messages", "system")
        assert not await conversation.summarise()

    @pytest.mark.parametrize("way", ["cleared", "ended"])
    async def test_a_summary_of_what_was_cleared_or_ended_meanwhile_is_dropped(self, way: str) -> None:
        session, given, number = self.session(), list[int](), -1

        async def told() -> str:
            await (session.end() if way == "ended" else session.conversation.clear())
            return "your secret"

        def summarise(messages: list[dict[str, Any]]) -> Any:
            given.append(len(messages))
            return told() if self.mode_name == "async" else finish(told())

        conversation = session.conversation.within(300, summarise=summarise)
        while not given:
            number = await conversation.append(said("This is my secret, tell nobody else."))

        assert await conversation.get_context() == [] and await conversation.count() == 0
        assert await session.is_new() == (way == "ended")
        assert await conversation.append(said("hello")) == (0 if way == "ended" else number + 1)
        assert await conversation.get_context() == [said("hello")] and len(given) == 1

    async def test_search_finds_all_words_in_text_and_in_blocks_from_the_newest(self) -> None:
        conversation = await self.talk("A flight to Rome", "yes", "ROME  again, by Flights")
        blocks = [
            {"type": "text", "text": "Rome, then"},
            {"type": "image_url", "image_url": {"url": "rome.png"}},
        ]
        await conversation.append({"role": "assistant", "content": blocks}, CALL, RESULT)
        await conversation.edit(0, "A flight to Oslo")

        async def found(text: str, **options: Any) -> list[int]:
            return [entry.number for entry in await conversation.search(text, **options)]

        assert await found("rome") == [3, 2] and await found("flight rome") == [2]
        assert await found("rome", role="assistant") == [3]
        assert await found("ome") == [] == await found("search") and await found('"me again"') == []
        assert await found('"rome again"') == [2] and await found('"again rome') == []
        assert await found("three") == [5] and await found("") == [5, 4, 3, 2, 1, 0]
        first = await conversation.search("o", limit=1)
        assert [entry.message["content"] for entry in first] == ["A flight to Oslo"] and first.next is None
        page = await conversation.search("rome", limit=1)
        assert [entry.number for entry in page] == [3] and await found("rome", after=page.next) == [2]

    async def test_a_page_of_a_search_looks_at_so_many_messages(self) -> None:
        conversation = self.session().conversation.within(200)
        await conversation.append(said("the needle"))
        for _ in range(6):
            await conversation.append(*(said(f"hay {number}") for number in range(350)))

        page = await conversation.search("needle")
        assert page == [] and page.next == "101"
        page = await conversation.search("needle", after=page.next)
        assert [entry.number for entry in page] == [0] and page.next is None

    async def test_a_cleared_conversation_begins_anew(self) -> None:
        conversation = await self.talk("a", "b")

        assert await conversation.clear() == 2 and await conversation.clear() == 0
        assert await texts(conversation) == [] == await conversation.get_context()
        assert await conversation.append(said("c")) == 2
        assert await texts(conversation) == ["c"]
        with pytest.raises(NotFoundError):
            await conversation.get(1)

    # ---- forks

    async def test_a_fork_goes_its_own_way_from_any_message(self) -> None:
        conversation = await self.talk("hello", "book a flight", "to Rome")
        await conversation.edit(0, "Hello!")
        fork = await conversation.fork("what if", at=1)
        await fork.append(said("to Oslo"))
        await fork.edit(1, "book a train")
        await conversation.edit(0, "HELLO")

        assert await texts(conversation) == ["HELLO", "book a flight", "to Rome"]
        assert await texts(fork) == ["Hello!", "book a train", "to Oslo"]
        assert await fork.get_context() == [said("Hello!"), said("book a train"), said("to Oslo")]
        deeper = await fork.fork("deeper", at=1)
        await deeper.append(said("to Bergen"))
        assert await texts(deeper) == ["Hello!", "book a train", "to Bergen"]
        assert await texts(self.session().conversation.get_fork("what if")) == await texts(fork)
        assert await deeper.original(1) == said("book a flight")

    async def test_a_merge_brings_a_fork_back_once(self) -> None:
        conversation = await self.talk("hello", "book a flight")
        fork = await conversation.fork("other")
        await fork.append(said("to Oslo"), said("tomorrow"))
        await fork.edit(0, "hi")
        await conversation.append(said("to Rome"))

        assert await conversation.merge("other") == 2
        assert await texts(conversation) == ["hi", "book a flight", "to Rome", "to Oslo", "tomorrow"]
        assert await conversation.merge("other") == 0
        await fork.append(said("at noon"))
        assert await conversation.merge("other") == 1
        assert (await texts(conversation))[-1] == "at noon"

    async def test_a_fork_is_told_of_by_one_message_with_a_link(self) -> None:
        conversation = await self.talk("hello", "book a flight", "to Rome")
        fork = await conversation.fork("what/if", at=1)
        await fork.append(said("to Oslo"), said("tomorrow"))

        again = self.session().conversation.get_fork("what/if")
        numbers = [
            await each.merge_back(summary="Oslo is full.", author="ann") for each in (fork, again, fork)
        ]
        assert numbers == [3, 3, 3] and await texts(conversation) == [
            *("hello", "book a flight", "to Rome", "Oslo is full."),
        ]
        (entry,) = await conversation.page(after=2)
        assert entry.message == said("Oslo is full.", "assistant") and entry.author == "ann"
        assert entry.meta == {"fork": {"name": "what/if", "at": 1, "last": 3}}
        assert (await conversation.get_context())[-1] == entry.message
        await conversation.delete(3)
        assert await fork.merge_back(summary="again") == 3 and await conversation.count() == 3
        await fork.append(said("or by train"))
        assert await again.merge_back(summary=said("The train goes.", "user")) == 4
        assert (await conversation.page(after=3))[0].meta["fork"]["last"] == 4
        await fork.edit(2, "to Bergen")
        assert await fork.merge_back(summary="Bergen") == 5 and await conversation.merge("what/if") == 3

    async def test_forks_of_forks_tell_their_parents_also_in_a_transaction(self) -> None:
        session = self.session()
        await session.conversation.append(said("hello"))
        inner = await (await session.conversation.fork("outer")).fork("inner")
        with pytest.raises(RuntimeError):
            async with session.transaction() as inside:
                await inside.conversation.get_fork("inner").merge_back(summary="lost")
                raise RuntimeError
        async with session.transaction() as inside:
            assert await inside.conversation.get_fork("inner").merge_back(summary="kept") == 1

        assert await inner.merge_back(summary="once") == 1
        assert await texts(session.conversation.get_fork("outer")) == ["hello", "kept"]
        assert await texts(session.conversation) == ["hello"]

    async def test_one_message_tells_of_a_fork_however_many_ask_beside_writers(self) -> None:
        conversation = await self.talk("hello")
        fork = await conversation.fork("f")
        forks = [self.session().conversation.get_fork("f") for _ in range(6)]

        async def tell(number: int) -> int:
            await self.session().conversation.append(said(f"m{number}"))
            return await forks[number].merge_back(summary="told")

        numbers = await self.together(*(tell(number) for number in range(6)))

        assert len(set(numbers)) == 1 and (await texts(conversation)).count("told") == 1
        assert await conversation.count() == 8 and await fork.merge_back(summary="x") == numbers[0]

    async def test_what_cannot_be_merged_back_is_refused(self) -> None:
        conversation = await self.talk("hello")
        fork = await conversation.fork("f")
        for asking in (conversation.merge_back(summary="x"), fork.merge_back(summary={"content": "x"})):
            with pytest.raises(InvalidError):
                await asking
        with pytest.raises(NotFoundError):
            await conversation.get_fork("g").merge_back(summary="x")
        assert await texts(conversation) == ["hello"]

    async def test_what_both_have_edited_is_a_conflict_unless_a_side_is_preferred(self) -> None:
        conversation = await self.talk("a", "b", "c")
        fork = await conversation.fork("f")
        for number, ours, theirs in ((0, "A1", "A2"), (1, "same", "same")):
            await conversation.edit(number, ours)
            await fork.edit(number, theirs)
        await fork.edit(2, "C2")

        with pytest.raises(MergeConflictError) as refused:
            await conversation.merge("f")
        assert [conflict.path for conflict in refused.value.conflicts] == [(0,)]
        assert await texts(conversation) == ["A1", "same", "c"]
        await conversation.merge("f", prefer="ours")
        assert await texts(conversation) == ["A1", "same", "C2"]
        await fork.edit(0, "A3")
        await conversation.merge("f")
        assert await texts(conversation) == ["A3", "same", "C2"]
        await conversation.edit(2, "C3")  # of which the fork knows nothing, as of its own edit all is merged
        assert await conversation.merge("f") == 0
        assert await texts(conversation) == ["A3", "same", "C3"]

    async def test_what_is_no_fork_is_told_so(self) -> None:
        conversation = self.session().conversation
        with pytest.raises(NotFoundError):
            await conversation.fork("f")
        await conversation.append(said("a"))
        fork = await conversation.fork("f")
        inner = await fork.fork("inner")

        with pytest.raises(AlreadyExistsError):
            await conversation.fork("f")
        for asking in (
            conversation.fork("g", at=1),
            conversation.merge("g"),
            conversation.merge("inner"),
            conversation.get_fork("g").append(said("x")),
            conversation.get_fork("g").count(),
        ):
            with pytest.raises(NotFoundError):
                await asking
        with pytest.raises(NotFoundError, match="Fork 'g/1' does not exist in"):
            await conversation.get_fork("g/1").count()
        for wrong in ("", "n" * 101, 7):
            with pytest.raises(InvalidError):
                conversation.get_fork(wrong)  # type: ignore[arg-type]  # wrong on purpose
        assert await texts(inner) == ["a"]

    async def test_what_both_have_answered_is_answered_once_in_the_context(self) -> None:
        conversation = self.session().conversation
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a"}]}
        await conversation.append(said("Book"), call)
        fork = await conversation.fork("f")
        for talk, text in ((conversation, "ours"), (fork, "theirs")):
            await talk.append({"role": "tool", "tool_call_id": "a", "content": text})
        await fork.append(said("Thanks"))

        assert await conversation.merge("f") == 2
        assert await texts(conversation) == ["Book", None, "ours", "theirs", "Thanks"]
        context = [message["content"] for message in await conversation.get_context()]
        assert context == ["Book", None, "ours", "Thanks"]

    async def test_a_context_of_many_pages_is_cleared_and_forked(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Rules", "system"), *(said(f"m{n}") for n in range(70)))
        fork = await conversation.fork("f")
        earlier = await conversation.fork("earlier", at=40)
        assert await conversation.clear() == 71
        await conversation.append(*(said(f"n{n}") for n in range(20)))

        assert [each["content"] for each in await conversation.get_context()] == [f"n{n}" for n in range(20)]
        assert len(await fork.get_context()) == 71 and len(await earlier.get_context()) == 41
        await fork.append(said("more"))
        assert (await fork.get_context())[-2:] == [said("m69"), said("more")]

    async def test_what_is_no_argument_of_a_conversation_is_refused(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("a"))
        # wrong on purpose
        for wrong in (conversation.search(3), conversation.search("a", role=4), conversation.edit(0, 7)):  # type: ignore[arg-type]
            with pytest.raises(InvalidError):
                await wrong
        for text in ("x" * 1_001, " ".join(map(str, range(33)))):
            with pytest.raises(InvalidError):
                await conversation.search(text)
        for after in ("x", -1, True):
            with pytest.raises(InvalidError):
                # wrong on purpose
                [each async for each in conversation.items(after=after)]  # type: ignore[arg-type]
        assert await texts(conversation) == ["a"]

    async def test_a_fork_s_context_has_the_system_and_pinned_messages(self) -> None:
        conversation = self.session().conversation.within(120)
        await conversation.append(said("You book flights.", "system"))
        await conversation.append(said("I must not pay more than 500."), pinned=True)
        for number in range(20):
            await conversation.append(said(f"message number {number}"))
        fork = await conversation.fork("f", at=10)

        context = await fork.get_context()
        assert context[:2] == [await conversation.get(0), await conversation.get(1)]
        assert context[-1] == said("message number 8") and await fork.context_tokens() <= 120
