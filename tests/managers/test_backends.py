"""Where a manager keeps things: every name, URL and description leads somewhere, and nothing is ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import keepstate
from keepstate import (
    AgentStateStore,
    FileBackend,
    InvalidError,
    MemoryBackend,
    PostgresBackend,
    RedisBackend,
    SQLiteBackend,
    StateConfig,
    StateManager,
    sync,
)
from keepstate.managers.backends import url_of
from keepstate.sync import of


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ({"persistence": None}, "memory://default"),
        ({"persistence": "memory"}, "memory://default"),
        ({"persistence": "file"}, "file:///./state/?format=msgpack"),
        ({"persistence": "file", "file_path": "./state/app.json"}, "file:///./state/app.json?format=json"),
        ({"persistence": "file", "file_path": "/var/a b#c"}, "file:////var/a%20b%23c"),
        ({"persistence": "sqlite"}, "sqlite:///./state/keepstate.db?durability=full"),
        ({"persistence": "sqlite", "file_path": Path("x.db")}, "sqlite:///x.db?durability=full"),
        ({"persistence": "redis"}, "redis://localhost:6379"),
        ({"persistence": "redis", "redis_url": "rediss://h:1/2?prefix=p"}, "rediss://h:1/2?prefix=p"),
        ({"persistence": "postgres", "url": "postgresql://u@h/d"}, "postgresql://u@h/d"),
        ({"persistence": "redis+cluster://a:1,b:2"}, "redis+cluster://a:1,b:2"),
        ({"persistence": None, "url": "sqlite:///x.db"}, "sqlite:///x.db"),
        ({"persistence": MemoryBackend()}, "memory://default"),
        (
            {"persistence": FileBackend("./s", format="json", compression=True)},
            "file:///./s/?format=json-zstd",
        ),
        ({"persistence": FileBackend("./s", compression=False)}, "file:///./s/?format=msgpack"),
        ({"persistence": SQLiteBackend("x", durability="normal")}, "sqlite:///x?durability=normal"),
        (
            {
                "persistence": RedisBackend(
                    "redis://h:1", db=3, key_prefix="agenticai:", connection_pool_size=10
                )
            },
            "redis://h:1/3?prefix=agenticai%3A&max_connections=10",
        ),
        (
            {"persistence": RedisBackend("redis://h:1/2?prefix=mine")},
            "redis://h:1/2?prefix=mine&max_connections=16",
        ),
        (
            {"persistence": PostgresBackend("postgresql://u@h/d?sslmode=require", schema="s")},
            "postgresql://u@h/d?sslmode=require&schema=s&max_connections=8",
        ),
    ],
)
def test_every_place_is_a_url(arguments: dict[str, Any], url: str) -> None:
    assert (
        url_of(
            arguments.get("persistence"),
            {name: text for name, text in arguments.items() if name != "persistence"},
        )
        == url
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"persistence": "redsi"}, "memory, file, sqlite, redis, postgres"),
        ({"persistence": "memory", "file_path": "x"}, "Use it with persistence='file' or 'sqlite'"),
        ({"persistence": "sqlite", "redis_url": "redis://h"}, "Use it with persistence='redis'"),
        ({"persistence": None, "redis_url": "redis://h"}, "Use it with persistence='redis'"),
        ({"persistence": "postgres"}, "needs a URL"),
        ({"persistence": "postgres", "url": "mysql://h"}, "postgresql"),
        ({"persistence": "redis", "redis_url": "http://h"}, "redis or rediss"),
        ({"persistence": "sqlite", "file_path": "x", "url": "sqlite:///y"}, "two locations"),
        ({"persistence": "sqlite:///x", "url": "sqlite:///y"}, "with a URL"),
        ({"persistence": MemoryBackend(), "file_path": "x"}, "with MemoryBackend"),
    ],
)
def test_what_would_be_ignored_is_refused_with_what_it_goes_with(
    arguments: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidError, match=told):
        AgentStateStore(**arguments)


@pytest.mark.parametrize(
    "make",
    [
        lambda: FileBackend(compression=1),  # type: ignore[arg-type]
        lambda: FileBackend(format="yaml"),  # type: ignore[arg-type]
        lambda: SQLiteBackend(durability="none"),  # type: ignore[arg-type]
        lambda: RedisBackend("http://h"),
        lambda: RedisBackend("redis://h:1/2", db=3),
        lambda: RedisBackend(connection_pool_size=0),
        lambda: PostgresBackend("sqlite:///x"),
        lambda: StateConfig(shards=0),
        lambda: StateConfig(ttl=0),
        lambda: StateConfig(save_interval=-1),
        lambda: StateConfig(auto_save="yes"),  # type: ignore[arg-type]
        lambda: StateManager(StateConfig(backend="memory"), persistence="sqlite"),
        lambda: StateManager({"backend": "memory"}),  # type: ignore[arg-type]
        lambda: StateManager(persistence=7),  # type: ignore[arg-type]
        lambda: StateManager(space="run"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_description_is_refused_where_it_is_made(make: Any) -> None:
    with pytest.raises(InvalidError):
        make()


async def test_a_file_is_kept_as_its_name_says_and_its_folder_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = StateConfig(backend="file", file_path="./state/app_state.json")
    state = StateManager(config=config)
    assert not (tmp_path / "state").exists()
    async with state:
        await state.save("k", {"a": 1})

    assert (tmp_path / "state" / "app_state.json").read_text().startswith("keepstate journal 1 json")
    async with StateManager(persistence="sqlite") as other:
        await other.save("k", 1)
    assert (tmp_path / "state" / "keepstate.db").exists()


async def test_a_store_handle_or_space_that_was_passed_stays_open() -> None:
    async with keepstate.open("memory://") as ks:
        for place in ({"persistence": ks}, {"persistence": ks.store}, {"space": ks.space("run")}):
            async with StateManager(**place) as state:
                await state.save("k", 1)
        await ks.space("x").documents.put("still", 1)

        assert [name async for name in ks.spaces()] == ["run", "state/", "x"]


async def test_a_space_and_a_place_beside_it_are_refused() -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError, match="no other storage"):
            AgentStateStore(space=ks.space("run"), persistence="memory")


async def test_each_mode_refuses_the_other_s_things() -> None:
    async with keepstate.open("memory://") as ks:
        with pytest.raises(InvalidError, match=r"keepstate\.sync"):
            AgentStateStore(space=of(ks).space("run"))  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="is async"):
            sync.AgentStateStore(space=ks.space("run"))  # type: ignore[arg-type]
        with pytest.raises(InvalidError, match="async"):
            sync.AgentStateStore(persistence=ks)  # type: ignore[arg-type]
        with pytest.raises(InvalidError):
            sync.AgentStateStore(persistence=ks.store)
