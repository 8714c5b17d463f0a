"""A session of the OpenAI Agents SDK keeps the contract of adapters, and the SDK's own protocol."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, Runner, SQLiteSession
from agents.extensions.memory import EncryptedSession
from agents.memory import OpenAIResponsesCompactionSession, Session, SessionSettings
from agents.memory.session import _session_accepts_wrapper
from agents.testing import ScriptedModel, assistant_message

from keepstate.adapters.openai_agents import KeepstateSession
from keepstate.engine.space.space import Space
from keepstate.errors import AlreadyExistsError, ClosedError, CompactedError, NotFoundError
from keepstate.testing.adapter_contract import AdapterContract


def item(n: int) -> Any:
    return {"role": "user" if n % 2 else "assistant", "content": f"item {n}"}


class Sessions:
    """The sessions of one program on a store."""

    def __init__(self, url: str) -> None:
        self.first = KeepstateSession("first", url)
        self.owned = {owner: KeepstateSession("first", url, owner=owner) for owner in ("ann", "ann/x", "an")}

    async def aclose(self) -> None:
        for session in (self.first, *self.owned.values()):
            await session.aclose()


class TestContract(AdapterContract):
    """On every backend."""

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> Sessions:
        return Sessions(url)

    async def add(self, adapter: Sessions, id: str, items: Sequence[Any]) -> None:
        await adapter.first.other(id).add_items(list(items))

    async def read(self, adapter: Sessions, id: str) -> list[Any]:
        return list(await adapter.first.other(id).get_items())

    def item(self, n: int) -> Any:
        return item(n)

    def rich_item(self) -> Any:
        return {
            "type": "function_call_output",
            "call_id": "call_1",
            "output": [
                {"type": "input_text", "text": "ünï 🦜 \x00 \ud800"},
                {"n": [1.5, -0.0, 2**70, None, True]},
            ],
        }

    async def clear(self, adapter: Sessions, id: str) -> None:
        await adapter.first.other(id).clear_session()

    async def add_owned(self, adapter: Sessions, owner: str, id: str, items: Sequence[Any]) -> None:
        await adapter.owned[owner].other(id).add_items(list(items))

    async def read_owned(self, adapter: Sessions, owner: str, id: str) -> list[Any]:
        return list(await adapter.owned[owner].other(id).get_items())

    async def erase(self, adapter: Sessions, owner: str) -> None:
        assert (await adapter.first.erase(owner)).spaces == 2


# ---- the protocol


def test_a_session_has_the_protocol_with_the_wrapper_on_every_method() -> None:
    session = KeepstateSession("1", "memory://")

    assert isinstance(session, Session)
    assert _session_accepts_wrapper(session)
    assert session.session_settings == SessionSettings()
    assert KeepstateSession(
        "1", "memory://", session_settings={"limit": 2}
    ).session_settings == SessionSettings(2)


async def test_limits_are_those_of_the_sdk(any_url: str) -> None:
    async with KeepstateSession("1", any_url, session_settings={"limit": 3}) as session:
        for n in range(0, 200, 2):  # enough to be packed
            await session.add_items([item(n), item(n + 1)])
        every = [item(n) for n in range(200)]

        assert await session.get_items() == every[-3:]
        assert await session.get_items(-1) == every
        assert await session.get_items(0) == []
        for limit in (1, 2, 73, 74, 128, 199, 200, 500):
            assert await session.get_items(limit) == every[-limit:], limit
        session.session_settings = None
        assert await session.get_items() == every


async def test_a_session_behaves_like_a_list(any_url: str) -> None:
    rng, plain, n = random.Random(5), list[Any](), 0
    async with KeepstateSession("1", any_url) as session:
        for _ in range(150 if any_url.startswith(("memory", "sqlite")) else 60):
            match rng.choices(["add", "pop", "clear", "replace", "suffix"], [60, 20, 1, 2, 4])[0]:
                case "add":
                    added = [item(n + k) for k in range(rng.randint(1, 4))]
                    n += len(added)
                    await session.add_items(added)
                    plain += added
                case "pop":
                    assert await session.pop_item() == (plain.pop() if plain else None)
                case "clear":
                    await session.clear_session()
                    plain.clear()
                case "replace":
                    plain = [item(-k) for k in range(rng.randint(0, 300))]
                    assert await session._atomic_replace_items(plain)
                case "suffix":
                    snapshot = await session._get_compaction_snapshot(5)
                    assert (snapshot.items, snapshot.complete) == (plain[-5:], len(plain) <= 5)
                    if plain:
                        at = rng.randrange(len(snapshot.items))
                        assert await snapshot.replace_suffix(at, [item(-n)])
                        plain[len(plain) - len(snapshot.items) + at :] = [item(-n)]
            limit = rng.randint(1, 100)
            assert await session.get_items(limit) == plain[-limit:]
        assert await session.get_items() == plain


async def test_packed_items_are_popped_and_added_to() -> None:
    plain, n = list[Any](), 0
    async with KeepstateSession("1", "memory://") as session:
        for popped in (0, 91, 4, 101, 139):
            for _ in range(70):
                n += 2
                await session.add_items([item(n), item(n + 1)])
                plain += [item(n), item(n + 1)]
            for _ in range(popped):
                assert await session.pop_item() == plain.pop()
            for limit in (1, 7, 64, 200):
                assert await session.get_items(limit) == plain[-limit:], limit
            assert await session.get_items() == plain


async def test_a_snapshot_is_replaced_only_if_it_is_still_the_end(any_url: str) -> None:
    async with KeepstateSession("1", any_url) as session:
        await session.add_items([item(n) for n in range(4)])
        snapshot = await session._get_compaction_snapshot(2, prune_prefix=lambda each: each == item(0))
        await session.add_items([item(9)])

        assert not await snapshot.replace_suffix(0, [item(5)])
        assert await session.pop_item() == item(9)
        assert not await snapshot.replace_suffix(2, [item(5)])
        assert await snapshot.replace_suffix(0, [item(5)])
        assert await session.get_items() == [item(1), item(5)]


async def test_a_subclass_is_not_bypassed_by_compaction() -> None:
    class Upper(KeepstateSession):
        async def add_items(self, items: Any, *, wrapper: Any = None) -> None:
            await super().add_items([each | {"content": each["content"].upper()} for each in items])

    async with Upper("1", "memory://") as session:
        await session.add_items([item(1)])

        assert await session._get_compaction_snapshot(5) is None
        assert not await session._atomic_replace_items([item(2)])
        assert await session.get_items() == [{"role": "user", "content": "ITEM 1"}]


async def test_what_is_not_json_is_rejected_as_the_sdk_does_it() -> None:
    later: Any = {"role": "user", "content": datetime(2026, 1, 1, tzinfo=UTC)}
    flat: Any = {"role": "user", "content": ("a", {1: "b"})}
    async with KeepstateSession("1", "memory://") as session:
        with pytest.raises(TypeError, match="datetime"):
            await session.add_items([item(1), later])
        assert await session.get_items() == []

        await session.add_items([flat])
        assert await session.get_items() == [{"role": "user", "content": ["a", {"1": "b"}]}]


async def test_a_closed_session_says_so_in_both_libraries_words(tmp_path: Path) -> None:
    async with KeepstateSession("1", tmp_path / "agents.db") as session:
        other = session.other("2")
        await other.aclose()
        await session.add_items([item(1)])
        with pytest.raises(RuntimeError, match="KeepstateSession is closed"):
            await other.get_items()
    for call in (
        session.add_items([]),
        session.get_items(),
        session.pop_item(),
        session.clear_session(),
        session._atomic_replace_items([]),
        session._get_compaction_snapshot(1),
        session.fork("2"),
    ):
        with pytest.raises(ClosedError):
            await call
    with pytest.raises(RuntimeError):
        await session.add_items([])


# ---- in the SDK


async def answer(session: Session, question: str) -> list[Any]:
    """Return what the model has seen, and let it answer."""
    model = ScriptedModel([[assistant_message(f"re: {question}")]])
    result = await Runner.run(Agent(name="clerk", model=model), question, session=session)
    assert result.final_output == f"re: {question}"
    assert model.last_call is not None
    return list(model.last_call.input)


@pytest.fixture
def current_loop() -> Iterator[None]:
    """Make an event loop the current one, which `run_sync` uses, and leaves open."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    asyncio.set_event_loop(None)


