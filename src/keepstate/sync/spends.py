"""Blocking twins of `keepstate.engine.usage.spends`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from keepstate._finish import finish
from keepstate.engine.usage import spends as engine
from keepstate.engine.usage.amounts import Usage
from keepstate.sync.twin import Twin


class Spend(Twin[engine.Spend]):
    """One use, or several of one id, with amounts that are reserved for it.

    Made by `UsageLedger.reserve`, which counts what it has recorded.

    Attributes:
        id: The id of the use.
        is_late: Whether the reservation had ended before the use was counted; others may have its room.
        is_over: Whether a budget was exceeded after the use was counted.
    """

    @property
    def id(self) -> str:
        """The id of the use."""
        return self._inner.id

    @property
    def is_late(self) -> bool:
        """Whether the reservation had ended before the use was counted; others may have its room."""
        return self._inner.is_late

    @property
    def is_over(self) -> bool:
        """Whether a budget was exceeded after the use was counted."""
        return self._inner.is_over

    def record(self, usage: Usage) -> None:
        """Note a use, which is counted when the block of the spend ends. Makes no call to the store.

        It may be called up to 100 times, for calls of several models too. A use of another model than the
        reserved one counts in the budgets of its own model.

        Raises:
            InvalidError: The spend was settled, or has recorded 100 uses.
        """
        self._inner.record(usage)

    @property
    def uses(self) -> list[Usage]:
        """The recorded uses."""
        return self._inner.uses

    def renew(self, lease_s: float = 600) -> None:
        """Let the reservation last for `lease_s` seconds from now.

        Raises:
            LeaseLostError: It has ended. The use is counted nevertheless when the block ends.
        """
        finish(self._inner.renew(lease_s))
