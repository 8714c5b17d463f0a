"""Tenants: names of spaces encode them, and a handle reaches the spaces of its own tenant only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TypeAlias

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepstate import sync
from keepstate._clock import Clock
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CorruptError, InvalidError
from keepstate.names import beginning, parts_of, shown, stored_name
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.sqlite.store import SqliteStore
from keepstate.testing.clocks import ManualClock

Pair: TypeAlias = tuple[str | None, str]
MakeStore: TypeAlias = Callable[[Clock], StoreBase]

_TEXT = st.text(st.sampled_from("\x00\x01\x02\x03a1/é\ufffd\U0010fffe\U0010ffff"), min_size=1, max_size=4)
PAIRS = st.tuples(st.none() | _TEXT, _TEXT | st.text(min_size=1, max_size=8))


@given(first=PAIRS, second=PAIRS)
@example(first=("t1", "a"), second=("t10", "a"))
@example(first=(None, "\U0010ffffa\x01b"), second=("a", "b"))
@example(first=("a", "\x01b"), second=("a\x01", "b"))
def test_stored_names_lead_back_and_sort_by_tenant_then_name(first: Pair, second: Pair) -> None:
    one, other = stored_name(*first), stored_name(*second)

    assert (parts_of(one), parts_of(other)) == (first, second)
    assert (one == other) == (first == second)
    assert (one.encode() < other.encode()) == (_place(first) < _place(second))


@given(first=PAIRS, second=PAIRS)
@example(first=("t1", "a"), second=("t10", "a"))
@example(first=("a", "b"), second=(None, "\U0010ffffa\x01b"))
@example(first=("a", "b"), second=("a\x01", "b"))
def test_the_beginning_of_a_tenant_s_names_begins_no_other_name(first: Pair, second: Pair) -> None:
    if first[0] is None:
        return

    assert stored_name(*second).startswith(beginning(first[0])) == (first[0] == second[0])


@pytest.mark.parametrize("name", ["run/42", "t1", "a\x01b", "\x01a", "\x00", "é"])
def test_spaces_without_a_tenant_are_stored_under_their_own_names(name: str) -> None:
    assert stored_name(None, name) == name


@pytest.mark.parametrize(
    "stored",
    [
        "\U0010ffff",
        "\U0010ffffacme",
        "\U0010ffff\x01a",
        "\U0010ffffa\x02\x01b",
        "\U0010ffffa\x02zb\x01n",
        "\U0010fffeb",
    ],
)
def test_a_stored_name_that_encodes_nothing_is_damage(stored: str) -> None:
    with pytest.raises(CorruptError, match="has a name that keepstate never gives"):
        parts_of(stored)
    assert shown(stored).isascii()


def _place(pair: Pair) -> tuple[bool, bytes, bytes]:
    tenant, name = pair
    return tenant is not None, (tenant or "").encode(), name.encode()


# ---- handles


@pytest.fixture(params=["memory", "sqlite"], scope="module")
def make_store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> MakeStore:
    def make(clock: Clock) -> StoreBase:
        if request.param == "memory":
            return MemoryStore(runner=ThreadRunner(), clock=clock)
        path = tmp_path_factory.mktemp("tenants") / "state.db"
        return SqliteStore(str(path), runner=ThreadRunner(), clock=clock)

    return make


@pytest.fixture
def ks(make_store: MakeStore) -> Iterator[sync.Keepstate]:
    store = finish(make_store(ManualClock()).open())
    with sync.open(store) as ks:
        yield ks
    finish(store.close())


@settings(max_examples=25)
@given(pairs=st.lists(PAIRS, min_size=2, max_size=4, unique=True))
@example(pairs=[("t1", "s"), ("t10", "s"), ("t1", "0s"), (None, "s")])
@example(pairs=[("t", "user/1"), ("t", "user/10"), ("t", "user/1/a"), (None, "t/user/1")])
def test_a_handle_lists_reads_sweeps_and_drops_only_what_is_its_tenant_s(
    make_store: MakeStore, pairs: list[Pair]
) -> None:
    clock = ManualClock()
    with ExitStack() as stack:
        store = finish(make_store(clock).open())
        stack.callback(lambda: finish(store.close()))
        ks = stack.enter_context(sync.open(store))
        handles = {tenant: _handle(ks, tenant) for tenant, _ in pairs}
        for tenant, name in pairs:
            documents = handles[tenant].space(name).documents
            documents.put("mine", [tenant, name])
            documents.put("short", 1, ttl_s=1)
        clock.advance(5_000)

        for tenant, handle in handles.items():
            own = sorted((name for of, name in pairs if of == tenant), key=str.encode)
            assert list(handle.spaces()) == own
            for under in own:
                assert list(handle.spaces(under)) == [
                    name for name in own if name == under or name.startswith(under.removesuffix("/") + "/")
                ]
            for _, name in pairs:
                expected = [tenant, name] if name in own else None
                assert handle.space(name).documents.get("mine") == expected

        gone: set[Pair] = set()
        for tenant in [tenant for tenant in handles if tenant is not None]:
            own = {(of, name) for of, name in pairs if of == tenant}
            before = _revisions(handles, pairs)
            assert handles[tenant].sweep() == len(own)
            after = _revisions(handles, pairs)
            assert {pair for pair in pairs if before[pair] != after[pair]} == own
            for _, name in own:
                handles[tenant].drop(name)
            gone |= own
            assert {(of, name) for of, name in pairs if handles[of].space(name).documents.get("mine")} == set(
                pairs
            ) - gone
        assert ks.sweep() == len(set(pairs) - gone)


def _handle(ks: sync.Keepstate, tenant: str | None) -> sync.Keepstate:
    return ks if tenant is None else ks.tenant(tenant)


def _revisions(handles: dict[str | None, sync.Keepstate], pairs: list[Pair]) -> dict[Pair, int]:
    return {(tenant, name): handles[tenant].space(name).revision() for tenant, name in pairs}


def test_spaces_below_a_name_are_those_that_continue_it_after_a_slash(ks: sync.Keepstate) -> None:
    for name in (
        "user",
        "user/1",
        "user/1!",
        "user/1/a",
        "user/1/b/c",
        "user/10",
        "user/",
        "users",
        "\U0010ffff/a",
    ):
        ks.space(name).documents.put("k", 1)

    assert list(ks.spaces("user/1")) == ["user/1", "user/1/a", "user/1/b/c"]
    assert list(ks.spaces("user/1/")) == ["user/1/a", "user/1/b/c"]
    assert list(ks.spaces("user")) == [
        "user", "user/", "user/1", "user/1!", "user/1/a", "user/1/b/c", "user/10"
    ]  # fmt: skip
    assert list(ks.spaces("use")) == []
    assert list(ks.spaces("\U0010ffff")) == ["\U0010ffff/a"]
    assert len(list(ks.spaces())) == 9


def test_a_tenant_has_no_tenants(ks: sync.Keepstate) -> None:
    with pytest.raises(InvalidError, match="of tenant 'acme' open> belongs to a tenant"):
        ks.tenant("acme").tenant("other")


def test_a_damaged_name_of_another_tenant_stops_no_listing(ks: sync.Keepstate) -> None:
    batches = [Batch(name, [Put(b"\x01k", b"")]) for name in ("\U0010ffffacme", "a")]
    finish(ks.store.apply(batches))
    ks.tenant("acme").space("s").documents.put("k", 1)

    assert list(ks.tenant("acme").spaces()) == ["s"]
    assert list(ks.tenant("other").spaces()) == []
