"""Names that callers give: of stores, tenants, authors, spaces and workers."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any

import pytest

import keepstate
from keepstate import InvalidError, sync
from keepstate.stores.memory import MemoryStore
from tests.engine.argument_calls import NO_AUTHOR
from tests.engine.test_arguments import WORDS

NO_STORE = (
    1,
    None,
    b"sqlite:///a",
    [],
    Ellipsis,
    MemoryStore,
    "",
    "a.db",
    "nope://a",
    "sqlite:///\ud800",
    "file:///\0",
)


@pytest.mark.parametrize("open_store", [keepstate.open, sync.open])
@pytest.mark.parametrize("wrong", NO_STORE, ids=ascii)
def test_what_names_no_store_is_refused(open_store: Callable[..., Any], wrong: Any) -> None:
    with pytest.raises(InvalidError, match=WORDS):
        open_store(wrong)


@pytest.mark.parametrize("open_store", [keepstate.open, sync.open])
def test_tenant_and_author_are_text(open_store: Callable[..., Any]) -> None:
    for wrong in (*NO_AUTHOR, "t" * 195):
        with pytest.raises(InvalidError, match="`tenant` is"):
            open_store("memory://", tenant=wrong)
    for wrong in NO_AUTHOR:
        with pytest.raises(InvalidError, match="`author` is"):
            open_store("memory://", author=wrong)


class Role(StrEnum):
    PLANNER = "planner"


def test_a_name_that_is_an_enumeration_is_kept_as_its_text() -> None:
    with sync.open("memory://", author=Role.PLANNER, tenant=Role.PLANNER) as ks:
        space = ks.space(Role.PLANNER)
        space.events.append(1)
        space.queue.put("work", id="t")
        space.queue.claim(Role.PLANNER, lease_s=60)
        space.leases.acquire(Role.PLANNER, 60)
        (event,), info = space.events.read(), space.queue.get("t")

        assert info is not None
        assert [type(name) for name in (event.author, info.worker)] == [str, str]
        assert (event.author, info.worker) == (space.leases.holder("planner"), "planner") == ("planner",) * 2
        assert list(ks.spaces()) == ["planner"]


def test_an_error_too_long_for_a_record_or_no_text_is_kept_in_part() -> None:
    with sync.open("memory://") as ks:
        queue = ks.space("run/1").queue
        queue.put(1, id="t", max_attempts=1)
        (task,) = queue.claim("w", lease_s=60)
        task.fail("\ud800" + "é" * (2 << 20))
        (dead,) = queue.dead()

        assert dead.error is not None
        assert dead.error.startswith("\\ud800é") and dead.error.endswith("é…")
        assert 16_000 < len(dead.error.encode()) <= 16 << 10


def test_a_space_s_name_has_room_beside_its_tenant_or_is_refused_at_once() -> None:
    with sync.open("memory://", tenant="n" * 145) as ks:
        ks.space("a" * 50).documents.put("k", 1)

        for act in (ks.space, ks.drop):
            for name in ("", "a" * 51):
                with pytest.raises(InvalidError, match=r"a space of tenant 'nnn.* has 1 to 50 bytes"):
                    act(name)
        assert list(ks.spaces("a" * 50)) == ["a" * 50]
        assert list(ks.spaces("a" * 49)) == []


@pytest.mark.parametrize("wrong", [3, "", "k" * 513, "\ud800"])
def test_a_name_that_cannot_be_is_told_by_its_argument(wrong: Any) -> None:
    with sync.open("memory://") as ks:
        space = ks.space("a")
        with pytest.raises(InvalidError, match=r"^`key` is "):
            space.documents.put(wrong, 1)
        with pytest.raises(InvalidError, match=r"^`name` is "):
            space.leases.acquire(wrong, 60)
