"""State without a model: a dict of which users set parts by name, or which a function makes anew.

Its keys are text. That is judged where it is written; one that holds another key all the same, put there by
some other way, can be read and mended.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, cast

from keepstate._runner import Mode
from keepstate.engine.kernel.arguments import check_text_keys
from keepstate.engine.kernel.executor import reject_coroutine_function
from keepstate.engine.space.joint_work import computed
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import InvalidError

State: TypeAlias = dict[str, Any]
Change: TypeAlias = Mapping[str, Any] | Callable[[State], State | Awaitable[State]]


def admit_change(change: Change, mode: Mode) -> None:
    """Raise `InvalidError` for what is neither a dict with text for keys nor a function of the colour."""
    given: object = change
    if isinstance(given, Mapping):
        check_text_keys("`change`", cast("Mapping[str, Any]", given))
    elif not callable(given):
        raise InvalidError(f"`change` is {given!r}; give a dict of what to set, or a function")
    elif mode == "blocking":
        reject_coroutine_function(given)


async def read(place: Space | Transaction, name: str) -> State:
    """Return the state; an empty dict if there is none."""
    state: State = await place.documents.get(name, {}, type=dict[Any, Any])
    return state


async def changed(tx: Transaction, name: str, change: Change, what: str) -> State:
    """Write what a change makes of the state, and return it.

    Args:
        tx: The transaction.
        name: The name of the state's document.
        change: What was admitted.
        what: What the state is called in refusals.

    Raises:
        InvalidError: The function returned no dict, or one with other keys than text.
    """
    old = await read(tx, name)
    if isinstance(change, Mapping):
        made = {**old, **change}
    else:
        new: object = await computed(tx, name, change, old)
        if not isinstance(new, dict):
            raise InvalidError(f"{what} became {new!r}; return a dict")
        made = check_text_keys(what, cast("dict[str, Any]", new))
    await tx.documents.put(name, made)
    return made
