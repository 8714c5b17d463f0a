"""Blocking twins of `keepstate.engine.approvals.approval_reads`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.approvals import approval_reads as engine
from keepstate.engine.approvals.records import Approval, ApprovalEvent
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.engine.queue.step_records import Answer
from keepstate.sync.twin import Twin

Inner = TypeVar("Inner", bound=engine.ApprovalReads)


class ApprovalReads(Twin[Inner]):
    """Reads the approvals of a space, or of a transaction on it."""

    def get(self, id: str) -> Approval | None:
        """Return an approval, or None if none has this id."""
        return finish(self._inner.get(id))

    def wait(self, id: str, *, timeout_s: float | None = None) -> Answer:
        """Wait until an approval is answered, and return the answer.

        Args:
            id: The id of the approval.
            timeout_s: Seconds to wait at most; None for no limit.

        Raises:
            ApprovalClosedError: It has expired, or was withdrawn.
            NotFoundError: No approval has this id.
            TimeoutError: It was not answered in time.
        """
        return finish(self._inner.wait(id, timeout_s=timeout_s))

    def log(self, id: str) -> list[ApprovalEvent]:
        """Return what happened to an approval, in order. It is stored for ever, like the approval.

        Raises:
            NotFoundError: No approval has this id.
        """
        return finish(self._inner.log(id))

    def pending(
        self,
        *,
        to: str | None = None,
        after: str | None = None,
        limit: int = 100,
        unreadable: IfUnreadable = "raise",
    ) -> Page[Approval]:
        """Return one page of the pending approvals, the earliest first.

        Use `Keepstate.find` for those of all spaces.

        Args:
            to: Only those that are assigned to this person or group by name.
            after: Only approvals after the page with this cursor as `next`.
            limit: The largest number of approvals to return.
            unreadable: With `skip`, an approval that cannot be read is left out. With `raw`, its `unreadable`
                says why.
        """
        return finish(self._inner.pending(to=to, after=after, limit=limit, unreadable=unreadable))
