"""The marker for an absent value, because None is a value."""

from __future__ import annotations

from typing import Final

import msgspec


class Missing(msgspec.Struct, frozen=True):
    """The type of `MISSING`."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""An absent value; None is a value."""
