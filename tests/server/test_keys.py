"""Keys: stored as hashes, known to every server, and refused when they are malformed."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate.errors import AlreadyExistsError, InvalidError, NotFoundError, StoreUnavailableError
from keepstate.server import Key, Keys, Limits, create_app
from keepstate.server.keys import KEYS_SPACE, RIGHTS, digest_of
from keepstate.server.limits import Bucket
from keepstate.testing.clocks import ManualClock

READ = frozenset(["read"])


async def test_the_store_has_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "keepstate.db"
    async with keepstate.open(path, values="builtin") as ks:
        secrets = [await Keys(ks).add(Key(f"key {number}", READ)) for number in range(3)]

    stored = b"".join(each.read_bytes() for each in tmp_path.iterdir())
    assert b"key 1" in stored
    for secret in secrets:
        assert secret.startswith("ks_") and len(secret) == 46 and secret[3:].isalnum()
        assert secret.encode() not in stored and secret[3:].encode() not in stored
        assert digest_of(secret) in stored
    assert len({*secrets}) == 3


async def test_keys_are_listed_revoked_and_audited() -> None:
    async with keepstate.open("memory://", values="builtin") as ks:
        keys, until = Keys(ks), datetime(2030, 1, 1, tzinfo=UTC)
        ann = Key("ann", frozenset(["read", "answer"]), "acme", "run/1", until, 5)
        await keys.add(ann)
        await keys.add(Key("bob", READ))
        with pytest.raises(AlreadyExistsError, match="'bob'"):
            await keys.add(Key("bob", READ))

        listed = [*await keys.list()]
        first = await keys.list(limit=1)
        await keys.revoke("bob")
        with pytest.raises(NotFoundError, match="'bob'"):
            await keys.revoke("bob")

        assert listed == [ann, Key("bob", READ)] and [*first] == [ann]
        assert [*await keys.list(after=first.next)] == []
        assert [(event["what"], event["key"]) for event in await keys.audited()] == [
            ("key_added", "ann"), ("key_added", "bob"), ("key_revoked", "bob")
        ]  # fmt: skip


async def test_the_space_of_keys_is_not_a_space_of_a_caller() -> None:
    async with keepstate.open("memory://", values="builtin") as ks:
        await Keys(ks).add(Key("ann", READ))

        with pytest.raises(InvalidError, match="keepstate's own"):
            ks.space(KEYS_SPACE)
        assert [name async for name in ks.spaces()] == []


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"name": ""}, "name"),
        ({"name": "a/b"}, "slash"),
        ({"name": "a\nb"}, "name"),
        ({"name": "x" * 81}, "name"),
        ({"name": 1}, "name"),
        ({"rights": frozenset()}, "rights"),
        ({"rights": "read"}, "rights"),
        ({"rights": frozenset(["root"])}, "rights"),
        ({"rights": None}, "rights"),
        ({"tenant": ""}, "tenant"),
        ({"under": "keepstate:keys"}, "keepstate"),
        ({"under": "x" * 201}, "under"),
        ({"expires_at": datetime(2030, 1, 1)}, "zone"),
        ({"expires_at": "2030"}, "expires_at"),
        ({"rate": 0}, "rate"),
        ({"rate": True}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"rights": frozenset(["store"]), "under": "run"}, "store"),
    ],
)
def test_a_malformed_key_is_refused(given: dict[str, Any], told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        Key(**{"name": "ann", "rights": READ, **given})


def test_only_admin_implies_other_rights() -> None:
    implied = {
        right: {other for other in RIGHTS if Key("k", frozenset([right])).allows(other)} for right in RIGHTS
    }

    assert implied == {
        "read": {"read"}, "write": {"write"}, "work": {"work"}, "answer": {"answer"}, "store": {"store"},
        "admin": {"admin", "read", "write"},
    }  # fmt: skip


async def test_handles_that_cannot_serve_are_refused() -> None:
    async with keepstate.open("memory://", values="builtin") as ks, keepstate.open("memory://") as typed:
        with pytest.raises(InvalidError, match="tenant"):
            Keys(ks.tenant("acme"))
        with pytest.raises(InvalidError, match="tenant"):
            create_app(ks.tenant("acme"), keys=Keys(ks))
        with pytest.raises(InvalidError, match="builtin"):
            create_app(typed, keys=Keys(typed))
        with pytest.raises(InvalidError, match="keys"):
            create_app(ks, keys=None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://traces.example.org/trace", "{trace_id}"),
        ("https://traces.example.org/{trace_id}/{span_id}", "other braces"),
        ("https://traces.example.org/{trace_id", "other braces"),
        ("https://traces.example.org/a b/{trace_id}", "spaces"),
        ("https://traces.example.org/\n{trace_id}", "spaces"),
        ("https://{trace_id}.example.org/", "of http or https"),
        ("javascript:alert(1)//{trace_id}", "of http or https"),
        ("data:text/html,{trace_id}", "of http or https"),
        ("//traces.example.org/{trace_id}", "of http or https"),
        ("https:///{trace_id}", "of http or https"),
        ("https://[::/{trace_id}", "Invalid IPv6"),
        ("", "of http or https"),
    ],
)
async def test_an_address_of_traces_that_is_none_is_refused(url: str, told: str) -> None:
    async with keepstate.open("memory://", values="builtin") as ks:
        with pytest.raises(InvalidError, match=re.escape(told)) as refused:
            create_app(ks, keys=Keys(ks), trace_url=url)

    assert "`trace_url`" in str(refused.value)


@pytest.mark.parametrize(
    "given", [{"body_bytes": 0}, {"rate": -1}, {"stall_s": True}, {"request_s": float("nan")}]
)
def test_wrong_limits_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match=next(iter(given))):
        Limits(**given)


def test_a_bucket_refills_at_its_rate_and_holds_two_seconds_of_it() -> None:
    clock = ManualClock()
    bucket = Bucket(clock, 10)

    burst = [bucket.take() for _ in range(21)]
    clock.advance(250)
    later = [bucket.take() for _ in range(3)]
    clock.advance(3_600_000)
    rested = [bucket.take() for _ in range(21)]

    assert burst[:20] == [0.0] * 20 and burst[20] == pytest.approx(0.1)
    assert later[:2] == [0.0, 0.0] and later[2] == pytest.approx(0.05)
    assert rested[:20] == [0.0] * 20 and rested[20] > 0


async def test_keys_are_read_again_after_the_store_was_away(monkeypatch: pytest.MonkeyPatch) -> None:
    async with keepstate.open("memory://", values="builtin") as ks:
        keys, store = Keys(ks), await ks.opened()
        one, two = await keys.add(Key("one", READ)), await keys.add(Key("two", READ))
        async with keys.watched():
            assert keys.is_current and keys.find(one) is not None
            with monkeypatch.context() as patched:

                async def fail(*_: Any, **__: Any) -> Any:
                    raise StoreUnavailableError("away")

                patched.setattr(store, "changes", fail)
                await keys.revoke("one")
                async with asyncio.timeout(60):
                    while keys.is_current:
                        await asyncio.sleep(0.02)
            async with asyncio.timeout(60):
                while not keys.is_current:
                    await asyncio.sleep(0.02)

            assert keys.find(one) is None and keys.find(two) is not None
        assert keys.find(two) is None
