"""The search of a conversation by words, from the newest message, in pages of bounded work.

Nothing is written for the search, so it needs no index, and finds each message with its last edit. A page
looks at a bounded number of messages, whatever it finds.
"""

from __future__ import annotations

import re
from typing import Final
from unicodedata import category, normalize

from keepstate.engine.kernel.arguments import check_text
from keepstate.engine.kernel.positions import Page
from keepstate.engine.kernel.unreadable import IfUnreadable
from keepstate.errors import InvalidError
from keepstate.sessions.conversation_documents import READ_AT_ONCE
from keepstate.sessions.conversation_store import ConversationStore
from keepstate.sessions.entries import Entry
from keepstate.sessions.message_texts import text_of
from keepstate.sessions.messages import ROLES, Message

LOOKED_AT: Final = 2_000
"""The largest number of messages that one page looks at."""
_TERMS: Final = 32
_QUERY_CHARS: Final = 1_000
_PARTS: Final = re.compile(r'"([^"]*)"?|([^\s"]+)')
_WITHOUT_CASE: Final = "Lo"
"""The category of letters of scripts without case. Several of these put no spaces between words."""


def _has_role(message: Message, role: str | None) -> bool:
    """Return whether a message has a role, by whatever word its form has for it."""
    if role is None:
        return True
    own = str(message.get("role", ""))  # what is damaged has none
    return ROLES.get(own, own) == ROLES.get(role, role)


class Words:
    """The words that a message must contain.

    A word is found where a word begins: `flight` in "flights", and not `light`. In scripts without letter
    case, such as Chinese or Arabic, it is found anywhere. Text between quotes is found as a whole. Case, the
    width of letters and the kind of space make no difference.

    Args:
        text: The words; none are contained in every message.

    Raises:
        InvalidError: The text has more than 1,000 characters, or more than 32 words.
    """

    def __init__(self, text: str) -> None:
        if len(check_text("text", text)) > _QUERY_CHARS:
            raise InvalidError(f"`text` has {len(text)} characters. Search for at most {_QUERY_CHARS}.")
        terms = [" ".join(quoted.split()) or word for quoted, word in _PARTS.findall(_fold(text))]
        found = [term for term in dict.fromkeys(terms) if term]
        if len(found) > _TERMS:
            raise InvalidError(f"`text` has {len(found)} words. Search for at most {_TERMS}.")
        self._patterns = [re.compile(_begin(term) + re.escape(term)) for term in found]

    def are_in(self, text: str) -> bool:
        """Return whether a text contains all of them."""
        folded = " ".join(_fold(text).split())
        return all(pattern.search(folded) for pattern in self._patterns)


def _fold(text: str) -> str:
    return normalize("NFKC", normalize("NFKC", text).casefold())


def _begin(term: str) -> str:
    """Return the pattern of the text before a term."""
    is_word = term[0].isalnum() and category(term[0]) != _WITHOUT_CASE
    return r"(?<!\w)" if is_word else ""


async def search(
    store: ConversationStore,
    words: Words,
    role: str | None,
    after: int | None,
    limit: int,
    unreadable: IfUnreadable,
) -> Page[Entry]:
    """Return a page of the entries that contain words, the newest first; see `Conversation.search`."""
    documents = await store.current()
    if documents is None:
        return Page()
    window, record = await documents.window_and_record()
    end = window.count if after is None else min(after, window.count)
    found, looked_at = list[Entry](), 0
    while looked_at < LOOKED_AT and (numbers := record.last_numbers(end, READ_AT_ONCE)):
        records = await documents.read_records(record, numbers, unreadable)
        for number in reversed(numbers):
            end, looked_at = number, looked_at + 1
            if number not in records:
                continue  # the session has ended meanwhile, or the message is left out
            entry = records[number].entry(number)
            if _has_role(entry.message, role) and words.are_in(text_of(entry.message)):
                found.append(entry)
                if len(found) == limit:
                    return Page(found, next=str(end) if record.last_numbers(end, 1) else None)
        await store.namespace.runner.sleep(0)  # a store in memory never waits, and others have work
    return Page(found, next=str(end) if record.last_numbers(end, 1) else None)
