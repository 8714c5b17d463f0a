"""Every argument of every call of the saver: what cannot work is refused in words, in both modes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from inspect import signature
from typing import Any
from uuid import UUID

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver

from keepstate.adapters.langgraph import KeepstateSaver
from keepstate.errors import InvalidError
from tests.adapters.langgraph.saving import checkpoint, config, put, values

NO_TEXT = (1.5, True, b"a", ["a"], "\ud800")
NO_THREAD = (None, "", *NO_TEXT)
NO_CONFIG: tuple[Any, ...] = (
    None,
    1,
    "t",
    {"configurable": None},
    {"configurable": "t"},
    {},
    {"configurable": {}},
)
NO_IDS = (None, 1, "t", b"t", [None], [""], [b"a"], [1.5])
WRONG_WRITES = (None, 1, "ab", [("a",)], [("a", 1, 2)], [(1, 1)], ["ab"], {("a", 1)})
MADE = checkpoint(0, n=1)
AT = config(id=MADE["id"])

Make = Callable[[Any], tuple[str, tuple[Any, ...], dict[str, Any]]]


def named(key: str) -> Callable[[Any], dict[str, Any]]:
    """Return what makes a config with one name left open."""
    return lambda given: {"configurable": {"thread_id": "t", key: given}}


thread, line, id = named("thread_id"), named("checkpoint_ns"), named("checkpoint_id")

CALLS: dict[str, tuple[Make, tuple[Any, ...]]] = {
    "get_tuple(config)": (lambda x: ("get_tuple", (x,), {}), NO_CONFIG),
    "get_tuple(thread_id)": (lambda x: ("get_tuple", (thread(x),), {}), NO_THREAD),
    "get_tuple(checkpoint_ns)": (lambda x: ("get_tuple", (line(x),), {}), (5, *NO_TEXT)),
    "get_tuple(checkpoint_id)": (lambda x: ("get_tuple", (id(x),), {}), (5, *NO_TEXT)),
    "put(config)": (lambda x: ("put", (x, MADE, {}, {}), {}), NO_CONFIG),
    "put(thread_id)": (lambda x: ("put", (thread(x), MADE, {}, {}), {}), NO_THREAD),
    "put(checkpoint)": (
        lambda x: ("put", (config(), x, {}, {}), {}),
        (None, 1, {}, {"id": "a"}, {**MADE, "id": None}, {**MADE, "id": ""}, {**MADE, "id": 7}),
    ),
    "put(channel_values)": (
        lambda x: ("put", (config(), {**MADE, "channel_values": x}, {}, {}), {}),
        (None, 1, ["a"]),
    ),
    "put(metadata)": (lambda x: ("put", (config(), MADE, x, {}), {}), (None, 1, "a")),
    "put_writes(config)": (lambda x: ("put_writes", (x, [], "task"), {}), (*NO_CONFIG, config())),
    "put_writes(writes)": (lambda x: ("put_writes", (AT, x, "task"), {}), WRONG_WRITES),
    "put_writes(task_id)": (lambda x: ("put_writes", (AT, [("a", 1)], x), {}), (None, 5, *NO_TEXT)),
    "put_writes(task_path)": (lambda x: ("put_writes", (AT, [("a", 1)], "t", x), {}), (None, *NO_TEXT)),
    "list(config)": (lambda x: ("list", (x,), {}), (1, "t", {"configurable": None})),
    "list(thread_id)": (lambda x: ("list", (thread(x),), {}), NO_THREAD),
    "list(checkpoint_ns)": (lambda x: ("list", (line(x),), {}), (5, *NO_TEXT)),
    "list(checkpoint_id)": (lambda x: ("list", (id(x),), {}), (5, *NO_TEXT)),
    "list(filter)": (lambda x: ("list", (config(),), {"filter": x}), (1, "x", ["x"])),
    "list(before)": (lambda x: ("list", (config(),), {"before": x}), (1, "t", {"configurable": None}, id(5))),
    "list(limit)": (lambda x: ("list", (config(),), {"limit": x}), ("3", -1, 1.5, True)),
    "delta history(config)": (
        lambda x: ("get_delta_channel_history", (), {"config": x, "channels": ["n"]}),
        NO_CONFIG,
    ),
    "delta history(channels)": (
        lambda x: ("get_delta_channel_history", (), {"config": config(), "channels": x}),
        (None, 1, "n", [1]),
    ),
    "delete_thread(thread_id)": (lambda x: ("delete_thread", (x,), {}), NO_THREAD),
    "delete_for_runs(run_ids)": (lambda x: ("delete_for_runs", (x,), {}), NO_IDS),
    "copy_thread(source)": (lambda x: ("copy_thread", (x, "b"), {}), NO_THREAD),
    "copy_thread(target)": (lambda x: ("copy_thread", ("t", x), {}), (*NO_THREAD, "t")),
    "prune(thread_ids)": (lambda x: ("prune", (x,), {}), NO_IDS),
    "prune(strategy)": (lambda x: ("prune", (["t"],), {"strategy": x}), (None, 1, "some")),
    "prune(keep_last)": (lambda x: ("prune", (["t"],), {"keep_last": x}), (0, -1, 1.5, True, "1")),
    "prune(max_age_s)": (lambda x: ("prune", (["t"],), {"max_age_s": x}), (0, -1, True, "1", float("nan"))),
    "prune(dry_run)": (lambda x: ("prune", (["t"],), {"dry_run": x}), (None, 1, "yes")),
}

OPTIONS: dict[str, tuple[Any, ...]] = {
    "url": (5, None, "mysql://x", ""),
    "serde": (5, object(), "json"),
    "tenant": (5, b"a", ""),
    "author": (5, b"a", ""),
    "on_conflict": (None, "merge"),
    "keep_last": (0, -1, 1.5, True, "1"),
    "max_age_s": (0, -1, True, "1", float("inf")),
    "ttl_s": (0, -1, True, "1", float("nan")),
}


@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_work_is_refused_in_both_modes(call: str) -> None:
    make, wrong = CALLS[call]

    async def tried(saver: BaseCheckpointSaver[Any], given: Any) -> None:
        name, args, options = make(given)
        asked = getattr(saver, f"a{name}")(*args, **options)
        if name == "list":
            [one async for one in asked]
        else:
            await asked

    with KeepstateSaver("memory://") as saver:
        put(saver, config(), 0, n=0)
        for given in wrong:
            name, args, options = make(given)
            with pytest.raises(InvalidError) as refused:
                list(getattr(saver, name)(*args, **options) or ())
            with pytest.raises(InvalidError):
                asyncio.run(tried(saver, given))
            assert len(str(refused.value)) > 15

        assert [*saver.threads()] == ["t"]
        assert values(saver, config()) == {"n": 0}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_that_cannot_work_is_refused(option: str) -> None:
    for given in OPTIONS[option]:
        options: dict[str, Any] = {"url": "memory://", option: given}
        with pytest.raises(InvalidError):
            KeepstateSaver(**options)


def test_a_thread_may_be_named_by_a_number_or_a_uuid() -> None:
    uuid = UUID(int=5)
    with KeepstateSaver("memory://") as saver:
        for name in (7, uuid):
            put(saver, {"configurable": {"thread_id": name}}, 0, n=1)

        saver.delete_thread(7)  # type: ignore[arg-type]

        assert [*saver.threads()] == [str(uuid)]
        assert values(saver, config(str(uuid))) == {"n": 1}


class Unknown:
    """A class whose objects cannot be made again."""

    def __init__(self) -> None:
        self.lock = iter(())


def test_what_cannot_be_stored_is_named_with_its_checkpoint() -> None:
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, n=1)
        with pytest.raises(InvalidError, match=r"of thread 't': channel 'n' cannot .* k\[0\]") as value:
            put(saver, at, 1, n={"k": [Unknown()]})
        with pytest.raises(InvalidError, match=r"of thread 't' cannot be stored: metadata\.x: ") as metadata:
            put(saver, at, 1, {"x": Unknown()}, n=1)
        with pytest.raises(InvalidError, match=r"a write of task go on .* cannot be stored: n\.k: ") as write:
            saver.put_writes(at, [("a", 1), ("n", {"k": Unknown()})], "go")

    assert [refused.value.path for refused in (value, metadata, write)] == ["n.k[0]", "metadata.x", "n.k"]
    for refused in (value, metadata, write):
        assert "give a serializer of your own, serde=, that stores it" in str(refused.value)
        assert "SignedPickle" not in str(refused.value)


# ---- opening


def test_a_saver_of_a_connection_string_closes_itself_without_await(any_url: str) -> None:
    with KeepstateSaver.from_conn_string(any_url, author="ann") as saver:
        saver.setup()
        put(saver, config(), 0, n=1)
        assert values(saver, config()) == {"n": 1}

    with pytest.raises(Exception, match="closed"):
        saver.get_tuple(config())


def test_a_saver_of_a_connection_string_closes_itself_with_await(any_url: str) -> None:
    async def talk() -> KeepstateSaver:
        async with KeepstateSaver.from_conn_string(any_url) as saver:
            await saver.setup()
            made = checkpoint(0, n=1)
            await saver.aput(config(), made, {"source": "loop"}, {})
            found = await saver.aget_tuple(config())
            assert found is not None
            assert found.checkpoint["channel_values"] == {"n": 1}
        with pytest.raises(Exception, match="closed"):
            await saver.aget_tuple(config())
        return saver

    with pytest.raises(Exception, match="closed"):
        asyncio.run(talk()).get_tuple(config())


@pytest.mark.parametrize("allow", [5, "ab", ["ab"], [5], [None], [("a",)], [("a", 1)], [("a", "b", "c")]])
def test_what_allows_no_class_is_refused(allow: Any) -> None:
    with pytest.raises(InvalidError, match=r"classes|is not a class"):
        KeepstateSaver("memory://", allow=allow)
    with KeepstateSaver("memory://") as saver, pytest.raises(InvalidError, match=r"classes|is not a class"):
        saver.with_allowlist(allow)


def test_a_class_may_be_allowed_by_a_list_of_its_module_and_name() -> None:
    with KeepstateSaver("memory://") as saver:
        asked: Any = [["a", "b"]]

        assert saver.with_allowlist(asked) is saver.with_allowlist([("a", "b")])


@pytest.mark.parametrize(
    ("name", "result"),
    [
        ("put", "RunnableConfig"),
        ("aput", "RunnableConfig"),
        ("get_tuple", "CheckpointTuple | None"),
        ("list", "Iterator[CheckpointTuple]"),
        ("alist", "AsyncIterator[CheckpointTuple]"),
        ("sweep", "int"),
    ],
)
def test_a_method_shows_the_result_that_it_returns(name: str, result: str) -> None:
    method = getattr(KeepstateSaver, name)

    assert signature(method).return_annotation == method.__annotations__["return"] == result
    assert method.__qualname__ == f"KeepstateSaver.{name}"
