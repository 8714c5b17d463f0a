"""Work beside one another, as tasks and as threads."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from functools import partial

import pytest

from keepstate._finish import finish
from keepstate._runner import Runner, TaskRunner, ThreadRunner

present: ContextVar[str] = ContextVar("present", default="none")


def both() -> list[object]:
    return [pytest.param(TaskRunner, id="async"), pytest.param(ThreadRunner, id="blocking")]


def driven(runner: Runner, works: list[object]) -> list[object]:
    gathered = runner.gather(works)  # type: ignore[arg-type]
    if runner.mode == "blocking":
        return list(finish(gathered))

    async def main() -> list[object]:
        return list(await gathered)

    return asyncio.run(main())


@pytest.mark.parametrize("kind", both())
def test_answers_stand_in_the_order_of_the_works_and_errors_among_them(kind: type[Runner]) -> None:
    async def work(number: int) -> int:
        if number == 1:
            raise ValueError(number)
        return number

    answers = driven(kind(), [partial(work, number) for number in range(3)])

    assert [answers[0], answers[2]] == [0, 2]
    assert isinstance(answers[1], ValueError)


@pytest.mark.parametrize("kind", both())
def test_nothing_to_do_gives_nothing(kind: type[Runner]) -> None:
    assert driven(kind(), []) == []


@pytest.mark.parametrize("kind", both())
def test_works_know_the_context_of_the_caller(kind: type[Runner]) -> None:
    async def work() -> str:
        return present.get()

    present.set("caller")
    answers = driven(kind(), [work, work])
    present.set("none")

    assert answers == ["caller", "caller"]


def test_threads_work_at_once() -> None:
    both_here = threading.Barrier(2, timeout=60)

    async def work() -> int:
        return both_here.wait()

    assert sorted(driven(ThreadRunner(), [work, work])) == [0, 1]  # type: ignore[type-var]


def test_tasks_have_ended_when_their_caller_is_cancelled() -> None:
    ended: list[str] = []

    async def work(name: str) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0)
            ended.append(name)

    async def main() -> None:
        gathering = asyncio.create_task(TaskRunner().gather([partial(work, "a"), partial(work, "b")]))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gathering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gathering
        assert sorted(ended) == ["a", "b"]

    asyncio.run(main())
