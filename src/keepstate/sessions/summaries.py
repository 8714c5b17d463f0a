"""Summaries of messages that left a context: made by one caller at a time, stored only if still due.

A model call takes long. The caller holds a lease, renewed during the call, and stores the summary only if the
messages are still due. If the conversation was cleared in the meantime, the summary is discarded.
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
from keepstate.sessions.lease_block import hold_lease
from keepstate.sessions.messages import check_message
from keepstate.sessions.window import Window

_LEASE_S: Final = 120.0
"""Seconds until the lease expires without renewal: after a crash, no summary is made for that time."""


class _Obsolete(Exception):  # noqa: N818 - nothing went wrong
    """The messages to summarise are no longer due; nothing is written."""


async def summarise_due(conversation: ConversationDocuments) -> bool:
    """Summarise the messages that left the context and are due, and return whether any were.

    Raises:
        InvalidError: There is no `summarise` function, or the conversation is inside a transaction.
    """
    summarise, space = conversation.rules.summarise, conversation.namespace.space
    if summarise is None or space is None:
        why = (
            "has no summarise function. Pass summarise=."
            if space
            else "is inside a transaction. Summarise outside."
        )
        raise InvalidError(f"{conversation!r} {why}")
    prefix = await conversation.current_prefix()
    if prefix is None:
        return False
    made, name = 0, f"{conversation.context_name(prefix)}/summary"
    async with AsyncExitStack() as stack:
        try:
            lease = await stack.enter_async_context(hold_lease(space, name, lease_s=_LEASE_S, turn_s=0))
        except ConflictError:
            return False  # another caller makes the summary
        while await _summarise_next(conversation, space, prefix, lease, summarise):
            made += 1
    return made > 0


async def _summarise_next(
    conversation: ConversationDocuments, space: Space, prefix: str, lease: Lease, summarise: Summarise
) -> bool:
    """Summarise the first due messages with the summary so far, and return whether there were any."""
    window, record = await conversation.window(space, prefix), await conversation.record(space, prefix)
    budget = conversation.rules.budget
    numbers = window.due[: budget.summarise_first]
    if not numbers:
        return False
    originals = await conversation.read(space, prefix, record, numbers)
    given = [originals[number] for number in numbers if number in originals]
    answer = await call_function(summarise, [*([window.summary] if window.summary else []), *given])
    summary = check_message({"role": "system", "content": answer} if isinstance(answer, str) else answer)

    async def work(tx: Transaction, now_prefix: str) -> None:
        def put(trial: Window) -> None:
            context_fit.summarise(trial, summary, numbers, budget)

        if now_prefix != prefix:
            raise _Obsolete  # the session has ended
        now = await conversation.window(tx, prefix)
        if now.era != window.era or not set(numbers).issubset(now.due):
            raise _Obsolete  # the conversation was cleared
        _, now = await conversation.apply_change(
            tx, prefix, await conversation.recount_if_needed(tx, prefix, now), put
        )
        await conversation.put_window(tx, prefix, now)

    try:
        await conversation.namespace.together(work, lease=lease, message="summarise")
    except _Obsolete:
        return False
    return True
