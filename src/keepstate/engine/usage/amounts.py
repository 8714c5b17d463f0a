"""Amounts of usage: what model calls used, the most that they may use, and sums.

Money is a `Decimal` outside and a whole number of billionths inside, and never a float. A cost with more than
nine digits after the point is rounded up, so that no sum is less than what was spent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, Final, Literal, TypeAlias

import msgspec

from keepstate.engine.kernel.arguments import check_choice, check_text
from keepstate.errors import InvalidError
from keepstate.values import limits

Period: TypeAlias = Literal["day", "month"]

_BILLION: Final = 10**9
_EXACT: Final = Context(prec=60, rounding=ROUND_CEILING, traps=[])
"""A context of its own, because the caller's may have few digits."""
_LARGEST_SUM: Final = 2**63 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The tokens, the cost and the number of one or several calls of a model.

    Attributes:
        model: The name of the model; at most 100 bytes of UTF-8. Empty in sums of several models.
        input_tokens: Tokens of the prompts, with those that were read from the provider's cache.
        output_tokens: Tokens of the answers, with those of reasoning.
        cached_tokens: The part of the input tokens that was read from the provider's cache.
        reasoning_tokens: The part of the output tokens that was reasoning.
        cost: The cost, in the one currency of the application. It is rounded up to billionths.
        calls: The number of calls.
    """

    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    reasoning_tokens: int = 0
    cost: Decimal = Decimal(0)
    calls: int = 1

    def __post_init__(self) -> None:
        check_model("model", self.model)
        for name in ("input_tokens", "output_tokens", "cached_tokens", "reasoning_tokens", "calls"):
            limits.admit_count(name, getattr(self, name), 0, limits.LARGEST_USAGE)
        if self.cached_tokens > self.input_tokens or self.reasoning_tokens > self.output_tokens:
            raise InvalidError(
                "cached tokens are part of the input tokens, and reasoning tokens of the output tokens: "
                f"{self.cached_tokens} of {self.input_tokens}, {self.reasoning_tokens} of "
                f"{self.output_tokens}. Add them to the whole if the provider counts them apart"
            )
        object.__setattr__(self, "cost", to_money(to_billionths("cost", self.cost)))

    @property
    def tokens(self) -> int:
        """The number of tokens: input and output."""
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """The most that may be used in a period. At least one of the ceilings is given.

    Attributes:
        cost: The largest cost; None for any.
        tokens: The largest number of tokens, input and output together; None for any.
        calls: The largest number of calls; None for any.
        per: The calendar period after which it begins again from 0, in the zone of the ledger. None for ever.
        model: The model whose usage counts. None for all models.
    """

    cost: Decimal | None = None
    tokens: int | None = None
    calls: int | None = None
    per: Period | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.cost is None and self.tokens is None and self.calls is None:
            raise InvalidError("a Budget has a ceiling of `cost`, `tokens` or `calls`; give at least one")
        check_choice("per", self.per, None, "day", "month")
        if self.model is not None:
            check_model("model", self.model)
        for name in ("tokens", "calls"):
            if (most := getattr(self, name)) is not None:
                limits.admit_count(name, most, 0, limits.LARGEST_USAGE)
        if self.cost is not None:
            object.__setattr__(self, "cost", to_money(to_billionths("cost", self.cost)))


class Amounts(msgspec.Struct, array_like=True, frozen=True):
    """The three amounts that a budget counts. The cost is in billionths."""

    tokens: int = 0
    cost: int = 0
    calls: int = 0

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum."""
        return Amounts(*(map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other))))


def total_of(amounts: Iterable[Amounts]) -> Amounts:
    """Return a sum that is only read, so it may be larger than what can be stored."""
    return Amounts(*map(sum, zip((0, 0, 0), *map(msgspec.structs.astuple, amounts), strict=True)))


def amounts_of(usage: Usage) -> Amounts:
    """Return the amounts of a usage."""
    return Amounts(usage.tokens, to_billionths("cost", usage.cost), usage.calls)


def add(one: int, other: int) -> int:
    """Return the sum of two counts.

    Raises:
        InvalidError: It is too large to be stored.
    """
    if one + other > _LARGEST_SUM:
        raise InvalidError(
            f"a sum of usage would be {one + other:,}, over {_LARGEST_SUM:,}, the largest that is stored; "
            "nothing was written. Use another account"
        )
    return one + other


def stored_usage(usage: Usage) -> list[Any]:
    """Return the form in which a message stores its usage."""
    counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens, usage.reasoning_tokens
    return [usage.model, *counts, to_billionths("cost", usage.cost), usage.calls]


def usage_in(stored: list[Any]) -> Usage:
    """Return the usage that `stored_usage` has written."""
    model, input_tokens, output_tokens, cached, reasoning, cost, calls = stored
    return Usage(
        model=model,
        input_tokens=input_tokens,
        output_tokens=output_tokens,
        cached_tokens=cached,
        reasoning_tokens=reasoning,
        cost=to_money(cost),
        calls=calls,
    )


def check_model(what: str, model: object) -> str:
    """Return the name of a model, or raise `InvalidError`."""
    name = check_text(what, model)
    if len(name.encode()) > limits.MODEL_BYTES:
        raise InvalidError(f"`{what}` has {len(name.encode())} bytes; at most {limits.MODEL_BYTES}")
    return name


def to_billionths(what: str, cost: object) -> int:
    """Return a cost in billionths, rounded up.

    Raises:
        InvalidError: It is not a `Decimal` or an int, is negative, or over a billion.
    """
    if type(cost) is int:
        cost = Decimal(cost)
    if not isinstance(cost, Decimal):
        raise InvalidError(f"`{what}` is {cost!r:.60}. Money is a Decimal, such as Decimal('0.0125')")
    if not cost.is_finite() or not 0 <= cost <= _BILLION:
        raise InvalidError(f"`{what}` is {cost!s:.60}. It must be 0 to {_BILLION:,}")
    if cost.adjusted() < -_EXACT.prec:  # so small that only its sign counts
        return 1 if cost else 0
    return int(_EXACT.multiply(cost, _BILLION).to_integral_value(ROUND_CEILING))


def to_money(billionths: int) -> Decimal:
    """Return a cost without zeros at its end."""
    whole, part = divmod(billionths, _BILLION)
    return Decimal(whole) if not part else _EXACT.normalize(_EXACT.scaleb(Decimal(billionths), -9))