@pytest.mark.usefixtures("current_loop")
def test_runs_of_several_loops_share_a_session(any_url: str) -> None:
    with KeepstateSession("1", any_url) as session:
        model = ScriptedModel([[assistant_message("one")]])
        Runner.run_sync(Agent(name="clerk", model=model), "first", session=session)
        seen = asyncio.run(answer(session, "second"))
        every = asyncio.run(session.get_items())

        assert [each.get("role") for each in seen] == ["user", "assistant", "user"]
        assert every[:3] == seen
        assert len(every) == 4


async def test_an_encrypted_session_wraps_it(any_url: str) -> None:
    async with KeepstateSession("1", any_url) as session:
        encrypted = EncryptedSession("1", session, "a key of this test")  # type: ignore[arg-type]
        await answer(encrypted, "what is my name?")

        assert [each.get("role") for each in await encrypted.get_items()] == ["user", "assistant"]
        assert all("__enc__" in each for each in await session.get_items())
        assert (await encrypted.pop_item() or {}).get("role") == "assistant"
        await encrypted.clear_session()
        assert await session.get_items() == []


async def test_compaction_never_leaves_a_session_empty(any_url: str) -> None:
    class Compacts:
        """The part of OpenAI's client that compacts."""

        def __init__(self) -> None:
            self.responses = self

        async def compact(self, **given: Any) -> Any:
            assert len(given["input"]) == 40
            return type("Compacted", (), {"output": [item(1_000)]})

    async with KeepstateSession("1", any_url) as session:
        whole: Any = OpenAIResponsesCompactionSession(
            "1", session, client=Compacts(), compaction_mode="input"
        )  # type: ignore[arg-type]
        await whole.add_items([item(n) for n in range(40)])
        seen, reader = set[int](), session.other("1")

        async def read() -> None:
            while 1 not in seen:
                seen.add(len(await reader.get_items()))
                await asyncio.sleep(0)

        await asyncio.gather(read(), whole.run_compaction({"force": True}))

        assert seen <= {1, 40}
        assert await session.get_items() == [item(1_000)]


