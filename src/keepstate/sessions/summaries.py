"""Summaries in the place of what has left a context: made by one at a time, and kept if still asked for.

A model takes its time. Who asks it holds a lease, renewed meanwhile, and writes what it came to only if the
messages are still to be summarised: a conversation that was cleared meanwhile has no use for it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Final

from keepstate.engine.kernel.executor import call_function
from keepstate.engine.queue.lease import Lease
from keepstate.engine.space.space import Space
from keepstate.engine.space.transaction import Transaction
from keepstate.errors import ConflictError, InvalidError
from keepstate.sessions import context_fit
from keepstate.sessions.conversation_documents import ConversationDocuments, Summarise
from keepstate.sessions.lease_block import holding
from keepstate.sessions.messages import admit
from keepstate.sessions.window import Window

_LEASE_S: Final = 120.0
"""Unless it is renewed: so long nobody summarises after who did so was killed."""


class _Moot(Exception):  # noqa: N818 - nothing went wrong
    """What was summarised is no longer to be; nothing is written."""


async def summarised(talk: ConversationDocuments) -> bool:
    """Summarise what has left the context and is due for it, and return whether something was.

    Raises:
        InvalidError: Nothing was given that summarises; or it is inside a transaction.
    """
    summarise, space = talk.rules.summarise, talk.site.space
    if summarise is None or space is None:
        why = "nothing that summarises; give summarise=" if space else "to be summarised outside"
        raise InvalidError(f"{talk!r} has {why}")
    prefix = await talk.present()
    if prefix is None:
        return False
    made, name = 0, f"{talk.context_name(prefix)}/summary"
    async with AsyncExitStack() as stack:
        try:
            lease = await stack.enter_async_context(holding(space, name, lease_s=_LEASE_S, turn_s=0))
        except ConflictError:
            return False  # somebody else does it
        while await _first_due(talk, space, prefix, lease, summarise):
            made += 1
    return made > 0


async def _first_due(
    talk: ConversationDocuments, space: Space, prefix: str, lease: Lease, summarise: Summarise
) -> bool:
    """Summarise the first that are due, with the summary so far; returns whether there were some."""
    window, record = await talk.window(space, prefix), await talk.record(space, prefix)
    budget = talk.rules.budget
    numbers = window.due[: budget.summarise_first]
    if not numbers:
        return False
    originals = await talk.read(space, prefix, record, numbers)
    given = [originals[number] for number in numbers if number in originals]
    told = await call_function(summarise, [*([window.summary] if window.summary else []), *given])
    summary = admit({"role": "system", "content": told} if isinstance(told, str) else told)

    async def work(tx: Transaction, now_prefix: str) -> None:
        def put(trial: Window) -> None:
            context_fit.summarise(trial, summary, numbers, budget)

        if now_prefix != prefix:
            raise _Moot  # the session is over
        now = await talk.window(tx, prefix)
        if now.era != window.era or not set(numbers).issubset(now.due):
            raise _Moot  # the conversation was cleared
        _, now = await talk.worked(tx, prefix, await talk.counted(tx, prefix, now), put)
        await talk.put_window(tx, prefix, now)

    try:
        await talk.site.together(work, lease=lease, message="summarise")
    except _Moot:
        return False
    return True
