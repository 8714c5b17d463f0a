"""Conditional requests of RFC 9110, section 13: entity tags, `If-Match` and `If-None-Match`.

Every tag that the server makes is strong. A weak tag of a client never matches `If-Match`, and matches
`If-None-Match` by its text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from keepstate.server.problems import RefusedError

_TAG: Final = re.compile(r'\s*(W/)?"([\x21\x23-\x7e\x80-\xff]*)"\s*(?:,|$)')
_LIST_CHARS: Final = 8_192
_ANY: Final = "*"


class Conditions(msgspec.Struct, frozen=True):
    """The conditions of one request.

    Attributes:
        match: Tags of `If-Match` without quotes, weak ones left out; `*` for any; None without the header.
        none_match: Tags of `If-None-Match`, weak ones too; `*` for any; None without the header.
    """

    match: frozenset[str] | str | None = None
    none_match: frozenset[str] | str | None = None

    def __bool__(self) -> bool:
        return self.match is not None or self.none_match is not None

    def check(self, version: str | None, *, is_read: bool, may_read: bool = True) -> bool:
        """Compare the version of the target, None if it is absent. Return whether a read is not modified.

        Args:
            version: The version, which a caller without the right to read is not told.
            is_read: Whether the request reads.
            may_read: Whether the caller has the right to read.

        Raises:
            RefusedError: 412, a condition is false, except `If-None-Match` of a read.
        """
        if self.match is not None and not _holds(self.match, version):
            raise _failed("If-Match", version, may_read=may_read)
        if self.none_match is None or not _holds(self.none_match, version):
            return False
        if is_read:
            return True
        raise _failed("If-None-Match", version, may_read=may_read)


def conditions_of(match: Iterable[str], none_match: Iterable[str]) -> Conditions:
    """Return the conditions in the values of the headers `If-Match` and `If-None-Match`.

    Raises:
        RefusedError: 400, a header is not a list of tags.
    """
    return Conditions(
        _tags("If-Match", ", ".join(match), with_weak=False),
        _tags("If-None-Match", ", ".join(none_match), with_weak=True),
    )


def tag_of(version: str) -> str:
    """Return the header `ETag` of a version."""
    return f'"{version}"'


def _holds(wanted: frozenset[str] | str, version: str | None) -> bool:
    return version is not None and (wanted == _ANY or version in wanted)


def _tags(header: str, text: str, *, with_weak: bool) -> frozenset[str] | str | None:
    if not text:
        return None
    if text.strip() == _ANY:
        return _ANY
    found: set[str] = set()
    at = 0
    while at < len(text):
        matched = _TAG.match(text, at) if len(text) <= _LIST_CHARS else None
        if matched is None:
            raise RefusedError(
                400, "malformed", f'{header} is not a list of tags; give "TAG", several with commas, or *'
            )
        if with_weak or not matched[1]:
            found.add(matched[2])
        at = matched.end()
    return frozenset(found)


def _failed(header: str, version: str | None, *, may_read: bool) -> RefusedError:
    now = "does not exist" if version is None else "is there, in another version"
    return RefusedError(
        412,
        "precondition_failed",
        f"{header} is not fulfilled: the target {now}. Read it again, and decide again",
        headers={"ETag": tag_of(version)} if may_read and version is not None else {},
    )
