"""Attacks on links: each of them gets the one response of a link that is not valid, and changes nothing."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pydantic
import pytest

from keepstate import InvalidError, NotAllowedError, Signer
from keepstate.approval_links.answering import LinkLimits
from keepstate.approval_links.strict_json import read_json
from keepstate.engine.approvals.link_tokens import Link
from keepstate.engine.approvals.schemas import check_answer
from keepstate.engine.approvals.shown_text import text_of
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from tests.engine.conftest import Turned
from tests.engine.links import NOT_VALID, SIGNER, answer, ask, joined, parts_of, read, send, token

DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
FIELDS = ("key_name", "tenant", "space", "id", "to", "group", "digest", "nonce", "expires_ms")


async def refused(ks: Keepstate, token: str, saw: str = "0" * 64, signer: Signer = SIGNER) -> None:
    """Check that a link reads and answers nothing, and that both get the same response."""
    assert await read(ks, token, signer) == NOT_VALID
    assert await answer(ks, token, True, saw=saw, signer=signer) == NOT_VALID


async def pending(space: Space, id: str = "pay") -> bool:
    found = await space.approvals.get(id)
    return found is not None and found.state == "pending"


# ---- the token


@pytest.mark.parametrize("field", range(len(FIELDS)), ids=FIELDS)
async def test_no_field_of_a_token_can_be_changed(turned: Turned, field: int) -> None:
    await ask(turned.space, to=["ann", "bob"])
    await ask(turned.space, "other", to=["ann", "bob"])
    fields, signature = parts_of(await token(turned.space))
    others, _ = parts_of(await token(turned.space, "other", "bob", expires_s=9_999))
    changed = [*fields]
    changed[field] = others[field] if others[field] != fields[field] else "bob"

    await refused(turned.ks, joined(changed, signature))
    assert await pending(turned.space)
    assert await pending(turned.space, "other")


async def test_parts_of_two_tokens_do_not_fit_together(turned: Turned) -> None:
    await ask(turned.space, to=["ann", "bob"])
    one, other = await token(turned.space), await token(turned.space, to="bob")
    (version, body, _), (_, _, signature) = one.split("."), other.split(".")

    await refused(turned.ks, f"{version}.{body}.{signature}")


async def test_no_other_spelling_of_a_token_is_valid(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)
    version, body, signature = sent.split(".")
    unused = signature[:-1] + DIGITS[DIGITS.index(signature[-1]) ^ 1]
    spellings = [
        "", ".", "..", "...", sent[:-1], sent[1:], sent + "=", sent + "A", sent + ".", " " + sent,
        f"{version}.{body}=.{signature}", f"{version}.{body}.{unused}", f"{version}.{body}.",
        f"{version}..{signature}", f"KSL1.{body}.{signature}", f"ksl2.{body}.{signature}", sent + "\n",
        f"{body}.{signature}",
        f"{version}.{body[:8]}\n{body[8:]}.{signature}", sent.replace("-", "+").replace("_", "/") + "!",
        f"{version}.{body}!.{signature}", sent + "\x00", "\uff4bsl1" + sent[4:],
        "ksl1." + "A" * 5_000 + "." + signature, f"{version}.{body}.{signature}.{signature}",
    ]  # fmt: skip

    for spelling in spellings:
        await refused(turned.ks, spelling)
    assert await pending(turned.space)


async def test_a_token_of_another_signer_or_none_is_not_valid(turned: Turned) -> None:
    await ask(turned.space)
    fields, _ = parts_of(await token(turned.space))
    stranger = Signer({"2026": b"s" * 32})

    await refused(turned.ks, await token(turned.space, signer=stranger))
    for signature in (b"", b"\x00" * 32, b"\x00" * 31, SIGNER.sign("another purpose", b"")):
        await refused(turned.ks, joined(fields, signature))
    for content in (
        fields[:-1],
        [*fields, 1],
        dict(zip(FIELDS, fields, strict=True)),
        1,
        None,
        [["a"] * 9] * 9,
    ):
        await refused(turned.ks, joined(content, b"\x00" * 32))


async def test_a_key_that_was_removed_ends_its_links(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)

    await refused(turned.ks, sent, signer=Signer({"2027": b"k" * 32}))
    await refused(turned.ks, sent, signer=Signer({"2026": b"n" * 32}))


# ---- what it is a link to


async def test_a_link_answers_in_its_own_tenant_and_space_only(turned: Turned) -> None:
    acme, rival = turned.ks.tenant("acme"), turned.ks.tenant("rival")
    spaces = [acme.space("run/1"), acme.space("run/2"), rival.space("run/1"), turned.space]
    for space in spaces:
        await ask(space)
    sent = await token(acme.space("run/1"))
    own = await token(turned.space)

    await refused(rival, sent)
    await refused(acme, own)
    assert (await answer(acme, sent, True))[0] == 200
    assert [await pending(space) for space in spaces] == [False, True, True, True]


async def test_a_link_answers_nothing_that_was_asked_later_under_its_id(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)
    digest = (await read(turned.ks, sent))[1]["digest"]
    await turned.space.expunge("pay")
    await refused(turned.ks, sent, digest)  # it is absent
    await ask(turned.space)

    found = await turned.space.approvals.get("pay")
    assert found is not None and found.digest == digest  # the very same question
    await refused(turned.ks, sent, digest)
    assert await pending(turned.space)


async def test_a_link_ends_when_its_person_may_not_answer_any_more(turned: Turned) -> None:
    await ask(turned.space, to=["ann", "editors"])
    direct, grouped = await token(turned.space), await token(turned.space, to="eve", group="editors")
    digest = (await read(turned.ks, grouped))[1]["digest"]
    await turned.space.approvals.assign("pay", ["bob"], by="boss")

    await refused(turned.ks, direct, digest)
    await refused(turned.ks, grouped, digest)
    assert await pending(turned.space)


async def test_a_link_ends_by_the_time_of_the_store(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space, expires_s=60)
    digest = (await read(turned.ks, sent))[1]["digest"]
    turned.clock.advance(59_999)
    assert (await read(turned.ks, sent))[0] == 200

    turned.clock.advance(1)
    await refused(turned.ks, sent, digest)
    assert await pending(turned.space)


async def test_names_are_compared_as_they_are(turned: Turned) -> None:
    await ask(turned.space, to=["ann", "jose\u0301", "\uff41da"])
    for to in ("\u0430nn", "Ann", "ann ", "ann\x00", "an\u200bn", "jos\u00e9", "ada", "a" * 200):
        with pytest.raises(NotAllowedError):
            await token(turned.space, to=to)


@pytest.mark.parametrize("id", ["a/b", "a\x00b", "../pay", "#", ".", "a.b.c", "\u202e", "x" * 200, "%2F"])
async def test_any_id_stays_one_id(turned: Turned, id: str) -> None:
    for each in (id, "pay", "a"):
        await ask(turned.space, each)
    assert (await answer(turned.ks, await token(turned.space, id), True))[0] == 200
    assert [await pending(turned.space, each) for each in (id, "pay", "a")] == [False, True, True]


async def test_a_link_of_an_erased_tenant_looks_like_any_other_that_is_not_valid(turned: Turned) -> None:
    acme = turned.ks.tenant("acme")
    await ask(acme.space("run/1"))
    sent = await token(acme.space("run/1"))
    await acme.erase(confirm="acme")

    await refused(turned.ks, sent)


# ---- the request


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b"1", b'"read"', b"\xff", b"\x00", b"{}", b'{"token":"a"}',
        b'{"token":1,"do":"read"}', b'{"token":"a","do":"withdraw"}', b'{"token":"a","do":"read","by":"bob"}',
        b'{"token":"a","do":"read","do":"answer"}', b'{"token":"a","do":"answer","value":NaN}',
        b'{"token":"a","do":"answer","value":Infinity}', b"[" * 60_000, b'{"a":' * 10_000, b'"' * 60_000,
        b'{"token":"a","do":"answer","value":' + b"[" * 40 + b"]" * 40 + b"}", b"\xef\xbb\xbf{}",
        b'{"token":"a","do":"answer","value":[-1e999]}', b'{"token":"a","do":"answer","value":1E400}',
        b'{"token":"\\ud800","do":"read"}', b'{"token":"a","do":"answer","value":' + b"9" * 10_000 + b"}",
    ],
)  # fmt: skip
async def test_a_body_that_is_no_request_is_refused(turned: Turned, body: bytes) -> None:
    assert await send(turned.ks, body) == (400, {"error": "bad_request"})


async def test_a_body_that_is_too_large_is_not_read(turned: Turned) -> None:
    assert await send(turned.ks, b" " * 65_537) == (413, {"error": "too_large"})


def test_depth_is_counted_outside_of_texts() -> None:
    text = {"a": "[[[{{{" * 100 + '\\" [', "b": [["]"]]}
    assert read_json(json.dumps(text).encode()) == text


async def test_a_value_of_a_huge_enum_is_found_at_once_and_true_is_not_1(turned: Turned) -> None:
    class Counted(str):
        compared = 0
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            Counted.compared += 1
            return str.__eq__(self, other)

    many = [Counted(f"value {number}") for number in range(20_000)]
    schema = {"type": "array", "items": {"type": "string", "enum": many}}
    check_answer([*map(str, many[-2_000:])], schema)
    with pytest.raises(InvalidError) as caught:
        check_answer(["none"] * 2_000, schema)

    assert Counted.compared <= 4_000
    assert len(str(caught.value)) < 300
    nested = {"enum": [[1], {"a": 0}, None]}
    for value in ([1], [1.0], {"a": 0}, None):
        check_answer(value, nested)
    for value in ([True], {"a": False}, [[1]], {}, 0):
        with pytest.raises(InvalidError):
            check_answer(value, nested)
    await ask(turned.space, schema={"type": "string", "enum": ["x" * 300_000]})
    with pytest.raises(InvalidError, match="too long for a form"):
        await token(turned.space)


async def test_a_link_takes_30_requests_at_once_and_one_a_second(turned: Turned) -> None:
    await ask(turned.space, to=["ann", "bob"])
    ann, bob = await token(turned.space), await token(turned.space, to="bob")

    said = [(await read(turned.ks, ann))[0] for _ in range(32)]
    assert said == [200] * 30 + [429] * 2
    assert (await answer(turned.ks, ann, True)) == (429, {"error": "too_many"})
    assert await pending(turned.space)
    assert (await read(turned.ks, bob))[0] == 200
    turned.clock.advance(2_000)
    assert [(await read(turned.ks, ann))[0] for _ in range(3)] == [200, 200, 429]
    assert await read(turned.ks, f"{ann}x") == NOT_VALID


def test_links_beyond_measure_do_not_fill_the_memory(turned: Turned) -> None:
    buckets = LinkLimits()
    for number in range(12_000):
        assert buckets.take(Link("k", None, "s", str(number), "ann", None, "", b"", 0), 0)

    assert len(buckets._buckets) == 10_000


@pytest.mark.parametrize("value", [1, 0, "true", None, "yes", [True], {"a": True}, 1.0, "\u2028"])
async def test_only_yes_or_no_answers_a_question_without_a_schema(turned: Turned, value: Any) -> None:
    await ask(turned.space)
    assert (await answer(turned.ks, await token(turned.space), value))[0] == 422
    assert await pending(turned.space)


async def test_errors_tell_nothing_of_the_space(turned: Turned) -> None:
    await ask(turned.space, "secret/id", schema={"type": "string", "maxLength": 3})
    sent = await token(turned.space, "secret/id")

    said = [await answer(turned.ks, sent, value) for value in (5, "long text", "x" * 60_000, {"a": 1})]
    assert all(status == 422 for status, _ in said)
    assert "run/1" not in str(said) and "secret" not in str(said)


async def test_a_program_that_asks_by_another_name_does_not_answer_itself(turned: Turned) -> None:
    await ask(turned.space, to=[])
    with pytest.raises(NotAllowedError):
        await token(turned.space, to="agent")

    assert (await answer(turned.ks, await token(turned.space, to="ann"), True))[0] == 200


async def test_a_signed_part_that_is_no_text_is_an_invalid_link(turned: Turned) -> None:
    await ask(turned.space)
    _, _, signature = (await token(turned.space)).split(".")

    await refused(turned.ks, f"ksl1.maH_.{signature}")  # an array with text that is no UTF-8


# ---- what a person sees


def test_spaces_do_not_make_one_text_look_like_several_fields() -> None:
    shown = text_of({"to": "acme" + " " * 400 + "amount: 5 EUR", "amount": "900 EUR"})

    assert shown == "to: acme⟨400 spaces⟩amount: 5 EUR\namount: 900 EUR"


def test_every_field_of_an_object_is_shown() -> None:
    class Payment(pydantic.BaseModel, extra="allow"):
        payee: str
        _hidden: int = pydantic.PrivateAttr(9)

    shown = text_of(Payment.model_validate({"payee": "acme", "amount": 1_000_000}))

    assert shown == "payee: acme\namount: 1000000\n_hidden: 9"
    assert text_of({("pay", "ann"): 1, ("pay", "bob"): 2}) == "('pay', 'ann'): 1\n('pay', 'bob'): 2"


@pytest.mark.parametrize("value", [object(), np.arange(5_000), 10**5_000], ids=["object", "array", "int"])
def test_a_value_without_an_exact_text_is_refused(value: object) -> None:
    with pytest.raises(InvalidError, match=r"ask with|too many digits"):
        text_of({"value": value})
