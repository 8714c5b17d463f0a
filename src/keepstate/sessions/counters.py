"""What a counter is called, so that another process knows whether what it has counted holds here too.

Counters that count differently have different names. What a counter does is told as far as that can be seen.
What cannot be seen, as a tokenizer of another package, is told by its `name`. Where it has none, nobody knows
if another process has the same: the counter's name is then one that no other process has.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final
from weakref import ref

from keepstate._clock import SystemClock
from keepstate.engine.events.fingerprint import title, traits
from keepstate.errors import InvalidError
from keepstate.sessions.messages import Counter
from keepstate.values import codec


class _Known:
    """What is known of objects, each as long as it lives; they may have an equality of their own."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[ref[Any], str]] = {}

    def of(self, thing: object, make: Callable[[], str]) -> str:
        """Return what is known of an object, or what is made now."""
        number = id(thing)
        known = self._of.get(number)
        if known is not None and known[0]() is thing:
            return known[1]
        made = make()
        with suppress(TypeError):  # else its place may become another's, and nobody would say so
            self._of[number] = ref(thing, lambda _: self._of.pop(number, None)), made
        return made


_names: Final = _Known()
_marks: Final = _Known()


def name_of(counter: Counter) -> str:
    """Return the name of a counter; what it holds is looked at once."""
    return _names.of(counter, lambda: _named(counter))


def _named(counter: Counter) -> str:
    digest = blake2b(digest_size=8)
    for part in traits(counter, unseen=_told):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return f"{title(counter)} {digest.hexdigest()}"


def _told(thing: object) -> str:
    """Return what tells an object of which nothing can be seen."""
    name = getattr(thing, "name", None)
    if isinstance(name, str):
        return f"name {name}"
    try:
        return codec.canonical(thing).hex()
    except InvalidError:
        return _marks.of(thing, lambda: SystemClock().random_bytes(8).hex())
