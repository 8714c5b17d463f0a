"""Bugs of links, planted from outside: each of them is noticed."""

from __future__ import annotations

import inspect
from base64 import urlsafe_b64decode
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from keepstate.approval_links import answering, link_app, strict_json
from keepstate.approval_links import form as form_function
from keepstate.engine.approvals import link_tokens, shown_text
from keepstate.engine.approvals.approval_links import ApprovalLinks
from keepstate.engine.approvals.signers import Signer
from keepstate.errors import ConflictError
from keepstate.values import limits
from tests.engine import test_approval_links, test_hostile_links
from tests.engine.conftest import Turned

Plant = Callable[[pytest.MonkeyPatch], None]


def signature_not_compared(planting: pytest.MonkeyPatch) -> None:
    """Take every signature of a known key for the right one."""
    planting.setattr(Signer, "verify", lambda self, name, *_: name in self._keys)


def first_bytes_compared(planting: pytest.MonkeyPatch) -> None:
    """Compare the signature as far as it goes."""

    def verify(self: Any, name: str, purpose: str, message: bytes, signature: bytes) -> bool:
        return name in self._keys and self._signature(name, purpose, message).startswith(signature)

    planting.setattr(Signer, "verify", verify)


def purpose_not_signed(planting: pytest.MonkeyPatch) -> None:
    """Join what is signed without lengths."""
    plain = Signer._signature  # pyright: ignore[reportPrivateUsage]
    planting.setattr(
        Signer,
        "_signature",
        lambda self, name, purpose, message: plain(self, name, "", purpose.encode() + message),
    )


def other_spellings_taken(planting: pytest.MonkeyPatch) -> None:
    """Decode base64 as Python does."""
    planting.setattr(link_tokens, "_to_bytes", lambda text: urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def nonce_not_compared(planting: pytest.MonkeyPatch) -> None:
    """Take every approval with the id and digest for the one that the link is to."""
    _change_link(planting, lambda link, record: {"nonce": record.nonce})


def digest_not_compared(planting: pytest.MonkeyPatch) -> None:
    """Answer also without what was seen."""

    async def answer(space: Any, link: Any, request: Any) -> Any:
        return await plain(space, link, msgspec.structs.replace(request, saw=link.digest))

    plain = answering._answer  # pyright: ignore[reportPrivateUsage]
    planting.setattr(answering, "_answer", answer)


def expiry_ignored(planting: pytest.MonkeyPatch) -> None:
    """Let links live for ever."""
    _change_link(planting, lambda link, record: {"expires_ms": 2**47})


def right_not_judged_again(planting: pytest.MonkeyPatch) -> None:
    """Let a person read whose right has ended."""
    planting.setattr(ApprovalLinks, "require_right", lambda *_: None)


def tenant_of_the_handle_taken(planting: pytest.MonkeyPatch) -> None:
    """Look for the space of a link in the handle's own tenant."""
    planting.setattr(answering, "_space_of", lambda ks, link: ks.space(link.space))


def absence_told(planting: pytest.MonkeyPatch) -> None:
    """Tell a link to an absent approval from one that is not valid."""

    async def linked(self: Any, link: Any) -> Any:
        try:
            return await plain(self, link)
        except KeyError as error:
            raise ConflictError("absent") from error

    plain = ApprovalLinks.linked
    planting.setattr(ApprovalLinks, "linked", linked)


def closed_questions_shown(planting: pytest.MonkeyPatch) -> None:
    """Show the question of a closed approval."""
    planting.setattr(
        answering,
        "_shown",
        lambda approval, link: answering._state_of(approval, link) | {"question": approval.question},  # pyright: ignore[reportPrivateUsage]
    )


def numbers_rounded(planting: pytest.MonkeyPatch) -> None:
    """Show numbers as a browser reads them."""
    plain = shown_text._leaf  # pyright: ignore[reportPrivateUsage]
    planting.setattr(
        shown_text, "_leaf", lambda value: str(int(float(value))) if type(value) is int else plain(value)
    )


def keys_named_twice(planting: pytest.MonkeyPatch) -> None:
    """Take the last of two values of a key."""
    planting.setattr(strict_json, "_unique", dict)


def depth_not_counted(planting: pytest.MonkeyPatch) -> None:
    """Read bodies of any depth."""
    planting.setattr(limits, "LINK_BODY_DEPTH", 10**9)


def script_allowed_inline(planting: pytest.MonkeyPatch) -> None:
    """Allow every script of the page."""

    def form() -> Any:
        headers, html = form_function()
        return headers | {"content-security-policy": "script-src 'unsafe-inline'"}, html

    planting.setattr(test_approval_links, "form", form)


def get_answers(planting: pytest.MonkeyPatch) -> None:
    """Answer by the query of a GET."""

    async def respond(ks: Any, signer: Any, scope: Any, receive: Any, send: Any) -> None:
        if b"answer" in scope["query_string"]:
            await ks.space("run/1").approvals.answer("pay", True, by="ann")
        await plain(ks, signer, scope, receive, send)

    plain = link_app.__globals__["_respond"]
    planting.setitem(link_app.__globals__, "_respond", respond)


def _change_link(planting: pytest.MonkeyPatch, changes: Callable[[Any, Any], dict[str, Any]]) -> None:
    """Read approvals by links that are changed to fit."""

    async def linked(self: Any, link: Any) -> Any:
        found = (await self._executor.run(lambda unit: self._found(unit, link.id)))[0]
        return await plain(self, msgspec.structs.replace(link, **changes(link, found.record)))

    plain = ApprovalLinks.linked
    planting.setattr(ApprovalLinks, "linked", linked)


hostile, links = test_hostile_links, test_approval_links
PLANTED: list[tuple[Plant, Callable[..., Any]]] = [
    (signature_not_compared, hostile.test_parts_of_two_tokens_do_not_fit_together),
    (first_bytes_compared, hostile.test_a_token_of_another_signer_or_none_is_not_valid),
    (purpose_not_signed, links.test_a_signature_is_of_one_purpose_and_one_key),
    (other_spellings_taken, hostile.test_no_other_spelling_of_a_token_is_valid),
    (nonce_not_compared, hostile.test_a_link_answers_nothing_that_was_asked_later_under_its_id),
    (digest_not_compared, links.test_an_answer_needs_the_digest_of_what_was_read),
    (expiry_ignored, hostile.test_a_link_ends_by_the_time_of_the_store),
    (right_not_judged_again, hostile.test_a_link_ends_when_its_person_may_not_answer_any_more),
    (tenant_of_the_handle_taken, links.test_a_link_of_a_tenant_is_answered_by_two_handles),
    (absence_told, hostile.test_a_link_answers_nothing_that_was_asked_later_under_its_id),
    (numbers_rounded, links.test_a_subject_is_shown_exactly),
    (script_allowed_inline, links.test_the_page_is_static_and_its_policy_allows_only_its_own_script),
    (get_answers, links.test_reading_and_looking_change_nothing),
    (closed_questions_shown, lambda turned: links.test_a_closed_approval_shows_its_state_only(
        turned, "expired")),
    (keys_named_twice, lambda turned: hostile.test_a_body_that_is_no_request_is_refused(
        turned, b'{"token":"a","do":"read","do":"answer"}')),
    (depth_not_counted, lambda turned: hostile.test_a_body_that_is_no_request_is_refused(
        turned, b'{"token":"a","do":"answer","value":' + b"[" * 40 + b"]" * 40 + b"}")),
]  # fmt: skip


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    turned: Turned, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Callable[..., Any]
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        done = test(turned) if inspect.signature(test).parameters else test()
        if inspect.isawaitable(done):
            await done
