"""Threads, as assistants' APIs have them: the state persists across calls. More: tests/contracts/sessions."""

from __future__ import annotations

from keepstate import Threads
from keepstate.engine.space.keepstate import Keepstate


async def test_a_thread_keeps_its_messages_between_calls(ks: Keepstate) -> None:
    thread = await Threads(persistence=ks).create(metadata={"user": "u"})
    for number in range(5):
        threads = Threads(persistence=ks)  # each call comes with nothing but the thread's id
        await threads.messages.create(thread_id=thread.id, role="user", content=f"m{number}")

    threads = Threads(persistence=ks)
    newest = await threads.messages.list(thread.id, limit=2)
    rest = await threads.messages.list(thread.id, limit=10, after=newest.last_id)
    assert [message.content for message in (*newest.data, *rest.data)] == ["m4", "m3", "m2", "m1", "m0"]
    assert newest.has_more and not rest.has_more
    assert (await threads.retrieve(thread.id)).metadata == {"user": "u"}
