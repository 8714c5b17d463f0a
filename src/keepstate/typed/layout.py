"""Where a thread's state stands in its space: the names of documents. Frozen: later versions read them.

```
typed/head                    how far the state is: its revision, what changed last, whose runs have values
typed/thread/KEY              the value of a key that lives as long as the thread
typed/run/RUN/KEY             the value of a key that lives as long as a run; RUN is empty without one
typed/runs/RUN                a run's record; a lease of the same name says who does it
messages                      the stream of the thread's messages
profile/OWNER/KEY             what is kept of an agent or a scope
```

In a space that was passed all names of a thread begin with `thread/THREAD/`, unless it is the thread's own,
which is called just that. What stands last, KEY or RUN, is written as it is; THREAD, OWNER and a RUN with a
KEY behind it are quoted as `keepstate.home` says, so that each name belongs to one thread and key only. In
memory values are named by their slot, `thread/KEY` or `run/KEY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from keepstate.errors import InvalidError
from keepstate.home import quoted
from keepstate.typed.key import NAME_BYTES, KeyScope
from keepstate.values import limits

THREAD_SLOTS: Final = "thread/"
RUN_SLOTS: Final = "run/"


def slot_of(scope: KeyScope, key: str) -> str:
    """Return what a value is named in memory."""
    return f"{THREAD_SLOTS if scope is KeyScope.THREAD else RUN_SLOTS}{key}"


def is_of_scope(slot: str, scope: KeyScope | None) -> bool:
    """Return whether a slot's value has this scope; None stands for both."""
    return scope is None or slot.startswith(THREAD_SLOTS if scope is KeyScope.THREAD else RUN_SLOTS)


def key_in(slot: str) -> str:
    """Return the key's name in a slot."""
    return slot.partition("/")[2]


def profile_prefix(owner: str) -> str:
    """Return what the documents of an owner's profile begin with."""
    return f"profile/{quoted(owner)}/"


@dataclass(frozen=True, slots=True)
class Names:
    """The names of what belongs to one thread.

    Attributes:
        prefix: What all of them begin with; empty in a space of the thread's own.
    """

    prefix: str = ""

    def admit(self, run_id: str) -> None:
        """Raise `InvalidError` if a name would be longer than stores take."""
        longest = max(len(self.run_prefix(run_id).encode()) + NAME_BYTES, len(self.run(run_id).encode()))
        if longest > limits.KEY_BYTES or len(self.messages.encode()) > limits.SPACE_BYTES:
            raise InvalidError(
                f"run {run_id[:40]!r} of {self.prefix[:60] or 'its thread'!r} has names of {longest} bytes; "
                f"they have {limits.KEY_BYTES} at the most: take shorter ids"
            )

    @property
    def head(self) -> str:
        """The document that is the head of the state."""
        return f"{self.prefix}typed/head"

    @property
    def all(self) -> str:
        """Return what the head and all values begin with."""
        return f"{self.prefix}typed/"

    @property
    def messages(self) -> str:
        """The stream of the thread's messages."""
        return f"{self.prefix}messages"

    @property
    def thread_prefix(self) -> str:
        """Return what the documents of thread-scoped values begin with."""
        return f"{self.prefix}typed/thread/"

    def run_prefix(self, run_id: str) -> str:
        """Return what the documents of a run's values begin with."""
        return f"{self.prefix}typed/run/{quoted(run_id)}/"

    def run(self, run_id: str) -> str:
        """Return the document that is a run's record, and the lease that it is done under."""
        return f"{self.prefix}typed/runs/{run_id}"

    def document(self, slot: str, run_id: str) -> str:
        """Return the document in which a slot's value stands."""
        prefix = self.thread_prefix if slot.startswith(THREAD_SLOTS) else self.run_prefix(run_id)
        return prefix + key_in(slot)

    def slot(self, document: str, run_id: str) -> str | None:
        """Return the slot whose value a document holds, or None if it is none of this run's."""
        for prefix, slots in ((self.thread_prefix, THREAD_SLOTS), (self.run_prefix(run_id), RUN_SLOTS)):
            if document.startswith(prefix):
                return slots + document[len(prefix) :]
        return None
