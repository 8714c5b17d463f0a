"""In blocking use the caller's functions are plain ones; a coroutine function is refused when it is given."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from keepstate import InvalidError, sync


async def coroutine_function(*args: Any) -> Any:
    raise AssertionError("never called")


class WithCoroutineCall:
    async def __call__(self, *args: Any) -> Any:
        raise AssertionError("never called")


USES: dict[str, Callable[[sync.Space, Any], object]] = {
    "transact": lambda space, function: space.transact(function),
    "update": lambda space, function: space.documents.update("plan", function, default=0),
    "typed update": lambda space, function: space.documents.document("plan", int).update(function, default=0),
    "claim": lambda space, function: space.queue.claim("w", lease_s=1, match=function),
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize(
    "function",
    [coroutine_function, partial(coroutine_function, 1), WithCoroutineCall()],
    ids=["function", "partial", "object"],
)
def test_a_coroutine_function_is_refused(space: sync.Space, use: str, function: Any) -> None:
    with pytest.raises(InvalidError, match="is a coroutine function; blocking mode needs a plain function"):
        USES[use](space, function)

    assert space.revision() == 0


@pytest.mark.parametrize("use", USES)
def test_what_cannot_be_called_is_refused(space: sync.Space, use: str) -> None:
    with pytest.raises(
        InvalidError, match=r"7 cannot be called; give a function|a dict or a function, not an int"
    ):
        USES[use](space, 7)


def test_attempts_of_transact_are_one_or_more(space: sync.Space) -> None:
    with pytest.raises(InvalidError, match="`attempts` is 0"):
        space.transact(lambda tx: None, attempts=0)
