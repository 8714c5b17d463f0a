"""Two reducers that do something else have other digests, and one has the same in each process."""

from __future__ import annotations

import itertools
import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from enum import Enum
from functools import lru_cache, partial
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from keepstate import Event, Fold
from tests.engine import reducing


class Money:
    """Counts; what its methods do, hold and inherit are each a way to change."""

    per_event = 1

    def __init__(self, rate: int = 1) -> None:
        self.rate = rate

    def add(self, state: int, event: Event) -> int:
        return state + self.rate * self.weight(event) * self.per_event

    def __call__(self, state: int, event: Event) -> int:
        return self.add(state, event)

    @property
    def name(self) -> str:
        return "EUR"

    @staticmethod
    def weight(event: Event) -> int:
        return 1


class Slotted:
    __slots__ = ("rate",)

    def __init__(self, rate: int) -> None:
        self.rate = rate


@dataclass
class Line:
    price: int = 1
    tags: list[str] = field(default_factory=list[str])


class Read(msgspec.Struct):
    price: int = 1


class Kind(Enum):
    ADDED = 1


RATE = 1
TABLE: dict[str, Any] = {"added": 1}
NAMES = frozenset({"added", "moved", "removed"})
MONEY = Money()
NESTED = SimpleNamespace(rates=[1, 2], step=timedelta(days=1), least=Decimal(1), form=re.compile("a"))


class Name(str):
    """A text of its own class."""


class Cents(int):
    """A number of its own class."""


class Rule:
    """Holds a function with an argument."""

    weight = partial(max, 1)


@dataclass
class Basket:
    """Names another class in its fields only."""

    lines: list[Read]


Basket.__annotations__["lines"] = list[Read]  # which is text here, because annotations are not evaluated
LOG = logging.getLogger("tests.fingerprints")
LOCK = threading.Lock()
NUMBERS = itertools.count()
GROUPS = frozenset({frozenset({"added", "moved", "removed"}), frozenset({"a", "b", "c", "d"})})


@lru_cache
def remembered(n: int) -> int:
    return n * RATE


def by_constant(state: int, event: Event) -> int:
    return state + RATE


def by_table(state: int, event: Event) -> int:
    return state + int(TABLE[event.type])


def by_set(state: int, event: Event) -> int:
    return state + (event.type in NAMES)


def by_object(state: int, event: Event) -> int:
    return MONEY.add(state, event)


def by_class(state: int, event: Event) -> int:
    return Money(1).add(state, event)


def by_line(state: int, event: Event) -> int:
    return state + Line().price


def by_struct(state: int, event: Event) -> int:
    return state + Read().price


def by_enum(state: int, event: Event) -> int:
    return state + int(Kind.ADDED.value)


def by_module(state: int, event: Event) -> int:
    return state + reducing.RATE


def by_function_of_a_module(state: int, event: Event) -> int:
    return state + reducing.weight(event)


def by_nested(state: int, event: Event) -> int:
    return state + int(NESTED.rates[0])


def by_remembered(state: int, event: Event) -> int:
    return state + remembered(1)


def by_rule(state: int, event: Event) -> int:
    return state + Rule.weight(2)


def by_basket(state: int, event: Event) -> Any:
    return Basket(event.data)


def by_groups(state: int, event: Event) -> int:
    return state + (frozenset({event.type}) in GROUPS)


def by_log(state: int, event: Event) -> int:
    with LOCK:
        LOG.debug("event %d", next(NUMBERS))
    return state + 1


def by_inner(state: int, event: Event) -> int:
    return sum(RATE for _ in range(state))


HERE = sys.modules[__name__]


