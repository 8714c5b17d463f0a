"""Token counters: their stored names, and counts by tiktoken. Only this module imports tiktoken.

By the name a process recognises token counts that another process stored. Counters that count differently
have different names. The name covers the counter's code and data as far as they are visible. Opaque parts,
such as the tokenizer of another package, are covered by their `name` attribute. Without one the counter gets
a random name, because other processes cannot know whether they use the same counter.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

import msgspec

from keepstate._clock import SystemClock
from keepstate.engine.events.reducers import fingerprint, qualified_name
from keepstate.errors import InvalidError, MissingExtraError, UnsupportedError
from keepstate.sessions.messages import MEDIA_TOKENS, Counter, Message, is_media, seen, split_blocks
from keepstate.values import codec
from keepstate.values.builtin import json_form

if TYPE_CHECKING:
    from tiktoken import Encoding


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


DEFAULT_ENCODING: Final = "o200k_base"
_BY_MESSAGE: Final = 3
_BY_NAME: Final = 1


class TokenCounter:
    """A counter for `BoundedState`: 3 tokens for a message plus those of its text, with tool calls as JSON.

    A block of a picture, a recording or a file counts 1,000.

    Args:
        encoding: The name of an encoding, whose table tiktoken downloads once; or an `Encoding`.
    """

    def __init__(self, encoding: str | Encoding = DEFAULT_ENCODING) -> None:
        if not isinstance(encoding, str) and not callable(getattr(encoding, "encode_ordinary", None)):
            raise InvalidError(
                f"{encoding!r} is not an encoding. Pass the name of one, or a tiktoken.Encoding."
            )
        self._encoding = encoding

    def __repr__(self) -> str:
        return f"<TokenCounter {self.name}>"

    @property
    def name(self) -> str:
        """The name of the encoding, which also identifies token counts of other processes."""
        return self._encoding if isinstance(self._encoding, str) else self._encoding.name

    def __call__(self, message: Message) -> int:
        """Return the number of tokens of a message.

        Raises:
            MissingExtraError: tiktoken is not installed.
            InvalidError: tiktoken has no encoding of this name.
            UnsupportedError: The encoding's table is not stored locally and cannot be downloaded.
        """
        if isinstance(self._encoding, str):
            self._encoding = _loaded(self._encoding)
        count = _BY_MESSAGE
        for name, part in seen(message):
            count += _BY_NAME if name == "name" and part is not None else 0
            for path, piece in split_blocks(name, part):
                if is_media(piece):
                    count += MEDIA_TOKENS
                elif piece is not None:
                    is_text = isinstance(piece, str)
                    text = piece if is_text else msgspec.json.encode(json_form(piece, path)).decode()
                    count += len(self._encoding.encode_ordinary(text))
        return count


def _loaded(name: str) -> Encoding:
    try:
        import tiktoken
    except ImportError as error:
        install = "pip install 'keepstate[tokens]'"
        raise MissingExtraError(f"TokenCounter needs tiktoken. Run: {install}", install=install) from error
    if name not in tiktoken.list_encoding_names():
        known = ", ".join(sorted(tiktoken.list_encoding_names()))
        raise InvalidError(f"tiktoken has no encoding {name!r}. It has {known}.")
    try:
        return tiktoken.get_encoding(name)
    except Exception as error:  # any error of the network, a proxy or the file system
        raise UnsupportedError(
            f"The table of encoding {name!r} is not stored locally and cannot be downloaded "
            f"({type(error).__name__}). Put it into the folder named by TIKTOKEN_CACHE_DIR, pass "
            "TokenCounter a tiktoken.Encoding, or count with estimate_tokens."
        ) from error
