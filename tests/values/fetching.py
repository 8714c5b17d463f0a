"""Objects in a dict, served to work that asks for them; it counts the rounds."""

from __future__ import annotations

from typing import TypeVar

from keepstate.values.refs import Fetching

T = TypeVar("T")


class Objects(dict[bytes, bytes]):
    """What was made so far, by name."""

    rounds = 0
    asked = 0

    def serve(self, work: Fetching[T]) -> T:
        """Return the work's result; asking for what nobody made is a KeyError."""
        try:
            wanted = next(work)
            while True:
                self.rounds += 1
                self.asked += len(wanted)
                wanted = work.send({ref.name: self[ref.name] for ref in wanted})
        except StopIteration as end:
            result: T = end.value
            return result
