"""The data of a machine as one object of it has them: what they were when read, and what was made of them.

Parts of data are the same if they would be stored alike: True is not 1, and an array has no truth of its own.
Pure, but for the encoding that it is given.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar

from keepstate.errors import ConflictError, InvalidError

Data: TypeAlias = dict[str, Any]
Encode: TypeAlias = Callable[[object], bytes]
_ABSENT: Final = object()


class _Record(Protocol):
    @property
    def data(self) -> Data: ...


R = TypeVar("R", bound=_Record)


@dataclass(frozen=True, slots=True)
class View(Generic[R]):
    """How a machine was read, and a copy of its data that its user changes.

    The two are one object, so that who takes them has both of one moment.
    """

    base: R
    data: Data = field(default_factory=dict[str, Any])


def merged(id: str, base: Data, mine: Data, theirs: Data, encode: Encode) -> Data:
    """Return what both have made of the data since the base, part by part.

    Raises:
        ConflictError: Both have changed the same part, and not alike.
    """
    made = dict(theirs)
    for key in _changed(base, mine, encode):
        before, own, other = (each.get(key, _ABSENT) for each in (base, mine, theirs))
        if not (_is_same(other, before, encode) or _is_same(other, own, encode)):
            raise ConflictError(
                f"data[{key!r}] of machine {id!r} was changed by somebody else; read it again"
            )
        _put(made, key, own)
    return made


def carried(since: Data, now: Data, onto: Data, encode: Encode) -> Data:
    """Return data with what was changed elsewhere since: that was changed last, and stands."""
    made = dict(onto)
    for key in _changed(since, now, encode):
        _put(made, key, now.get(key, _ABSENT))
    return made


def _changed(before: Data, after: Data, encode: Encode) -> list[str]:
    keys = (*before, *(key for key in after if key not in before))
    return [key for key in keys if not _is_same(before.get(key, _ABSENT), after.get(key, _ABSENT), encode)]


def _is_same(one: object, other: object, encode: Encode) -> bool:
    if one is _ABSENT or other is _ABSENT:
        return one is other
    try:
        return encode(one) == encode(other)
    except InvalidError:
        return False  # what cannot be stored was changed: whoever writes it is told where it stands


def _put(data: Data, key: str, value: object) -> None:
    if value is _ABSENT:
        data.pop(key, None)
    else:
        data[key] = value
