"""`AgentStateMachine`: whoever makes its transitions at once, what each has made of the data is kept."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate.errors import ConflictError, InvalidError
from keepstate.sessions.machine import AgentStateMachine
from tests.contracts.sessions.stage import SessionStage

_TURNS: dict[str, Any] = {"states": ["on"], "transitions": {("on", "turn"): "on"}, "waiting": ()}


class MachineContract(SessionStage):
    """What an `AgentStateMachine` does, whatever it is kept in."""

    def machine(self, **options: Any) -> AgentStateMachine:
        """Return a machine of one state; called again, another object of the same."""
        return self.closed_later(AgentStateMachine("m", **_TURNS, **options, **self.where()))

    async def kept(self) -> dict[str, Any]:
        """Return its data, as another object reads them."""
        machine = self.machine()
        await machine.refresh()
        return machine.data

    async def test_transitions_at_once_on_one_object_keep_all_of_the_data(self) -> None:
        machine = self.machine()
        await machine.transition("turn", first=0)

        await self.together(*(machine.transition("turn", **{f"k{n}": n}) for n in range(8)))
        await machine.transition("turn", last=8)

        told = {"first": 0, **{f"k{n}": n for n in range(8)}, "last": 8}
        assert await self.kept() == told == machine.data
        assert len(await machine.history()) == 10

    async def test_what_is_changed_while_a_transition_is_made_is_kept_by_the_next(self) -> None:
        def turned(data: dict[str, Any]) -> None:
            machine.data["meanwhile"] = True
            machine.data["list"].append(2)
            data["turned"] = data.get("turned", 0) + 1

        machine = self.machine(on_enter={"on": turned})
        await machine.refresh()
        machine.data["list"] = [1]

        await machine.transition("turn")
        assert await self.kept() == {"list": [1], "turned": 1}
        assert machine.data == {"list": [1, 2], "turned": 1, "meanwhile": True}
        await machine.transition("turn")
        assert await self.kept() == {"list": [1, 2], "turned": 2, "meanwhile": True}

    async def test_what_two_objects_made_of_the_same_part_is_a_conflict_unless_it_is_alike(self) -> None:
        one, other = self.machine(), self.machine()
        await one.transition("turn", a=[1], b=1)
        await other.refresh()
        await one.transition("turn", a=[1, 2])
        await other.transition("turn", a=[1, 2], b=2)

        with pytest.raises(ConflictError, match="'b'"):
            await one.transition("turn", b=3)
        assert await self.kept() == {"a": [1, 2], "b": 2}

    async def test_a_part_that_equals_the_one_before_and_is_of_another_type_is_a_change(self) -> None:
        machine = self.machine()
        await machine.transition("turn", a=1, b=[0.0], c={1: "x"}, d=2)
        for key, value in {"a": True, "b": [-0.0], "c": {1.0: "x"}}.items():
            await machine.transition("turn", **{key: value})

        assert repr(await self.kept()) == "{'a': True, 'b': [-0.0], 'c': {1.0: 'x'}, 'd': 2}"

    async def test_data_with_a_key_that_is_no_text_is_refused_until_it_is_taken_out(self) -> None:
        machine: Any = self.machine()
        await machine.transition("turn", a=1)
        machine.data[7] = "x"
        with pytest.raises(InvalidError, match="the data of machine 'm' has the key 7"):
            await machine.transition("turn")
        del machine.data[7]
        await machine.transition("turn", b={7: "x"})

        assert await self.kept() == {"a": 1, "b": {7: "x"}}

    async def test_an_event_that_is_no_text_is_refused(self) -> None:
        machine = self.machine()
        # wrong on purpose
        for wrong in (["turn"], 5, "\ud800"):
            # wrong on purpose
            for asking in (machine.transition(wrong), machine.provide("yes", event=wrong)):  # type: ignore[arg-type]
                with pytest.raises(InvalidError, match="`event`"):
                    await asking

        assert await machine.history() == []
