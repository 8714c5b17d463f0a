"""`KeepstateKeyValue` keeps the contract of adapters, and py-key-value's own promises."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from key_value.aio.errors import InvalidTTLError, SerializationError
from key_value.aio.protocols import AsyncKeyValue

from keepstate.adapters.key_value import KeepstateKeyValue
from keepstate.errors import InvalidError
from keepstate.testing.adapter_contract import IDS, AdapterContract


class TestKeyValue(AdapterContract):
    """A conversation is a collection, and an item is a value under its key."""

    idempotent, ordered = True, False

    @pytest.fixture
    def url(self, any_url: str) -> str:
        return any_url

    def make(self, url: str) -> KeepstateKeyValue:
        self.at = url
        return KeepstateKeyValue(url)

    def item(self, n: int) -> Any:
        return {"key": f"key/{n}", "n": n}

    def rich_item(self) -> Any:
        return {"key": "rich", "n": [1.5, None, True, 2**70, {"ünï\n🦜": "\ud83d"}]}

    async def add(self, adapter: KeepstateKeyValue, id: str, items: Sequence[Any]) -> None:
        await adapter.put_many([item["key"] for item in items], items, collection=id)

    async def read(self, adapter: KeepstateKeyValue, id: str) -> list[Any]:
        values = await adapter.get_many(await adapter.keys(id), collection=id)
        assert None not in values
        return values

    async def clear(self, adapter: KeepstateKeyValue, id: str) -> None:
        await adapter.destroy_collection(id)

    async def add_owned(self, adapter: Any, owner: str, id: str, items: Sequence[Any]) -> None:
        async with KeepstateKeyValue(self.at, owner=owner) as own:
            await self.add(own, id, items)

    async def read_owned(self, adapter: Any, owner: str, id: str) -> list[Any]:
        async with KeepstateKeyValue(self.at, owner=owner) as own:
            return await self.read(own, id)

    async def erase(self, adapter: KeepstateKeyValue, owner: str) -> None:
        assert (await adapter.erase(owner)).spaces == 2


async def test_what_is_not_json_is_refused_and_nothing_is_written(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url) as store:
        for value in (datetime.now(UTC), UUID(int=1), b"bytes", {1, 2}, object()):
            with pytest.raises(SerializationError):
                await store.put("key", {"value": value})
            with pytest.raises(SerializationError):
                await store.put_many(["a", "key"], [{}, {"value": value}])
            with pytest.raises(SerializationError):
                await store.update("key", lambda _, value=value: {"value": value})

        assert await store.get_many(["a", "key"]) == [None, None]


async def test_any_text_is_a_key_and_a_collection_and_is_listed(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url) as store:
        for collection in IDS:
            await store.put_many(IDS, [{"key": key, "in": collection} for key in IDS], collection=collection)

        assert sorted(await store.collections()) == sorted(IDS)
        assert len(await store.collections(limit=3)) == 3
        for collection in IDS:
            assert sorted(await store.keys(collection)) == sorted(IDS)
            assert await store.get(IDS[-1], collection=collection) == {"key": IDS[-1], "in": collection}
        assert len(await store.keys(IDS[0], limit=4)) == 4


async def test_updates_of_two_writers_are_all_counted(any_url: str) -> None:
    def add_one(value: dict[str, Any] | None) -> Mapping[str, Any]:
        return {"n": (value or {"n": 0})["n"] + 1}

    async def count(store: KeepstateKeyValue) -> None:
        for _ in range(25):
            await store.update("counter", add_one)

    async with KeepstateKeyValue.from_url(any_url) as first, KeepstateKeyValue.from_url(any_url) as second:
        await asyncio.gather(*map(count, (first, second, second)))

        assert await first.get("counter") == {"n": 75}


async def test_an_update_continues_the_time_to_live_unless_it_gives_one(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url) as store:
        await store.put("key", {"n": 1}, ttl=1_000)
        assert await store.update("key", lambda value: {**(value or {}), "m": 2}) == {"n": 1, "m": 2}
        value, ttl = await store.ttl("key")
        assert value == {"n": 1, "m": 2}
        assert ttl is not None
        assert 900 < ttl <= 1_000

        await store.update("key", dict, ttl=0.05)
        await asyncio.sleep(0.1)
        assert await store.ttl("key") == (None, None)
        assert await store.update("key", lambda value: {"was": value}) == {"was": None}
        assert await store.ttl("key") == ({"was": None}, None)


async def test_the_moment_of_creation_is_kept_by_updates(tmp_path: Path) -> None:
    async with KeepstateKeyValue.from_url(tmp_path / "kv.db") as store:
        await store.put("key", {})
        before = await store._get_managed_entry(collection=store.default_collection, key="key")
        await store.update("key", lambda _: {"n": 1})
        after = await store._get_managed_entry(collection=store.default_collection, key="key")

        assert before is not None
        assert after is not None
        assert before.created_at == after.created_at
        assert before.created_at is not None
        assert abs(before.created_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_wrong_changes_are_told(any_url: str) -> None:
    async def late(value: Any) -> Any:
        return value

    async with KeepstateKeyValue.from_url(any_url) as store:
        with pytest.raises(InvalidError, match="returned NoneType; return the new value"):
            await store.update("key", lambda value: None)  # type: ignore[arg-type, return-value]
        with pytest.raises(InvalidError, match="coroutine function; give a plain one"):
            await store.update("key", late)  # type: ignore[arg-type]
        with pytest.raises(InvalidTTLError):
            await store.update("key", dict, ttl=0)
        assert await store.get("key") is None


async def test_expired_keys_are_culled(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url) as store:
        await store.put_many(["a", "b"], [{}, {}], ttl=0.05)
        await store.put("c", {})
        await asyncio.sleep(0.1)

        assert await store.keys() == ["c"]
        await store.cull()
        assert await store.sweep() == 0
        assert await store.get("c") == {}


async def test_it_is_what_frameworks_ask_for_and_counts_what_it_deletes(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url, default_collection="mine") as store:
        assert isinstance(store, AsyncKeyValue)
        await store.put_many([str(n) for n in range(1_200)], [{"n": n} for n in range(1_200)])

        assert await store.collections() == ["mine"]
        assert await store.delete_many([str(n) for n in range(0, 2_400, 2)]) == 600
        assert await store.delete("1") is True
        assert await store.delete("1") is False
        assert await store.destroy_collection("mine") is True
        assert await store.destroy_collection("mine") is False


async def test_a_recorded_store_keeps_earlier_values(any_url: str) -> None:
    async with KeepstateKeyValue.from_url(any_url, record=True, author="ann") as store:
        await store.put("key", {"n": 1})
        await store.update("key", lambda _: {"n": 2})
        space = store.space(store.default_collection)

        log = await space.call(_log)
        assert log[:2] == [("ann", "update 'key'"), ("ann", log[1][1])]


async def _log(space: Any) -> list[tuple[str | None, str]]:
    return [(commit.author, commit.message) async for commit in space.history.log()]
