"""The parts of a request: its headers and its parameters, each read in one pass.

Invariant: a repeated header or parameter is never lost, so that what was judged is what is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from starlette.types import Scope


class RequestHeaders(Mapping[str, str]):
    """The headers of a request by their names in lower case; of a repeated one the first value."""

    __slots__ = ("_first", "_repeated")

    def __init__(self, scope: Scope) -> None:
        first: dict[str, str] = {}
        repeated: dict[str, list[str]] | None = None
        for name_bytes, value_bytes in scope["headers"]:
            name, value = name_bytes.decode("latin-1"), value_bytes.decode("latin-1")
            if name in first:
                repeated = {} if repeated is None else repeated
                repeated.setdefault(name, [first[name]]).append(value)
            else:
                first[name] = value
        self._first, self._repeated = first, repeated

    def __getitem__(self, name: str) -> str:
        return self._first[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._first)

    def __len__(self) -> int:
        return len(self._first)

    def __contains__(self, name: object) -> bool:
        return name in self._first

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a header, or the default."""
        return self._first.get(name, default)

    def all_of(self, name: str) -> list[str]:
        """Return all values of a header."""
        if self._repeated is not None and name in self._repeated:
            return self._repeated[name]
        return [self._first[name]] if name in self._first else []


def parameters_in(query: bytes) -> Iterator[tuple[str, str]]:
    """Yield the parameters of a query string, repeated ones too."""
    for part in query.split(b"&"):
        if part:
            name, _, value = part.partition(b"=")
            yield (
                (_unquote(name) if b"%" in name or b"+" in name else name).decode("utf-8", "replace"),
                (_unquote(value) if b"%" in value or b"+" in value else value).decode("utf-8", "replace"),
            )


def _unquote(part: bytes) -> bytes:
    return unquote_to_bytes(part.replace(b"+", b" "))
