"""The store itself: sweep."""

from __future__ import annotations

from keepstate.cli import exits
from keepstate.cli.session import Session, shown, write_json

_PLAIN = Session()


async def sweep(*, session: Session = _PLAIN) -> int:
    """Remove what has expired and parts of large values that nothing names; print how many entries went."""
    async with session.opened() as ks:
        removed = await ks.sweep()
    write_json({"removed": removed}) if session.json else shown().print(removed)
    return exits.OK