@pytest.mark.parametrize(
    ("reducer", "where", "name", "new"),
    [
        (by_constant, HERE, "RATE", 2),
        (by_inner, HERE, "RATE", 2),
        (by_remembered, HERE, "RATE", 2),
        (by_table, HERE, "TABLE", {"added": 2}),
        (by_table, HERE, "TABLE", {"added": 1, "moved": 1}),
        (by_table, HERE, "TABLE", {"added": lambda event: 1}),
        (by_set, HERE, "NAMES", frozenset({"added"})),
        (by_object, HERE, "MONEY", Money(2)),
        (by_object, Money, "add", lambda self, state, event: state + 2),
        (by_object, Money, "weight", staticmethod(lambda event: 2)),
        (by_object, MONEY, "rate", 2),
        (by_class, Money, "add", lambda self, state, event: state + 2),
        (by_class, Money, "per_event", 2),
        (by_class, Money, "name", property(lambda self: "USD")),
        (Money().add, Money, "weight", staticmethod(lambda event: 2)),
        (MONEY.add, MONEY, "rate", 2),
        (MONEY, MONEY, "rate", 2),
        (MONEY, Money, "add", lambda self, state, event: state + 2),
        (partial(by_class), Money, "per_event", 2),
        (by_line, Line, "price", 2),
        (by_line, Line, "__annotations__", {"price": "float"}),
        (by_struct, HERE, "Read", msgspec.defstruct("Read", [("price", int, 2)], module=__name__)),
        (by_enum, HERE, "Kind", Enum("Kind", {"ADDED": 2}, module=__name__)),
        (by_module, reducing, "RATE", 2),
        (by_function_of_a_module, reducing, "RATE", 2),
        (by_nested, NESTED, "rates", [1, 3]),
        (by_nested, NESTED, "step", timedelta(days=2)),
        (by_nested, NESTED, "least", Decimal(2)),
        (by_nested, NESTED, "form", re.compile("b")),
        (by_nested, NESTED, "more", Slotted(1)),
        (by_rule, Rule, "weight", partial(max, 3)),
        (by_basket, Read, "__annotations__", {"price": "float"}),
        (by_groups, HERE, "GROUPS", frozenset({frozenset({"added"})})),
    ],
)
def test_what_a_reducer_uses_is_seen_when_it_changes(
    reducer: Callable[..., Any], where: Any, name: str, new: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Fold(reducer, 0).digest()
    assert Fold(reducer, 0).digest() == before

    monkeypatch.setattr(where, name, new, raising=False)

    assert Fold(reducer, 0).digest() != before


def made(rate: object) -> Callable[..., Any]:
    def reduce(state: int, event: Event, weight: int = 1) -> Any:
        return rate

    return reduce


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (made(1), made(2)),
        (made([1]), made([2])),
        (made({1: [2]}), made({1: [3]})),
        (made({1, 2}), made({1, 3})),
        (made({(1, 2)}), made({(1, 3)})),
        (made((int, str)), made((int, float))),
        (made(Name("a")), made(Name("b"))),
        (made(Cents(1)), made(Cents(2))),
        (made(Slotted(1)), made(Slotted(2))),
        (made(int | None), made(str | None)),
        (made(list[int]), made(list[str])),
        (made({"a": 1}.get), made({"a": 2}.get)),
        (partial(by_class, weight=1), partial(by_class, weight=2)),
        (Money(1), Money(2)),
        (Money(1).add, Money(2).add),
    ],
)
def test_what_a_reducer_holds_is_seen(one: Callable[..., Any], other: Callable[..., Any]) -> None:
    assert Fold(one, 0, name="same").digest() != Fold(other, 0, name="same").digest()


def test_a_state_of_the_standard_library_that_changes_is_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LOG, "level", logging.DEBUG)
    before = Fold(by_log, 0).digest()

    LOG.setLevel(logging.ERROR)
    next(NUMBERS)
    with LOCK:
        assert Fold(by_log, 0).digest() == before


def test_what_refers_to_itself_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    ring: list[object] = [Money]
    ring.append({"ring": ring, "all": {Money, Line}})
    long: list[object] = []
    for _ in range(5_000):
        long = [long]
    monkeypatch.setattr(Money, "rings", [ring, long], raising=False)

    assert Fold(by_class, 0).digest() == Fold(by_class, 0).digest()


class Unbound:
    """Stands for what is not there yet, as proxies of frameworks do."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("outside of a request")


UNBOUND = Unbound()


def by_proxy(state: int, event: Event) -> int:
    return state + RATE if UNBOUND else state


def test_what_cannot_be_looked_at_hides_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Fold(by_proxy, 0).digest()
    monkeypatch.setitem(globals(), "RATE", 2)

    assert Fold(by_proxy, 0).digest() != before


def test_an_installed_package_is_not_gone_through(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = ModuleType("installed_one")
    installed.__file__ = "/lib/site-packages/installed_one.py"
    monkeypatch.setitem(sys.modules, "installed_one", installed)
    code = "class Client:\n  def __init__(self): self.calls = 0\n  def call(self): return COUNT\nCOUNT = 0"
    exec(code, vars(installed))
    client: Any = installed.Client()
    before = Fold(made(client), 0).digest()

    client.calls, installed.COUNT = 1, 1

    assert Fold(made(client), 0).digest() == before


def test_a_reducer_has_the_same_digest_in_each_process() -> None:
    code = (
        "from keepstate import Fold\nfrom tests.engine import test_fingerprints as t\n"
        "reducers = t.by_set, t.by_enum, t.by_line, t.by_nested, t.by_object, t.by_groups\n"
        "print([Fold(reducer, 0).digest().hex() for reducer in reducers])"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }

    assert len(told) == 1
