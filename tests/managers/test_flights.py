"""Callers who ask for the same at once: one does it, and none waits for ever."""

from __future__ import annotations

import asyncio
import threading

import pytest

from keepstate._finish import finish
from keepstate._runner import TaskRunner, ThreadRunner
from keepstate.managers.tools.shared_calls import SingleFlight


def test_tasks_get_the_answer_of_the_first() -> None:
    async def scene() -> tuple[list[str], int]:
        flights: SingleFlight[str, str] = SingleFlight(TaskRunner())
        led = 0

        async def lead() -> str:
            nonlocal led
            led += 1
            await asyncio.sleep(0)
            return f"answer {led}"

        return await asyncio.gather(*(flights.join("a", lead) for _ in range(5))), led

    assert asyncio.run(scene()) == (["answer 1"] * 5, 1)


def test_threads_get_the_answer_of_the_first() -> None:
    flights: SingleFlight[str, str] = SingleFlight(ThreadRunner())
    begun, go_on, answers = threading.Event(), threading.Event(), list[str]()

    async def lead() -> str:
        begun.set()
        go_on.wait(60)
        return "answer"

    def ask() -> None:
        answers.append(finish(flights.join("a", lead)))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    threads[0].start()
    begun.wait(60)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(60)

    assert answers == ["answer"] * 4


def test_what_the_first_raises_is_raised_for_all_and_then_forgotten() -> None:
    async def scene() -> list[object]:
        flights: SingleFlight[str, str] = SingleFlight(TaskRunner())

        async def fail() -> str:
            await asyncio.sleep(0)
            raise TimeoutError

        answers: list[object] = [
            type(answer)
            for answer in await asyncio.gather(
                *(flights.join("a", fail) for _ in range(3)), return_exceptions=True
            )
        ]

        async def lead() -> str:
            return "later"

        return [*answers, await flights.join("a", lead)]

    assert asyncio.run(scene()) == [TimeoutError] * 3 + ["later"]


def test_where_the_first_is_cancelled_another_goes_on() -> None:
    async def scene() -> str:
        flights: SingleFlight[str, str] = SingleFlight(TaskRunner())

        async def hang() -> str:
            await asyncio.Event().wait()
            return "never"

        async def lead() -> str:
            return "instead"

        first = asyncio.create_task(flights.join("a", hang))
        await asyncio.sleep(0)
        second = asyncio.create_task(flights.join("a", lead))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await asyncio.wait_for(second, 60)

    assert asyncio.run(scene()) == "instead"
