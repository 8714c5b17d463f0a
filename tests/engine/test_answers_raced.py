"""Answers of several processes at once, and kills: one wins, one task is woken, and nothing happens twice."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from subprocess import PIPE

import pytest

from keepstate import TaskSpec, sync
from tests.engine.conftest import url_of
from tests.processes import PROCESSES, Program, run
from tests.processes.answer_in_rounds import SIGNER
from tests.tally import Tally

ANSWERERS = 8
SHOWN = {"sqlite": "SQLite", "postgres": "PostgreSQL", "redis": "Redis"}


@pytest.mark.parametrize(
    ("kind", "rounds"),
    [
        pytest.param("sqlite", 10, marks=pytest.mark.slow),
        pytest.param("postgres", 5, marks=pytest.mark.slow),
        *(pytest.param(kind, 1_000, marks=pytest.mark.deep) for kind in ("sqlite", "postgres", "redis")),
    ],
)
@pytest.mark.timeout(1_200)
def test_of_eight_answers_at_once_one_wins_and_wakes_one_task(
    kind: str, rounds: int, request: pytest.FixtureRequest, tmp_path: Path, tally: Tally
) -> None:
    url = url_of(kind, request, tmp_path)
    names = [f"p{number}" for number in range(ANSWERERS)]
    program = PROCESSES / "answer_in_rounds.py"
    people = [Program(program, url, stdin=PIPE, stdout=PIPE) for _ in names]
    outcomes = Counter[tuple[int, ...]]()
    with sync.open(url) as ks:
        space = ks.space("race")
        for person in people:
            assert person.stdout is not None and person.stdout.readline() == "ready\n"
        for number in range(rounds):
            id = f"a{number}"
            asked = space.approvals.ask("Pay?", id=id, to=names, then=TaskSpec(number))
            for name, person in zip(names, people, strict=True):
                link = space.approvals.link(id, to=name, base="https://a/", signer=SIGNER)
                assert person.stdin is not None
                person.stdin.write(json.dumps([link.partition("#")[2], asked.digest]) + "\n")
            for person in people:
                assert person.stdin is not None
                person.stdin.flush()
            said = [int(person.stdout.readline()) for person in people if person.stdout is not None]
            outcomes[tuple(sorted(said))] += 1
            found = space.approvals.get(id)
            assert found is not None and found.closed_by == names[said.index(200)]
        for person in people:
            assert person.stdin is not None
            person.stdin.close()
        assert [person.wait() for person in people] == [0] * ANSWERERS

        assert outcomes == {(200, *[409] * (ANSWERERS - 1)): rounds}
        payloads: list[int] = []
        while tasks := space.queue.claim("w", lease_s=60, count=100):
            payloads += [task.payload for task in tasks]
            for task in tasks:
                task.complete()
        assert sorted(payloads) == [*range(rounds)]
        logs = {tuple(event.kind for event in space.approvals.log(f"a{number}")) for number in range(rounds)}
        assert logs == {("asked", "answered")}
    tally(f"{SHOWN[kind]}: answers raced", answers=rounds * ANSWERERS, lost=0, applied_twice=0)


@pytest.mark.parametrize(
    "stride", [pytest.param(47, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.deep)]
)
@pytest.mark.timeout(1_200)
def test_a_kill_anywhere_between_asking_and_paying_repeats_nothing(
    tmp_path: Path, stride: int, tally: Tally
) -> None:
    url = f"sqlite:///{tmp_path}/answers.db?durability=normal"

    told = json.loads(run(PROCESSES / "die_around_answers.py", url, tmp_path, stride, timeout=1_000).stdout)

    assert told["wrong"] == []
    assert told["kills"] > 10
    tally("SQLite: kills around an answer", worker_kills=told["kills"], lost=0, applied_twice=0)
