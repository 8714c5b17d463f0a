"""One agent that keeps its state in five ways, each written as an application would write it, and no longer.

A process that runs `work` takes orders: `steps` of a session, each of which it acknowledges, and `known`, to
which it answers how many messages the agent is given by then.
"""

from __future__ import annotations

import ast
import inspect
from abc import ABC, abstractmethod
from contextlib import suppress
from multiprocessing.connection import Connection
from textwrap import dedent
from typing import Any, Protocol

from keepstate import Event, NotFoundError, TieredStore, sync
from keepstate.stores.base import StoreBase
from keepstate.stores.wrappers.wrapper import StoreWrapper
from keepstate.sync import EventStream, Session

Message = dict[str, Any]
Place = str | StoreBase | StoreWrapper
"""A URL, or a store that is open."""

FRESH_S = 2
"""How old what the tiered way reads may be."""


class Memory(Protocol):
    """What an agent knows in a session."""

    def append(self, message: Message, /) -> object:
        """Take in a message."""
        ...

    def get_context(self) -> list[Message]:
        """Return what a model is given."""
        ...


class Agent:
    """Answers at once, so that nothing but the keeping of its state takes time.

    Args:
        memory: What it knows.
    """

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def process(self, user_input: str) -> str:
        """Do a step: takes in what a user says, reads what a model is given, and take in the answer."""
        self.memory.append({"role": "user", "content": user_input})
        context = self.memory.get_context()
        response = f"{len(context)} {context[-1]['content']}"
        self.memory.append({"role": "assistant", "content": response})
        return response


class Way(ABC):
    """A way to keep the state of one session.

    Args:
        place: Where, if anywhere.
        session: Which one.
    """

    def __init__(self, place: Place, session: str) -> None:
        self.place, self.session = place, session

    @abstractmethod
    def step(self, user_input: str) -> str:
        """Let the agent do a step."""

    @classmethod
    @abstractmethod
    def lines(cls) -> int:
        """Return how many lines of an application say how its state is kept."""

    def read(self) -> list[Message]:
        """Return what a model would be given now."""
        return []

    def count(self) -> int:
        """Return how many messages the agent knows of."""
        return 0

    def moments(self) -> int:
        """Return how many moments can be told apart by reading each again."""
        return 0

    @abstractmethod
    def close(self) -> None:
        """Let go of what is open."""


class Stateless(Way):
    """Each call stands alone."""

    def step(self, user_input: str) -> str:
        with Session("call", persistence="memory://") as session:
            return Agent(session.conversation).process(user_input)

    @classmethod
    def lines(cls) -> int:
        return _body_lines(cls.step)

    def close(self) -> None:
        """Have nothing open."""


class InMemory(Way):
    """A session in memory, which goes with the process."""

    def __init__(self, place: Place, session: str) -> None:
        super().__init__(place, session)
        self._session = self.opened()
        self._agent = Agent(self._session.conversation)

    def opened(self) -> Session:
        """Return the session."""
        return Session(self.session, persistence=self.place)

    @classmethod
    def lines(cls) -> int:
        return _body_lines(cls.opened)

    def step(self, user_input: str) -> str:
        return self._agent.process(user_input)

    def read(self) -> list[Message]:
        return self._agent.memory.get_context()

    def count(self) -> int:
        return self._session.conversation.count()

    def moments(self) -> int:
        counts = set[int]()
        with suppress(NotFoundError):
            while True:
                counts.add(len(self._session.at(f"main~{len(counts)}").messages))
        return len(counts)

    def close(self) -> None:
        self._session.close()


class Persisted(InMemory):
    """The same in a store."""


class Tiered(InMemory):
    """The same in a store, and what was used last in memory too."""

    def opened(self) -> Session:
        tiers = TieredStore(cold=self.place, max_staleness_s=FRESH_S, mode="blocking")
        return Session(self.session, persistence=tiers)


def apply_event(messages: list[Message], event: Event) -> list[Message]:
    """Return what was said after an event."""
    return [*messages, event.data]


class Events:
    """A conversation that is folded from events."""

    def __init__(self, stream: EventStream) -> None:
        self.stream = stream

    def append(self, message: Message, /) -> None:
        self.stream.append(message, type="message")

    def get_context(self) -> list[Message]:
        messages: list[Message] = self.stream.fold(apply_event, [], cache_every=100)
        return messages


class EventSourced(Way):
    """All that happens is kept as events."""

    def __init__(self, place: Place, session: str) -> None:
        super().__init__(place, session)
        self._ks = sync.open(place)
        self._stream = self.opened()
        self._agent = Agent(Events(self._stream))

    def opened(self) -> EventStream:
        """Return the stream."""
        return EventStream(self._ks.space(self.session), "messages")

    @classmethod
    def lines(cls) -> int:
        return _body_lines(cls.opened) + sum(map(_body_lines, (apply_event, Events))) + 2

    def step(self, user_input: str) -> str:
        return self._agent.process(user_input)

    def read(self) -> list[Message]:
        return self._agent.memory.get_context()

    def count(self) -> int:
        return len(self.read())

    def moments(self) -> int:
        events = self._stream.read(limit=100_000)
        positions = [event.number for event in events if event.number is not None]
        return len({len(self._stream.at(position).fold(apply_event, [])) for position in positions})

    def close(self) -> None:
        self._ks.close()


WAYS: dict[str, type[Way]] = {
    "stateless": Stateless,
    "in memory": InMemory,
    "persisted": Persisted,
    "event-sourced": EventSourced,
    "tiered": Tiered,
}


def _body_lines(written: Any) -> int:
    """Return how many lines of code a class or function has below its first one."""
    tree = ast.parse(dedent(inspect.getsource(written)))
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            del node.body[0]
    return len([line for line in ast.unparse(tree).splitlines() if line.strip()]) - 1


def work(name: str, place: str, orders: Connection) -> None:
    """Do steps as ordered, and acknowledge each as soon as it is done; a process of the bench runs it."""
    opened: dict[str, Way] = {}
    with suppress(EOFError):
        while True:
            what, session, count = orders.recv()
            if session not in opened:
                opened[session] = WAYS[name](place, session)
            if what == "known":
                orders.send(opened[session].count())
            for number in range(count):
                opened[session].step(f"step {number}")
                orders.send(number)
    for each in opened.values():
        each.close()
