"""A state that is exported and restored is the same: in older versions, and without its plugins."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from keepstate import KeyedState, MutationBatch, PersistedState, RegisterKey, StateKey
from keepstate.typed.registry import Keys
from tests.contracts.typed.keys import Draft, Notes, Seen, Steps, Visits


class NameKey(StateKey[Any, str]):
    """A name, in one of three forms; each update replaces it."""

    @classmethod
    def apply(cls, value: Any, update: str) -> Any:
        return cls.formed(update)

    @classmethod
    def default(cls) -> Any:
        return cls.formed("")

    @classmethod
    def formed(cls, text: str) -> Any:
        raise NotImplementedError


class Name(RegisterKey[str]):
    KEY = "name"


class ListedName(NameKey):
    KEY = "name"
    VERSION = 2

    @classmethod
    def formed(cls, text: str) -> Any:
        return [text]

    @classmethod
    def upgrade(cls, raw: Any, from_version: int) -> Any:
        return [raw]


class FullName(NameKey):
    KEY = "name"
    VERSION = 3

    @classmethod
    def formed(cls, text: str) -> Any:
        return {"full": text}

    @classmethod
    def upgrade(cls, raw: Any, from_version: int) -> Any:
        return {"full": raw if from_version == 1 else raw[0]}


NAMES: list[Any] = [Name, ListedName, FullName]
OTHERS: list[Any] = [Visits, Steps, Notes, Seen, Draft]  # of a thread and of a run
UPDATES: dict[Any, st.SearchStrategy[Any]] = {
    Visits: st.integers(-5, 5),
    Steps: st.integers(-5, 5),
    Notes: st.lists(st.text(max_size=3), max_size=2),
    Seen: st.sets(st.text(max_size=3), max_size=2),
    Draft: st.text(max_size=3),
}
names = st.text("abc", max_size=3)
loaded = st.lists(st.sampled_from(OTHERS), unique=True).map(lambda keys: [key.KEY for key in keys])
hops = st.fixed_dictionaries(
    {
        "loaded": loaded,  # keys whose plugin is there when the state is restored
        "late": loaded,  # and those that come afterwards
        "version": st.sampled_from([0, 0, 1, 2, 3]),  # of the name's class, 0 without one
        "is_late": st.booleans(),  # whether that comes afterwards
        "rename": st.none() | names,
    }
)
written = st.tuples(names, st.fixed_dictionaries({}, optional={key.KEY: UPDATES[key] for key in OTHERS}))


def key_named(name: str) -> Any:
    return next(key for key in OTHERS if name == key.KEY)


class Chain:
    """A state on its way from one process to the next, and what it should hold."""

    def __init__(self) -> None:
        self.whole = PersistedState(0, {})
        self.name, self.version, self.values = "", 1, dict[str, Any]()

    async def begin(self, name: str, updates: dict[str, Any]) -> None:
        async with KeyedState(keys=[*OTHERS, Name]) as state:
            batch = MutationBatch().update(Name, name)
            for each, update in updates.items():
                batch.update(key_named(each), update)
            await state.commit(batch)
            self.whole, self.name = state.export_persisted(), name
            self.values = {each: state.read(key_named(each)) for each in updates}

    async def hop(self, hop: dict[str, Any]) -> None:
        version = hop["version"] if hop["version"] >= self.version else 0  # an older one cannot read it
        names_class = [NAMES[version - 1]] if version else []
        first = [key_named(name) for name in hop["loaded"]] + ([] if hop["is_late"] else names_class)
        late = [key_named(name) for name in hop["late"] if name not in hop["loaded"]]
        late += names_class if hop["is_late"] else []
        async with KeyedState(keys=first) as state:
            await state.restore_persisted(PersistedState(**json.loads(json.dumps(asdict(self.whole)))))
            assert state.export_persisted() == self.whole
            await state.install_plugin(Keys(late, "late"))
            assert state.export_persisted() == self.whole
            for key in first + late:
                expected = names_class[0].apply(None, self.name) if key in names_class else None
                assert state.read(key) == self.values.get(key.KEY, expected)
            if hop["rename"] is not None and version:
                await state.commit(state.begin_mutation().update(names_class[0], hop["rename"]))
                self.name, self.version, self.whole = hop["rename"], version, state.export_persisted()


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(written, st.lists(hops, min_size=1, max_size=4))
@example(
    ("ab", {"steps": 5, "visits": 1}),
    [
        {"loaded": [], "late": ["steps"], "version": 0, "is_late": False, "rename": None},
        {"loaded": ["steps"], "late": [], "version": 2, "is_late": True, "rename": "c"},
        {"loaded": [], "late": ["visits"], "version": 3, "is_late": False, "rename": None},
    ],
)
def test_export_then_restore_is_identity_through_older_versions_and_plugins_that_are_not_there(
    given_at_first: tuple[str, dict[str, Any]], way: list[dict[str, Any]]
) -> None:
    async def main() -> None:
        chain = Chain()
        await chain.begin(*given_at_first)
        for hop in way:
            await chain.hop(hop)
        last = {"loaded": [key.KEY for key in OTHERS], "late": [], "version": 3, "is_late": False}
        await chain.hop({**last, "rename": None})

    asyncio.run(main())


@settings(max_examples=30, deadline=None)
@given(written, loaded)
def test_the_two_published_fields_alone_restore_what_no_upgrade_concerns(
    given_at_first: tuple[str, dict[str, Any]], present: list[str]
) -> None:
    async def main() -> None:
        chain = Chain()
        await chain.begin(*given_at_first)
        bare = PersistedState(chain.whole.revision, chain.whole.extensions)
        async with KeyedState(keys=[Name, *map(key_named, present)]) as state:
            await state.restore_persisted(bare)
            assert state.read(Name) == chain.name
            assert {each: state.read(key_named(each)) for each in present} == {
                each: chain.values.get(each) for each in present
            }
            exported = state.export_persisted()
            assert (exported.revision, exported.extensions) == (bare.revision, bare.extensions)
            async with KeyedState(keys=[Name, *OTHERS]) as full:
                await full.restore_persisted(exported)
                assert {each: full.read(key_named(each)) for each in present} == {
                    each: chain.values.get(each) for each in present
                }

    asyncio.run(main())
