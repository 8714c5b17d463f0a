"""Histories without `await`: what is not loaded is loaded when it is touched."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate
from keepstate.errors import InvalidError, NotFoundError
from tests.engine.history.conftest import blocking_history


@pytest.fixture(params=["memory://", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/keepstate.db" if request.param == "sqlite" else request.param


def test_a_history_is_kept_without_await(url: str) -> None:
    with keepstate.sync.open(url) as ks:
        history = blocking_history(ks)
        draft = history.begin()
        draft["messages"] = [f"{n} " * 99 for n in range(200)]
        draft.commit("first")
        history.append("messages", "new")
        history.branch("side")
        draft = history.begin("side", load=False)
        draft["messages"].pop(0)
        draft.update(n=1)
        draft.commit()
        history.merge("side")
        checkout = history.checkout(load=False)

        assert [commit.number for commit in history.log(limit=2)] == [3, None]
        assert checkout["messages", -1] == "new"
        assert len(checkout["messages"]) == 200
        assert checkout.get("other") is None
        assert dict(checkout) == dict(draft)
        assert [branch.name for branch in history.branches()] == ["main", "side"]


def test_what_is_not_there_is_told_so(url: str) -> None:
    with keepstate.sync.open(url) as ks:
        history = blocking_history(ks)
        history.commit({"a": 1})
        draft, checkout = history.begin(load=False), history.checkout(load=False)

        for use in (
            lambda: draft["b"],
            lambda: draft.pop("b"),
            lambda: checkout["b"],
            lambda: checkout["a", 1],
        ):
            with pytest.raises(NotFoundError):
                use()
        assert "b" not in draft
        with pytest.raises(InvalidError, match="read-only"):
            checkout["a"] = 2
        del draft["a"]
        assert (len(draft), list(draft)) == (0, [])


def test_a_history_goes_into_a_file_and_another_space_without_await(url: str, tmp_path: Path) -> None:
    with keepstate.sync.open(url) as ks:
        history, fork, other = (blocking_history(ks, name) for name in ("a", "b", "c"))
        history.append("messages", "one")
        history.fork(fork)
        history.export_bundle(tmp_path / "a.bundle")
        other.import_bundle(tmp_path / "a.bundle")

        assert dict(fork.checkout()) == dict(other.checkout()) == {"messages": ["one"]}
        assert history.verify().problems == ()
        assert history.prune(keep_last=1).commits == 0
        with pytest.raises(InvalidError, match="`to`"):
            history.fork("b")  # type: ignore[arg-type]
