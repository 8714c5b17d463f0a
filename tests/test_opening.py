"""Handles: what they share, where they work, and how they end."""

from __future__ import annotations

import asyncio
import gc
import pickle
import re
import time
import warnings
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

import keepstate
from keepstate import ClosedError, InvalidError, Keepstate, KeyRing, sync
from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.stores.base import StoreBase
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import ENCRYPTION_SPACE
from keepstate.sync import of

T = TypeVar("T")


class Both:
    """Opens and drives handles of either colour with the same words."""

    def __init__(self, mode: str, loop: asyncio.Runner) -> None:
        self.mode, self._loop = mode, loop

    def open(self, url: Any, **options: Any) -> Any:
        if self.mode == "blocking":
            return sync.open(url, **options)

        async def opened() -> keepstate.Keepstate:
            return await keepstate.open(url, **options)

        return self._loop.run(opened())

    def do(self, answer: Coroutine[Any, Any, T] | T) -> T:
        return self._loop.run(answer) if isinstance(answer, Coroutine) else answer

    def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Drive what is `async def` in either colour: a store."""
        return self._loop.run(work) if self.mode == "async" else finish(work)

    def store(self) -> MemoryStore:
        runner = TaskRunner() if self.mode == "async" else ThreadRunner()
        return self.finish(MemoryStore(runner=runner).open())


@pytest.fixture(params=["async", "blocking"])
def both(request: pytest.FixtureRequest) -> Iterator[Both]:
    with asyncio.Runner() as loop:
        yield Both(request.param, loop)


# ---- whether the store is encrypted


@pytest.fixture(params=["memory", "sqlite", "redis"])
def shared_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("redis_url"))
    return f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else f"memory://{tmp_path.name}"


def test_a_handle_without_keys_writes_nothing_into_an_encrypted_store(both: Both, shared_url: str) -> None:
    keyed = both.open(shared_url, encryption=KeyRing(bytes(32)))
    both.do(keyed.space("s").documents.put("k", 1))
    keyless = both.open(shared_url)
    with pytest.raises(InvalidError, match=r"is encrypted. Open it with encryption=KeyRing\(…\)"):
        both.do(keyless.space("s").documents.put("k", 2))

    assert both.do(keyed.space("s").documents.get("k")) == 1
    both.do(keyless.close())
    both.do(keyed.close())


def test_opening_asks_once_whether_the_store_is_encrypted(
    both: Both, shared_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def counting(read: Any) -> Any:
        def counted(store: StoreBase, space: str, *args: Any, **options: Any) -> Any:
            asked.append(space)
            return read(store, space, *args, **options)

        return counted

    for store in (StoreBase, MemoryStore):
        monkeypatch.setattr(store, "read", counting(store.read))
    first, second = both.open(shared_url), both.open(shared_url)
    for ks in (first, second):
        both.do(ks.space("s").documents.put("k", 1))
        both.do(ks.space("s").documents.get("k"))

    assert asked.count(ENCRYPTION_SPACE) == 1
    both.do(first.close())
    both.do(second.close())


# ---- what handles share


def test_two_handles_share_one_store_and_the_last_one_closes_it(both: Both, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    first, second = both.open(url), both.open(url)
    assert first.store is second.store

    both.do(first.close())
    both.do(first.close())
    both.do(second.space("s").documents.put("k", 1))
    store = second.store
    both.do(second.close())

    assert repr(store).endswith(" closed>")


def test_private_memory_is_private_and_named_memory_is_shared(both: Both) -> None:
    handles = [both.open(url) for url in ("memory://", "memory://", "memory://team", "memory://team")]
    for handle in (handles[0], handles[2]):
        both.do(handle.space("s").documents.put("k", 1))

    seen = [both.do(handle.space("s").documents.get("k")) for handle in handles]
    for handle in handles:
        both.do(handle.close())

    assert seen == [1, None, 1, 1]


def test_a_relative_path_is_meant_where_it_was_said(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(tmp_path)
    here = both.open("sqlite:///state.db")
    monkeypatch.chdir(there)
    other = both.open("sqlite:///state.db")
    both.do(here.space("s").documents.put("k", 1))

    assert both.do(other.space("s").documents.get("k")) is None
    both.do(here.close())
    both.do(other.close())
    assert (tmp_path / "state.db").exists() and (there / "state.db").exists()


def test_a_path_is_that_of_an_sqlite_file(both: Both, tmp_path: Path) -> None:
    ks = both.open(tmp_path / "50% done?.db")
    both.do(ks.space("s").documents.put("k", 1))
    both.do(ks.close())

    assert (tmp_path / "50% done?.db").exists()


def test_a_handle_of_a_tenant_is_opened_or_asked_of_another_handle(both: Both) -> None:
    store = both.store()
    inner, outer = both.open(store, tenant="app"), both.open(store)
    both.do(inner.space("s").documents.put("k", 1))

    asked = outer.tenant("app")
    assert (asked.tenant_id, outer.tenant_id, asked.url) == ("app", None, outer.url)
    assert both.do(asked.space("s").documents.get("k")) == 1
    assert both.do(outer.space("s").documents.get("k")) is None
    both.do(asked.close())
    assert both.do(asked.space("s").documents.get("k")) == 1  # it is closed with the handle that gave it
    both.finish(store.close())


def test_a_store_that_was_passed_in_open_stays_open(both: Both) -> None:
    store = both.store()

    both.do(both.open(store).close())

    assert repr(store).endswith(" open>")
    both.finish(store.close())


def test_a_closed_handle_says_so(both: Both) -> None:
    ks = both.open("memory://")
    both.do(ks.close())

    with pytest.raises(ClosedError, match="the handle on memory:// is closed; open it again"):
        both.do(ks.space("s").documents.get("k"))


# ---- what is refused


@pytest.mark.parametrize("door", [keepstate.open, sync.open], ids=["async", "blocking"])
def test_an_unknown_scheme_lists_the_known_ones(door: Any) -> None:
    with pytest.raises(
        InvalidError, match=r"'mongo'. Known schemes: file://, http://, https://, memory://, .*sqlite://"
    ):
        door("mongo://host")


@pytest.mark.parametrize("door", [keepstate.open, sync.open], ids=["async", "blocking"])
@pytest.mark.parametrize(
    ("path", "suggested"),
    [
        ("app.db", "Write sqlite:///app.db (three slashes, then the path), or pass pathlib.Path('app.db')"),
        ("/var/app.db", "Write sqlite:////var/app.db "),
        ("./state/", "Write file:///state/ for a folder"),
    ],
)
def test_a_path_for_a_url_is_told_its_url(door: Any, path: str, suggested: str) -> None:
    with pytest.raises(InvalidError, match=re.escape(f"'{path}' is not a store URL. {suggested}")):
        door(path)


@pytest.mark.parametrize("door", [keepstate.open, sync.open], ids=["async", "blocking"])
@pytest.mark.parametrize("text", ["", "host=a password=b", "a b"])
def test_a_text_that_is_no_path_shows_how_a_url_looks(door: Any, text: str) -> None:
    with pytest.raises(InvalidError, match=r"Use a URL such as sqlite:///agents\.db or memory://"):
        door(text)


@pytest.mark.parametrize("door", [keepstate.open, sync.open], ids=["async", "blocking"])
def test_a_word_that_is_no_url_is_shown(door: Any) -> None:
    with pytest.raises(
        InvalidError, match=r"^'nowhere' is not a store URL. Use a URL such as sqlite:///agents\.db"
    ):
        door("nowhere")


@pytest.mark.parametrize("text", ["a" * 100_000, "a/" * 50_000])
def test_a_long_text_that_is_no_url_is_not_shown(text: str) -> None:
    with pytest.raises(InvalidError) as refused:
        sync.open(text)
    assert len(str(refused.value)) < 300


@pytest.mark.parametrize("url", ["file://./state/", "sqlite://./app.db"])
def test_a_path_after_two_slashes_is_told_as_it_was_given(url: str) -> None:
    with pytest.raises(InvalidError, match=rf"^{re.escape(url)} does not name a file"):
        sync.open(url)


def test_the_twin_of_what_is_no_asynchronous_handle_is_refused() -> None:
    with sync.open("memory://") as ks, pytest.raises(InvalidError, match="is blocking already; use it as it"):
        sync.of(ks)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="`ks` is 3"):
        sync.of(3)  # type: ignore[arg-type]


def test_a_store_of_the_wrong_mode_names_the_right_call() -> None:
    with pytest.raises(InvalidError, match=r"is async; pass it to keepstate\.open"):
        sync.open(MemoryStore(runner=TaskRunner()))
    with pytest.raises(InvalidError, match=r"is blocking; pass it to keepstate\.sync\.open"):
        keepstate.open(MemoryStore(runner=ThreadRunner()))


def test_a_handle_that_nothing_has_opened_has_no_store() -> None:
    with pytest.raises(InvalidError, match="has no open store; enter it first, or call an operation"):
        _ = keepstate.open("memory://").store


# ---- where a handle works


def test_another_event_loop_cannot_use_the_handle(tmp_path: Path) -> None:
    ks = keepstate.open(f"sqlite:///{tmp_path}/state.db")

    async def used() -> Any:
        return await ks.space("s").documents.get("k")

    with asyncio.Runner() as first:
        first.run(used())
        with pytest.raises(ClosedError, match="opened in another event loop; open it in this one"):
            asyncio.run(used())
        first.run(ks.close())


def test_each_event_loop_has_a_store_of_its_own() -> None:
    async def used() -> int:
        async with keepstate.open("memory://loops") as ks:
            return await ks.space("s").documents.update("count", lambda count: count + 1, default=0)

    assert [asyncio.run(used()), asyncio.run(used())] == [1, 2]


# ---- opening, by several, and given up


def test_tasks_that_come_at_once_open_it_once() -> None:
    async def used() -> set[int]:
        async with keepstate.open("memory://") as ks:
            await asyncio.gather(*(ks.space("s").documents.put(f"k{n}", n) for n in range(20)))
            return {id(ks.store)}

    assert len(asyncio.run(used())) == 1


def test_who_is_cancelled_while_opening_leaves_the_others_a_store(tmp_path: Path) -> None:
    assert asyncio.run(first_cancelled(lambda: keepstate.open(f"sqlite:///{tmp_path}/state.db"))) == 2


async def first_cancelled(opened: Callable[[], Keepstate]) -> int:
    """Cancel the first of two that open a handle at once; returns what the second has written."""
    ks = opened()
    first = asyncio.create_task(ks.space("s").documents.put("k", 1))
    await asyncio.sleep(0)
    second = asyncio.create_task(ks.space("s").documents.put("k", 2))
    await asyncio.sleep(0)
    first.cancel()
    await second
    answer: int = await ks.space("s").documents.get("k")
    await ks.close()
    assert first.cancelled()
    return answer


def test_a_handle_closed_while_it_opens_leaves_nothing_open(tmp_path: Path) -> None:
    async def used() -> None:
        ks = keepstate.open(f"sqlite:///{tmp_path}/state.db")
        opening = asyncio.create_task(ks.space("s").documents.put("k", 1))
        await asyncio.sleep(0)
        await ks.close()
        with pytest.raises(ClosedError):
            await opening

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        asyncio.run(used())
        gc.collect()

    assert told == []


def test_a_store_that_cannot_be_opened_tells_each_who_asked(tmp_path: Path) -> None:
    async def used() -> list[type]:
        ks = keepstate.open(f"sqlite:///{tmp_path}/absent/state.db")
        asked = [ks.space("s").documents.get("k") for _ in range(3)]
        return [type(error) for error in await asyncio.gather(*asked, return_exceptions=True)]

    kinds = asyncio.run(used())

    assert len(set(kinds)) == 1 and issubclass(kinds[0], keepstate.KeepstateError)


# ---- manners


def test_a_handle_shows_no_password_and_opens_nothing() -> None:
    ks = keepstate.open("postgresql://agent:hush@127.0.0.1:1/db", tenant="app")

    assert repr(ks) == "<Keepstate postgresql://agent@127.0.0.1:1/db of tenant 'app' not open>"
    assert repr(ks.space("s").documents.document("k", int)) == "<Document 'k' in <Documents of 's'>>"
    assert "hush" not in repr(ks.space("s")) + repr(of(ks)) + ks.url


def test_a_handle_and_its_spaces_pickle_as_a_url_and_open_again(both: Both, tmp_path: Path) -> None:
    ks = both.open(f"sqlite:///{tmp_path}/state.db", tenant="app", author="me")
    both.do(ks.space("s").documents.put("k", 1))

    again = pickle.loads(pickle.dumps(ks))
    space = pickle.loads(pickle.dumps(ks.space("s")))

    assert repr(again).endswith(" not open>") and (again.tenant_id, again.author) == ("app", "me")
    assert both.do(again.space("s").documents.get("k")) == 1
    assert (space.name, space.author, both.do(space.documents.get("k"))) == ("s", "me", 1)
    for handle in (ks, again, home_of(space)):
        both.do(handle.close())


def test_private_memory_a_lease_and_a_store_stay_in_their_process(both: Both) -> None:
    ks = both.open("memory://")
    lease = both.do(ks.space("s").leases.acquire("driver", 60))

    for what, reason in (
        (ks, "private to one handle"),
        (lease, "held by one process"),
        (ks.store, "Pickle its URL"),
    ):
        with pytest.raises(TypeError, match=reason):
            pickle.dumps(what)
    both.do(ks.close())


@pytest.mark.parametrize("url", ["memory://", "memory://dropped", "file:///state.keep", "sqlite:///state.db"])
def test_a_handle_dropped_while_open_warns_once(
    both: Both, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ks = both.open(url)
    both.do(ks.space("s").documents.put("k", 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what other tests have left is not ours

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        del ks
        for _ in range(100):
            gc.collect()
            if told:
                break
            time.sleep(0.01)  # a thread that has just worked for the store may still let go of it

    assert [
        (warning.category, "dropped while open. Call close" in str(warning.message)) for warning in told
    ] == [(ResourceWarning, True)]


def test_one_of_two_handles_dropped_while_open_warns_and_the_other_goes_on() -> None:
    kept, dropped = sync.open("memory://team-b"), sync.open("memory://team-b")

    with pytest.warns(ResourceWarning, match="a handle on memory://team-b was dropped while open"):
        del dropped

    kept.space("s").documents.put("k", 1)
    kept.close()


def test_what_was_never_opened_may_be_dropped() -> None:
    ks = keepstate.open("memory://")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del ks
        gc.collect()


# ---- the blocking twin of an asynchronous handle


@pytest.mark.parametrize("url", ["memory://", "memory://twins", "file:///state.keep", "sqlite:///state.db"])
def test_the_blocking_twin_sees_the_same_data_and_is_closed_with_its_handle(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def used() -> sync.Keepstate:
        async with keepstate.open(url, tenant="app", author="me") as ks:
            twin = sync.of(ks)
            assert (twin.tenant_id, twin.author) == ("app", "me")
            await asyncio.to_thread(twin.space("s").documents.put, "k", 1)
            assert await ks.space("s").documents.get("k") == 1
            await ks.space("s").documents.put("k", 2)
            assert twin.space("s").documents.get("k") == 2  # in the loop's own thread too
            assert of(ks).store is twin.store
            return twin

    twin = asyncio.run(used())

    with pytest.raises(ClosedError):
        twin.space("s").documents.get("k")


def test_the_twin_may_be_first_to_open_private_memory() -> None:
    async def used() -> Any:
        ks = keepstate.open("memory://")
        of(ks).space("s").documents.put("k", 1)
        seen = await ks.space("s").documents.get("k")
        await ks.close()
        return seen

    assert asyncio.run(used()) == 1


def test_the_twin_of_a_closed_handle_is_closed() -> None:
    async def used() -> None:
        ks = await keepstate.open("memory://")
        await ks.close()
        of(ks).space("s").documents.get("k")

    with pytest.raises(ClosedError):
        asyncio.run(used())


def home_of(space: Any) -> Any:
    """Return the handle that an unpickled space has brought with it."""
    inner = getattr(space, "_inner", space)
    home = inner.executor.home
    return sync.Keepstate(home) if inner is not space else home


async def handled(url: str) -> None:
    async with keepstate.open(url) as ks:
        await ks.space("s").documents.put("k", 1)


@pytest.mark.parametrize("url", ["memory://", "sqlite:///state.db"])
def test_an_event_loop_of_another_library_is_refused_in_words(url: str) -> None:
    work = handled(url)

    with pytest.raises(InvalidError, match=r"no event loop of asyncio runs.*keepstate\.sync\.open.*trio"):
        work.send(None)  # as trio does, without asyncio's loop

    work.close()
