"""Replies of a `Conversation`: followed while they are said, stopped from elsewhere, and never half lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from typing import Any, cast

import pytest

from keepstate.errors import AlreadyExistsError, ConflictError, InvalidError, LeaseLostError
from keepstate.sessions.conversation import Conversation
from keepstate.sessions.following import ChatChange
from keepstate.sessions.replies import ReplyStream
from tests.contracts.sessions.conversations import said, texts
from tests.contracts.sessions.stage import SessionStage


class Screen:
    """What a reader of a conversation has before it, from the changes that it was told."""

    def __init__(self, changes: Iterable[ChatChange] = ()) -> None:
        self.messages: dict[int, tuple[str, str]] = {}
        self.saying: str | None = None
        for change in changes:
            self.apply(change)

    def apply(self, change: ChatChange) -> None:
        if change.kind == "started":
            self.saying = change.text
        elif change.kind == "delta":
            assert self.saying is not None
            self.saying += change.text
        elif change.kind == "removed" and change.number is None:
            self.saying = None
        elif change.kind == "removed":
            assert change.number is not None
            self.messages.pop(change.number, None)
        else:
            assert change.number is not None and change.entry is not None
            if change.entry.message["role"] == "assistant":
                self.saying = None
            self.messages[change.number] = change.entry.status, change.text


async def told(
    follower: AsyncGenerator[ChatChange], changes: list[ChatChange], until: Callable[[Screen], bool]
) -> Screen:
    """Take changes until what a reader sees fulfils a condition, and return that."""
    screen = Screen(changes)
    while not until(screen):
        changes.append(await anext(follower))
        screen.apply(changes[-1])
    return screen


class ReplyContract(SessionStage):
    """What a reply does, whatever the conversation is kept in."""

    def follow(self, conversation: Conversation, **options: Any) -> AsyncGenerator[ChatChange]:
        return cast("AsyncGenerator[ChatChange]", conversation.follow(**options))

    async def first(self, conversation: Conversation, **options: Any) -> ChatChange:
        async with aclosing(self.follow(conversation, **options)) as follower:
            return await anext(follower)

    async def abandoned(self, conversation: Conversation, text: str) -> ReplyStream:
        """Begin a reply as a process does that is killed in the middle of it."""
        await conversation.append(said("Hello"))
        stream = await ReplyStream.of(conversation._store)  # pyright: ignore[reportPrivateUsage]
        assert stream is not None
        await stream.space.leases.acquire(stream.lease_name, 0.3)
        started = await stream.start("r1", "model")
        await stream.append(started.last, text)
        return stream

    async def test_a_reply_becomes_a_message_when_its_block_ends(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        async with conversation.reply(id="r1", author="model", flush_s=0.01) as reply:
            for delta in ("Good ", "", "morning"):
                await reply.write(delta)
            reply.meta["tokens"] = 2
            assert reply.text == "Good morning" and not reply.stopped and reply.id == "r1"
            assert await conversation.count() == 1

        (entry,) = await conversation.page(after=0)
        assert (entry.number, entry.id, entry.author, entry.status) == (1, "r1", "model", "done")
        assert entry.message == said("Good morning", "assistant") and entry.meta == {"tokens": 2}
        assert (await conversation.get_context())[-1] == said("Good morning", "assistant")
        stream = await ReplyStream.of(conversation._store)  # pyright: ignore[reportPrivateUsage]
        assert stream is not None and [name async for name in stream.space.events.streams()] == []

    async def test_followers_hear_a_reply_grow_and_a_late_one_the_text_so_far(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        early, late = self.follow(conversation), self.follow(conversation, after=0)
        first: list[ChatChange] = []
        second: list[ChatChange] = []
        await told(early, first, lambda screen: 0 in screen.messages)
        async with conversation.reply(flush_s=0.01) as reply:
            await reply.write("Good ")
            await told(early, first, lambda screen: screen.saying == "Good ")
            await told(late, second, lambda screen: screen.saying == "Good ")
            assert [change.kind for change in second] == ["started"]
            await conversation.append(said("Wait", "user"))
            await reply.write("morning")
            await told(late, second, lambda screen: screen.saying == "Good morning")
        screen = await told(early, first, lambda screen: 2 in screen.messages)

        assert screen.messages == {0: ("done", "Hello"), 1: ("done", "Wait"), 2: ("done", "Good morning")}
        assert screen.saying is None and first[-1].id == reply.id
        assert [change.kind for change in first if change.kind != "delta"] == ["message", "started"] + 2 * [
            "message"
        ]
        plain = self.follow(conversation, after=1, deltas=False)
        async with conversation.reply() as reply:
            await reply.write("Yes")
        assert [(await anext(plain)).text, (await anext(plain)).text] == ["Good morning", "Yes"]
        for follower in (early, late, plain):
            await follower.aclose()

    async def test_a_follower_goes_on_exactly_behind_any_change(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        follower, changes = self.follow(conversation), list[ChatChange]()
        async with conversation.reply(flush_s=0.01) as reply:
            for word in ("a ", "b ", "c "):
                await reply.write(word)
                await told(follower, changes, lambda screen: (screen.saying or "").endswith(reply.text[-2:]))
            for index in range(len(changes)):
                again = self.follow(conversation, after=changes[index].position)
                screen = await told(again, changes[: index + 1], lambda screen: screen.saying == "a b c ")
                assert screen.messages == {0: ("done", "Hello")}
                await again.aclose()
        await conversation.append(said("Thanks"))
        await told(follower, changes, lambda screen: 2 in screen.messages)
        await conversation.edit(0, "Hi")
        await conversation.delete(2)
        await told(follower, changes, lambda screen: screen.messages.get(0, ("", ""))[1] == "Hi")
        screen = await told(follower, changes, lambda screen: 2 not in screen.messages)
        assert screen.messages == {0: ("done", "Hi"), 1: ("done", "a b c ")}
        for index in range(len(changes)):
            again = self.follow(conversation, after=changes[index].position)
            seen = list(changes[: index + 1])
            await told(
                again, seen, lambda screen: screen.messages == {0: ("done", "Hi"), 1: ("done", "a b c ")}
            )
            await again.aclose()
        await conversation.clear()
        assert (await told(follower, changes, lambda screen: not screen.messages)).saying is None
        await follower.aclose()

    async def test_a_reply_is_stopped_from_elsewhere(self) -> None:
        conversation, elsewhere = self.session().conversation, self.session().conversation
        await conversation.append(said("Hello"))
        follower, changes = self.follow(elsewhere), list[ChatChange]()
        async with conversation.reply(flush_s=0.01) as reply:
            await reply.write("One ")
            await told(follower, changes, lambda screen: screen.saying == "One ")
            assert await elsewhere.stop(by="ann")
            while not reply.stopped:
                await reply.write("two ")
                await reply._runner.sleep(0.01)  # pyright: ignore[reportPrivateUsage]
            await reply.write("three")

        screen = await told(follower, changes, lambda screen: 1 in screen.messages)
        assert screen.messages[1] == ("stopped", "One ") and changes[-1].kind == "stopped"
        entry = (await conversation.page())[-1]
        assert (entry.status, entry.meta) == ("stopped", {"stopped_by": "ann"})
        assert (await conversation.get_context())[-1] == said("One ", "assistant")
        assert not await elsewhere.stop(by="ann") and not await self.session("absent").conversation.stop(
            by="x"
        )
        await follower.aclose()

    async def test_an_error_keeps_what_was_said_as_failed(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        with pytest.raises(ZeroDivisionError):
            async with conversation.reply(flush_s=5) as reply:
                await reply.write("Half of")
                raise ZeroDivisionError
        async with conversation.reply():
            pass

        failed, empty = await conversation.page(after=0)
        assert (failed.status, failed.message["content"]) == ("failed", "Half of")
        assert (empty.status, empty.message["content"]) == ("done", "")
        assert await conversation.get_context() == [said("Hello")]
        kinds = [(await self.first(conversation, after=number)).kind for number in (0, 1)]
        assert kinds == ["failed", "message"]

    async def test_one_reply_is_written_at_a_time(self) -> None:
        conversation = self.session().conversation
        async with conversation.reply(id="r1") as reply:
            await reply.write("Yes")
            with pytest.raises(ConflictError, match="being written"):
                async with self.session().conversation.reply():
                    raise AssertionError("two replies at once")
            fork = await self.forked()
            async with fork.reply() as other:
                await other.write("No")
        with pytest.raises(AlreadyExistsError):
            async with conversation.reply(id="r1"):
                raise AssertionError("one id, two replies")
        assert (await texts(conversation))[-1] == "Yes" and (await texts(fork))[-1] == "No"

    async def forked(self) -> Conversation:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        return await conversation.fork("f")

    async def test_a_reply_of_a_killed_process_is_told_as_failed(self) -> None:
        conversation = self.session().conversation
        stream = await self.abandoned(conversation, "Half of")
        follower, changes = self.follow(conversation), list[ChatChange]()
        screen = await told(follower, changes, lambda screen: 1 in screen.messages)

        assert screen.messages[1] == ("failed", "Half of") and changes[-1].id == "r1"
        assert [change.kind for change in changes] in (
            ["message", "started", "failed"],
            ["message", "failed"],  # its lease ended before the first look
        )
        assert await stream.read() is None and await texts(conversation) == ["Hello", "Half of"]
        await follower.aclose()

    async def test_the_next_reply_ends_one_of_a_killed_process(self) -> None:
        conversation = self.session().conversation
        await self.abandoned(conversation, "Half of")
        while True:
            try:
                async with conversation.reply() as reply:
                    await reply.write("Whole")
                break
            except ConflictError:
                await reply_wait(conversation)

        entries = await conversation.page(after=0)
        assert [(entry.status, entry.message["content"]) for entry in entries] == [
            ("failed", "Half of"),
            ("done", "Whole"),
        ]

    async def test_the_id_of_a_failed_reply_may_be_used_again_whoever_ended_it(self) -> None:
        conversation = self.session().conversation
        await self.abandoned(conversation, "Half of")
        follower, changes = self.follow(conversation), list[ChatChange]()
        await told(follower, changes, lambda screen: 1 in screen.messages)  # the follower ended it
        await follower.aclose()
        with pytest.raises(ZeroDivisionError):
            async with conversation.reply(id="r1") as reply:
                await reply.write("More than half of")
                raise ZeroDivisionError

        async with conversation.reply(id="r1") as reply:
            await reply.write("Whole")
        with pytest.raises(AlreadyExistsError):
            async with conversation.reply(id="r1"):
                raise AssertionError("one id, two replies that did not fail")
        assert [entry.status for entry in await conversation.page(after=0)] == ["failed", "failed", "done"]

    async def test_a_reply_of_a_session_that_ends_meanwhile_ends_with_it(self) -> None:
        session = self.session()
        await session.conversation.append(said("Hello"))
        streams: list[ReplyStream] = []
        with pytest.raises(LeaseLostError):
            async with session.conversation.reply(flush_s=0.01) as reply:
                await reply.write("Half of")
                stream = reply._stream  # pyright: ignore[reportPrivateUsage]
                streams.append(stream)
                while await stream.space.events.last(stream.name) == reply._active.last:  # pyright: ignore[reportPrivateUsage]
                    await reply_wait(session.conversation)
                await session.end()
                assert not await session.conversation.stop(by="ann")
                await session.conversation.append(said("Hello again"))
                assert not await session.conversation.stop(by="ann")

        assert await texts(session.conversation) == ["Hello again"]
        assert [name async for name in streams[0].space.events.streams()] == []

    async def test_a_sweep_deletes_what_a_killed_writer_said_in_a_session_that_ended(self) -> None:
        session = self.session()
        stream = await self.abandoned(session.conversation, "Half of")
        await session.end()
        await session.conversation.append(said("Hello again"))
        assert [name async for name in stream.space.events.streams()] == [stream.name]
        assert await session.sweep() > 0

        assert [name async for name in stream.space.events.streams()] == []
        with pytest.raises(ConflictError, match="has ended"):
            await stream.space.events.append({"id": "r1", "author": None}, stream=stream.name)
            await stream.start("r2", None)

    async def test_a_stop_keeps_up_with_a_writer_that_goes_on(self) -> None:
        conversation = self.session().conversation
        stream = await self.abandoned(conversation, "Half of")
        active = await stream.read()
        assert active is not None
        last = await stream.append(active.last, " it")
        again = await stream.read_on(active)
        assert again is not None and (again.text, again.last) == ("Half of it", last)
        await stream.end(last, again.addition("stopped", {}))
        assert await stream.read_on(again) is None

    @pytest.mark.parametrize("has_next", [False, True])
    async def test_a_reply_whose_message_is_removed_at_once_leaves_the_screen(self, has_next: bool) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        follower, changes = self.follow(conversation), list[ChatChange]()
        async with conversation.reply(id="r1", flush_s=0.01) as reply:
            await reply.write("Wrong")
            await told(follower, changes, lambda screen: screen.saying == "Wrong")
        await conversation.pop()
        if has_next:
            async with conversation.reply(id="r2", flush_s=0.01) as reply:
                await reply.write("Right")
                screen = await told(follower, changes, lambda screen: screen.saying == "Right")
        else:
            screen = await told(follower, changes, lambda screen: screen.saying is None)

        assert screen.messages == {0: ("done", "Hello")}
        removed = [change for change in changes if change.kind == "removed"]
        assert [(change.number, change.id) for change in removed] == [(None, "r1")]
        await follower.aclose()

    async def test_a_writer_that_lost_its_reply_is_told(self) -> None:
        conversation = self.session().conversation
        await conversation.append(said("Hello"))
        with pytest.raises(LeaseLostError):
            async with conversation.reply(flush_s=0.01) as reply:
                await reply.write("Half of")
                stream = await ReplyStream.of(conversation._store)  # pyright: ignore[reportPrivateUsage]
                assert stream is not None
                active = await stream.read()
                while active is None or active.text != "Half of":
                    active = await stream.read()
                await stream.end(active.last, active.addition("failed", {}))
                while True:
                    await reply.write("more")
                    await reply._runner.sleep(0.01)  # pyright: ignore[reportPrivateUsage]
        assert await texts(conversation) == ["Hello", "Half of"]

    async def test_a_follower_of_a_session_that_ended_hears_the_next_one(self) -> None:
        session = self.session()
        await session.conversation.append(said("before"))
        follower = self.follow(session.conversation)
        assert (await anext(follower)).text == "before"
        await session.end()
        await session.conversation.append(said("after"))

        change = await anext(follower)
        assert (change.kind, change.number, change.text) == ("message", 0, "after")
        await follower.aclose()

    async def test_what_is_no_argument_of_a_reply_is_refused(self) -> None:
        conversation = self.session().conversation
        wrong: list[dict[str, Any]] = [{"id": ""}, {"id": 7}, {"author": 7}, {"flush_s": 0}, {"lease_s": 0}]
        for options in wrong:
            with pytest.raises(InvalidError):
                async with conversation.reply(**options):
                    raise AssertionError("it began")
        await conversation.append(said("a"))
        for after in (-1, "x", 1.5, True):
            with pytest.raises(InvalidError):
                await self.first(conversation, after=after)
        with pytest.raises(InvalidError, match="of another"):
            position = (await self.first(conversation)).position
            other = self.session("other").conversation
            await other.append(said("b"))
            await self.first(other, after=position)
        with pytest.raises(InvalidError):
            await conversation.stop(by="")
        async with conversation.reply() as reply:
            with pytest.raises(InvalidError):
                await reply.write(b"bytes")  # type: ignore[arg-type]  # wrong on purpose
        assert (await conversation.page())[-1].status == "done"


async def reply_wait(conversation: Conversation) -> None:
    """Wait for a moment, as a client does before it asks again."""
    await conversation._store.namespace.runner.sleep(0.05)  # pyright: ignore[reportPrivateUsage]
