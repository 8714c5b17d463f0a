"""Every argument of every call on a history: what cannot be taken is refused before anything is done."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import InvalidError, sync

NO_TEXT = (1, None, b"a", "\ud800")
NO_MESSAGE = (1, None, b"a", "\ud800", "a" * 70_000)
NO_AUTHOR = (1, b"a", "", "a" * 513)
NO_META = (1, "a", ["a"], {"a": 1}, {1: "a"}, {"": "a"}, {"a": "\ud800"}, {"a": "b" * 1_024})
NO_BRANCH = (1, None, b"a", "", "a~b", "a#1", "a@b", "a\nb", "é" * 101)
NO_REF = (1, None, b"a", "", "~1", "#1", "main~x", "main#-1", "main@noon", "a#b~1", ["main"])
NO_PATH: tuple[Any, ...] = (1, None, b"a", (), [], ["a"])
NO_RULES = (1, "ours", [("a", "ours")], {"a": "theirs!"}, {1: "ours"}, {(): 1})
NO_COUNT = (0, -1, 1.5, "1", True)
NO_LOAD = (1, None, "a", [1], [()])
NO_HISTORY = (1, None, "a")
NO_STATE = (1, None, [1], "a", {1: 2}, {"a": object()})
NO_AGE = (1, "1 day", -1.5)
NO_FILE = (1, None, "no/such/file.bundle", b"\0")

CALLS: dict[str, tuple[Callable[[Any, Any], Any], Sequence[Any]]] = {
    "commit(state)": (lambda h, x: h.commit(x), NO_STATE),
    "commit(branch)": (lambda h, x: h.commit({}, branch=x), NO_BRANCH),
    "commit(message)": (lambda h, x: h.commit({}, message=x), NO_MESSAGE),
    "commit(author)": (lambda h, x: h.commit({}, author=x), NO_AUTHOR),
    "commit(meta)": (lambda h, x: h.commit({}, meta=x), NO_META),
    "commit(expected_head)": (lambda h, x: h.commit({}, expected_head=x), (1, b"a", "~1", ["a"])),
    "commit(on_conflict)": (lambda h, x: h.commit({}, on_conflict=x), ("ours", None, 1)),
    "commit(rules)": (lambda h, x: h.commit({}, rules=x), NO_RULES),
    "append(path)": (lambda h, x: h.append(x, 1), NO_PATH),
    "append(items)": (lambda h, x: h.append("a", x), (object(),)),
    "append(branch)": (lambda h, x: h.append("a", 1, branch=x), NO_BRANCH),
    "append(message)": (lambda h, x: h.append("a", 1, message=x), NO_MESSAGE),
    "append(author)": (lambda h, x: h.append("a", 1, author=x), NO_AUTHOR),
    "append(meta)": (lambda h, x: h.append("a", 1, meta=x), NO_META),
    "begin(branch)": (lambda h, x: h.begin(x), NO_BRANCH),
    "begin(load)": (lambda h, x: h.begin(load=x), NO_LOAD),
    "checkout(ref)": (lambda h, x: h.checkout(x), NO_REF),
    "checkout(load)": (lambda h, x: h.checkout(load=x), NO_LOAD),
    "find(ref)": (lambda h, x: h.find(x), NO_REF),
    "log(ref)": (lambda h, x: list(h.log(x)), NO_REF),
    "log(after)": (lambda h, x: list(h.log(after=x)), tuple(x for x in NO_REF if x is not None)),
    "log(limit)": (lambda h, x: list(h.log(limit=x)), NO_COUNT),
    "latest(limit)": (lambda h, x: list(h.latest(limit=x)), NO_COUNT),
    "log(first)": (lambda h, x: list(h.log(first=x)), NO_COUNT),
    "log(reverse)": (lambda h, x: list(h.log(reverse=x)), (0, None, "no")),
    "log(path)": (lambda h, x: list(h.log(path=x)), tuple(x for x in NO_PATH if x is not None)),
    "log(author)": (lambda h, x: list(h.log(author=x)), NO_AUTHOR),
    "log(text)": (lambda h, x: list(h.log(text=x)), tuple(x for x in NO_TEXT if x is not None)),
    "log(meta)": (lambda h, x: list(h.log(meta=x)), NO_META),
    "changes_of(path)": (lambda h, x: list(h.changes_of(x)), NO_PATH),
    "changes_of(ref)": (lambda h, x: list(h.changes_of("a", x)), NO_REF),
    "changes_of(limit)": (lambda h, x: list(h.changes_of("a", limit=x)), NO_COUNT),
    "diff(a)": (lambda h, x: h.diff(x, "main"), NO_REF),
    "diff(b)": (lambda h, x: h.diff("main", x), NO_REF),
    "diff(path)": (lambda h, x: h.diff("main~1", "main", path=x), [x for x in NO_PATH if x is not None]),
    "diff(limit)": (lambda h, x: h.diff("main~1", "main", limit=x), NO_COUNT),
    "blame(path)": (lambda h, x: h.blame(x), NO_PATH),
    "blame(ref)": (lambda h, x: h.blame("a", x), NO_REF),
    "fork(to)": (lambda h, x: h.fork(x), NO_HISTORY),
    "merge(source)": (lambda h, x: h.merge(x), NO_REF),
    "merge(into)": (lambda h, x: h.merge("side", into=x), NO_BRANCH),
    "merge(rules)": (lambda h, x: h.merge("side", rules=x), NO_RULES),
    "merge(message)": (lambda h, x: h.merge("side", message=x), NO_MESSAGE),
    "merge(author)": (lambda h, x: h.merge("side", author=x), NO_AUTHOR),
    "merge(meta)": (lambda h, x: h.merge("side", meta=x), NO_META),
    "merge_base(a)": (lambda h, x: h.merge_base(x, "main"), NO_REF),
    "merge_base(b)": (lambda h, x: h.merge_base("main", x), NO_REF),
    "rollback(branch)": (lambda h, x: h.rollback(x, steps=1), NO_BRANCH),
    "rollback(to)": (lambda h, x: h.rollback(to=x), NO_REF),
    "rollback(steps)": (lambda h, x: h.rollback(steps=x), NO_COUNT),
    "rollback(message)": (lambda h, x: h.rollback(steps=1, message=x), NO_MESSAGE),
    "rollback(author)": (lambda h, x: h.rollback(steps=1, author=x), NO_AUTHOR),
    "rollback(meta)": (lambda h, x: h.rollback(steps=1, meta=x), NO_META),
    "revert(ref)": (lambda h, x: h.revert(x), NO_REF),
    "revert(branch)": (lambda h, x: h.revert("main", branch=x), NO_BRANCH),
    "revert(rules)": (lambda h, x: h.revert("main", rules=x), NO_RULES),
    "revert(message)": (lambda h, x: h.revert("main", message=x), NO_MESSAGE),
    "revert(author)": (lambda h, x: h.revert("main", author=x), NO_AUTHOR),
    "revert(meta)": (lambda h, x: h.revert("main", meta=x), NO_META),
    "squash(branch)": (lambda h, x: h.squash(x, since="main~1"), NO_BRANCH),
    "squash(since)": (lambda h, x: h.squash(since=x), NO_REF),
    "squash(message)": (lambda h, x: h.squash(since="main~1", message=x), NO_MESSAGE),
    "squash(author)": (lambda h, x: h.squash(since="main~1", author=x), NO_AUTHOR),
    "squash(meta)": (lambda h, x: h.squash(since="main~1", meta=x), NO_META),
    "branch(name)": (lambda h, x: h.branch(x), NO_BRANCH),
    "branch(at)": (lambda h, x: h.branch("new", x), NO_REF),
    "delete_branch(name)": (lambda h, x: h.delete_branch(x), NO_BRANCH),
    "tag(name)": (lambda h, x: h.tag(x), NO_BRANCH),
    "tag(at)": (lambda h, x: h.tag("new", x), NO_REF),
    "delete_tag(name)": (lambda h, x: h.delete_tag(x), NO_BRANCH),
    "prune(keep_last)": (lambda h, x: h.prune(keep_last=x), NO_COUNT),
    "prune(older_than)": (lambda h, x: h.prune(older_than=x), NO_AGE),
    "prune(keep_tagged)": (lambda h, x: h.prune(keep_last=1, keep_tagged=x), (1, None, "no")),
    "archive(path)": (
        lambda h, x: h.archive(x, keep_last=1),
        (1, None, "", "a\0", "no/such/folder/a.bundle"),
    ),
    "archive(keep_last)": (lambda h, x: h.archive("never.bundle", keep_last=x), NO_COUNT),
    "archive(older_than)": (lambda h, x: h.archive("never.bundle", older_than=x), NO_AGE),
    "archive(keep_tagged)": (
        lambda h, x: h.archive("never.bundle", keep_last=1, keep_tagged=x),
        (1, None, "no"),
    ),
    "export_bundle(path)": (lambda h, x: h.export_bundle(x), (1, None, "no/such/folder/a.bundle")),
    "import_bundle(path)": (lambda h, x: h.import_bundle(x), NO_FILE),
}


def test_every_argument_of_every_call_is_tried() -> None:
    there = {
        f"{name}({parameter})"
        for name, method in inspect.getmembers(sync.History, inspect.isfunction)
        if not name.startswith("_")
        for parameter in list(inspect.signature(method).parameters)[1:]
    }

    assert there == set(CALLS)


@pytest.mark.parametrize("name", CALLS)
def test_a_wrong_argument_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    call, wrong = CALLS[name]
    with keepstate.sync.open("memory://") as ks:
        history = ks.space("run/1").history
        history.commit({"a": [1], "n": 0})
        history.branch("side")
        history.append("a", 2, branch="side")
        history.commit({"a": [1], "n": 1})
        before = [(branch.name, branch.head) for branch in history.branches()]
        for value in wrong:
            with pytest.raises(InvalidError, match=r".{15}"):
                call(history, value)

        assert [(branch.name, branch.head) for branch in history.branches()] == before
        assert list(history.tags()) == []
    assert list(tmp_path.iterdir()) == []
