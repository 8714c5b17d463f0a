"""A coroutine that never waits runs to its end without an event loop, and one that waits is told so."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import pytest

from keepstate._finish import entered, finish, finish_each


async def answer() -> int:
    return 42


async def waits() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    raise KeyError("as it is")


def test_finish_returns_what_the_coroutine_returns() -> None:
    assert finish(answer()) == 42


def test_finish_raises_what_the_coroutine_raises() -> None:
    with pytest.raises(KeyError, match="as it is"):
        finish(fails())


def test_a_coroutine_that_waits_is_ended_and_named() -> None:
    with pytest.raises(RuntimeError, match=r"waits.* waits for an event loop, but was called"):
        finish(waits())


async def hides(interrupt: BaseException) -> None:
    raise SystemError("<method> returned a result with an exception set") from interrupt


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_an_interrupt_that_python_hides_in_a_system_error_reaches_the_caller(
    interrupt: BaseException,
) -> None:
    with pytest.raises(type(interrupt)) as raised:
        finish(hides(interrupt))

    assert raised.value is interrupt


def test_a_system_error_without_an_interrupt_stays_one() -> None:
    with pytest.raises(SystemError, match="exception set"):
        finish(hides(ValueError("an error of C code")))


class Numbers:
    """An asynchronous generator of 1, 2, 3 that notes how it ended, over another one that it leaves open."""

    def __init__(self) -> None:
        self.ended = 0

    async def inner(self) -> AsyncIterator[int]:
        try:
            for number in (1, 2, 3):
                yield number
        finally:
            self.ended += 1

    async def outer(self) -> AsyncIterator[int]:
        try:
            async for number in self.inner():
                yield number
        finally:
            self.ended += 1


def test_finish_each_yields_what_the_iterator_yields() -> None:
    assert list(finish_each(Numbers().outer())) == [1, 2, 3]


def test_finish_each_closes_what_is_left_early_also_inside_a_running_loop() -> None:
    async def left_early() -> int:
        numbers = Numbers()
        for _ in finish_each(numbers.outer()):
            break
        return numbers.ended

    assert asyncio.run(left_early()) == 2


def test_the_hooks_of_a_running_loop_are_its_own_between_the_steps() -> None:
    async def stepped() -> bool:
        hooks = sys.get_asyncgen_hooks()
        return all(sys.get_asyncgen_hooks() == hooks for _ in finish_each(Numbers().outer()))

    assert asyncio.run(stepped())


@asynccontextmanager
async def swallowing(kind: type[BaseException], ended: list[str]) -> AsyncGenerator[str]:
    try:
        yield "inside"
    except kind:
        ended.append("swallowed")
    else:
        ended.append("left")


def test_entered_gives_what_the_manager_gives_and_leaves_it() -> None:
    ended: list[str] = []

    with entered(swallowing(KeyError, ended)) as inside:
        assert inside == "inside"

    assert ended == ["left"]


def test_entered_lets_the_manager_swallow_only_what_it_swallows() -> None:
    ended: list[str] = []

    with entered(swallowing(KeyError, ended)):
        raise KeyError
    with pytest.raises(ValueError, match="not that"), entered(swallowing(KeyError, ended)):
        raise ValueError("not that")

    assert ended == ["swallowed"]
