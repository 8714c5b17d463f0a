"""State without a model: a dict whose keys users set by name, or that a function replaces.

Keys are text, which is checked on write. Reads accept other keys, so that a state written by other means can
be read and repaired.
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


def check_change(change: Change, mode: Mode) -> None:
    """Raise `InvalidError` unless the change is a dict with text keys, or a function of the given mode."""
    given: object = change
    if isinstance(given, Mapping):
        check_text_keys("`change`", cast("Mapping[str, Any]", given))
    elif not callable(given):
        raise InvalidError(f"`change` is {given!r}. Pass a dict of keys to set, or a function.")
    elif mode == "blocking":
        reject_coroutine_function(given)


async def read_state(target: Space | Transaction, name: str) -> State:
    """Return the state, or an empty dict if there is none."""
    state: State = await target.documents.get(name, {}, type=dict[Any, Any])
    return state


async def write_change(tx: Transaction, name: str, change: Change, what: str) -> State:
    """Apply a change to the stored state and return the new state.

    Args:
        tx: The transaction.
        name: The name of the state's document.
        change: A change that passed `check_change`.
        what: Name of the state in error messages.

    Raises:
        InvalidError: The function returned something other than a dict with text keys.
    """
    old = await read_state(tx, name)
    if isinstance(change, Mapping):
        made = {**old, **change}
    else:
        new: object = await computed(tx, name, change, old)
        if not isinstance(new, dict):
            raise InvalidError(f"The function for {what} returned {new!r}. Return a dict.")
        made = check_text_keys(what, cast("dict[str, Any]", new))
    await tx.documents.put(name, made)
    return made
