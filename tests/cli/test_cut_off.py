"""A journal that lacks its end is damaged for `doctor` and `repair`, and for who opens it."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate as ks_package
from tests.cli.conftest import Keepstate

DAMAGED = 5


@pytest.mark.parametrize("left", [0, 0.5, 0.9])
def test_a_journal_that_was_cut_off_is_damage(keepstate: Keepstate, tmp_path: Path, left: float) -> None:
    path = tmp_path / "cut.journal"
    url = f"file:///{path}"
    with ks_package.sync.open(url) as ks:
        for step in range(20):
            ks.space("run").documents.put("plan", step)
    written = path.read_bytes()
    path.write_bytes(written[: int(len(written) * left)])
    cut = path.read_bytes()

    told = keepstate("doctor", "--verify", url, "--json")
    saved = keepstate("repair", url, f"sqlite:///{tmp_path}/new.db")
    put = keepstate("put", "run", "plan", "1", "--url", url)

    assert (told.code, saved.code, put.code != 0) == (DAMAGED, DAMAGED, True)
    assert any("were cut off" in damage["what"] for damage in told.json()["damages"])
    assert "was cut off" in put.out + put.err
    assert path.read_bytes() == cut
