"""What counters are called: alike in each process if they count alike, otherwise if they do not."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import msgspec
import pytest

from keepstate import BoundedState, TokenCounter, estimate_tokens
from keepstate.engine.space.keepstate import Keepstate
from keepstate.sessions.messages import Counter, Message
from keepstate.sessions.token_counter import name_of
from tests.sessions.talking import by_words, said


def parted(message: Message, per: int = 4) -> int:
    return len(str(message["content"])) // per + 1


def in_closure(per: int) -> Counter:
    return lambda message: parted(message, per)


def in_default(size: int) -> Counter:
    def count(message: Message, *, per: int = size) -> int:
        return parted(message, per)

    return count


def in_function(size: int) -> Counter:
    inner = in_closure(size)
    return lambda message: max(1, inner(message))


@dataclass
class Parted:
    per: int
    seen: list[str] = field(default_factory=list[str])

    def __call__(self, message: Message) -> int:
        return parted(message, self.per)

    def count(self, message: Message) -> int:
        return self(message)


def in_method(per: int) -> Counter:
    return Parted(per).count


def in_partial(per: int) -> Counter:
    return partial(parted, per=per)


WAYS = [in_closure, in_default, in_function, in_method, in_partial, Parted]


@pytest.mark.parametrize("made", WAYS)
def test_counters_that_hold_other_things_have_other_names(made: Callable[[int], Counter]) -> None:
    assert name_of(made(4)) == name_of(made(4)) != name_of(made(1))


@pytest.mark.parametrize("made", WAYS)
async def test_what_one_counter_has_counted_does_not_count_for_another(
    ks: Keepstate, made: Callable[[int], Counter]
) -> None:
    coarse, fine = (BoundedState("1", max_tokens=100, counter=made(per), persistence=ks) for per in (4, 1))
    for _ in range(10):
        await coarse.add_message(said("x" * 40))

    context = await fine.get_context()
    assert await fine.count_tokens() == sum(map(made(1), context)) == 82


def test_a_counter_of_this_program_is_called_the_same_in_each_process() -> None:
    names = [name_of(counter) for counter in (estimate_tokens, TokenCounter(), by_words, *_made())]
    told = (
        "from tests.sessions import test_counters as t\n"
        "for each in (t.estimate_tokens, t.TokenCounter(), t.by_words, *t._made()): print(t.name_of(each))"
    )
    other = subprocess.run(
        [sys.executable, "-c", told],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        check=True,
        capture_output=True,
        text=True,
    )

    assert other.stdout.split("\n")[:-1] == names
    assert len(set(names)) == len(names)


def _made() -> list[Counter]:
    return [made(per) for made in WAYS for per in (4, 1)]


def test_what_cannot_be_seen_is_told_by_its_name_and_else_is_like_nothing() -> None:
    def by(encoder: msgspec.json.Encoder) -> Counter:
        return lambda message: len(encoder.encode(message))

    one, other = msgspec.json.Encoder(), msgspec.json.Encoder()
    counter = by(one)

    assert name_of(counter) == name_of(counter)
    assert name_of(by(one)) != name_of(by(other))
    assert name_of(TokenCounter("cl100k_base")) == name_of(TokenCounter("cl100k_base"))
    assert name_of(TokenCounter("cl100k_base")) != name_of(TokenCounter("o200k_base"))


def test_a_counter_in_the_place_of_one_that_is_gone_has_a_name_of_its_own() -> None:
    names = set[str]()
    for per in range(1, 50):
        counter = in_closure(per)
        names.add(name_of(counter))
        del counter
        gc.collect(0)

    assert len(names) == 49
