"""`AgentStateStore`: all that an agent was, in the order in which it was saved."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from hashlib import sha512
from typing import Any, cast

import pytest

from keepstate.errors import InvalidError
from keepstate.managers.agents import AgentCheckpoint, AgentSnapshot, AgentStateStore
from tests.contracts.managers.stage import ManagerStage

AWKWARD_IDS = [
    "1", "10", "1x", "a/b", "a%2Fb", "a:b", "a_b", "~", "#", "@", "*", "two words", "\n",
    "naïve 🦜", "i" * 150,
]  # fmt: skip
LONG_AND_ODD = [("ö/:_ 🦜~%" * 60).encode()[:467].decode("utf-8", "ignore") + end for end in "xyz"]
"""Each near 500 bytes, over 900 where it is quoted, and unlike the others in its last character only."""
LONG_AGO = datetime(2001, 1, 1)


def checkpoint(id: str, step: int, **more: Any) -> AgentCheckpoint:
    """Return a checkpoint of agent `a`."""
    fields: dict[str, Any] = {"agent_id": "a", "checkpoint_id": id, "step": step, "state": {"step": step}}
    return AgentCheckpoint(**{**fields, **more})


class AgentContract(ManagerStage):
    """What an `AgentStateStore` does, whatever it is kept in."""

    def agents(self) -> AgentStateStore:
        return self.made(AgentStateStore)

    # ---- snapshots

    async def test_snapshots_are_all_kept_and_listed_in_the_order_of_saving(self) -> None:
        agents = self.agents()
        saved = [
            AgentSnapshot(
                agent_id="a",
                timestamp=LONG_AGO - timedelta(days=number),
                memory_state={"facts": {number}},
                tool_state=(number,),
                conversation_history=[{"role": "user", "content": "x"}] * number,
                metadata={"number": number},
            )
            for number in range(11)
        ]
        for snapshot in saved:
            await agents.save_snapshot(snapshot)
        listed = await agents.list_snapshots("a")

        assert listed == saved and listed[0].timestamp.tzinfo is None
        assert all(type(snapshot.tool_state) is tuple for snapshot in listed)
        assert await agents.list_snapshots("a", limit=2) == saved[-2:]
        assert await agents.latest_snapshot("a") == saved[-1]
        assert all(snapshot.saved_at is not None and snapshot.saved_at.tzinfo is UTC for snapshot in listed)

    async def test_a_snapshot_costs_what_changed(self) -> None:
        agents = self.agents()
        texts = [sha512(b"%d" % number).hexdigest() for number in range(400)]
        messages = [{"role": "user", "content": text} for text in texts]
        sizes: list[int] = []
        for number in range(12):
            messages.append({"role": "assistant", "content": f"answer {number}"})
            await agents.save_snapshot(
                AgentSnapshot(agent_id="a", timestamp=LONG_AGO, conversation_history=messages)
            )
            sizes.append((await agents.size()).size_bytes)

        assert sizes[-1] - sizes[0] < sizes[0]

    # ---- checkpoints

    async def test_a_checkpoint_comes_back_equal(self) -> None:
        agents = self.agents()
        saved = checkpoint("task_step_5", 5, state={"results": ..., "set": {1}, 2: b"x"}, recoverable=False)
        await agents.save_checkpoint(saved)

        assert await agents.get_checkpoint("a", "task_step_5") == saved
        assert await agents.get_checkpoint("a", "other") is None
        assert await agents.get_checkpoint("b", "task_step_5") is None

    async def test_the_same_id_again_replaces_and_the_history_keeps_the_old_one(self) -> None:
        agents = self.agents()
        first = await agents.save_checkpoint(checkpoint("c", 1))
        await agents.save_checkpoint(checkpoint("d", 2))
        await agents.save_checkpoint(checkpoint("c", 3))
        space = self.run_space() if self.in_passed_space else self.handle().space("agent/a")

        assert [each.step for each in await agents.list_checkpoints("a")] == [2, 3]
        assert (await space.history.checkout(first))["step"] == 1

    async def test_the_eleventh_checkpoint_is_later_than_the_ninth(self) -> None:
        agents = self.agents()
        for number in range(1, 12):
            await agents.save_checkpoint(checkpoint(f"step_{number}", number))
        latest = await agents.latest_checkpoint("a")

        assert latest is not None and latest.step == 11
        assert [each.step for each in await agents.list_checkpoints("a")] == list(range(1, 12))
        assert [each.step for each in await agents.list_checkpoints("a", limit=2)] == [10, 11]

    async def test_the_latest_recoverable_one_is_found_behind_others(self) -> None:
        agents = self.agents()
        await agents.save_checkpoint(checkpoint("a", 1))
        await agents.save_checkpoint(checkpoint("b", 2))
        await agents.save_checkpoint(checkpoint("c", 3, recoverable=False))
        before = await agents.latest_checkpoint("a", recoverable_only=True)
        await agents.save_checkpoint(checkpoint("b", 4, recoverable=False))
        after = await agents.latest_checkpoint("a", recoverable_only=True)
        await agents.delete_checkpoint("a", "a")

        assert before is not None and after is not None and (before.step, after.step) == (2, 1)
        assert await agents.latest_checkpoint("a", recoverable_only=True) is None
        assert (await agents.latest_checkpoint("a")) == checkpoint("b", 4, recoverable=False)

    async def test_what_is_no_id_or_no_record_is_refused_by_its_name(self) -> None:
        agents = self.agents()
        for wrong in (None, 5, b"a", ["a"], "\ud800"):
            refused: dict[str, Any] = {
                "`checkpoint_id`": agents.get_checkpoint("a", cast("str", wrong)),
                "`checkpoint_id` ": agents.delete_checkpoint("a", cast("str", wrong)),
                "`checkpoint_id`  ": agents.save_checkpoint(checkpoint(cast("str", wrong), 1)),
                "`agent_id`": agents.latest_snapshot(cast("str", wrong)),
            }
            for name, call in refused.items():
                with pytest.raises(InvalidError, match=name.strip()):
                    await call
        for field, bad in (("step", cast("Any", "x")), ("step", True), ("recoverable", 1)):
            with pytest.raises(InvalidError, match=f"`{field}`"):
                await agents.save_checkpoint(checkpoint("c", **{"step": 1, field: bad}))
        with pytest.raises(InvalidError, match="`timestamp`"):
            await agents.save_snapshot(AgentSnapshot(agent_id="a", timestamp=cast("datetime", "now")))

    async def test_a_checkpoint_s_id_may_be_any_text_but_latest(self) -> None:
        agents = self.agents()
        most = 512 - len("checkpoint/") - len("agent/a/") * self.in_passed_space
        ids = [*AWKWARD_IDS, "c" * 300, "c" * most]
        for number, id in enumerate(ids):
            await agents.save_checkpoint(checkpoint(id, number))

        assert [each.checkpoint_id for each in await agents.list_checkpoints("a")] == ids
        found = [await agents.get_checkpoint("a", id) for id in ids]
        assert [each.step for each in found if each is not None] == list(range(len(ids)))
        for wrong, told in (
            ("latest", "latest"),
            ("", "empty"),
            ("c" * (most + 1), f"`checkpoint_id`.* {most}"),
        ):
            with pytest.raises(InvalidError, match=told):
                await agents.save_checkpoint(checkpoint(wrong, 1))

    # ---- agents

    async def test_no_agent_touches_another(self) -> None:
        agents = self.agents()
        for id in AWKWARD_IDS:
            await agents.save_checkpoint(checkpoint("c", 1, agent_id=id))
        before = await agents.list_agents()
        removed = await agents.delete("1")

        assert sorted(before) == sorted(AWKWARD_IDS) and removed
        assert sorted(await agents.list_agents()) == sorted(AWKWARD_IDS[1:])
        assert await agents.list_checkpoints("1") == []
        assert len(await agents.list_checkpoints("10")) == 1
        assert not await agents.delete("1")

    async def test_an_id_too_long_for_a_space_is_refused(self) -> None:
        agents = self.agents()
        for id in ("i" * 195, "é" * 98, ""):
            with pytest.raises(InvalidError, match="id of"):
                await agents.save_checkpoint(checkpoint("c", 1, agent_id=id))
        await agents.save_checkpoint(checkpoint("c", 1, agent_id="i" * 194))

        assert await agents.list_agents() == ["i" * 194]

    async def test_concurrent_savers_lose_nothing(self) -> None:
        stores = [self.agents() for _ in range(3)]

        async def save(number: int) -> None:
            for step in range(5):
                await stores[number].save_checkpoint(checkpoint(f"{number}/{step}", step))

        await self.together(*(save(number) for number in range(3)))

        listed = await stores[0].list_checkpoints("a")
        assert len(listed) == 15
        for number in range(3):
            assert [each.step for each in listed if each.checkpoint_id.startswith(f"{number}/")] == [
                0,
                1,
                2,
                3,
                4,
            ]

    async def test_an_agent_of_whom_much_is_kept_is_removed_whole(
        self,
    ) -> None:
        agents = self.agents()
        space = self.run_space() if self.in_passed_space else self.handle().space("agent/a")
        prefix = "agent/a/" if self.in_passed_space else ""
        await agents.save_snapshot(AgentSnapshot(agent_id="a", timestamp=LONG_AGO))
        for begin in (0, 550):
            async with space.transaction() as tx:
                for number in range(begin, begin + 550):
                    await tx.documents.put(f"{prefix}other/{number}", None)
        removed = await agents.delete("a")

        assert removed and await agents.list_agents() == []
        assert not await agents.delete("a") and await agents.latest_snapshot("a") is None
        assert {branch.name async for branch in space.history.branches()} <= {"main"}

    async def test_what_is_too_much_for_a_transaction_is_refused_and_removed_outside(self) -> None:
        space = self.run_space()
        async with space.transaction() as tx:
            for number in range(900):
                await tx.documents.put(f"agent/a/checkpoint/{number}", None)
        async with space.transaction() as tx:
            for number in range(900, 1_010):
                await tx.documents.put(f"agent/a/checkpoint/{number}", None)
        outside = AgentStateStore(space=space, _mode=self.mode_name)

        with pytest.raises(InvalidError, match="agent 'a' has 1010 documents"):
            async with space.transaction() as tx:
                await AgentStateStore(space=tx, _mode=self.mode_name).delete("a")
        assert await outside.delete("a") and await outside.list_agents() == []

    async def test_cleanup_leaves_what_is_saved_again_while_it_is_at_work(self) -> None:
        store, agents, others = await self.in_trouble(AgentStateStore)
        for id in ("a", "b", "c"):
            await agents.save_checkpoint(checkpoint(id, 1))
        await self.pass_time(20)
        store.meanwhile = lambda: others.save_checkpoint(checkpoint("a", 2))
        removed = await agents.cleanup(older_than=timedelta(0))

        assert removed == 1
        assert [each.checkpoint_id for each in await agents.list_checkpoints("a")] == ["c", "a"]
        latest = await agents.latest_checkpoint("a")
        assert latest is not None and latest.step == 2

    async def test_cleanup_keeps_the_newest_and_makes_the_rest_go(self) -> None:
        agents = self.agents()
        for step in range(20):
            text = f"{step} " * 1_000
            await agents.save_checkpoint(checkpoint(f"c{step}", step, state=text, recoverable=step < 18))
            await agents.save_snapshot(AgentSnapshot(agent_id="a", timestamp=LONG_AGO, memory_state=text))
        before = await agents.size()
        await self.pass_time(20)
        kept = await agents.cleanup(older_than=timedelta(hours=1))
        removed = await agents.cleanup(older_than=timedelta(0))

        assert (kept, removed) == (0, 37)
        assert [each.step for each in await agents.list_checkpoints("a")] == [17, 19]
        assert len(await agents.list_snapshots("a")) == 1
        if not self.in_passed_space:
            assert (await agents.size()).size_bytes < before.size_bytes / 2
        else:  # the past of such a space is its owner's
            moments = [commit async for commit in self.run_space().history.log("main")]
            assert [each.message for each in moments][-2:] == ["snapshot", "checkpoint c0"]
