"""The samples that agenticaiframework published for its state managers run here, read from their page.

Of its 27 blocks 2 work there. Here all do, in order, in one namespace, on every backend; the import path and
the server's address are other ones, and the names that the page leaves free are given. Then each manager,
opened again in another process, shows what it showed here.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from pathlib import Path

import pytest

from tests.managers.sample_checks import CHECKS
from tests.managers.samples import Sample, Stage, read_samples
from tests.managers.views import Views, views_of
from tests.processes import run

KINDS = {"state", "agent", "workflow", "team", "base", "tools", "speech"}
ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.shared("spec/001_1c4426b00ed31cd5.txt")


@pytest.fixture
def samples(shared_data: Path) -> list[Sample]:
    return read_samples(shared_data)


@pytest.fixture(params=["memory", "file", "sqlite", "redis", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = request.param
    if kind in ("redis", "postgres"):
        server: str = request.getfixturevalue(f"{kind}_url")
        return server
    return {
        "memory": f"memory://{uuid.uuid4().hex}",
        "file": f"file:///{tmp_path}/store/",
        "sqlite": f"sqlite:///{tmp_path}/store.db",
    }[kind]


def test_the_page_has_27_blocks_and_each_check_is_of_one(samples: list[Sample]) -> None:
    assert len(samples) == 27
    assert sorted(CHECKS) == sorted(sample.heading for sample in samples)


def test_every_block_does_what_it_says_and_another_process_sees_it(
    samples: list[Sample], url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stage = Stage(url)
    with asyncio.Runner() as loop:
        for sample in samples:
            stage.run(sample, loop)
            if check := CHECKS.get(sample.heading):
                loop.run(check(stage.namespace))
        here = loop.run(views_of(url))
        loop.run(stage.close())

    assert {name.partition(" ")[0] for name in here} == KINDS and all(here.values())
    assert seen_again(url) == here


def seen_again(url: str) -> Views:
    """Return what managers show in another process; of memory, other managers of this one."""
    if url.startswith("memory:"):
        return asyncio.run(views_of(url))
    done = run("-W", "error", "-m", "tests.managers.views", url)
    views: Views = json.loads(done.stdout)
    return views
