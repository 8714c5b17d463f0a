"""Conversations in memory, as many as a test wants."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, TypeAlias

import pytest

import keepstate
from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate
from keepstate.sessions.conversation import Conversation

Talks: TypeAlias = Callable[..., Conversation]


@pytest.fixture
def talks(opened: list[Keepstate]) -> Talks:
    """Makes an empty conversation, with the given rules of its context."""
    opened.append(keepstate.open("memory://"))
    numbers = count()

    def make(**rules: Any) -> Conversation:
        talk = Session(f"s{next(numbers)}", persistence=opened[-1]).conversation
        return talk.within(**rules) if rules else talk

    return make
