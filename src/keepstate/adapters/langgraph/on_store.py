"""What the saver and the store of LangGraph share: how they are made from a location, set up and closed."""

from __future__ import annotations

from collections.abc import Generator
from os import PathLike
from typing import TYPE_CHECKING, Any, Self, cast

from keepstate.adapters.loop_handles import LoopHandles, OnHandles, Opened
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import CorruptError
from keepstate.stores.protocol import Store

if TYPE_CHECKING:
    from keepstate.stores.wrappers.encrypted import KeyRing


class Done:
    """The result of a call that had nothing to do; it may be awaited."""

    def __await__(self) -> Generator[None, None, Self]:
        yield from ()
        return self


class OnStore(OnHandles):
    """A class on a store with the constructors and the set-up that LangGraph's own classes have."""

    @classmethod
    def from_conn_string(
        cls, conn_string: str | PathLike[str] | Store | Keepstate, **options: Any
    ) -> Opened[Self]:
        """Return a block, for `with` and `async with`, that creates an object and closes it at its end.

        Args:
            conn_string: A store URL, or anything else that the class takes as its first argument.
            options: As for the class.
        """
        return Opened(lambda: cast("Any", cls)(conn_string, **options))

    def setup(self) -> Done:
        """Do nothing; LangGraph's own classes create their tables here. The result may be awaited."""
        return Done()


def open_handles(
    location: str | PathLike[str] | Store | Keepstate,
    *,
    tenant: str | None,
    author: str | None,
    encryption: KeyRing | None,
) -> LoopHandles:
    """Return handles that name a database of LangGraph's own, if the location is one."""
    return LoopHandles(location, tenant=tenant, author=author, encryption=encryption, explain=_explain)


def _explain(path: str, error: CorruptError) -> None:
    from keepstate.adapters.langgraph.official import reject_official  # loads LangGraph's own savers

    reject_official(path, error)
