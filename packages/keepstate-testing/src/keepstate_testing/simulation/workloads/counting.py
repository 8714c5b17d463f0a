"""Updates of a few hot documents, and watches that must see every one of them in order."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, ClassVar

from keepstate.engine.documents.watch import DocumentChange
from keepstate.engine.kernel import layout
from keepstate.errors import StoreUnavailableError
from keepstate_testing.simulation.workloads.workload import Workload
from keepstate_testing.simulation.world import MAIN, Actor

Change = tuple[int, str, bool]
"""A revision, the name of a document, and whether that was removed."""

_NAMES = ("count/a", "count/b", "count/c")
_PROMPT_S = 0.5
"""Within how long news must come in a calm world: far below the time after which a watch looks by itself."""


class Counting(Workload):
    """Each update adds its own name to a document, so that one lost, doubled or invented is seen."""

    weight: ClassVar[float] = 3.0

    async def act(self, actor: Actor) -> None:
        """Update a document, several at once, or put one on condition."""
        kind = self.world.random.choice(["update", "update", "several", "put", "patch", "delete"])
        document = self.world.random.choice(_NAMES)
        if kind == "several":
            count = self.world.random.randint(2, 5)
            await asyncio.gather(
                *(self._update(actor, self.world.random.choice(_NAMES)) for _ in range(count))
            )
        elif kind == "put":
            await self._put(actor, document)
        elif kind == "patch":
            await self._patch(actor)
        elif kind == "delete":
            await self.world.fate(actor, lambda: actor.space.documents.delete("count/patched"), "deletes")
        else:
            await self._update(actor, document)

    async def _update(self, actor: Actor, document: str) -> None:
        name = self.world.name("u")

        def add(old: dict[str, Any]) -> dict[str, Any]:
            return {"n": old["n"] + 1, "names": [*old["names"], f"{document} {name}"]}

        self.fates[f"{document} {name}"], _ = await self.world.fate(
            actor,
            lambda: actor.space.documents.update(document, add, default={"n": 0, "names": []}),
            f"updates {document} by {name}",
        )

    async def _put(self, actor: Actor, document: str) -> None:
        entry = await self.world.looked(actor, lambda: actor.space.documents.entry(document), "looks")
        if entry is None:
            return
        name = f"{document} {self.world.name('c')}"
        value = {"n": entry.value["n"] + 1, "names": [*entry.value["names"], name]}
        self.fates[name], version = await self.world.fate(
            actor,
            lambda: actor.space.documents.put(document, value, expected_version=entry.version),
            f"puts {name} over {entry.version}",
        )
        assert version is None or version > entry.version, f"{name}: {version} after {entry.version}"

    async def _patch(self, actor: Actor) -> None:
        name = self.world.name("p")
        await self.world.fate(
            actor,
            lambda: actor.space.documents.update("count/patched", {actor.name: name}, default={}),
            f"patches by {name}",
        )

    # ---- watching

    def listeners(self) -> Iterable[Coroutine[Any, Any, None]]:
        """Return two watches, one of all documents and one of some."""
        self._seen: list[list[DocumentChange]] = [[], []]
        return (self._watch(1, "*", self._seen[0]), self._watch(2, "count/*", self._seen[1]))

    async def _watch(self, process: int, pattern: str, seen: list[DocumentChange]) -> None:
        space = self.world.processes[process].space
        after = 0
        while True:
            try:
                async with space.documents.watch(pattern, after=after) as watch:
                    try:
                        async for change in watch:
                            self._check_news(change, process)
                            seen.append(change)
                    finally:
                        after = watch.revision
                        while seen and seen[-1].revision > after:
                            seen.pop()  # a revision that was given by half is given again whole
            except StoreUnavailableError:
                await asyncio.sleep(0.1)

    def _check_news(self, change: DocumentChange, process: int) -> None:
        self.world.network.note(f"p{process} hears of {change.key} at {change.revision}")
        if self.world.dials.is_prompt and self.world.dials.longest_delay_s < _PROMPT_S / 10:
            late_s = self.world.loop.time() - self.world.server.applied_at_s[MAIN, change.revision]
            assert late_s < _PROMPT_S, f"news of {change} came after {late_s:.3f} s in a world without loss"

    # ---- the end

    async def finish(self) -> None:
        """Wait until the watches have heard of everything."""
        last = await self.judge.space.documents.put("count/last", {"n": 0, "names": []})
        for _ in range(60):
            if all(seen and seen[-1].revision >= last for seen in self._seen):
                return
            await asyncio.sleep(0.5)
        heard = [seen[-1].revision if seen else 0 for seen in self._seen]
        raise AssertionError(f"watches have heard up to {heard} of {last} after 30 s of quiet")

    async def verify(self) -> None:
        """Compare documents with the answers, and watches with documents."""
        names: list[str] = []
        for document in _NAMES:
            value = await self.judge.space.documents.get(document, {"n": 0, "names": []})
            assert value["n"] == len(value["names"]), f"{document} counts {value['n']} of {value['names']}"
            names += value["names"]
        self.compare(names, "the counted documents")
        log = self.world.oracle.model(MAIN).log
        whole = [
            (change.revision, layout.name_of(layout.DOCUMENTS, change.key), deleted)
            for change in log
            if change.key.startswith(layout.DOCUMENTS)
            for deleted in ((True, False) if change.expired else (change.deleted,))
        ]
        for seen, pattern in zip(self._seen, ("", "count/"), strict=True):
            told = [(change.revision, change.key, change.kind == "deleted") for change in seen]
            expected = [change for change in whole if change[1].startswith(pattern)]
            assert sorted(told) == sorted(expected), f"a watch has told {_difference(told, expected)}"
            _verify_chain(seen)


def _difference(told: list[Change], expected: list[Change]) -> str:
    more, less = set(told) - set(expected), set(expected) - set(told)
    return f"{sorted(more)} too much, {sorted(less)} too little, {len(told)} in all"


def _verify_chain(seen: list[DocumentChange]) -> None:
    """Raise `AssertionError` unless each change begins where the one before has ended."""
    present: dict[str, Any] = {}
    revision = 0
    for change in seen:
        assert change.revision >= revision, f"{change} came after revision {revision}"
        revision = change.revision
        if change.kind != "created":  # what had expired is absent, and its removal is told later or never
            assert change.old == present.get(change.key), f"{change} follows {present.get(change.key)}"
        present[change.key] = change.new
