"""A class in its third version: in dollars first, then in cents, and now with a currency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from keepstate import downcast, register, upcast

NAME = "tests/trip"


@dataclass
class Trip:
    city: str
    cents: int
    currency: str = "USD"


def know_trips() -> None:
    """Register the class, with what takes it from each version to the next and back."""
    register(Trip, NAME, version=3)
    upcast(NAME, 1)(_in_cents)
    upcast(NAME, 2)(_in_a_currency)
    downcast(NAME, 3)(_without_a_currency)
    downcast(NAME, 2)(_in_dollars)


def _in_cents(fields: dict[str, Any]) -> dict[str, Any]:
    return {"city": fields["city"], "cents": round(fields["price"] * 100)}


def _in_a_currency(fields: dict[str, Any]) -> dict[str, Any]:
    return {**fields, "currency": "USD"}


def _without_a_currency(fields: dict[str, Any]) -> dict[str, Any]:
    return {"city": fields["city"], "cents": fields["cents"]}


def _in_dollars(fields: dict[str, Any]) -> dict[str, Any]:
    return {"city": fields["city"], "price": fields["cents"] / 100}
