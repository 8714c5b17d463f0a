"""Ctrl-C at any moment of a call: the store stays usable, nothing is half-written, no answer goes astray."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.processes import run

SEEDS = [1, pytest.param(2, marks=pytest.mark.deep)]


def storm(url: str, *, seed: int, rounds: int) -> dict[str, Any]:
    done = run("-m", "tests.processes.write_while_interrupted", url, seed, rounds)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def with_option(url: str, option: str) -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}"


def assert_unharmed(found: dict[str, Any]) -> None:
    assert found["interrupts"] > 100
    assert found["halves"] == 0
    assert found["applied"] <= found["counted"] <= found["applied"] + found["unknown"]
    assert found["log_is_whole"]
    assert found["is_the_same_when_reopened"]


def assert_others_unharmed(found: dict[str, Any]) -> None:
    applied, unknown, counted = found["beside"]
    assert found["beside_error"] == ""
    assert applied <= counted <= applied + unknown


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["memory", "file", "json", "normal", "full"])
def test_ctrl_c_at_any_moment_leaves_an_embedded_store_whole(tmp_path: Path, name: str, seed: int) -> None:
    url = {
        "memory": "memory://storm",
        "file": f"file:///{tmp_path}/state.journal",
        "json": f"file:///{tmp_path}/state.journal?format=json",
        "normal": f"sqlite:///{tmp_path}/state.db?durability=normal",
        "full": f"sqlite:///{tmp_path}/state.db",
    }[name]

    found = storm(url, seed=seed, rounds=900)

    assert_unharmed(found)
    assert_others_unharmed(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_ctrl_c_at_any_moment_leaves_a_redis_store_whole(redis_url: str, seed: int) -> None:
    found = storm(with_option(redis_url, "max_connections=2"), seed=seed, rounds=900)

    assert_unharmed(found)
    assert_others_unharmed(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_ctrl_c_at_any_moment_leaves_a_postgresql_store_whole(postgres_url: str, seed: int) -> None:
    found = storm(with_option(postgres_url, "max_connections=2"), seed=seed, rounds=900)

    assert_unharmed(found)
    assert_others_unharmed(found)
