"""Blocking twins of `keepstate.engine.documents.watch`.

Written by tools/generate_sync.py; change the source and run it again.
"""

from __future__ import annotations

from typing import Self

from keepstate._finish import finish
from keepstate.engine.documents import watch as engine
from keepstate.engine.documents.watch import DocumentChange
from keepstate.sync.twin import Twin


class Watch(Twin[engine.Watch]):
    """An iterator over changes.

    Attributes:
        revision: How far the changes given are complete, within this handle.
    """

    @property
    def revision(self) -> int:
        """How far the changes given are complete, within this handle."""
        return self._inner.revision

    @property
    def position(self) -> str:
        """An opaque text: `after=` it, a watch in any process goes on where this one stands."""
        return self._inner.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DocumentChange:
        try:
            return finish(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
