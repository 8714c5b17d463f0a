"""Links to approvals: each lets one person read and answer one of them, until the link expires.

Nothing of a link is stored. Its token holds the person, the approval's nonce and the digest of what was
asked, all signed. So it answers no later approval with the same id, and nothing that was not asked. Whether
the person may still answer is judged when the link is used.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import urlsplit

from keepstate.engine.approvals.approval_reads import ApprovalReads
from keepstate.engine.approvals.link_tokens import Link, sign_link
from keepstate.engine.approvals.records import Approval, ApprovalRecord, approval_key
from keepstate.engine.approvals.shown_text import require_plain, require_short, text_of
from keepstate.engine.approvals.signers import Signer
from keepstate.engine.kernel.arguments import check_duration_ms, check_text, require_instance
from keepstate.engine.kernel.stored import shorten
from keepstate.engine.kernel.unit import Unit
from keepstate.engine.queue.tasks import check_kind
from keepstate.errors import InvalidError, NotAllowedError

WEEK_S: Final = 604_800
_BASE_BYTES: Final = 2_000
_LOCAL: Final = ("localhost", "127.0.0.1", "::1")


class ApprovalLinks(ApprovalReads):
    """Makes and reads links to the approvals of a space, or of a transaction on it."""

    async def link(
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
        approval_key(id)
        check_kind("to", to)
        if group is not None:
            check_kind("group", group)
        _check_base(base)
        lasts_ms = check_duration_ms("expires_s", expires_s)
        require_instance("signer", signer, Signer)
        executor = self._executor

        async def work(unit: Unit) -> str:
            found = await self._found(unit, id)
            record = found.record
            if record.state != "pending":
                raise self._closed_error(record)
            self.require_right(record, to, group)
            text_of(found.shown["subject"])
            require_plain(found.shown["schema"])
            require_short(found.shown["schema"])
            return sign_link(
                Link(
                    signer.key_name,
                    executor.home.tenant_id,
                    executor.name,
                    id,
                    to,
                    group,
                    record.digest,
                    record.nonce,
                    await unit.now_ms() + lasts_ms,
                ),
                signer,
            )

        return f"{base}#{(await executor.run(work))[0]}"

    async def linked(self, link: Link) -> Approval:
        """Return the approval of a verified link, as it may be shown to the person of the link.

        Raises:
            NotAllowedError: The link has expired, the person may not answer, or the approval is another one.
            NotFoundError: No approval has the id of the link.
        """

        async def work(unit: Unit) -> Approval:
            found = await self._found(unit, link.id)
            record = found.record
            if (record.nonce, record.digest) != (link.nonce, link.digest):
                raise NotAllowedError(f"the link is to another approval with the id {shorten(link.id)!r}")
            if link.expires_ms <= await unit.now_ms():
                raise NotAllowedError(f"the link to approval {shorten(link.id)!r} has expired")
            self.require_right(record, link.to, link.group)
            return self._public(found)

        return (await self._executor.run(work))[0]

    def require_right(self, record: ApprovalRecord, by: str, group: str | None) -> None:
        """Raise `NotAllowedError` unless a person may answer."""
        what = f"approval {record.id!r} of {self._executor.name!r}"
        if record.asker is not None and by == record.asker:
            raise NotAllowedError(f"{shorten(by)!r} asked {what} and may not answer it")
        name = by if group is None else group
        if record.to and name not in record.to:
            raise NotAllowedError(
                f"{shorten(name)!r} is not among those who may answer {what}; assign() it to them first"
            )
        if group is not None and not record.to:
            raise InvalidError(f"{what} is assigned to no group; leave `group` out")


def _check_base(base: object) -> None:
    text = check_text("base", base)
    try:
        parts = urlsplit(text)
        is_local = parts.hostname in _LOCAL
        is_secure = parts.scheme == "https" or (parts.scheme == "http" and is_local)
        is_fit = is_secure and parts.hostname and not parts.username and parts.port != 0
    except ValueError:
        is_fit = False
    if not is_fit or "#" in text or not text.isascii() or not text.isprintable() or " " in text:
        raise InvalidError(
            f"`base` is {text!r:.100}; give the address of the page, such as 'https://example.com/approve', "
            "without a fragment or a user"
        )
    if len(text) > _BASE_BYTES or any(sign in text for sign in "\\\"'<>`"):
        raise InvalidError(f"`base` is {text!r:.100}; it has at most {_BASE_BYTES} plain characters of a URL")
