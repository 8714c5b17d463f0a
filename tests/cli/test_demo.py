"""The demo counts every module once, although a worker is killed in mid-run."""

from __future__ import annotations

import pytest

from tests.cli.conftest import Keepstate


@pytest.mark.slow
def test_nothing_is_lost_or_done_twice_when_a_worker_is_killed(keepstate: Keepstate) -> None:
    ended = keepstate("demo", "--workers", "2", "--most", "150", "--json")

    assert ended.code == 0, ended.err
    told = ended.json()
    assert told["equal"]
    assert (told["modules"], told["workers_killed"]) == (150, 1)
    assert told["modules_taken_over"] >= 1
    assert told["counted"] == told["recounted"]


def test_a_store_of_one_process_is_refused(keepstate: Keepstate) -> None:
    ended = keepstate("demo", "--url", "memory://")

    assert ended.code == 2
    assert "cannot be shared" in ended.err


def test_the_last_worker_cannot_be_killed(keepstate: Keepstate) -> None:
    assert keepstate("demo", "--workers", "1", "--kill", "1").code == 2
