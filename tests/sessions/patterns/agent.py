"""The agent of the patterns: written once, it knows what its memory gives it, and tells it what was said."""

from __future__ import annotations

from typing import Any, Protocol

Message = dict[str, Any]


class Memory(Protocol):
    """What the agent asks of whatever keeps its state."""

    async def append(self, message: Message, /) -> object: ...

    async def get_context(self) -> list[Message]: ...


class Agent:
    """Answers by how much it knows; a model would stand in its place."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    async def process(self, user_input: str) -> str:
        await self.memory.append({"role": "user", "content": user_input})
        known = [message for message in await self.memory.get_context() if message["role"] == "user"]
        response = f"I know {len(known)} of your messages."
        await self.memory.append({"role": "assistant", "content": response})
        return response
