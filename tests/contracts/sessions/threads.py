"""`Threads`: made once by id, read by cursors in the order in which messages came."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from keepstate.errors import InvalidError, NotFoundError
from tests.contracts.sessions.stage import IDS, SessionStage


class ThreadContract(SessionStage):
    """What `Threads` do, whatever they are kept in."""

    async def test_threads_are_made_read_changed_and_removed(self) -> None:
        threads = self.threads()
        thread = await threads.create(
            messages=[{"role": "user", "content": "Help me book a flight"}], metadata={"user": "u1"}
        )
        assert await self.threads().retrieve(thread.id) == thread
        assert thread.metadata == {"user": "u1"} and thread.created_at.tzinfo is not None
        assert (await threads.update(thread.id, metadata={"user": "u2"})).metadata == {"user": "u2"}
        assert [message.content for message in (await threads.messages.list(thread.id)).data] == [
            "Help me book a flight"
        ]

        assert await threads.delete(thread.id)
        assert not await threads.delete(thread.id)
        for asking in (
            threads.retrieve(thread.id),
            threads.update(thread.id, metadata={}),
            threads.messages.list(thread.id),
            threads.messages.create(thread.id, role="user", content="x"),
            threads.messages.delete(thread.id, "m"),
        ):
            with pytest.raises(NotFoundError):
                await asking
        anew = await threads.create(thread.id)
        assert anew.metadata == {} and (await threads.messages.list(thread.id)).data == []

    async def test_what_is_sent_again_under_its_id_is_there_once(self) -> None:
        threads, create = self.threads(), self.threads().messages.create
        first = await threads.create("t", messages=[{"role": "user", "content": "a", "id": "m0"}])
        assert await threads.create("t", messages=[{"role": "user", "content": "again"}]) == first
        message = await create("t", role="user", content="b", id="m1", metadata={"n": 1})
        assert await create("t", role="user", content="other", id="m1") == message
        sent = [create("t", role="user", content="c", id="m2") for _ in range(3)]

        assert len({answer.id for answer in await self.together(*sent)}) == 1
        page = await threads.messages.list("t", order="asc")
        assert [(each.id, each.content) for each in page.data] == [("m0", "a"), ("m1", "b"), ("m2", "c")]

    async def test_pages_go_both_ways_from_any_message(self) -> None:
        threads = self.threads()
        await threads.create("t", messages=[{"role": "user", "content": n, "id": str(n)} for n in range(10)])
        for gone in ("3", "6"):
            assert await threads.messages.delete("t", gone)
        assert not await threads.messages.delete("t", "3")
        left = [0, 1, 2, 4, 5, 7, 8, 9]

        orders: list[tuple[Literal["asc", "desc"], list[int]]] = [("asc", left), ("desc", left[::-1])]
        for order, all_of in orders:
            for limit in (1, 3, 8, 100):
                seen: list[Any] = []
                after: str | None = None
                while True:
                    page = await threads.messages.list("t", limit=limit, order=order, after=after)
                    seen += [message.content for message in page.data]
                    assert page.has_more == (len(seen) < len(all_of))
                    if not page.has_more:
                        break
                    after = page.last_id
                assert seen == all_of
            page = await threads.messages.list("t", limit=3, order=order, before=str(all_of[5]))
            assert [message.content for message in page.data] == all_of[2:5] and page.has_more
            assert page.first_id == str(all_of[2])
            between = await threads.messages.list(
                "t",
                order=order,
                after=str(all_of[1]),
                before=str(all_of[6]),
            )
            assert [message.content for message in between.data] == all_of[2:6] and not between.has_more
        with pytest.raises(NotFoundError):
            await threads.messages.list("t", after="3")

    async def test_a_message_keeps_what_it_was_given(self) -> None:
        threads, parts = self.threads(), [{"type": "text", "text": "hi"}, {"type": "image", "data": b"\x89"}]
        await threads.create("t")
        made = await threads.messages.create("t", role="user", content=parts, metadata={"k": (1,)})

        assert await threads.messages.retrieve("t", made.id) == made
        assert (made.content, made.metadata, made.thread_id) == (parts, {"k": (1,)}, "t")
        changed = await threads.messages.update("t", made.id, metadata={"k": 2})
        assert (changed.metadata, changed.content, changed.created_at) == ({"k": 2}, parts, made.created_at)
        for absent in (threads.messages.retrieve("t", "m"), threads.messages.update("t", "m", metadata={})):
            with pytest.raises(NotFoundError):
                await absent

    async def test_metadata_with_keys_that_are_no_text_is_refused_before_anything_is_written(self) -> None:
        threads, wrong = self.threads(), {1: 2}
        await threads.create(
            "t", messages=[{"role": "user", "content": "a", "id": "m"}], metadata={"k": {1: 2}}
        )
        # wrong on purpose
        for asking in (
            threads.create("other", metadata=wrong),  # type: ignore[arg-type]
            threads.create("other", messages=[{"role": "user", "content": "a", "metadata": wrong}]),
            threads.update("t", metadata=wrong),  # type: ignore[arg-type]
            threads.messages.create("t", role="user", content="b", metadata=wrong),  # type: ignore[arg-type]
            threads.messages.update("t", "m", metadata=wrong),  # type: ignore[arg-type]
        ):
            with pytest.raises(InvalidError, match="`metadata` has the key 1"):
                await asking

        assert (await threads.retrieve("t")).metadata == {"k": {1: 2}}
        assert [message.id for message in (await threads.messages.list("t")).data] == ["m"]
        with pytest.raises(NotFoundError):
            await threads.retrieve("other")

    async def test_no_thread_is_taken_for_another(self) -> None:
        threads = self.threads()
        for id in IDS:
            await threads.create(id)
            await threads.messages.create(id, role="user", content=id, id="same")

        for id in IDS:
            page = await threads.messages.list(id)
            assert [message.content for message in page.data] == [id]

    async def test_messages_of_many_at_once_are_all_kept(self) -> None:
        await self.threads().create("t")

        async def work(name: int) -> None:
            messages = self.threads().messages
            for number in range(5):
                await messages.create("t", role="user", content=(name, number))

        await self.together(*(work(name) for name in range(3)))

        page = await self.threads().messages.list("t", order="asc")
        told = [message.content for message in page.data]
        assert sorted(told) == [(name, number) for name in range(3) for number in range(5)]
        for name in range(3):
            assert [number for who, number in told if who == name] == list(range(5))

    async def test_what_is_no_thread_or_message_is_refused(self) -> None:
        threads = self.threads()
        await threads.create("t")
        for wrong in (
            threads.create(""),
            threads.create("x", messages=[{"content": "nobody"}]),
            threads.create("x", messages=[{"role": "user", "text": "?"}]),
            threads.create("x", messages=["hi"]),  # type: ignore[list-item]  # wrong on purpose
            threads.create("x", messages=3),  # type: ignore[arg-type]  # wrong on purpose
            threads.create("x", messages="hi"),  # type: ignore[arg-type]  # wrong on purpose
            threads.create("x", messages=[{"role": "user", "content": n, "id": "m"} for n in range(2)]),
            threads.create("x", metadata=3),  # type: ignore[arg-type]  # wrong on purpose
            threads.update("t", metadata=None),  # type: ignore[arg-type]  # wrong on purpose
            # wrong on purpose
            threads.messages.create("t", role="user", content="x", metadata=[1]),  # type: ignore[arg-type]
            threads.messages.create("t", role="", content="x"),
            threads.messages.create("t", role="user", content="x", id=""),
            threads.messages.list("t", limit=0),
            threads.messages.list("t", limit=101),
            threads.messages.list("t", order="up"),  # type: ignore[arg-type]  # wrong on purpose
        ):
            with pytest.raises(InvalidError):
                await wrong
        with pytest.raises(NotFoundError):
            await threads.retrieve("x")
