"""Old commits are moved into a file, whole before anything is deleted, and read from there as before."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import msgspec
import pytest

import keepstate
from keepstate import AlreadyExistsError, CorruptError, InvalidError, NotFoundError, PrunedError, Space, sync
from keepstate.engine.history import archive
from keepstate.engine.history.archive import Before
from keepstate.engine.history.bundle import Bundle
from keepstate.engine.history.history import History
from keepstate.engine.kernel import layout
from keepstate.engine.space.keepstate import Keepstate
from keepstate.stores.protocol import Applied, Batch, Put
from tests.engine.history.conftest import history_of
from tests.processes import PROCESSES, Program

WORKER = PROCESSES / "archive_repeatedly.py"
LONG = [f"message {number} " * 5 for number in range(300)]


async def filled(space: Space, count: int = 12) -> tuple[History, list[str]]:
    """Return a history of so many commits, and their ids."""
    history = history_of(space)
    ids = [(await history.commit({"n": 0, "messages": LONG})).id]
    for n in range(1, count):
        draft = await history.begin()
        draft["n"] = n
        draft["messages"].append(f"new {n}")
        ids.append((await draft.commit()).id)
    return history, ids


async def logged(history: History) -> list[str]:
    return [commit.id async for commit in history.log()]


async def test_what_was_archived_is_read_as_before(space: Space, tmp_path: Path) -> None:
    history, ids = await filled(space)
    done = await history.archive(tmp_path / "old.archive", keep_last=3)

    assert done.commits == 9
    assert (await history.stats()).commits == 3
    assert await logged(history) == ids[::-1]
    for n, id in enumerate(ids):
        assert dict(await history.checkout(id)) == {
            "n": n,
            "messages": [*LONG, *(f"new {i}" for i in range(1, n + 1))],
        }
        assert (await history.find(f"main#{n + 1}")).id == (await history.find(f"main~{11 - n}")).id == id
    assert (await history.find(ids[0][:12])).id == ids[0]
    for commit in (3, 9):  # the second is the first that is kept, and its parents are in the file
        told = await history.blame(("messages", 299 + commit))
        assert (told.commit.id, told.is_exact) == (ids[commit], True)
    assert [difference.path for difference in await history.diff(ids[1], ids[2])] != []
    assert (await history.verify()).problems == ()


async def test_an_archive_takes_more_and_goes_on_beside_commits(space: Space, tmp_path: Path) -> None:
    history, ids = await filled(space)
    for n in range(3):
        await history.archive(tmp_path / "old.archive", keep_last=2)
        ids.append((await history.commit({"n": 100 + n})).id)

    assert await logged(history) == ids[::-1]
    assert await history.archive(tmp_path / "old.archive", older_than=timedelta(days=1)) is not None
    assert [(await history.checkout(id))["n"] for id in ids[-4:]] == [11, 100, 101, 102]


async def test_documents_of_a_recorded_space_are_read_as_they_were(ks: Keepstate, tmp_path: Path) -> None:
    run = ks.space("run/2", record=True)
    for n in range(10):
        await run.documents.put("plan", {"step": n})

    await run.history.archive(tmp_path / "old.archive", keep_last=1)

    assert (await run.at("main~9"))["plan"] == {"step": 0}
    assert await run.documents.get("plan") == {"step": 9}


async def test_without_its_file_the_history_is_a_pruned_one(space: Space, tmp_path: Path) -> None:
    history, ids = await filled(space)
    await history.archive(tmp_path / "old.archive", keep_last=3)
    (tmp_path / "old.archive").rename(tmp_path / "elsewhere")

    for gone in (ids[0], ids[0][:12], "main~5", "main#2", datetime(2020, 1, 1, tzinfo=UTC)):
        with pytest.raises(PrunedError, match=r"archived in .*old\.archive"):
            await history.checkout(gone)
    with pytest.raises(PrunedError):
        await history.archive(tmp_path / "old.archive", keep_last=1)
    assert await logged(history) == ids[:-4:-1]
    assert (await history.checkout("main~1"))["n"] == (await history.checkout("main#11"))["n"] == 10
    assert (await history.find(ids[9][:12])).number is None
    assert (await history.blame("n")).commit.id == ids[11]
    assert not (await history.blame(("messages", 0))).is_exact
    assert [one.path for one in await history.diff("main~1", "main")] == [("n",), ("messages", 310)]
    await history.append("messages", "goes on")
    assert (await history.verify()).problems == ()


async def test_kept_commits_are_read_without_opening_the_file(space: Space, tmp_path: Path) -> None:
    history, ids = await filled(space)
    await history.archive(tmp_path / "old.archive", keep_last=3)
    (tmp_path / "old.archive").write_bytes(b"damaged")

    assert [(await history.find(f"main~{back}")).id for back in range(3)] == ids[:-4:-1]


async def test_nothing_is_built_on_what_is_in_a_file(space: Space, tmp_path: Path) -> None:
    history, ids = await filled(space)
    await history.archive(tmp_path / "old.archive", keep_last=3)

    with pytest.raises(NotFoundError):
        await history.rollback(to=ids[0])
    with pytest.raises(NotFoundError):
        await history.branch("side", at=ids[0])
    await history.commit(dict(await history.checkout(ids[0])), message="as it was")

    os.remove(tmp_path / "old.archive")
    assert dict(await history.checkout()) == {"n": 0, "messages": LONG}


async def test_another_history_s_file_is_left_alone(ks: Keepstate, tmp_path: Path) -> None:
    history, _ = await filled(ks.space("run/1"))
    other = history_of(ks.space("run/2"))
    await other.commit({"n": 1})
    await other.export_bundle(tmp_path / "other")

    with pytest.raises(AlreadyExistsError, match="another history"):
        await history.archive(tmp_path / "other", keep_last=1)
    assert (await history.stats()).commits == 12


async def test_a_file_that_cannot_be_written_costs_nothing(space: Space, tmp_path: Path) -> None:
    history, _ = await filled(space)

    with pytest.raises(InvalidError, match=r"the folder of .* is not there"):
        await history.archive(tmp_path / "no folder" / "old.archive", keep_last=1)
    with pytest.raises(InvalidError, match="cannot be read"):
        await history.archive(tmp_path, keep_last=1)

    assert (await history.stats()).commits == 12


async def test_who_archives_at_once_with_another_keeps_what_that_has_let_go_of(
    ks: Keepstate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = history_of(ks.space("run/1")), history_of(ks.space("run/1"))
    file = tmp_path / "old.archive"
    ids = [(await here.commit({"n": n})).id for n in range(5)]
    write = here._archive.write

    async def late(path: str, now: Bundle, before: Before) -> Bundle:
        monkeypatch.setattr(here._archive, "write", write)
        ids.extend([(await there.commit({"n": n})).id for n in range(5, 10)])
        await there.archive(file, keep_last=1)
        return await write(path, now, before)

    monkeypatch.setattr(here._archive, "write", late)
    await here.archive(file, keep_last=1)

    assert [(await here.checkout(id))["n"] for id in ids] == list(range(10))
    assert await logged(there) == ids[::-1]


async def test_who_archives_at_once_into_another_file_takes_over_what_that_has(
    ks: Keepstate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = history_of(ks.space("run/1")), history_of(ks.space("run/1"))
    ids = [(await here.commit({"n": n})).id for n in range(5)]
    write = here._archive.write

    async def late(path: str, now: Bundle, before: Before) -> Bundle:
        monkeypatch.setattr(here._archive, "write", write)
        ids.extend([(await there.commit({"n": n})).id for n in range(5, 10)])
        await there.archive(tmp_path / "theirs", keep_last=1)
        return await write(path, now, before)

    monkeypatch.setattr(here._archive, "write", late)
    await here.archive(tmp_path / "ours", keep_last=1)
    os.remove(tmp_path / "theirs")

    assert [(await here.checkout(id))["n"] for id in ids] == list(range(10))


async def test_what_is_committed_while_the_file_is_written_still_says_who_came_before(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history, ids = await filled(space, 3)
    write = history._archive.write

    async def slow(path: str, now: Bundle, before: Before) -> Bundle:
        ids.extend([(await history.commit({"n": n})).id for n in range(3, 7)])
        return await write(path, now, before)

    monkeypatch.setattr(history._archive, "write", slow)
    await history.archive(tmp_path / "old.archive", keep_last=2)
    monkeypatch.setattr(history._archive, "write", write)

    assert await logged(history) == ids[::-1]
    await history.archive(tmp_path / "old.archive", keep_last=2)
    assert await logged(history) == ids[::-1]


async def test_copies_of_a_space_share_one_file(ks: Keepstate, tmp_path: Path) -> None:
    first, ids = await filled(ks.space("run/1"))
    await first.export_bundle(tmp_path / "copied")
    second = history_of(ks.space("run/2"))
    await second.import_bundle(tmp_path / "copied")
    own = {first: [(await first.commit({"n": 100})).id], second: [(await second.commit({"n": 200})).id]}

    for history in (first, second, first, second):
        own[history].append((await history.commit({"n": 0})).id)
        await history.archive(tmp_path / "old.archive", keep_last=1)

    for history, more in own.items():
        assert await logged(history) == [*ids, *more][::-1]
        assert [len(await history.checkout(id)) > 0 for id in more] == [True] * 3


async def test_many_who_commit_and_archive_at_once_lose_nothing(url: str, tmp_path: Path) -> None:
    ids: list[list[str]] = [[], [], []]

    async def work(ks: Keepstate, own: list[str]) -> None:
        history = history_of(ks.space("run/1"))
        for n in range(12):
            own.append((await history.append("all", n)).id)
            if n % 3 == 2:
                await history.archive(tmp_path / "old.archive", keep_last=2)

    async with AsyncExitStack() as stack:
        handles = [await stack.enter_async_context(keepstate.open(url)) for _ in ids]
        await history_of(handles[0].space("run/1")).commit({"all": []})
        await asyncio.gather(*map(work, handles, ids))
        history = history_of(handles[0].space("run/1"))
        sizes = [len((await history.checkout(id))["all"]) for own in ids for id in own]
        line = [commit async for commit in history.log()]

    assert sorted(sizes) == list(range(1, 37))
    assert len(line) == 37
    assert os.listdir(tmp_path).count("old.archive") == 1
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".old.archive")]


def test_archives_work_in_blocking_use(tmp_path: Path) -> None:
    with sync.open(f"sqlite:///{tmp_path}/keepstate.db") as ks:
        history = ks.space("run/1").history
        ids = [history.commit({"n": n}).id for n in range(5)]

        history.archive(tmp_path / "old.archive", keep_last=1)

        assert [commit.id for commit in history.log()] == ids[::-1]
        assert history.checkout(ids[0])["n"] == 0


@pytest.mark.parametrize("kills", [4, pytest.param(60, marks=pytest.mark.deep)])
async def test_a_kill_while_archiving_loses_nothing(tmp_path: Path, kills: int) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db?durability=normal"
    random = Random(kills)
    for number in range(kills):
        worker = Program(WORKER, url, tmp_path / "old.archive", stdout=subprocess.PIPE)
        assert worker.stdout is not None
        for _ in range(1 if number else 3):  # ready, and in the first life archived twice
            worker.stdout.readline()
        time.sleep(random.uniform(0.02, 0.3))
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()

    keepstate.confirm_archives(tmp_path)
    async with keepstate.open(url) as ks:
        history = history_of(ks.space("run/1"))
        states = [dict(await history.checkout(id)) async for id in newest_first(history)]
        assert len(states) >= 10
        assert [state["n"] for state in states] == list(range(len(states)))[::-1]
        assert (await history.verify()).problems == ()


async def newest_first(history: History) -> AsyncIterator[str]:
    async for commit in history.log():
        yield commit.id


# ---- a row that names another file


async def naming(space: Space, path: Path) -> History:
    """Archive a history, and return it with another file in the row that names its archive."""
    history, ids = await filled(space)
    await history.archive(path.parent / "own.archive", keep_last=3)
    store, name = await history._executor.store(), history._executor.stored_name
    put = Put(layout.ARCHIVE, msgspec.msgpack.encode(str(path)))
    (outcome,) = await store.apply([Batch(name, [put])])
    assert isinstance(outcome, Applied)
    assert len(ids) == 12
    return history


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/stdin", "/etc/passwd", "/proc/self/environ"])
async def test_a_file_that_no_caller_has_named_is_not_opened(
    path: str, space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    history = await naming(space, tmp_path / "any")
    opened: list[str] = []
    monkeypatch.setattr(archive, "read_archive", opened.append)
    store, name = await history._executor.store(), history._executor.stored_name
    await store.apply([Batch(name, [Put(layout.ARCHIVE, msgspec.msgpack.encode(path))])])

    with pytest.raises(PrunedError, match="confirm_archives"):
        await history.checkout("main~9")
    with pytest.raises(PrunedError, match="confirm_archives"):
        await history.archive(tmp_path / "new.archive", keep_last=1)

    assert opened == []
    assert len(await logged(history)) == 3


async def test_a_bundle_outside_of_what_was_confirmed_is_not_opened(space: Space, tmp_path: Path) -> None:
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours2").mkdir()
    history = await naming(space, tmp_path / "ours2" / "old.archive")
    shutil.copyfile(tmp_path / "ours2" / "own.archive", tmp_path / "ours2" / "old.archive")
    keepstate.confirm_archives(tmp_path / "ours")

    with pytest.raises(PrunedError, match="confirm_archives"):
        await history.checkout("main~9")
    keepstate.confirm_archives(tmp_path / "ours2")

    assert (await history.checkout("main~9"))["n"] == 2


@pytest.mark.parametrize("way", ["ours/../theirs/old.archive", "ours/out/old.archive"], ids=["up", "link"])
async def test_no_way_out_of_a_confirmed_folder_is_taken(way: str, space: Space, tmp_path: Path) -> None:
    for folder in ("ours", "theirs"):
        (tmp_path / folder).mkdir()
    (tmp_path / "ours" / "out").symlink_to(tmp_path / "theirs")
    history = await naming(space, tmp_path / "any")
    shutil.copyfile(tmp_path / "own.archive", tmp_path / "theirs" / "old.archive")
    store, name = await history._executor.store(), history._executor.stored_name
    await store.apply([Batch(name, [Put(layout.ARCHIVE, msgspec.msgpack.encode(f"{tmp_path}/{way}"))])])
    keepstate.confirm_archives(tmp_path / "ours")

    with pytest.raises(PrunedError, match="confirm_archives"):
        await history.checkout("main~9")
    keepstate.confirm_archives(tmp_path / "theirs")

    assert (await history.checkout("main~9"))["n"] == 2


@pytest.mark.parametrize("kind", ["pipe", "link", "link out", "another file", "folder"])
async def test_in_a_confirmed_folder_only_a_regular_bundle_is_read(
    kind: str, space: Space, tmp_path: Path
) -> None:
    (tmp_path / "ours").mkdir()
    path = tmp_path / "ours" / "old.archive"
    history = await naming(space, path)
    keepstate.confirm_archives(tmp_path / "ours")
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to(tmp_path / "ours" / "own.archive")
    elif kind == "link out":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    else:
        with path.open("wb") as file:
            file.truncate(1 << 40)  # of which nothing but the beginning is read

    with pytest.raises((PrunedError, InvalidError)):
        await history.checkout("main~9")


async def test_an_archive_is_read_up_to_its_length_when_it_was_opened(
    space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "old.archive"
    history, _ = await filled(space)
    await history.archive(path, keep_last=3)
    whole, size_bytes, right = archive.read_archive(str(path)), path.stat().st_size, archive.is_bundle

    def grow(begin: bytes) -> bool:
        """Let another process add to the file after it was opened, and before the rest of it is read."""
        with path.open("ab") as file:
            file.write(bytes(1_000_000))
        return right(begin)

    monkeypatch.setattr(archive, "is_bundle", grow)

    read = archive.read_archive(str(path))

    assert (read.commits, read.objects) == (whole.commits, whole.objects)
    assert path.stat().st_size == size_bytes + 1_000_000


async def test_a_stored_name_of_any_length_makes_a_short_error(space: Space, tmp_path: Path) -> None:
    path = tmp_path / ("a" * 100_000)
    history = await naming(space, path)

    with pytest.raises(PrunedError, match="confirm_archives") as refused:
        await history.checkout("main~9")
    keepstate.confirm_archives(tmp_path)
    with pytest.raises(PrunedError, match="cannot be read here") as unread:
        await history.checkout("main~9")

    for error in (refused.value, unread.value):
        assert str(tmp_path)[:100] in str(error)
        assert len(str(error)) < 600


async def test_a_stored_name_with_a_nul_is_damage(space: Space, tmp_path: Path) -> None:
    history = await naming(space, tmp_path / "a\0b")

    with pytest.raises(CorruptError, match="has a name with a NUL"):
        await history.checkout("main~9")
    with pytest.raises(InvalidError, match="`folder` is"):
        keepstate.confirm_archives("a\0b")


def test_what_is_not_a_folder_is_not_confirmed(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match="not a folder"):
        keepstate.confirm_archives(tmp_path / "typo")


async def test_a_command_reads_an_archive_in_the_folder_that_it_is_given(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/keepstate.db"
    async with keepstate.open(url) as ks:
        history, _ = await filled(ks.space("run/1"))
        await history.archive(tmp_path / "old.archive", keep_last=3)
    command = [sys.executable, "-m", "keepstate", "show", "run/1", "main~9", "--url", url]

    alone, given = (
        subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, check=False)
        for words in ([], ["--archives", str(tmp_path)])
    )

    assert alone.returncode != 0
    assert "--archives" in alone.stderr
    assert given.returncode == 0, given.stderr
