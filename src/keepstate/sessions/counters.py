"""Names of token counters, by which a process recognises token counts that another process stored.

Counters that count differently have different names. The name covers the counter's code and data as far as
they are visible. Opaque parts, such as the tokenizer of another package, are covered by their `name`
attribute. Without one the counter gets a random name, because other processes cannot know whether they use
the same counter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import Any, Final
from weakref import ref

from keepstate._clock import SystemClock
from keepstate.engine.events.fingerprint import fingerprint, qualified_name
from keepstate.errors import InvalidError
from keepstate.sessions.messages import Counter
from keepstate.values import codec


class _WeakCache:
    """Values by object identity, each dropped with its object; objects may define their own equality."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[ref[Any], str]] = {}

    def of(self, thing: object, make: Callable[[], str]) -> str:
        """Return the cached value of an object, or make and cache it."""
        number = id(thing)
        cached = self._of.get(number)
        if cached is not None and cached[0]() is thing:
            return cached[1]
        made = make()
        with suppress(TypeError):  # without a weak reference, a later object could reuse the id unnoticed
            self._of[number] = ref(thing, lambda _: self._of.pop(number, None)), made
        return made


_names: Final = _WeakCache()
_marks: Final = _WeakCache()


def name_of(counter: Counter) -> str:
    """Return the name of a counter. Its code and data are inspected once and cached."""
    return _names.of(counter, lambda: _make_name(counter))


def _make_name(counter: Counter) -> str:
    digest = blake2b(digest_size=8)
    for part in fingerprint(counter, unseen=_describe_opaque):
        digest.update(part.encode("utf-8", "surrogatepass") + b"\0")
    return f"{qualified_name(counter)} {digest.hexdigest()}"


def _describe_opaque(thing: object) -> str:
    """Return a text that identifies an object whose content is not visible."""
    name = getattr(thing, "name", None)
    if isinstance(name, str):
        return f"name {name}"
    try:
        return codec.canonical(thing).hex()
    except InvalidError:
        return _marks.of(thing, lambda: SystemClock().random_bytes(8).hex())
