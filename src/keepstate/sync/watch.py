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
        revision: The revision up to which all changes have been yielded, for use within this handle.
    """

    @property
    def revision(self) -> int:
        """The revision up to which all changes have been yielded, for use within this handle."""
        return self._inner.revision

    @property
    def position(self) -> str:
        """The position of this watch, as an opaque text: `after=position` continues here in any process."""
        return self._inner.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> DocumentChange:
        try:
            return finish(self._inner.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None
