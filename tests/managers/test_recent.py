"""What was read lately may be shown again, but never over what was written since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from keepstate._finish import finish
from keepstate.managers.teams.records import ReadCache
from keepstate.testing.clocks import ManualClock


def counting() -> Callable[[], Awaitable[list[int]]]:
    numbers = iter(range(100))

    async def read() -> list[int]:
        return [next(numbers)]

    return read


def test_an_answer_is_shown_again_until_its_time_is_over() -> None:
    clock = ManualClock()
    recent, read = ReadCache(clock, 1.0), counting()
    first = finish(recent.get("t", "team", read))
    clock.advance(900)
    second = finish(recent.get("t", "team", read))
    clock.advance(200)

    assert (first, second) == ([0], [0])
    assert finish(recent.get("t", "team", read)) == [1]


def test_without_a_time_everything_is_read() -> None:
    recent, read = ReadCache(ManualClock(), 0), counting()

    assert [finish(recent.get("t", "team", read)) for _ in range(3)] == [[0], [1], [2]]


def test_what_is_shown_again_is_a_copy() -> None:
    recent, read = ReadCache(ManualClock(), 1.0), counting()
    for _ in range(3):
        answer = finish(recent.get("t", "team", read))
        assert answer == [0]
        answer.append(7)


def test_a_write_lets_its_subject_be_read_anew() -> None:
    recent, read = ReadCache(ManualClock(), 1.0), counting()
    for subject in ("t", "u"):
        finish(recent.get(subject, "team", read))
    recent.invalidate("t")

    assert finish(recent.get("t", "team", read)) == [2]
    assert finish(recent.get("u", "team", read)) == [1]


def test_what_was_read_while_something_was_written_is_not_shown_again() -> None:
    recent, read = ReadCache(ManualClock(), 1.0), counting()

    async def overtaken() -> list[int]:
        answer = await read()
        recent.invalidate("t")
        return answer

    finish(recent.get("t", "team", overtaken))

    assert finish(recent.get("t", "team", read)) == [1]
