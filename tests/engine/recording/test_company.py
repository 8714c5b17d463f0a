"""Recorded spaces with company: processes, encryption, pickles, and tools that know no classes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import CorruptError, InvalidError, Keepstate, SignedPickle
from keepstate.engine.kernel import layout
from keepstate.stores.wrappers.encrypted import KeyRing
from keepstate.values import codec
from tests.processes import PROCESSES, Program

UPDATING = PROCESSES / "update_recorded_documents.py"
NAMES = ("w0", "w1", "w2", "w3")
LONG = [{"role": "user", "content": f"message {number} " * 9} for number in range(500)]


class Tool:
    """Of a class that nobody registered."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tool) and self.name == other.name

    __hash__ = None  # type: ignore[assignment]


@keepstate.register("tests.recording.Step")
@dataclass(frozen=True)
class Step:
    name: str


@pytest.mark.slow
async def test_four_processes_record_each_of_their_changes(shared_url: str, opened: list[Keepstate]) -> None:
    opened.append(keepstate.open(shared_url))
    space = opened[-1].space("run/1", record=True)
    await space.documents.put("shared", 0)
    workers = [Program(UPDATING, shared_url, name) for name in NAMES]
    assert [await asyncio.to_thread(worker.wait, 100) for worker in workers] == [0] * 4

    whole = {f"{name}/{n}": {"by": name, "number": n + 42 + 7 * (n < 1)} for name in NAMES for n in range(7)}
    assert dict(await space.at()) == whole | {"shared": 200}
    commits = [commit async for commit in space.history.log()]
    assert [commit.number for commit in commits] == list(range(401, 0, -1))
    assert sum(commit.author == "w2" for commit in commits) == 100
    assert (await space.history.verify()).problems == ()


async def test_a_recorded_space_is_encrypted_like_any_other(tmp_path: Path, opened: list[Keepstate]) -> None:
    ring = KeyRing(KeyRing.new_key())
    opened.append(keepstate.open(f"sqlite:///{tmp_path}/keepstate.db", encryption=ring))
    space = opened[-1].space("run/1", record=True)
    await space.documents.put("messages", LONG)
    await space.documents.put("big", "x" * 1_500_000, ttl_s=1000)
    await space.documents.update("messages", lambda messages: messages[1:])

    assert dict(await space.at("main#2")) == {"messages": LONG, "big": "x" * 1_500_000}
    assert (await space.at())["messages"] == LONG[1:]
    assert (await space.history.verify()).problems == ()
    names = {entry.key[len(layout.STATES) :] for entry in await objects(opened[-1])}
    assert names
    assert names.isdisjoint(codec.STATES.to_merkle({"messages": LONG}).objects)


async def objects(ks: Keepstate) -> list[Any]:
    page = await ks.store.scan("run/1", layout.STATES)
    return list(page.entries)


async def test_pickles_are_recorded_and_signed_for_the_history(
    tmp_path: Path, opened: list[Keepstate]
) -> None:
    url, key = f"sqlite:///{tmp_path}/keepstate.db", b"k" * 32
    opened += [
        keepstate.open(url, pickle=SignedPickle(key, [Tool])),
        keepstate.open(url),
        keepstate.open(url, pickle=SignedPickle(b"K" * 32, [Tool])),
    ]
    ours, plain, strange = (ks.space("run/1") for ks in opened)
    await ours.documents.put("tool", {"it": Tool("hammer"), "uses": list(range(3000))})
    with pytest.raises(InvalidError, match="pickle"):
        await opened[1].space("run/1", record=True).documents.put("n", 1)
    await opened[0].space("run/1", record=True).documents.put("n", 1)
    await ours.documents.update("tool", lambda tool: {**tool, "it": Tool("saw")})
    await plain.documents.put("n", 2)

    assert (await ours.at("main#1"))["tool", "it"] == Tool("hammer")
    assert (await ours.at())["tool", "it"] == Tool("saw")
    (difference,) = await ours.history.diff("main#1", "main#2")
    assert (difference.path, difference.old, difference.new) == (("tool", "it"), Tool("hammer"), Tool("saw"))
    assert (await plain.at(load=["n"]))["n"] == 2
    with pytest.raises(InvalidError, match="SignedPickle"):
        await plain.at()
    with pytest.raises(CorruptError, match="not signed by this key"):
        await strange.at()


async def test_any_history_keeps_pickles_of_a_handle_that_may_write_them(tmp_path: Path) -> None:
    with keepstate.sync.open(
        f"sqlite:///{tmp_path}/keepstate.db", pickle=SignedPickle(b"k" * 32, [Tool])
    ) as ks:
        history, fork = ks.space("run/1").history, ks.space("run/2").history
        draft = history.begin()
        draft["tools"] = [Tool(str(n)) for n in range(300)]
        draft.commit()
        draft["tools"].append(Tool("new"))
        draft.commit()
        history.append("tools", Tool("newer"))
        history.branch("side", at="main#1")
        side = history.begin("side")
        side["mine"] = Tool("mine")
        side.commit()
        history.merge("side")
        history.fork(fork)

        assert fork.checkout()["tools"][299:] == [Tool("299"), Tool("new"), Tool("newer")]
        assert fork.checkout()["mine"] == Tool("mine")


async def test_tools_without_the_classes_read_moments_in_builtin_form(
    tmp_path: Path, opened: list[Keepstate]
) -> None:
    opened.append(keepstate.open(f"memory://{tmp_path.name}"))
    space = opened[-1].space("run/1", record=True)
    await space.documents.put("step", [Step("look"), *({"n": n} for n in range(2000))])
    await space.documents.put("step", [Step("act")])
    tool = Keepstate(opened[-1]._source, read=codec.to_builtin)

    assert (await tool.space("run/1").at("main#1"))["step", 0] == {
        "@type": "tests.recording.Step@1",
        "name": "look",
    }
    assert await (await tool.space("run/1").at(load=False)).fetch(("step", 0)) == {
        "@type": "tests.recording.Step@1",
        "name": "act",
    }
