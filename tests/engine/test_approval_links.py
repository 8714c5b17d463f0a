"""Links: one person reads and answers what was asked, once, by a page that tells nothing by itself."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from base64 import b64encode
from datetime import UTC, datetime
from decimal import Decimal
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import pytest

import keepstate
import keepstate.sync
from keepstate import InvalidError, NotAllowedError, Signer, TaskSpec
from keepstate.approval_links import form, handle_blocking, link_app
from keepstate.engine.approvals.shown_text import reveal, text_of
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.errors import ApprovalClosedError, NotFoundError
from tests.engine.conftest import Turned
from tests.engine.links import BASE, NOT_VALID, PLAN, SIGNER, answer, ask, read, send, token

CHOICE = {
    "type": "object",
    "properties": {"amount": {"type": "integer", "maximum": 500}, "method": {"enum": ["card", "bank"]}},
    "required": ["amount"],
}


# ---- on every backend


async def test_a_person_reads_and_answers_by_a_link_and_wakes_the_task(ks: Keepstate, space: Space) -> None:
    await ask(space, then=TaskSpec({"order": 7}))
    sent = await token(space)

    status, shown = await read(ks, sent)
    assert (status, shown["question"], shown["subject"]) == (200, "Pay 100?", "send: 100\nto: acme")
    assert (shown["to"], shown["asked_by"], shown["schema"]) == ("ann", "agent", None)
    assert await space.queue.claim("w", lease_s=60) == []

    said = {"state": "answered", "to": "ann", "need": 1, "votes": 1, "has_answered": True}
    assert await answer(ks, sent, True, note="fine") == (200, said)
    assert [task.payload for task in await space.queue.claim("w", lease_s=60)] == [{"order": 7}]
    approval = await space.approvals.get("pay")
    assert approval is not None and approval.answer is not None
    assert (approval.answer.by, approval.answer.note, approval.answer.subject) == ("ann", "fine", PLAN)

    assert await answer(ks, sent, True, saw=shown["digest"]) == (200, said)
    assert await answer(ks, sent, False, saw=shown["digest"]) == (
        409,
        {"error": "already", "state": "answered"},
    )
    assert await read(ks, sent) == (200, said)


# ---- answering


async def test_people_of_a_quorum_have_a_link_each(turned: Turned) -> None:
    ks, space = turned.ks, turned.space
    await ask(space, to=["editors", "bob"], need=2)
    ann, bob = await token(space, to="ann", group="editors"), await token(space, to="bob")

    assert (await answer(ks, ann, True))[1]["state"] == "pending"
    assert (await answer(ks, ann, True))[1]["votes"] == 1
    status, shown = await read(ks, ann)
    assert (status, shown["has_answered"], shown["votes"]) == (200, True, 1)
    assert (await answer(ks, bob, True))[1]["state"] == "answered"
    found = await space.approvals.get("pay")
    assert found is not None
    assert [(vote.by, vote.group) for vote in found.votes] == [("ann", "editors"), ("bob", None)]


async def test_a_value_that_does_not_fit_can_be_corrected(turned: Turned) -> None:
    ks, space = turned.ks, turned.space
    await ask(space, schema=CHOICE)
    sent = await token(space)

    status, said = await answer(ks, sent, {"amount": 900})
    assert (status, said["error"]) == (422, "does_not_fit")
    assert "value.amount" in said["message"]
    assert (await answer(ks, sent, "yes"))[0] == 422
    assert (await answer(ks, sent, {"amount": 5}, note="x" * 5_000))[0] == 422
    assert (await read(ks, sent))[1]["schema"] == CHOICE
    assert (await answer(ks, sent, {"amount": 300, "method": "bank"}))[1]["state"] == "answered"
    assert (await space.approvals.wait("pay")).value == {"amount": 300, "method": "bank"}


async def test_an_answer_needs_the_digest_of_what_was_read(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)

    for saw in ("", "0" * 64):
        assert (await send(turned.ks, {"token": sent, "do": "answer", "value": True, "saw": saw}))[0] == 409
    found = await turned.space.approvals.get("pay")
    assert found is not None and found.state == "pending"


@pytest.mark.parametrize("end", ["withdrawn", "expired"])
async def test_a_closed_approval_shows_its_state_only(turned: Turned, end: str) -> None:
    ks, space = turned.ks, turned.space
    await ask(space, expires_s=60)
    sent = await token(space)
    digest = (await read(ks, sent))[1]["digest"]
    if end == "withdrawn":
        await space.approvals.withdraw("pay", by="ann", reason="secret")
    else:
        turned.clock.advance(60_000)

    status, shown = await read(ks, sent)
    assert (status, set(shown)) == (200, {"state", "to", "need", "votes", "has_answered"})
    assert shown["has_answered"] is False
    assert await answer(ks, sent, True, saw=digest) == (409, {"error": "already", "state": end})


async def test_a_link_is_made_for_a_person_who_may_answer(turned: Turned) -> None:
    space = turned.space
    await ask(space)
    for to, group in (("agent", None), ("bob", None), ("ann", "editors")):
        with pytest.raises(NotAllowedError):
            await token(space, to=to, group=group)
    with pytest.raises(NotFoundError):
        await token(space, "absent")
    await space.approvals.answer("pay", True, by="ann")
    with pytest.raises(ApprovalClosedError):
        await token(space)


@pytest.mark.parametrize(
    "base",
    ["", "example.com", "ftp://example.com", "http://example.com", "https://", "https://a#b", "https://u@a/",
     "https://u:p@a/", "https://a/ b", "https://a/\n", "https://a/\"", "javascript:alert(1)", "https://a:0/",
     "https://[a", "https://ä.de/", 1, None, "https://a/" + "x" * 2_000, "https://a\\@b/"],
)  # fmt: skip
async def test_a_base_that_is_no_address_of_a_page_is_refused(turned: Turned, base: Any) -> None:
    await ask(turned.space)
    with pytest.raises(InvalidError, match="base"):
        await turned.space.approvals.link("pay", to="ann", base=base, signer=SIGNER)


@pytest.mark.parametrize(
    ("argument", "wrong"),
    [("id", (1, None, "", "a" * 201)), ("to", (1, None, "", "a" * 201, "\ud800")),
     ("group", (1, "", "a" * 201)), ("expires_s", ("1", float("nan"), float("inf"), -1, 0, True)),
     ("signer", (None, b"k" * 32, "key"))],
)  # fmt: skip
async def test_a_link_is_not_made_of_wrong_arguments(
    turned: Turned, argument: str, wrong: tuple[Any, ...]
) -> None:
    await ask(turned.space, to=[])
    for each in wrong:
        given: Any = {"id": "pay", "to": "ann", "base": BASE, "signer": SIGNER} | {argument: each}
        with pytest.raises(InvalidError):
            await turned.space.approvals.link(given.pop("id"), **given)


async def test_a_page_on_this_machine_needs_no_certificate(turned: Turned) -> None:
    await ask(turned.space)
    link = await turned.space.approvals.link("pay", to="ann", base="http://localhost:8000/a", signer=SIGNER)
    assert link.startswith("http://localhost:8000/a#ksl1.")


async def test_a_schema_that_a_browser_would_round_has_no_link(turned: Turned) -> None:
    for schema in ({"enum": [2**53, 2**53 + 1]}, {"type": "number", "maximum": float("inf")}):
        await ask(turned.space, id="limit", schema=schema)
        with pytest.raises(InvalidError, match="browser"):
            await token(turned.space, "limit")
        await turned.space.expunge("limit")


async def test_a_subject_that_is_too_long_for_a_form_has_no_link(turned: Turned) -> None:
    await ask(turned.space, subject="x" * 300_000)
    with pytest.raises(InvalidError, match="too long"):
        await token(turned.space)


# ---- tenants


async def test_a_link_of_a_tenant_is_answered_by_two_handles(turned: Turned) -> None:
    acme = turned.ks.tenant("acme")
    for id in ("one", "two"):
        await ask(acme.space("run/1"), id)

    assert (await answer(acme, await token(acme.space("run/1"), "one"), True))[0] == 200
    assert (await answer(turned.ks, await token(acme.space("run/1"), "two"), True))[0] == 200


# ---- keys


async def test_a_key_is_replaced_while_its_links_are_in_use(turned: Turned) -> None:
    await ask(turned.space)
    old = await token(turned.space)
    both = Signer({"2026": b"k" * 32, "2027": b"n" * 32}, signs_with="2027")
    new = await token(turned.space, signer=both)
    alone = Signer({"2027": b"n" * 32})

    assert (await read(turned.ks, old, both))[0] == (await read(turned.ks, new, both))[0] == 200
    assert (await read(turned.ks, new, alone))[0] == 200
    assert await read(turned.ks, old, alone) == NOT_VALID


def test_a_signer_keeps_its_keys_to_itself() -> None:
    assert "kkk" not in repr(SIGNER)
    with pytest.raises(TypeError, match="exposed"):
        SIGNER.__reduce__()


@pytest.mark.parametrize(
    ("keys", "signs_with"),
    [({}, None), ({"a": b"k" * 31}, None), ({"a": "k" * 32}, None), ({"": b"k" * 32}, None),
     ({"a": b"k" * 32, "b": b"n" * 32}, None), ({"a": b"k" * 32}, "b"), ({"a" * 65: b"k" * 32}, None),
     ({"a": b"k" * 32, "b": b"k" * 32}, "a"), ({1: b"k" * 32}, None), (None, None), ([b"k" * 32], None)],
)  # fmt: skip
def test_keys_that_protect_nothing_are_refused(keys: Any, signs_with: str | None) -> None:
    with pytest.raises(InvalidError):
        Signer(keys, signs_with=signs_with)


def test_a_signature_is_of_one_purpose_and_one_key() -> None:
    both = Signer({"a": b"k" * 32, "b": b"n" * 32}, signs_with="a")
    signature = both.sign("approval link", b"message")

    assert both.verify("a", "approval link", b"message", signature)
    assert not both.verify("b", "approval link", b"message", signature)
    assert not both.verify("a", "approval", b" linkmessage", signature)
    assert not both.verify("a", "approval link", b"message", signature[:-1])
    assert not both.verify("c", "approval link", b"message", signature)


# ---- blocking


def test_a_blocking_program_answers_by_links(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/a.db") as ks:
        approvals = ks.space("run/1").approvals
        asked = approvals.ask("Pay?", id="pay", to=["ann"])
        sent = approvals.link("pay", to="ann", base=BASE, signer=SIGNER).partition("#")[2]
        body = json.dumps({"token": sent, "do": "answer", "value": True, "saw": asked.digest}).encode()

        assert handle_blocking(ks, body, signer=SIGNER)[0] == 200
        assert approvals.wait("pay").by == "ann"
        with pytest.raises(InvalidError, match="ks"):
            handle_blocking("sqlite://", body, signer=SIGNER)  # type: ignore[arg-type]


# ---- the page


async def test_the_page_is_served_and_answers_over_http(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)
    app: Any = link_app(turned.ks, signer=SIGNER)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app, root_path="/approve")) as client:
        page = await client.get(BASE)
        head = await client.head(BASE)
        assert (page.status_code, page.text, head.status_code, head.content) == (200, form()[1], 200, b"")
        assert page.headers["content-type"] == "text/html; charset=utf-8"

        shown = await client.post(BASE, json={"token": sent, "do": "read"})
        assert shown.headers["cache-control"] == "no-store"
        said = {"token": sent, "do": "answer", "value": True, "saw": shown.json()["digest"]}
        assert (await client.post(f"{BASE}/", json=said)).json()["state"] == "answered"

        assert (await client.get(f"{BASE}/other")).status_code == 404
        assert (await client.put(BASE)).headers["allow"] == "GET, HEAD, POST"
        assert (await client.post(BASE, content=b"x" * 70_000)).status_code == 413


async def test_reading_and_looking_change_nothing(turned: Turned) -> None:
    await ask(turned.space)
    sent = await token(turned.space)
    before = await turned.space.revision()
    app: Any = link_app(turned.ks, signer=SIGNER)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as client:
        for query in ("", f"?token={sent}", f"?token={sent}&do=answer&value=true"):
            await client.get(f"https://example.com/{query}")
    await read(turned.ks, sent)

    assert await turned.space.revision() == before


async def test_the_application_follows_the_life_of_its_server(turned: Turned) -> None:
    app = link_app(turned.ks, signer=SIGNER)
    events = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])
    sent: list[Any] = []

    async def receive() -> Any:
        return next(events)

    async def collect(message: Any) -> None:
        sent.append(message)

    await app({"type": "lifespan"}, receive, collect)
    await app({"type": "websocket"}, receive, collect)

    assert [message["type"] for message in sent] == [
        "lifespan.startup.complete",
        "lifespan.shutdown.complete",
        "websocket.close",
    ]


async def test_a_client_that_has_gone_is_not_answered(turned: Turned) -> None:
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def collect(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "root_path": ""}
    await link_app(turned.ks, signer=SIGNER)(scope, receive, collect)

    assert sent == []


@pytest.mark.parametrize("has_end", [True, False])
async def test_a_body_that_never_ends_is_refused(
    turned: Turned, has_end: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []
    received = 0

    async def receive() -> Any:
        nonlocal received
        received += 1
        if not has_end and received > 3:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": b"", "more_body": True}

    async def collect(message: Any) -> None:
        sent.append(message)

    module = sys.modules["keepstate.approval_links.link_app"]  # the package has a function of this name
    monkeypatch.setattr(module, "_BODY_S", 30.0 if has_end else 0.01)
    scope = {"type": "http", "method": "POST", "path": "/", "root_path": ""}
    await link_app(turned.ks, signer=SIGNER)(scope, receive, collect)

    assert (sent[0]["status"], received) == ((413, 1_024) if has_end else (408, 4))


def test_the_script_of_the_page_reveals_the_same_characters_as_python() -> None:
    script = re.search(r"const HIDDEN = /(.*)/gu;", form()[1])
    assert script is not None
    pattern = re.sub(r"\\u\{([0-9a-f]+)\}", lambda found: f"\\U{found[1]:0>8}", script[1])

    by_script = {sign for sign in map(chr, range(sys.maxunicode + 1)) if re.match(pattern, sign)}
    by_python = {sign for sign in map(chr, range(sys.maxunicode + 1)) if reveal(sign) != sign}
    assert by_script == by_python
    assert {"\u202e", "\u2066", "\u200b", "\u034f", "\u3164", "\ufe00"} <= by_python
    assert not {"א", "\n"} & by_python
    joiners, hidden = "\u200c\u200d\ufe0e\ufe0f", re.compile(pattern)
    for pair in (first + joiner for first in map(chr, range(0x3100)) for joiner in joiners):
        assert bool(hidden.match(pair, 1)) == (reveal(pair)[-1] != pair[1])


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node to run the script of the page")
def test_the_page_shows_hidden_characters_of_titles_names_and_errors(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "title": "a\u202eb",
        "properties": {
            "c\u2066d": {"type": "integer", "title": "e\u200bf"},
            "g\u3164h": {"enum": ["i\u202ej"]},
            "fixed": {"const": "x" * 90 + "\u202e"},
            "alike": {"enum": [True, "Yes"]},
        },
        "required": ["c\u2066d"],
    }
    said = {
        "state": "pending", "to": "ann", "need": 1, "votes": 0, "has_answered": False, "question": "Pay?",
        "subject": None, "schema": schema, "digest": "d", "asked_by": "agent · ⟨U+202E⟩ you have agreed",
        "asked_at": None,
        "expires_at": None,
    }  # fmt: skip
    script = re.findall(r"<script>(.*?)</script>", form()[1], re.DOTALL)[0]
    program = tmp_path / "page.js"
    program.write_text(BROWSER.replace("SAID", json.dumps(said)) + script + "\nsetTimeout(end, 50);", "utf-8")

    shown = subprocess.run(["node", program], capture_output=True, check=True, timeout=60).stdout.decode()

    for text in ("a⟨U+202E⟩b", "e⟨U+200B⟩f", "g⟨U+3164⟩h", "i⟨U+202E⟩j", "e⟨U+200B⟩f: enter a whole number."):
        assert text in shown
    assert not any(sign in shown for sign in "\u202e\u2066\u200b\u3164")
    facts = "For ann", "asked by agent · ⟨U+202E⟩ you have agreed"
    for whole in (*facts, "x" * 90 + "⟨U+202E⟩", "true", '\\"Yes\\"'):
        assert f'"{whole}"' in shown


BROWSER = """
class Element {
  constructor(tag) { this.tag = tag; this.children = []; this.listeners = {}; this.value = ""; }
  setAttribute() {} removeAttribute() {} focus() {}
  append(...more) { this.children.push(...more); }
  replaceChildren(...more) { this.children = more; }
  addEventListener(name, call) { this.listeners[name] = call; }
}
const made = [], byId = {};
globalThis.document = {
  getElementById: (id) => byId[id] ??= new Element(id),
  createElement: (tag) => { const each = new Element(tag); made.push(each); return each; },
};
globalThis.location = { hash: "#token", pathname: "/", reload() {} };
globalThis.addEventListener = () => {};
globalThis.fetch = async () => ({ status: 200, json: async () => (SAID) });
function end() {
  byId.buttons.children[0].listeners.click();
  console.log(JSON.stringify([...made, ...Object.values(byId)].map((each) => each.textContent)));
}
"""


def test_the_page_is_static_and_its_policy_allows_only_its_own_script() -> None:
    headers, html = form()
    script = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    style = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    policy = headers["content-security-policy"]

    assert len(script) == len(style) == 1
    for text in (*script, *style):
        assert f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'" in policy
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert (headers["referrer-policy"], headers["cache-control"]) == ("no-referrer", "no-store")
    assert (
        re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|\son\w+=|src=|href=", html)
        == []
    )
    assert form() == (headers, html)


# ---- text


def test_a_subject_is_shown_exactly() -> None:
    subject = {
        "amount": 2**53 + 1, "price": Decimal("1.10"), "at": datetime(2026, 1, 1, tzinfo=UTC), "ok": True,
        "lines": ["a", "b\nto: eve"], "none": None, "raw": b"\x00\xff", "empty": [], " to ": " x ", "a:b": 1,
    }  # fmt: skip

    assert text_of(subject).split("\n") == [
        "amount: 9007199254740993", "price: 1.10", "at: 2026-01-01 00:00:00+00:00", "ok: yes", "lines:",
        "  - a", "  -", "    │ b", "    │ to: eve", "'none': none", "raw: 2 bytes: 00ff", "empty: (empty)",
        "' to ': ' x '", "'a:b': 1",
    ]  # fmt: skip
    assert text_of("plain") == "plain"


def test_characters_that_hide_or_turn_text_are_shown() -> None:
    assert reveal("pay \u202e001\u202c\u200b\x00\r\nx") == "pay ⟨U+202E⟩001⟨U+202C⟩⟨U+200B⟩⟨U+0000⟩\nx"
    assert reveal("שלום 👩\u200d🚀 ä") == "שלום 👩\u200d🚀 ä"
    for shown in ("❤\ufe0f\u200d🔥", "1\ufe0f\u20e3", "می\u200cخواهم", "ക്\u200d", "é\u200d"):
        assert reveal(shown) == shown


@pytest.mark.parametrize("joiner", "\u200c\u200d\ufe0e\ufe0f")
def test_joiners_that_join_nothing_are_shown_and_hide_no_spaces(joiner: str) -> None:
    mark = f"⟨U+{ord(joiner):04X}⟩"

    assert reveal(f"pay{joiner}pal {joiner}") == f"pay{mark}pal {mark}"
    assert text_of({"amount": "5" + f" {joiner}" * 3 + "ok: yes"}) == f"amount: 5 {mark} {mark} {mark}ok: yes"
    assert reveal("é\u200d" + joiner) == f"é\u200d{mark}"


def test_values_of_different_kinds_are_not_shown_alike() -> None:
    fields = {"dry run": "no", "public": False, "n": "1", "m": 1, "none": None, 7: "none", "7": "x"}
    parts = ["'a'", "⟨2 spaces⟩", "(empty)", [], "2 bytes: 0102", b"\1\2", "12:30", "100 EUR"]

    assert text_of(fields).split("\n") == [
        "dry run: 'no'", "public: no", "n: '1'", "m: 1", "'none': none", "7: 'none'", "'7': x",
    ]  # fmt: skip
    assert text_of(parts).split("\n") == [
        "- \"'a'\"", "- ⟨U+27E8⟩2 spaces⟩", "- '(empty)'", "- (empty)", "- '2 bytes: 0102'",
        "- 2 bytes: 0102", "- '12:30'", "- 100 EUR",
    ]  # fmt: skip
    assert text_of({"12:30": "'x'\ny"}) == "'12:30':\n  │ 'x'\n  │ y"


def test_a_subject_that_is_too_deep_is_refused() -> None:
    deep: Any = 1
    for _ in range(200):
        deep = [deep]
    with pytest.raises(InvalidError, match="deep"):
        text_of(deep)
