"""Tiers are opened by a URL or as a store, in both modes, and refuse what they cannot be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import keepstate
from keepstate import InvalidError, KeyRing, TieredStore, sync
from keepstate._runner import ThreadRunner
from keepstate.opening import store_class
from keepstate.stores.memory import MemoryStore
from keepstate.stores.urls import StoreUrl
from keepstate.sync import of


def test_a_url_puts_memory_in_front_of_any_store(tmp_path: Path) -> None:
    url = f"tiered+sqlite:///{tmp_path}/agents.db?durability=normal&hot_bytes=1000&max_staleness_s=2.5"
    with sync.open(url) as ks:
        ks.space("run/1", record=True).documents.put("plan", {"step": 1})
        ks.space("run/1").documents.put("plan", {"step": 2})

        assert isinstance(ks.store, TieredStore)
        assert ks.space("run/1").documents.get("plan") == {"step": 2}
        assert ks.space("run/1").at("main~1").get("plan") == {"step": 1}
    with sync.open(f"sqlite:///{tmp_path}/agents.db") as ks:
        assert ks.space("run/1").documents.get("plan") == {"step": 2}


def test_a_history_is_read_with_tiers_and_without(tmp_path: Path) -> None:
    state = {"messages": [f"message {number} " * 9 for number in range(300)], "big": b"x" * 1_500_000}
    with sync.open(f"tiered+sqlite:///{tmp_path}/agents.db") as ks:
        ks.space("run/1").history.commit(state)

    with sync.open(f"sqlite:///{tmp_path}/agents.db") as ks:
        assert dict(ks.space("run/1").history.checkout()) == state


def test_what_is_encrypted_is_encrypted_behind_the_tiers(tmp_path: Path) -> None:
    ring = KeyRing(KeyRing.new_key())
    with sync.open(f"tiered+sqlite:///{tmp_path}/agents.db", encryption=ring) as ks:
        ks.space("run/1").history.commit({"plan": ["secret"] * 1000})

        assert dict(ks.space("run/1").history.checkout()) == {"plan": ["secret"] * 1000}
    assert b"secret" not in (tmp_path / "agents.db").read_bytes()


def test_a_store_that_is_not_open_is_opened_and_closed_with_its_handle(tmp_path: Path) -> None:
    store = TieredStore(cold=f"sqlite:///{tmp_path}/agents.db")

    async def work() -> None:
        async with keepstate.open(store) as ks:
            await ks.space("run/1").documents.put("plan", 1)
            assert of(ks).space("run/1").documents.get("plan") == 1
            assert store.is_open

    asyncio.run(work())

    assert not store.is_open


def test_a_store_that_is_not_open_takes_the_mode_of_its_handle(tmp_path: Path) -> None:
    with sync.open(TieredStore(cold=f"sqlite:///{tmp_path}/agents.db")) as ks:
        ks.space("run/1").documents.put("plan", 1)

        assert ks.space("run/1").documents.get("plan") == 1


def test_a_password_is_not_shown() -> None:
    url = StoreUrl.parse("tiered+postgresql://me:secret@db/x?warm=redis%3A%2F%2F%3Asecret%40cache%2F0")

    assert str(url) == "tiered+postgresql://me@db/x?warm=redis://cache/0"
    assert "secret" not in repr(store_class(url.scheme).from_url(url, runner=ThreadRunner()))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("hot_bytes=-1", "hot_bytes"),
        ("max_staleness_s=soon", "max_staleness_s"),
        ("warm=redis://localhost/0", "not a server"),
        ("size=3", "size"),
    ],
)
def test_what_a_url_cannot_say_is_refused(options: str, told: str) -> None:
    with pytest.raises(InvalidError, match=told):
        sync.open(f"tiered+memory://?{options}")


def test_wrong_arguments_are_refused() -> None:
    cold = MemoryStore(runner=ThreadRunner())
    for name, wrong in (
        *(("hot_bytes", given) for given in (-1, 1.5, None, "1")),
        *(("max_staleness_s", given) for given in (-1, True, float("inf"), None, "1")),
        *(("warm", given) for given in (3, cold, TieredStore(cold=cold), object())),
        *(("cold", given) for given in (None, 3, b"memory://", object())),
        *(("mode", given) for given in (None, "red", 3)),
    ):
        with pytest.raises(InvalidError, match=name):
            TieredStore(**{"cold": cold, name: wrong})  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="has tiers already"):
        TieredStore(cold="tiered+memory://x")
    with pytest.raises(InvalidError, match="Known schemes"):
        sync.open("tiered+cheese://x")
