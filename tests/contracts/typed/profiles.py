"""Profiles and shared state: whose values are whose, and that no update is lost."""

from __future__ import annotations

import pickle
from typing import Any, cast

import pytest

from keepstate.errors import ConflictError, InvalidError, StateError
from keepstate.typed.key import ProfileKey
from keepstate.typed.profiles import ProfileAccess, StateScope
from tests.contracts.typed.keys import Locale, Score, Tags, Visits
from tests.contracts.typed.stage import TypedStage


class ProfileContract(TypedStage):
    """`ProfileAccess`."""

    async def test_what_is_absent_reads_as_the_default(self) -> None:
        access = self.profiles()

        assert await access.read(Locale, "alice") == "en"
        assert await access.entry(Locale, "alice") is None

    async def test_what_is_written_is_read_by_all(self) -> None:
        await self.profiles().write(Locale, "alice", "de")
        await self.profiles().write(Locale, "system", "fr")

        access = self.profiles()
        assert [await access.read(Locale, name) for name in ("alice", "system", "bob")] == ["de", "fr", "en"]

    async def test_deleting_says_whether_there_was_a_value(self) -> None:
        access = self.profiles()
        await access.write(Locale, "alice", "de")

        assert await access.delete(Locale, "alice") is True
        assert await access.delete(Locale, "alice") is False
        assert await access.read(Locale, "alice") == "en"

    async def test_a_raw_string_and_the_scope_of_that_string_are_one(self) -> None:
        access = self.profiles()
        scopes = [
            StateScope.global_(),
            StateScope.parent_thread("p:1"),
            StateScope.agent_type("planner"),
            StateScope.thread("t/1"),
            StateScope.new("any thing"),
        ]
        for number, scope in enumerate(scopes):
            await access.write(Score, scope.as_str(), number)

        assert [await access.read(Score, scope=scope) for scope in scopes] == [0, 1, 2, 3, 4]
        assert [await access.read(Score, scope) for scope in scopes] == [0, 1, 2, 3, 4]

    async def test_an_agent_is_no_scope_of_its_name(self) -> None:
        access = self.profiles()
        await access.write(Locale, "global", "de")
        await access.write(Locale, value="fr", agent="global")

        assert await access.read(Locale, scope=StateScope.global_()) == "de"
        assert await access.read(Locale, agent="global") == "fr"
        assert await access.read(Locale, scope=StateScope.new("global")) == "de"

    async def test_whose_it_is_is_said_once(self) -> None:
        access = self.profiles()

        for arguments in ({}, {"key": "a", "agent": "a"}, {"key": ""}, {"agent": ""}, {"key": 3}):
            given: Any = arguments
            with pytest.raises(InvalidError):
                await access.read(Locale, **given)
        with pytest.raises(InvalidError):
            await access.write(Locale, "alice")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
        with pytest.raises(InvalidError):
            await access.update(Locale, "alice")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]

    async def test_keys_of_one_owner_are_apart(self) -> None:
        access = self.profiles(keys=[Score])
        await access.write(Score, "alice", 1)
        await access.write(Tags, "alice", ["a"])
        await access.write(Score, "alice2", 2)

        assert [(each.key, each.value) for each in await access.list("alice")] == [
            ("score", 1),
            ("tags", ["a"]),
        ]
        assert await access.clear("alice") == 2
        assert await access.list("alice") == []
        assert await access.read(Score, "alice2") == 2

    async def test_what_was_read_is_written_over_only_as_it_was(self) -> None:
        one, other = self.profiles(), self.profiles()
        assert await one.read(Score, "alice") == await other.read(Score, "alice") == 0
        await one.write(Score, "alice", 1)

        with pytest.raises(ConflictError):
            await other.write(Score, "alice", 1)

        assert await other.read(Score, "alice") == 1
        await other.write(Score, "alice", 2)
        assert await one.read(Score, "alice") == 2

    async def test_who_writes_twice_meets_no_conflict_with_itself(self) -> None:
        access = self.profiles()
        await access.read(Score, "alice")

        await access.write(Score, "alice", 1)
        await access.write(Score, "alice", 2)

        assert await access.read(Score, "alice") == 2

    async def test_tasks_that_share_one_access_lose_no_update_to_one_another(self) -> None:
        access = self.profiles()
        await access.write(Score, "alice", 0)

        async def add() -> int:
            for attempt in range(1000):
                score = await access.read(Score, "alice")
                try:
                    await access.write(Score, "alice", score + 1)
                except ConflictError:
                    continue
                return attempt
            raise AssertionError("never written")

        await self.together(*[add() for _ in range(6)])

        assert await self.profiles().read(Score, "alice") == 6

    async def test_what_was_listed_or_is_deleted_counts_as_read(self) -> None:
        access, other = self.profiles(keys=[Score]), self.profiles()
        await other.write(Score, "alice", 1)
        (listed,) = await access.list("alice")
        await other.update(Score, "alice", lambda score: score + 1)

        with pytest.raises(ConflictError):
            await access.write(Score, "alice", listed.value + 10)
        with pytest.raises(ConflictError):
            await access.delete(Score, "alice")
        with pytest.raises(ConflictError):
            await self.profiles().delete(Score, "alice", expected_version=listed.version)

        assert await access.read(Score, "alice") == 2
        assert await access.delete(Score, "alice") is True

    async def test_what_was_updated_counts_as_read(self) -> None:
        access, other = self.profiles(), self.profiles()
        score = await access.update(Score, "alice", lambda score: score + 1)
        await other.update(Score, "alice", lambda score: score + 1)

        with pytest.raises(ConflictError):
            await access.write(Score, "alice", score + 10)

        score = await access.update(Score, "alice", lambda score: score + 1)
        await access.write(Score, "alice", score + 10)
        assert await other.read(Score, "alice") == 13

    async def test_an_expected_version_is_demanded(self) -> None:
        access = self.profiles()
        version = await access.write(Score, "alice", 1, expected_version=0)
        entry = await access.entry(Score, "alice")
        assert entry is not None
        assert (entry.key, entry.value, entry.version) == ("score", 1, version)
        await self.profiles().write(Score, "alice", 2)

        with pytest.raises(ConflictError):
            await access.write(Score, "alice", 3, expected_version=version)

    async def test_a_printed_version_is_demanded_by_another_handle(self) -> None:
        access = self.profiles()
        version = await access.write(Score, "alice", 1)
        (listed,) = await access.list("alice")
        entry = await access.entry(Score, "alice")
        assert entry is not None and entry.printed_version == listed.printed_version
        printed = pickle.loads(pickle.dumps(entry)).printed_version
        await access.write(Score, "bob", 1)
        with pytest.raises(InvalidError, match="of another space"):
            await self.profiles().delete(Score, "bob", expected_version=printed)
        with pytest.raises(InvalidError, match=r"is not a printed version\. Give the"):
            await self.profiles().delete(Score, "alice", expected_version=str(version))

        await self.profiles().write(Score, "alice", 2, expected_version=printed)

        with pytest.raises(ConflictError):
            await self.profiles().write(Score, "alice", 3, expected_version=printed)
        with pytest.raises(ConflictError):
            await self.profiles().delete(Score, "alice", expected_version=printed)
        entry = await self.profiles().entry(Score, "alice")
        assert entry is not None and entry.value == 2
        assert await self.profiles().delete(Score, "alice", expected_version=entry.printed_version)

    async def test_no_update_of_many_at_once_is_lost(self) -> None:
        async def add(access: ProfileAccess) -> None:
            for _ in range(5):
                await access.update(Score, "alice", lambda score: score + 1)

        await self.together(*[add(self.profiles()) for _ in range(4)])

        assert await self.profiles().read(Score, "alice") == 20

    async def test_an_update_begins_with_the_default_and_gives_the_new_value(self) -> None:
        access = self.profiles()

        assert await access.update(Tags, agent="a", change=lambda tags: [*tags, "x"]) == ["x"]

        def forgets(tags: list[str]) -> Any:
            tags.append("y")

        with pytest.raises(StateError, match="None"):
            await access.update(Tags, agent="a", change=forgets)
        assert await access.read(Tags, agent="a") == ["x"]

    async def test_a_value_of_another_type_is_refused(self) -> None:
        access, wrong, no_profile = self.profiles(), list[Any](["a", 1]), cast("Any", Visits)

        with pytest.raises(StateError) as refused:
            await access.write(Tags, "alice", wrong)
        with pytest.raises(StateError):
            await access.read(no_profile, "alice")

        assert (refused.value.state_key, refused.value.path) == ("tags", "[1]")

    async def test_what_no_longer_validates_tells_so(self) -> None:
        class Number(Locale):
            @classmethod
            def decode(cls, raw: Any) -> Any:
                raise ValueError("no number")

        await self.profiles().write(Locale, "alice", "de")

        with pytest.raises(StateError, match="version 1"):
            await self.profiles().read(Number, "alice")

    async def test_a_value_of_an_older_version_is_upgraded_when_it_is_read_listed_and_updated(self) -> None:
        class Languages(ProfileKey[list[str]]):
            KEY = "locale"
            VERSION = 2

            @classmethod
            def upgrade(cls, raw: Any, from_version: int) -> Any:
                return raw.split("+")

        await self.profiles().write(Locale, "alice", "de+en")
        access = self.profiles(keys=[Languages])

        assert await access.read(Languages, "alice") == ["de", "en"]
        assert [(each.value, each.error) for each in await access.list("alice")] == [(["de", "en"], None)]
        assert await access.update(Languages, "alice", lambda old: [*old, "fr"]) == ["de", "en", "fr"]
        with pytest.raises(StateError, match="newer") as refused:
            await self.profiles().read(Locale, "alice")
        assert (refused.value.state_key, refused.value.stored_version) == ("locale", 2)

    async def test_a_value_that_cannot_be_read_leaves_the_others_listed(self) -> None:
        class Number(ProfileKey[int]):
            KEY = "locale"

        await self.profiles().write(Locale, "alice", "de")
        await self.profiles().write(Score, "alice", 1)

        bad, good = await self.profiles(keys=[Number, Score]).list("alice")

        assert (bad.key, bad.value, good.key, good.value, good.error) == ("locale", "de", "score", 1, None)
        assert bad.error is not None
        assert (bad.error.state_key, bad.error.stored_version) == ("locale", 1)

    async def test_in_a_transaction_all_applies_together(self) -> None:
        space = self.handle().space("shared")
        async with space.transaction() as tx:
            access = self.profiles(space=tx)
            assert await access.read(Score, "alice") == 0
            assert await access.write(Score, "alice", 1) == 0
            await access.write(Score, "alice", 2)
            await access.update(Score, "bob", lambda score: score + 1)

        access = self.profiles(space=space)
        assert [await access.read(Score, name) for name in ("alice", "bob")] == [2, 1]
        assert await space.revision() == 1
