"""Blocking twins of `keepstate.engine.approvals.approval_links`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import TypeVar

from keepstate._finish import finish
from keepstate.engine.approvals import approval_links as engine
from keepstate.engine.approvals.approval_links import WEEK_S
from keepstate.engine.approvals.signers import Signer
from keepstate.sync.approval_reads import ApprovalReads

Inner = TypeVar("Inner", bound=engine.ApprovalLinks)


class ApprovalLinks(ApprovalReads[Inner]):
    """Makes and reads links to the approvals of a space, or of a transaction on it."""

    def link(
        self,
        id: str,
        *,
        to: str,
        base: str,
        group: str | None = None,
        expires_s: float = WEEK_S,
        signer: Signer,
    ) -> str:
        """Return a link by which one person can answer a pending approval. Writes nothing.

        Send it to this person only, because its holder answers as this person. The token is the fragment
        of the link, which browsers send to no server; `keepstate.approval_links` has the page and the checks.

        Args:
            id: The id of the approval.
            to: The person who answers by it, as `answer(by=)` names the person.
            base: The address of the page, `https://…` without a fragment; also `http://` on this machine.
            group: The group among those asked that the person answers for.
            expires_s: Seconds after which it is not valid, by the store's clock.
            signer: The signer of the page that the link leads to.

        Raises:
            ApprovalClosedError: It was answered, has expired or was withdrawn.
            InvalidError: `base` is not such an address, or a form cannot show the subject or the schema.
            NotAllowedError: The person asked, or is not among those asked.
            NotFoundError: No approval has this id.
        """
        return finish(self._inner.link(id, to=to, base=base, group=group, expires_s=expires_s, signer=signer))
