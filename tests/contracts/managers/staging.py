"""Is what a `StateManager` stages seen at once, and stored as it was meant, on every backend?"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import pytest

from keepstate._finish import finish
from keepstate.errors import AttemptsExhaustedError, ClosedError, ConflictError, InvalidError
from keepstate.managers.state.config import StateConfig
from keepstate.managers.state.manager import StateManager
from tests.contracts.managers.stage import ManagerStage


@contextmanager
def switching_often() -> Generator[None]:
    """Let threads take turns so often that what they share shows it."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class StagingContract(ManagerStage):
    """What a `StateManager` does that stores nothing before `flush`."""

    def state(self, **config: Any) -> StateManager:
        return self.made(StateManager, StateConfig(**config))

    async def test_staged_writes_are_seen_here_and_stored_by_flush(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await other.save("old", {"a": 1})
        await state.save("new", 1)
        await state.update("old", {"b": 2})
        await state.delete("absent")
        before = [await other.get("new"), await other.get("old")]

        assert [await state.get("new"), await state.get("old")] == [1, {"a": 1, "b": 2}]
        assert before == [None, {"a": 1}] and await state.list_keys() == ["new", "old"]
        assert await state.flush() == 3
        assert [await other.get("new"), await other.get("old")] == [1, {"a": 1, "b": 2}]

    async def test_a_staged_update_changes_what_is_stored_when_it_is_flushed(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.update("n", lambda old: old + 1, default=0)
        await other.save("n", 10)
        await state.flush()

        assert await other.get("n") == 11

    async def test_what_cannot_be_stored_holds_nothing_else_back(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.update("bad", {"a": 1})
        await state.save("good", 1)
        await other.save("bad", "no dict")

        with pytest.raises(InvalidError):
            await state.flush()
        assert await other.get("good") == 1 and await other.get("bad") == "no dict"
        await other.delete("bad")
        assert await state.flush() == 1 and await other.get("bad") == {"a": 1}

    async def test_a_staged_key_that_cannot_be_stored_can_be_deleted(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.update("bad", {"a": 1})
        await other.save("bad", "no dict")

        assert [await state.delete("bad"), await state.delete("bad")] == [True, False]
        assert await state.flush() == 1 and await other.get("bad") is None

    async def test_a_staged_change_that_raises_is_not_staged(self) -> None:
        state = self.state(auto_save=False)
        with pytest.raises(ZeroDivisionError):
            await state.update("k", lambda old: 1 // 0)

        assert await state.flush() == 0

    async def test_staged_updates_are_applied_once_however_many_flush(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        seen: list[int] = []

        async def count() -> None:
            seen.extend([await state.update("n", lambda old: old + 1, default=0) for _ in range(10)])

        async def flush() -> None:
            for _ in range(10):
                await state.flush()

        async def read() -> None:
            for _ in range(10):
                assert await state.get("n", 0) <= 20

        await self.together(count(), flush(), count(), flush(), read())
        await state.flush()

        assert sorted(seen) == list(range(1, 21)) and await other.get("n") == 20

    async def test_a_transaction_sees_what_is_staged(self) -> None:
        state = self.state(auto_save=False)
        await state.save("k", 1)
        async with state.transaction() as tx:
            seen = await tx.get("k")
            await tx.save("k", 2)

        assert seen == 1 and await state.get("k") == 2

    async def test_a_staged_update_is_applied_once_by_transactions_that_begin_at_once(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.update("n", lambda old: old + 1, default=0)

        async def begin() -> None:
            async with state.transaction() as inside:
                await inside.get("other")

        await self.together(begin(), begin(), state.flush())

        assert await other.get("n") == 1

    async def test_who_compares_does_so_over_what_is_staged(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.save("k", "staged")
        with pytest.raises(ConflictError):
            await state.compare_and_set("k", "compared", expected_version=0)
        entry = await other.entry("k")
        assert entry is not None and entry.value == "staged"
        await state.compare_and_set("k", "compared", expected_version=entry.version)
        await state.flush()

        assert await other.get("k") == "compared"

    async def test_what_is_saved_while_a_flush_is_at_work_is_stored_by_the_next(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.save("k", 0)

        async def save() -> None:
            for number in range(1, 11):
                await state.save("k", number)

        await self.together(*(state.flush() for _ in range(5)), save())
        await state.flush()

        assert await other.get("k") == 10

    async def test_staged_updates_of_threads_or_tasks_are_all_kept(self) -> None:
        state, other = self.state(auto_save=False), self.state()

        async def count() -> None:
            for _ in range(40):
                await state.update("n", lambda old: old + 1, default=0)

        with switching_often():
            await self.together(*(count() for _ in range(6)))
        await state.flush()

        assert await other.get("n") == 240

    async def test_close_flushes(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        await state.save("k", 1)
        await state.close()

        assert await other.get("k") == 1

    async def test_nothing_is_taken_after_close(self) -> None:
        for state in (self.state(auto_save=False), self.state()):
            await state.close()

            with pytest.raises(ClosedError):
                await state.save("k", 1)
            with pytest.raises(ClosedError):
                await state.get("k")

    async def test_a_staged_change_is_computed_over_what_is_saved_meanwhile(self) -> None:
        state, other = self.state(auto_save=False), self.state()
        seen: list[int] = []

        def add(old: int) -> int:
            seen.append(old)
            if len(seen) == 1:
                finish(state.save("n", 10))  # somebody is faster; staging waits for nothing
            return old + 1

        value = await state.update("n", add, default=0)

        assert (value, seen, await state.get("n")) == (11, [0, 10, 10], 11)
        assert await state.flush() == 1 and await other.get("n") == 11

    async def test_a_staged_change_that_does_not_fit_what_is_saved_meanwhile_is_not_staged(self) -> None:
        state, other = self.state(auto_save=False), self.state()

        def change(old: Any) -> Any:
            if isinstance(old, dict):
                finish(state.save("k", 5))
                return {"a": 1}
            raise InvalidError("no dict")

        with pytest.raises(InvalidError):
            await state.update("k", change)

        assert await state.get("k") == 5
        assert await state.flush() == 1 and await other.get("k") == 5

    async def test_a_staged_change_that_always_saves_its_own_key_gives_up(self) -> None:
        state = self.state(auto_save=False)

        def save(old: int) -> int:
            finish(state.save("n", old + 1))
            return old

        with pytest.raises(AttemptsExhaustedError, match="'n'"):
            await state.update("n", save, default=0)

    async def test_an_update_after_a_staged_deletion_lives_as_long_as_any_new_one(self) -> None:
        state, other = self.state(auto_save=False, ttl=0.9), self.state()
        await other.save("k", {"old": 1})
        await state.delete("k")
        await state.update("k", {"new": 1})
        await state.flush()
        before = await other.get("k")
        await self.pass_time(950)

        assert before == {"new": 1} and await other.get("k") is None
