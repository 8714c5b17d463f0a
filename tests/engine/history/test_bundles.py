"""A history in one file, and in another space: the same commits, or nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from keepstate.engine.history import history as histories
from keepstate.engine.history.history import History
from keepstate.engine.history.transfer import export_history, import_history
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import AlreadyExistsError, CorruptError, InvalidError, UnsupportedError
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
    path.write_bytes(b"keepstate history 2\nwhatever it says")

    with pytest.raises(UnsupportedError, match="later format"):
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
