"""Questions of a state machine: approvals of its space that it asks when it enters a waiting state.

The transition that enters the state asks, and one that leaves it by another way withdraws, each in its own
batch. So a waiting state has one pending approval at most, and none is pending of a state that was left.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

from keepstate.engine.approvals.records import Approval, TaskSpec
from keepstate.engine.kernel.arguments import require_instance
from keepstate.engine.kernel.executor import call_function
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError
from keepstate.names import shorten
from keepstate.sessions.machine_data import Data, MachineRecord
from keepstate.sessions.table import Table


@dataclass(frozen=True, slots=True)
class Question:
    """A question that a machine asks when it enters a waiting state; an approval of the machine's space.

    Attributes:
        question: The question.
        subject: The thing that is decided about.
        schema: A JSON Schema of the answer; None for yes or no.
        to: The people and groups who may answer; empty for everyone but the author of the machine's handle.
        need: The number of different people who have to say yes.
        expires_s: Seconds after which it takes no answer; None if it does not expire.
        then: A task that is ready when the question is settled, to run the machine. Its payload is the id of
            the machine, unless it has another one.
        yes: The event that follows a yes, if several lead on.
        no: The event that follows a no, if several lead on.
        closed: The event that follows if it expires or is withdrawn. Without it, `run` then raises
            `ApprovalClosedError`.
    """

    question: str
    subject: object = None
    schema: object = None
    to: Sequence[str] = ()
    need: int = 1
    expires_s: float | None = None
    then: TaskSpec | None = None
    yes: str | None = None
    no: str | None = None
    closed: str | None = None


AskFunction: TypeAlias = Callable[[Data], object]


class Questions:
    """The questions of a machine, by the waiting states that ask them.

    Args:
        machine: The id of the machine.
        name: The name of the machine's document, with which the ids of its approvals begin.
        table: Its table.
        asked: The questions, or functions of the data that return them, by state.
    """

    def __init__(
        self, machine: str, name: str, table: Table, asked: Mapping[str, Question | AskFunction]
    ) -> None:
        self._machine, self._name, self._table, self._asked = machine, name, table, asked
        table.check_states("questions", *asked)
        for state, question in asked.items():
            if state not in table.waiting:
                raise InvalidError(f"`questions` names {state!r}, which does not wait for the user.")
            if all(target != state for target in table.transitions.values()):
                raise InvalidError(f"`questions` names {state!r}, but no event leads to it, so none asks.")
            if not callable(question):
                self._check(state, question)

    @property
    def functions(self) -> list[AskFunction]:
        """The functions of the data among them."""
        return [each for each in self._asked.values() if callable(each)]

    async def enter(self, tx: Transaction, record: MachineRecord, times: int = 1) -> list[Any]:
        """Ask the question of the state that a machine enters, and return what its record notes of that.

        Args:
            tx: The transaction of the transition.
            record: The machine after it.
            times: The number of times that this state has asked since it was entered.
        """
        asked = self._asked.get(record.state)
        if asked is None:
            return [] if record.state in self._table.waiting else record.asked
        question = asked
        if callable(asked):
            question = cast("Question", await call_function(asked, record.data))
            self._check(record.state, question)
        assert isinstance(question, Question)
        # An approval outlives a machine that was deleted, and its answer must not be taken for this one.
        while await tx.approvals.get(id := self._id(record.number, times)) is not None:
            times += 1
        then = question.then
        if then is not None and then.payload is None:
            then = replace(then, payload=self._machine)
        await tx.approvals.ask(
            question.question,
            id=id,
            subject=question.subject,
            schema=question.schema,
            to=question.to,
            need=question.need,
            expires_s=question.expires_s,
            then=then,
        )
        return [id, times, question.yes, question.no, question.closed]

    async def leave(self, tx: Transaction, record: MachineRecord, event: str) -> None:
        """Settle the approval of a waiting state that a machine leaves, if it is not settled."""
        if record.state not in self._table.waiting or not record.asked:
            return
        id = record.asked[0]
        found = await tx.approvals.get(id)
        if found is not None and found.state == "expired":
            await tx.approvals.expire(id)
        elif found is not None and found.state == "pending":
            by = tx.executor.author or "machine"
            await tx.approvals.withdraw(id, by=by, reason=f"the machine went on by {shorten(event)!r}")

    async def find(self, target: Space | Transaction, record: MachineRecord) -> Approval | None:
        """Return the approval that a machine asked last."""
        return await target.approvals.get(record.asked[0]) if record.asked else None

    def event_of(self, record: MachineRecord, approval: Approval) -> str | None:
        """Return the event that follows a settled approval; None if it is closed, and no event follows that.

        Raises:
            InvalidError: The table no longer has an event for the answer.
        """
        _, _, yes, no, closed = record.asked
        if approval.answer is None:
            return None if closed is None else str(closed)
        value = approval.answer.value
        chosen = {True: yes, False: no}[value] if approval.schema is None else None
        return self._table.event_of_answer(record.state, value, chosen)

    def _id(self, number: int, times: int) -> str:
        return shorten(f"{self._name}/{number}" if times == 1 else f"{self._name}/{number}/{times}")

    def _check(self, state: str, question: Question) -> None:
        """Raise `InvalidError` for a question with an answer after which no event would follow."""
        require_instance("questions", question, Question)
        events = self._table.events(state)
        for event in (question.yes, question.no, question.closed):
            if event is not None and event not in events:
                raise InvalidError(
                    f"The question of state {state!r} names the event {event!r}. Its events are {events!r}."
                )
        if question.schema is not None and (question.yes or question.no):
            raise InvalidError(f"The question of state {state!r} has a schema, so no answer is yes or no.")
        if len(events) == 1:
            return
        if question.schema is None:
            if question.yes is None or question.no is None:
                raise InvalidError(f"Several events lead on from state {state!r}. Pass `yes` and `no`.")
        elif not _are_events(question.schema, events):
            raise InvalidError(
                f"Several events lead on from state {state!r}. Pass a schema whose `enum` names some of "
                f"{events!r}."
            )


def _are_events(schema: object, events: Sequence[str]) -> bool:
    """Return whether every answer to a schema is the name of an event."""
    if not isinstance(schema, Mapping):
        return False
    choices = cast("Mapping[str, object]", schema).get("enum")
    return isinstance(choices, list) and all(each in events for each in cast("list[object]", choices))
