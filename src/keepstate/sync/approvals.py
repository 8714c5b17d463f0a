"""Blocking twins of `keepstate.engine.approvals.approvals`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from collections.abc import Sequence

from keepstate._finish import finish
from keepstate.engine.approvals import approvals as engine
from keepstate.engine.approvals.records import Approval, TaskSpec
from keepstate.sync.approval_links import ApprovalLinks


class Approvals(ApprovalLinks[engine.Approvals]):
    """The approvals of a space, or of a transaction on it."""

    def ask(
        self,
        question: str,
        *,
        id: str | None = None,
        subject: object = None,
        schema: object = None,
        to: Sequence[str] = (),
        need: int = 1,
        expires_s: float | None = None,
        task: str | None = None,
        then: TaskSpec | None = None,
    ) -> Approval:
        """Ask people, and return the approval. Asking the same again under one id returns the first one.

        The same is the question, the subject and the schema, and also `to` in any order, `need`, `expires_s`,
        `task` and `then`, as the first call had them: `assign` and the time that has passed change nothing.

        The author of the handle asks, and may not answer. A handler of a task uses `task.ask` instead, which
        also waits.

        Args:
            question: The question; 1 byte to 64 KiB of UTF-8.
            id: The id of the approval; 1 to 200 bytes of UTF-8. Default: a new one.
            subject: The thing that is decided about; any value that the codec stores. It never changes.
            schema: A JSON Schema of the answer, as a dict; see the page on approvals for the words that it
                may have. Default: the answer is yes or no.
            to: The people and groups who may answer, at most 100. Default: everyone but the asker.
            need: The number of different people who have to say yes. One no is enough to close it.
            expires_s: Seconds after which it takes no answer, by the store's clock. Default: it does not
                expire.
            task: The id of a task of this space. It becomes ready when the approval is answered, expires or
                is withdrawn, if it waits then.
            then: A task that waits from now on, and becomes ready when the approval is answered, expires or
                is withdrawn.

        Raises:
            AlreadyExistsError: The id belongs to an approval that was asked otherwise, or that of `then` to
                another task.
            InvalidError: `to` names the asker, `need` is given with a schema, or both `task` and `then` are.
            NotFoundError: The task does not exist.
            TransitionError: The task has ended.
        """
        return finish(
            self._inner.ask(
                question,
                id=id,
                subject=subject,
                schema=schema,
                to=to,
                need=need,
                expires_s=expires_s,
                task=task,
                then=then,
            )
        )

    def answer(
        self,
        id: str,
        value: object,
        *,
        by: str,
        group: str | None = None,
        note: str = "",
        saw: str | None = None,
    ) -> Approval:
        """Answer an approval, and return it. The same answer of the same person sent again changes nothing.

        Args:
            id: The id of the approval.
            value: True or False, or a value of the approval's schema.
            by: The person who answers, as the caller has verified it.
            group: The group among those asked that the person answers for, as the caller has verified it.
            note: A note; at most 4 KiB of UTF-8.
            saw: The digest of the approval as the person saw it. With another one nothing is written.

        Raises:
            ApprovalClosedError: It was answered otherwise, has expired or was withdrawn.
            InvalidError: The value does not fit, or `saw` is the digest of something else.
            NotAllowedError: The person asked, or is not among those asked.
            NotFoundError: No approval has this id.
        """
        return finish(self._inner.answer(id, value, by=by, group=group, note=note, saw=saw))

    def assign(self, id: str, to: Sequence[str], *, by: str) -> Approval:
        """Let other people and groups answer, instead of the present ones, and return the approval.

        A yes of a person who may not answer any more does not count any more.

        Args:
            id: The id of the approval.
            to: The people and groups; 1 to 100.
            by: The person who assigns it, for the log.

        Raises:
            ApprovalClosedError: It was answered, has expired or was withdrawn.
            InvalidError: `to` is empty or names the asker, or the log is full.
            NotFoundError: No approval has this id.
        """
        return finish(self._inner.assign(id, to, by=by))

    def withdraw(self, id: str, *, by: str, reason: str = "") -> Approval:
        """Close an approval without an answer, and return it. Doing it again changes nothing.

        Args:
            id: The id of the approval.
            by: The person or program that withdraws it.
            reason: The reason; at most 4 KiB of UTF-8.

        Raises:
            ApprovalClosedError: It was answered, or has expired.
            NotFoundError: No approval has this id.
        """
        return finish(self._inner.withdraw(id, by=by, reason=reason))
