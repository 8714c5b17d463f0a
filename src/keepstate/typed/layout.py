"""Names of the documents of a thread's state. Frozen: later versions read them.

```
typed/head                    the head of the state: its revision, recent changes, and the runs with values
typed/thread/KEY              the value of a thread-scoped key
typed/run/RUN/KEY             the value of a run-scoped key; RUN is empty without a run
typed/runs/RUN                a run's record; the lease of the same name is held by its process
messages                      the stream of the thread's messages
profile/OWNER/KEY             a value of an agent or a scope
```

In a space that was passed, all names of a thread begin with `thread/THREAD/`, unless the space is the
thread's own, which has just that name. The last part, KEY or RUN, is written unchanged. THREAD, OWNER and a
RUN before a KEY are escaped by `keepstate.names`, so that each name belongs to one thread and key only. In
memory, values are named by their slot, `thread/KEY` or `run/KEY`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

from keepstate.binding import StoreBinding
from keepstate.engine.space.space import Space, Transaction
from keepstate.errors import InvalidError
from keepstate.names import escape
from keepstate.typed.key import NAME_BYTES, KeyScope
from keepstate.values import limits

T = TypeVar("T")

THREAD_SLOTS: Final = "thread/"
RUN_SLOTS: Final = "run/"


def slot_of(scope: KeyScope, key: str) -> str:
    """Return the name of a value in memory."""
    return f"{THREAD_SLOTS if scope is KeyScope.THREAD else RUN_SLOTS}{key}"


def is_of_scope(slot: str, scope: KeyScope | None) -> bool:
    """Return whether a slot has this scope; None accepts both scopes."""
    return scope is None or slot.startswith(THREAD_SLOTS if scope is KeyScope.THREAD else RUN_SLOTS)


def key_in(slot: str) -> str:
    """Return the key name of a slot."""
    return slot.partition("/")[2]


def profile_prefix(owner: str) -> str:
    """Return the name prefix of the documents of an owner's profile."""
    return f"profile/{escape(owner)}/"


@dataclass(frozen=True, slots=True)
class Names:
    """The document names of one thread.

    Attributes:
        prefix: The common prefix; empty in a space of the thread's own.
    """

    prefix: str = ""

    def check_run_id(self, run_id: str) -> None:
        """Raise `InvalidError` if a name of the run would be longer than stores allow."""
        longest = max(len(self.run_prefix(run_id).encode()) + NAME_BYTES, len(self.run(run_id).encode()))
        if longest > limits.KEY_BYTES or len(self.messages.encode()) > limits.SPACE_BYTES:
            raise InvalidError(
                f"Run {run_id[:40]!r} of {self.prefix[:60] or 'its thread'!r} would have names of {longest} "
                f"bytes, but at most {limits.KEY_BYTES} are allowed. Use shorter ids."
            )

    @property
    def head(self) -> str:
        """The document of the state's head."""
        return f"{self.prefix}typed/head"

    @property
    def state_prefix(self) -> str:
        """The prefix of the head and all values."""
        return f"{self.prefix}typed/"

    @property
    def messages(self) -> str:
        """The stream of the thread's messages."""
        return f"{self.prefix}messages"

    @property
    def thread_prefix(self) -> str:
        """The prefix of thread-scoped values."""
        return f"{self.prefix}typed/thread/"

    def run_prefix(self, run_id: str) -> str:
        """Return the prefix of a run's values."""
        return f"{self.prefix}typed/run/{escape(run_id)}/"

    def run(self, run_id: str) -> str:
        """Return the name of a run's record, and of its lease."""
        return f"{self.prefix}typed/runs/{run_id}"

    def document(self, slot: str, run_id: str) -> str:
        """Return the document name of a slot's value."""
        prefix = self.thread_prefix if slot.startswith(THREAD_SLOTS) else self.run_prefix(run_id)
        return prefix + key_in(slot)

    def slot(self, document: str, run_id: str) -> str | None:
        """Return the slot of a document, or None if the document is not a value of this run or its thread."""
        for prefix, slots in ((self.thread_prefix, THREAD_SLOTS), (self.run_prefix(run_id), RUN_SLOTS)):
            if document.startswith(prefix):
                return slots + document[len(prefix) :]
        return None


def names_of(binding: StoreBinding, thread_id: str) -> tuple[Space | Transaction, Names]:
    """Return the space or transaction of a thread's state, and its document names there.

    Raises:
        InvalidError: The id is empty, or the name of its space would be over 200 bytes.
    """
    target, prefix = binding.locate("thread", thread_id, what="thread_id")
    return target, Names(prefix)
