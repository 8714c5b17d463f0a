"""`StateManager`: no update is lost, what is told is exact, what is kept comes back as it was."""

from __future__ import annotations

from datetime import date, datetime, timedelta
from hashlib import sha512
from typing import Any

import pytest

from keepstate.errors import ConflictError, InvalidError, StoreUnavailableError
from keepstate.managers.sizes import SizeAlert
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.manager import StateManager
from tests.contracts.managers.staging import StagingContract

AWKWARD_KEYS = [
    "agent:researcher", "a/b", "a__b", "a_b", "a:b", "a%2Fb", "with spaces", "x:state:y", "~", "#", "@", "*",
    "[a]", "\\", "\n", "naïve 🦜", "k" * 300,
]  # fmt: skip


class StateContract(StagingContract):
    """What a `StateManager` does, whatever it is kept in."""

    # ---- one key

    async def test_what_is_saved_comes_back_equal_and_of_its_type(self) -> None:
        state = self.state()
        value: dict[Any, Any] = {
            "at": datetime(2026, 11, 21, 9, 30), "day": date(2026, 11, 21), "set": {1, 2}, "bytes": b"\0x",
            "tuple": (1, [2]), 7: "int key", None: ..., "deep": [{"a": {}}],
        }  # fmt: skip
        await state.save("k", value)
        found = await state.get("k")

        assert found == value and type(found["tuple"]) is tuple and found["at"].tzinfo is None

    async def test_keys_of_any_text_come_back_as_they_were_and_never_meet(self) -> None:
        state = self.state()
        for number, key in enumerate(AWKWARD_KEYS):
            await state.save(key, number)

        assert await state.list_keys() == sorted(AWKWARD_KEYS, key=str.encode)
        assert [await state.get(key) for key in AWKWARD_KEYS] == list(range(len(AWKWARD_KEYS)))

    async def test_the_longest_key_comes_back(self) -> None:
        state = self.state()
        most = 512 - len("state//") * self.in_passed_space
        key = "é" * (most // 2) + "k" * (most % 2)
        await state.save(key, 1)

        assert await state.list_keys() == [key] and await state.get(key) == 1
        with pytest.raises(InvalidError, match=f"`key` is 'é.* {most}"):
            await state.save(key + "k", 1)

    async def test_a_copy_is_read_and_a_copy_is_kept(self) -> None:
        state = self.state()
        value = {"list": [1]}
        await state.save("k", value)
        value["list"].append(2)
        (await state.get("k"))["list"].append(3)

        assert await state.get("k") == {"list": [1]}

    async def test_a_stored_none_is_told_from_what_is_absent(self) -> None:
        state = self.state()
        await state.save("k", None)

        assert await state.get("k", "default") is None and await state.get("other", "default") == "default"
        assert await state.entry("other") is None and (await state.entry("k")) is not None

    async def test_an_update_puts_keys_into_a_dict_and_creates_an_absent_one(self) -> None:
        state = self.state()

        assert await state.update("k", {"a": 1}) == {"a": 1}
        assert await state.update("k", {"b": 2}) == {"a": 1, "b": 2}
        assert await state.update("n", lambda old: old + 1, default=0) == 1
        assert await state.get("n") == 1

    async def test_an_update_of_what_is_no_dict_is_refused_and_changes_nothing(self) -> None:
        state = self.state()
        await state.save("k", [1])

        with pytest.raises(InvalidError):
            await state.update("k", {"a": 1})
        assert await state.get("k") == [1]

    async def test_four_times_fifty_concurrent_updates_of_one_key_are_two_hundred(self) -> None:
        managers = [self.state() for _ in range(4)]

        async def increment(state: StateManager) -> None:
            for _ in range(50):
                await state.update("n", lambda old: old + 1, default=0)

        await self.together(*(increment(state) for state in managers))

        assert await managers[0].get("n") == 200

    async def test_delete_says_whether_there_was_something(self) -> None:
        state = self.state()
        await state.save("k", 1)

        assert [await state.delete("k"), await state.delete("k")] == [True, False]
        assert await state.list_keys() == []

    async def test_who_compares_writes_only_over_what_was_read(self) -> None:
        state = self.state()
        first = await state.compare_and_set("k", 1, expected_version=0)
        second = await state.compare_and_set("k", 2, expected_version=first)

        with pytest.raises(ConflictError):
            await state.compare_and_set("k", 3, expected_version=first)
        entry = await state.entry("k")
        assert entry is not None and (entry.key, entry.value, entry.version) == ("k", 2, second)

    async def test_created_and_version_survive_rewrites(self) -> None:
        state = self.state()
        await state.save("k", 1)
        before = await state.entry("k")
        await state.save("k", 2)
        after = await state.entry("k")

        assert before is not None and after is not None
        assert after.created == before.created and after.version > before.version

    # ---- many keys

    async def test_keys_are_listed_by_pattern_in_order_and_up_to_a_limit(self) -> None:
        state = self.state()
        for key in ("agent:b", "agent:a", "tool:a", "agent:a:1", "a/b/c", "a/b"):
            await state.save(key, 0)

        assert await state.list_keys("agent:*") == ["agent:a", "agent:a:1", "agent:b"]
        assert await state.list_keys("agent:?") == ["agent:a", "agent:b"]
        assert await state.list_keys("a/*") == await state.list_keys("*/b*") == ["a/b", "a/b/c"]
        assert await state.list_keys(limit=2) == ["a/b", "a/b/c"]

    async def test_prefixes_keep_managers_apart(self) -> None:
        one, ten = self.state(key_prefix="1"), self.state(key_prefix="10")
        await one.save("k", "one")
        await ten.save("k", "ten")
        await one.delete("k")

        assert await one.list_keys() == [] and await ten.get("k") == "ten"

    async def test_shards_hold_one_state(self) -> None:
        state = self.state(shards=3)
        keys = [f"k{number:02}" for number in range(20)]
        for key in keys:
            await state.save(key, key)

        assert await state.list_keys() == keys and await state.list_keys("k0*", limit=3) == keys[:3]
        assert [await state.get(key) for key in keys] == keys
        with pytest.raises(InvalidError, match="shards"):
            async with state.transaction():
                pass

    # ---- together

    async def test_a_transaction_applies_all_or_nothing(self) -> None:
        state = self.state()
        await state.save("from", 5)
        async with state.transaction(message="move") as tx:
            await tx.save("to", await tx.get("from"))
            await tx.delete("from")
        with pytest.raises(ZeroDivisionError):
            async with state.transaction() as tx:
                await tx.save("to", 1 // 0)

        assert await state.list_keys() == ["to"] and await state.get("to") == 5

    async def test_what_a_transaction_has_read_must_not_change(self) -> None:
        state, other = self.state(), self.state()
        await state.save("k", 1)

        async def increment() -> None:
            async with state.transaction() as tx:
                seen = await tx.get("k")
                await other.save("k", 7)
                await tx.save("k", seen + 1)

        with pytest.raises(ConflictError):
            await increment()
        assert await state.get("k") == 7

    async def test_inside_a_transaction_what_acts_at_once_is_refused(self) -> None:
        state = self.state()
        async with state.transaction() as tx:
            for refused in (tx.size(), tx.cleanup(older_than=timedelta(0))):
                with pytest.raises(InvalidError, match="transaction"):
                    await refused
            with pytest.raises(InvalidError, match="transaction"):
                tx.subscribe("*", print)

    # ---- time and size

    async def test_what_is_saved_with_a_time_to_live_expires_and_an_update_lets_it_run_on(self) -> None:
        state = self.state(ttl=0.8)
        await state.save("k", {"a": 1})
        await state.update("k", {"b": 2})
        await state.update("new", {"c": 3})
        before = await state.list_keys()
        await self.pass_time(850)

        assert before == ["k", "new"]
        assert await state.list_keys() == [] and await state.get("k") is None

    async def test_cleanup_removes_what_nobody_has_written_for_so_long(self) -> None:
        state = self.state()
        await state.save("old", 1)
        kept = await state.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(20)
        removed = await state.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 1) and await state.list_keys() == []

    async def test_cleanup_keeps_what_was_written_since(self) -> None:
        state = self.state()
        await state.save("old", 1)
        await state.save("again", 1)
        await state.cleanup(older_than=timedelta(hours=1))
        await self.pass_time(500)
        await state.save("new", 2)
        await state.save("again", 2)
        removed = await state.cleanup(older_than=timedelta(milliseconds=400))

        assert removed == 1 and await state.list_keys() == ["again", "new"]

    async def test_what_a_manager_wrote_that_was_closed_at_once_is_known_by_its_age(self) -> None:
        state, other = self.state(), self.state()
        for number in range(5):
            await state.save(f"k{number}", number)
        await state.close()
        await self.pass_time(300)
        removed = await other.cleanup(older_than=timedelta(milliseconds=200))

        assert removed == 5

    async def test_notes_of_time_that_are_not_needed_any_more_are_let_go(self) -> None:
        state = self.state()
        await state.save("k", 1)
        for _ in range(3):
            await self.pass_time(20)
            await state.cleanup(older_than=timedelta(0))
        space = self.run_space() if self.in_passed_space else self.handle().space("state/")
        (stream,) = [name async for name in space.events.streams()]

        assert len(await space.events.read(stream=stream)) == 1

    async def test_cleanup_makes_the_state_smaller(self) -> None:
        if self.in_passed_space:
            return  # its history is its owner's
        state = self.state()
        for number in range(30):
            await state.save(f"k{number}", {"text": f"{number} " * 400})
        before = await state.size()
        await self.pass_time(20)
        await state.cleanup(older_than=timedelta(0))

        assert (await state.size()).size_bytes < before.size_bytes / 4

    async def test_an_alert_is_told_once_when_the_limit_is_passed(self) -> None:
        state = self.state()
        told: list[SizeAlert] = []
        state.on_size_alert(limit_bytes=1_000, callback=told.append)
        await state.save("small", 1)
        small = await state.size()
        await state.save("large", "x" * 3_000)
        large = await state.size()
        await state.size()

        assert [alert.reason for alert in told] == ["limit"] and told[0].size == large
        assert small.size_bytes < 1_000 < large.size_bytes and large.spaces == 1

    async def test_a_write_that_finds_it_due_measures_and_survives_a_callback_that_raises(self) -> None:
        state = self.state(save_interval=0)
        told: list[str] = []

        def tell(alert: SizeAlert) -> None:
            told.append(alert.reason)
            raise ZeroDivisionError

        state.on_size_alert(growth_per_hour=500, callback=tell)
        await state.save("a", "x")
        text = "".join(sha512(b"%d" % number).hexdigest() for number in range(40))
        for _ in range(50):  # not before twenty times of what the first measuring took
            await self.pass_time(50)
            await state.save("b", text)
            if told:
                break

        assert told == ["growth"] and await state.get("b") == text

    async def test_a_write_that_has_applied_is_none_that_failed_where_measuring_does(self) -> None:
        store, state, _ = await self.in_trouble(StateManager, StateConfig(save_interval=0))
        state.on_size_alert(limit_bytes=1, callback=lambda alert: None)
        await state.save("n", 0)
        store.lists_nothing = True
        for number in range(1, 4):
            await self.pass_time(20)
            assert await state.update("n", lambda old: old + 1) == number

        with pytest.raises(StoreUnavailableError):
            await state.size()
        store.lists_nothing = False
        assert await state.get("n") == 3

    # ---- the past

    async def test_a_key_s_history_is_told_newest_first(self) -> None:
        state = self.state()
        for number in range(3):
            await state.save("k", number)
            await state.save("other", number)
        moments = await state.history("k")

        assert [moment.value for moment in moments] == [2, 1, 0]
        assert all(moment.message == "save k" for moment in moments)
        assert [moment.value for moment in await state.history("k", limit=2)] == [2, 1]
        assert await state.history("absent") == []
