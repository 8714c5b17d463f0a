"""A history in one file, and in another space: the same commits, or nothing."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate.engine.history import history as histories
from keepstate.engine.history.bundle import Bundle, write_bundle
from keepstate.engine.history.history import History
from keepstate.engine.history.record import Graft, Head, id_of, put_grafts, read_record
from keepstate.engine.history.session import HistorySession
from keepstate.engine.history.transfer import export_history, import_history
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import (
    AlreadyExistsError,
    CorruptError,
    InvalidError,
    PrunedError,
    UnsupportedError,
)
from keepstate.values.touched import NOTHING
from tests.engine.history.conftest import history_of
from tests.engine.history.test_upkeep import LONG


async def a_history(history: History) -> None:
    """Make commits, a merge, a tag, and let go of some."""
    for number in range(1, 7):
        await history.commit({"messages": LONG[number * 20 :], "n": number, "big": b"x" * 1_500_000})
    await history.branch("side", "main~1")
    await history.append("messages", "new", branch="side")
    await history.merge("side", rules={(): "theirs"})
    await history.tag("v1", "main#2")
    await history.prune(keep_last=4)


async def same(one: History, other: History) -> bool:
    """Return whether two histories have the same branches, tags, commits and states."""
    if [b async for b in one.branches()] != [b async for b in other.branches()]:
        return False
    ids = [commit.id async for commit in one.log()]
    states = [dict(await one.checkout(id)) == dict(await other.checkout(id)) for id in ids]
    return ids == [commit.id async for commit in other.log()] and all(states)


async def test_a_bundle_brings_the_same_history_into_another_backend(
    history: History, ks: Keepstate, tmp_path: Path
) -> None:
    await a_history(history)
    count = await history.export_bundle(tmp_path / "a.bundle")
    other = history_of(ks.space("other"))

    assert await other.import_bundle(tmp_path / "a.bundle") == count
    assert await same(history, other)
    assert (await other.verify()).problems == ()
    assert (await other.find("v1")).id == (await history.find("v1")).id
    assert await other.import_bundle(tmp_path / "a.bundle") == count
    assert [path.name for path in tmp_path.glob("*.half")] == []
    await other.append("messages", "more")
    assert (await other.find()).number == (await history.find()).number + 1  # type: ignore[operator]


async def test_a_fork_goes_its_own_way(history: History, ks: Keepstate) -> None:
    await a_history(history)
    fork = history_of(ks.space("fork"))
    await history.fork(fork)
    assert await same(history, fork)

    await fork.append("messages", "forked")
    await history.append("messages", "original")

    assert (await fork.checkout())["messages"][-1] == "forked"
    assert (await history.checkout())["messages"][-1] == "original"
    with pytest.raises(AlreadyExistsError, match="branch 'main'"):
        await history.fork(fork)
    with pytest.raises(InvalidError):
        await history.fork("fork")  # type: ignore[arg-type]


async def test_a_damaged_bundle_is_refused_whole(history: History, tmp_path: Path) -> None:
    await history.commit({"messages": LONG, "n": 1})
    await history.tag("v1")
    path = tmp_path / "a.bundle"
    await history.export_bundle(path)
    whole = path.read_bytes()
    target = history_of(Keepstate.space(history._executor.home, "other"))  # type: ignore[arg-type]
    for place in range(20, len(whole), len(whole) // 23):
        flipped = bytearray(whole)
        flipped[place] ^= 4
        for damaged in (bytes(flipped), whole[:place]):
            path.write_bytes(damaged)
            with pytest.raises(CorruptError, match=r"a\.bundle"):
                await target.import_bundle(path)
    for other in (b"", b"something"):
        path.write_bytes(other)
        with pytest.raises(InvalidError):
            await target.import_bundle(path)
    path.unlink()
    with pytest.raises(InvalidError):
        await target.import_bundle(path)

    assert [branch async for branch in target.branches()] == []


@pytest.mark.parametrize(
    ("parents", "skipped", "goes_on"), [((), 0, True), ((6,), 2, False), ((3,), 0, False)]
)
async def test_a_graft_that_does_not_lead_to_earlier_commits_is_refused(
    history: History, ks: Keepstate, tmp_path: Path, parents: tuple[int, ...], skipped: int, goes_on: bool
) -> None:
    for number in range(6):
        await history.commit({"n": number})
    ids = {commit.number: bytes.fromhex(commit.id) async for commit in history.log()}
    bundle = await history._run(export_history)
    bundle.grafts = {ids[3]: Graft([ids[one] for one in parents], skipped, goes_on, 3)}
    write_bundle(bundle, str(tmp_path / "a.bundle"))

    with pytest.raises(CorruptError, match="its graft names parents that are not before it"):
        await history_of(ks.space("other")).import_bundle(tmp_path / "a.bundle")


@pytest.mark.parametrize("marks", [b"\0", b"\0\0ab", b"\0\0" + b"abc" * 2, b"\0\0" + bytes(range(240)) * 12])
async def test_marks_that_no_commit_has_are_refused(
    history: History, ks: Keepstate, tmp_path: Path, marks: bytes
) -> None:
    for number in range(3):
        await history.commit({"n": number})
    bundle = await history._run(export_history)
    old = bundle.branches["main"].commit
    record = read_record(bundle.commits.pop(old), old)
    encoding = msgspec.structs.replace(record, touched=marks).encoding()
    bundle.commits[id_of(encoding)] = encoding
    bundle.branches["main"] = Head(id_of(encoding), 3)
    write_bundle(bundle, str(tmp_path / "a.bundle"))

    with pytest.raises(CorruptError, match=r"marks (of a commit are damaged|are not in their shortest form)"):
        await history_of(ks.space("other")).import_bundle(tmp_path / "a.bundle")


async def test_grafts_that_name_each_other_end_a_search(history: History) -> None:
    for number in range(20):
        await history.commit({"n": number})
    await history.tag("v1", "main#10")
    await history.prune(keep_last=5)

    async def spoil(session: HistorySession) -> None:
        grafts = await session.grafts()
        upper, lower = sorted(grafts, key=lambda id: -grafts[id].number)
        assert grafts[upper].below == lower
        put_grafts(session.unit, grafts | {lower: msgspec.structs.replace(grafts[lower], below=upper)})

    await history._run(spoil)

    assert (await history.find("main#10")).number == 10
    with pytest.raises(PrunedError):
        await history.find("main#3")


async def test_a_bundle_that_cannot_be_written_is_refused(history: History, tmp_path: Path) -> None:
    await history.commit({"n": 1})

    with pytest.raises(InvalidError, match="cannot be written"):
        await history.export_bundle(tmp_path / ("x" * 300))
    assert [path.name for path in tmp_path.iterdir() if ".half" in path.name] == []


async def test_a_bundle_never_takes_the_place_of_what_is_no_file(history: History, tmp_path: Path) -> None:
    await history.commit({"n": 1})
    here = tmp_path / "here"
    pipe, folder = here / "pipe", here / "folder"
    folder.mkdir(parents=True)
    os.mkfifo(pipe)  # refused as /dev/null is, and anybody may make one

    for target in (pipe, folder):
        with pytest.raises(InvalidError, match=r"is not a file, and is not replaced; name another file"):
            await history.export_bundle(target)
    assert pipe.is_fifo()
    assert sorted(path.name for path in here.iterdir()) == ["folder", "pipe"]


async def test_a_bundle_of_a_later_format_is_named_as_one(history: History, tmp_path: Path) -> None:
    path = tmp_path / "trip.history"
    path.write_bytes(b"keepstate history 3\nwhatever it says")

    with pytest.raises(UnsupportedError, match="another format"):
        await history.import_bundle(path)
    path.write_bytes(b"a history of keepstate")
    with pytest.raises(InvalidError, match="not a bundle"):
        await history.import_bundle(path)


async def test_a_history_of_many_branches_comes_in_several_batches_main_last_and_goes_on_when_cut_off(
    history: History, ks: Keepstate, monkeypatch: pytest.MonkeyPatch
) -> None:
    await a_history(history)
    for number in range(5):
        await history.branch(f"b{number}", "main~1")
        await history.commit({"messages": LONG[number:], "of": number}, branch=f"b{number}")
    monkeypatch.setattr(histories, "_HEADS", 3)
    fork = history_of(ks.space("fork"))
    bundle = await history._run(export_history)
    is_whole = await fork._run(lambda session: import_history(session, bundle, 3))
    await fork.collect()
    begun = [branch.name async for branch in fork.branches()]
    sound = await fork.verify()

    assert not is_whole
    assert (len(begun), "main" in begun, sound.problems) == (3, False, ())
    assert await history.fork(fork) == len(bundle.commits)
    assert await same(history, fork)
    assert (await fork.verify()).problems == ()
    assert [(await fork.checkout(f"b{number}"))["of"] for number in range(5)] == [*range(5)]


# ---- facts that follow from other commits


async def forge(history: History, **facts: Any) -> Bundle:
    """Return the bundle of a history whose last commit says something else of its ancestors."""
    bundle = await history._run(export_history)
    head = bundle.branches["main"]
    record = read_record(bundle.commits.pop(head.commit), head.commit)
    encoding = msgspec.structs.replace(record, **facts).encoding()
    bundle.commits[id_of(encoding)] = encoding
    bundle.branches["main"] = Head(id_of(encoding), facts.get("number", head.number))
    return bundle


@pytest.mark.parametrize(
    ("facts", "named"),
    [
        ({"number": 9}, "number"),
        ({"skip_number": 5}, "skip_number"),
        ({"skip": b"\7" * 20}, "skip"),
        ({"spread_ms": 1 << 40}, "spread_ms"),
        ({"merges": True}, "merges"),
        ({"stretch": b"\0\0"}, "stretch"),
        ({"generation": 9}, "generation"),
    ],
)
async def test_a_commit_that_tells_other_facts_of_its_ancestors_is_refused(
    history: History, tmp_path: Path, facts: dict[str, Any], named: str
) -> None:
    for n in range(8):
        await history.append("log", n)
    bundle = await forge(history, **facts)
    file = str(tmp_path / "forged.bundle")
    write_bundle(bundle, file)

    async with keepstate.open("memory://") as ks:
        with pytest.raises(CorruptError, match=rf"its {named} is not what follows from its parents"):
            await history_of(ks.space("b")).import_bundle(file)
        assert [branch async for branch in ks.space("b").history.branches()] == []
        # Written past the import, verification finds it.
        other = history_of(ks.space("c"))
        await other._run(lambda session: import_history(session, bundle))
        assert any(named in problem for problem in (await other.verify()).problems)


async def test_a_commit_that_hides_a_change_is_found_by_verification(history: History) -> None:
    await history.commit({"a": 1, "log": [1, 2]})
    for state, hidden in (({"a": 2, "log": [1, 2]}, "a"), ({"a": 2, "log": [1, 3]}, "log")):
        await history.commit(state)
        bundle = await forge(history, touched=NOTHING.encoding())
        async with keepstate.open("memory://") as ks:
            other = history_of(ks.space("b"))
            await other._run(partial(import_history, bundle=bundle))

            (problem,) = (await other.verify()).problems
            assert f"it changed {hidden}, and does not say so" in problem