# ---- beyond the protocol


async def test_every_moment_is_read_and_forked(any_url: str) -> None:
    async with KeepstateSession("1", any_url, record=True, author="clerk") as session:
        for n in range(3):
            await session.add_items([item(n)])
        await session.pop_item()
        await session.clear_session()
        await session.add_items([item(9)])

        async def log(space: Space) -> list[tuple[str, str | None, str]]:
            return [(each.message, each.author, each.id) async for each in space.history.log()]

        commits = await session.space("1").call(log)
        wanted = [[item(9)], [item(0), item(1)], [item(0), item(1), item(2)], [item(0), item(1)], [item(0)]]
        found = [
            await session.get_items(at=id)
            for message, _, id in commits
            if message in ("add items", "pop an item")
        ]
        assert found == wanted
        assert {author for _, author, _ in commits} == {"clerk"}

        at = next(id for message, _, id in commits if message == "pop an item")
        assert await session.get_items(1, at=at) == [item(1)]
        forked = await session.fork("2", at=at)
        await forked.add_items([item(7)])
        assert await forked.get_items() == [item(0), item(1), item(7)]
        assert await session.get_items() == [item(9)]
        with pytest.raises(AlreadyExistsError, match="'2' has items"):
            await session.fork("2")
        with pytest.raises(NotFoundError):
            await session.get_items(at="v1")


async def test_a_session_without_moments_is_forked_as_it_is(any_url: str) -> None:
    async with KeepstateSession("1", any_url, session_settings={"limit": 1}) as session:
        await session.add_items([item(n) for n in range(300)])

        assert await (await session.fork("2")).get_items(-1) == [item(n) for n in range(300)]
        with pytest.raises(NotFoundError):
            await session.get_items(at="main")


async def test_a_session_ends_by_its_time_and_each_use_renews_it(any_url: str) -> None:
    async with KeepstateSession("1", any_url, ttl_s=2) as session:
        await session.add_items([item(1)])
        for _ in range(2):
            await asyncio.sleep(1.1)
            assert await session.get_items() == [item(1)]
        await asyncio.sleep(2.1)

        assert await session.get_items() == []
        assert await session.pop_item() is None
        await session.add_items([item(2)])
        assert await session.get_items() == [item(2)]


# ---- what it costs


async def documents_of(session: KeepstateSession) -> list[str]:
    async def names(space: Space) -> list[str]:
        return [name async for name in space.documents.keys("*")]

    return await session.space(session.session_id).call(names)


async def test_a_cleared_session_leaves_no_documents(any_url: str) -> None:
    async with KeepstateSession("1", any_url) as session:
        for n in range(70):
            await session.add_items([item(n)])
        await session.clear_session()

        assert set(await documents_of(session)) == {"lives"}


async def test_calls_are_packed_and_the_log_is_shortened(tmp_path: Path) -> None:
    async with KeepstateSession("1", tmp_path / "agents.db") as session:
        for n in range(200):
            await session.add_items([item(n)])

        async def floor(space: Space) -> int:
            store = await space.executor.store()
            try:
                return (await store.changes(space.executor.stored_name, 0)).floor
            except CompactedError as error:
                return error.floor or 0

        assert len([name for name in await documents_of(session) if "/item/" in name]) == 3 + 8
        assert await session.space("1").call(floor) > 130


async def test_a_call_of_any_size_is_one_batch(any_url: str) -> None:
    long: list[Any] = [{"role": "user", "content": f"{n} " * 1_000} for n in range(2_000)]  # 8 MB
    small: list[Any] = [{"n": n} for n in range(120_000)]
    async with KeepstateSession("1", any_url) as session:
        await session.add_items(long)
        assert await session.get_items() == long
        if any_url.startswith(("memory", "sqlite")):
            await session.clear_session()
            await session.add_items(small)
            assert await session.get_items() == small


@pytest.mark.slow
@pytest.mark.parametrize("text", ["words", "random"])
async def test_it_takes_less_room_than_the_sdks_own_session(tmp_path: Path, text: str) -> None:
    def content(n: int) -> str:
        return f"{n} the order of the day. " * 20 if text == "words" else os.urandom(250).hex()

    added: list[Any] = [{"role": "user", "content": content(n)[:500]} for n in range(1_000)]
    official = SQLiteSession("1", tmp_path / "official.db")
    async with KeepstateSession("1", tmp_path / "ours.db") as session:
        for each in added:
            await official.add_items([each])
            await session.add_items([each])
    official.close()

    sizes = [
        sum(path.stat().st_size for path in tmp_path.glob(f"{name}.db*") if not path.name.endswith("-shm"))
        for name in ("ours", "official")
    ]
    assert sizes[0] <= 1.3 * sizes[1], sizes
