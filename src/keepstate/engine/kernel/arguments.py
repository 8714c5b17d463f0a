"""Checks of public calls before any work: their arguments, and how a context manager is entered.

Errors name the argument or the call. Every value that passes can be stored and read back: a worker name that
is not text would make a record that cannot be decoded. `layout` checks names of documents and leases, and the
store sizes.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from functools import wraps
from math import ceil
from os import PathLike, fspath
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Generic, NoReturn, ParamSpec, TypeVar, cast

from keepstate import names
from keepstate._runner import Mode
from keepstate.engine.kernel.stored import to_milliseconds
from keepstate.errors import CorruptError, InvalidError
from keepstate.stores.protocol import LAST_REVISION
from keepstate.values import limits

P = ParamSpec("P")
T = TypeVar("T")

_LONGEST_S = limits.TTL_MS // 1000
_KINDS_OF_TYPES: Final = frozenset({"types", "typing", "typing_extensions"})
"""The modules of types that are not classes: `list[int]`, `int | None`, a `NewType`."""


def check_text(what: str, text: object) -> str:
    """Return the text as a plain str.

    Raises:
        InvalidError: It is not a str, or UTF-8 cannot encode it.
    """
    if not isinstance(text, str):
        raise InvalidError(f"`{what}` is {_format(text)}; give a str")
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidError(f"`{what}` is {_format(text)}, which UTF-8 cannot encode") from error
    return str.__str__(text)  # the value of a StrEnum member


def check_name(what: str, name: object) -> str:
    """Return the name of a worker or author, 1 to 512 bytes of UTF-8, as a plain str."""
    text = check_text(what, name)
    if not 0 < len(text.encode()) <= limits.KEY_BYTES:
        raise InvalidError(f"`{what}` is {_format(name)}; it has 1 to {limits.KEY_BYTES} bytes of UTF-8")
    return text


def check_text_keys(what: str, given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return a mapping with text keys as a dict. Mappings inside its values may have any keys.

    Raises:
        InvalidError: A key is not a str.
    """
    for key in given:
        if not isinstance(key, str):
            raise InvalidError(
                f"{what} has the key {_format(key)}; its keys are text, such as {str(key)[:60]!r}"
            )
    return dict(cast("Mapping[str, Any]", given))


def check_space_name(what: str, name: object, tenant: str | None = None) -> str:
    """Return the name of a space as a plain str. As stored, with its tenant, it has 1 to 200 bytes."""
    text = check_text(what, name)
    prefix = names.beginning(tenant)
    stored = names.stored_name(tenant, text)
    if not text or len(stored.encode()) > limits.SPACE_BYTES:
        most = limits.SPACE_BYTES - len(prefix.encode())
        where = "" if tenant is None else f" of tenant {_format(tenant)}"
        raise InvalidError(f"`{what}` is {_format(name)}; the name of a space{where} has 1 to {most} bytes")
    if names.is_reserved(stored):
        raise InvalidError(
            f"`{what}` is {_format(name)}; names that begin with {names.RESERVED!r} are those of "
            "keepstate's own spaces; give another name"
        )
    return text


def check_tenant(what: str, tenant: object) -> str | None:
    """Return the id of a tenant as a plain str; None means no tenant."""
    if tenant is None:
        return None
    text = check_text(what, tenant)
    if not text:
        raise InvalidError(f"`{what}` is empty; name a tenant, or give None for no tenant")
    if (size := len(names.beginning(text).encode())) >= limits.SPACE_BYTES:
        raise InvalidError(
            f"`{what}` is {_format(tenant)}, stored in {size} bytes; with the name of a space it has at most "
            f"{limits.SPACE_BYTES}: give a shorter id"
        )
    return text


def check_author(author: object) -> str | None:
    """Return the name of the author, or None."""
    return None if author is None else check_name("author", author)


def check_revision(what: str, revision: object) -> int:
    """Return a revision, 0 or more."""
    if type(revision) is not int or not 0 <= revision <= LAST_REVISION:
        raise InvalidError(f"`{what}` is {_format(revision)}; a revision is an int of 0 or more")
    return revision


def require_instance(what: str, given: object, *kinds: type) -> None:
    """Raise `InvalidError` unless the argument is an instance of one of these classes."""
    if not isinstance(given, kinds):
        wanted = " or ".join(kind.__name__ for kind in kinds)
        raise InvalidError(f"`{what}` is {_format(given)}; give {with_article(wanted)}")


def check_target(what: str, given: Any, mode: Mode, *kinds: type) -> Any:
    """Return a space, a transaction or a handle that was passed to a class of one mode.

    Raises:
        InvalidError: It is not an instance of `kinds`, or it has the other mode.
    """
    reject_twin(what, given)
    require_instance(what, given, *kinds)
    if given.runner.mode != mode:
        right = "keepstate" if given.runner.mode == "async" else "keepstate.sync"
        raise InvalidError(f"{given!r} is {given.runner.mode}; pass it to a class of {right}")
    return given


def reject_twin(what: str, given: object) -> None:
    """Raise `InvalidError` for a blocking twin, which holds its async object as `_inner`."""
    if hasattr(given, "_inner"):
        raise InvalidError(
            f"`{what}` is a blocking {type(given).__name__}; pass it to a class of keepstate.sync"
        )


def with_article(name: str) -> str:
    """Return the name of a class with its indefinite article."""
    return f"{'an' if name[:1].lower() in 'aeio' else 'a'} {name}"


def require_type(wanted: Any) -> None:
    """Raise `InvalidError` unless the argument is a class or another type."""
    if isinstance(wanted, type) or type(wanted).__module__ in _KINDS_OF_TYPES:
        return
    raise InvalidError(f"`type` is {_format(wanted)}; give a class, or a type such as list[int]")


def _format(given: object) -> str:
    text = repr(given)
    return f"{text if len(text) <= 60 else f'{text[:60]}…'} ({type(given).__name__})"


def check_path(what: str, path: str | PathLike[str]) -> str:
    """Return the path of a file as a str."""
    try:
        text: object = fspath(path)
    except TypeError:
        text = None
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidError(f"`{what}` is {_format(path)}; give the path of a file, as a str or Path")
    return text


def check_message(message: object) -> str:
    """Return the message of a write as a plain str; at most 64 KiB of UTF-8."""
    text = check_text("message", message)
    if len(text) > limits.MESSAGE_BYTES // 4 and (size := len(text.encode())) > limits.MESSAGE_BYTES:
        raise InvalidError(f"`message` has {size} bytes; at most {limits.MESSAGE_BYTES}")
    return text


def check_meta(meta: object) -> dict[str, str]:
    """Return notes on commits as a plain dict of text, at most 1 KiB of UTF-8; empty for None."""
    if meta is None:
        return {}
    if not isinstance(meta, Mapping):
        raise InvalidError(f"`meta` is {_format(meta)}; give a dict of text, such as {{'model': 'large'}}")
    notes: dict[str, str] = {}
    size = 0
    for key, value in cast("Mapping[object, object]", meta).items():
        name = check_text("a key of `meta`", key)
        if not name:
            raise InvalidError("a key of `meta` is empty; name what the note is about")
        notes[name] = check_text(f"meta[{name[:40]!r}]", value)
        size += len(name.encode()) + len(notes[name].encode())
    if size > limits.META_BYTES:
        raise InvalidError(
            f"`meta` has {size:,} bytes; it may have {limits.META_BYTES:,}: put long notes into the state"
        )
    return notes


def check_attribution(
    author: str | None, new_author: object, message: str, new_message: object
) -> tuple[str | None, str]:
    """Return the author and the message of a write: the new ones where given, otherwise the old ones."""
    return (
        author if new_author is None else check_author(new_author),
        message if new_message is None else check_message(new_message),
    )


def check_choice(what: str, chosen: object, *choices: object) -> None:
    """Raise `InvalidError` unless the argument is one of the choices."""
    if chosen not in choices:
        *others, last = map(repr, choices)
        raise InvalidError(f"`{what}` is {chosen!r}. Pass {', '.join(others)} or {last}.")


def check_meta_function(make: Any) -> Callable[[], Mapping[str, str]] | None:
    """Return the function that makes the notes on commits, or None."""
    if make is not None and (not callable(make) or inspect.iscoroutinefunction(make)):
        raise InvalidError(f"`meta` is {_format(make)}; give a plain function that returns a dict of text")
    return cast("Callable[[], Mapping[str, str]] | None", make)


def check_flag(what: str, flag: object) -> bool:
    """Return True or False."""
    if type(flag) is not bool:
        raise InvalidError(f"`{what}` is {_format(flag)}; it is True or False")
    return flag


# ---- durations


def check_duration_ms(name: str, seconds: float) -> int:
    """Return a positive duration in milliseconds, rounded up.

    Raises:
        InvalidError: It is not a positive number, or it is too large.
    """
    if type(seconds) not in (int, float) or not 0 < seconds <= _LONGEST_S:
        raise InvalidError(
            f"`{name}` is {seconds!r}; it must be more than 0 seconds and at most {_LONGEST_S}"
        )
    return ceil(seconds * 1000)


def check_delay_ms(name: str, seconds: float) -> int:
    """Return a duration of 0 or more in milliseconds, rounded up.

    Raises:
        InvalidError: It is not a number of 0 or more, or it is too large.
    """
    check_wait(name, seconds)
    return ceil(seconds * 1000)


def check_wait(name: str, seconds: float) -> None:
    """Raise `InvalidError` unless this is a duration of 0 seconds or more."""
    if type(seconds) not in (int, float) or not 0 <= seconds <= _LONGEST_S:
        raise InvalidError(f"`{name}` is {seconds!r}; it must be 0 seconds or more and at most {_LONGEST_S}")


def check_moment_ms(name: str, moment: object) -> int:
    """Return a time in milliseconds since 1970.

    Raises:
        InvalidError: It is not an aware datetime.
    """
    if not isinstance(moment, datetime) or moment.tzinfo is None or moment.utcoffset() is None:
        raise InvalidError(f"`{name}` is {_format(moment)}; give a datetime with a time zone")
    return to_milliseconds(moment)


# ---- context managers


def single_use(
    function: Callable[P, AsyncGenerator[T]],
) -> Callable[P, AbstractAsyncContextManager[T, bool | None]]:
    """Turn a function that yields once into one that returns a single-use async context manager.

    Entering its result twice raises an error that says so.
    """
    block = asynccontextmanager(function)

    @wraps(function)
    def make_block(*args: P.args, **kwargs: P.kwargs) -> AbstractAsyncContextManager[T, bool | None]:
        return _SingleUseBlock(function.__name__, block(*args, **kwargs))

    return make_block


def reject_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError` for an async context manager entered by `with`."""
    raise InvalidError(f"{entered!r} is async: use `async with`, or create it from keepstate.sync for `with`")


def reject_async_with(entered: object, *_: object) -> NoReturn:
    """Raise `InvalidError` for a blocking context manager entered by `async with`."""
    raise InvalidError(f"{entered!r} is blocking: use `with`, or create it from keepstate for `async with`")


def second_entry_error(call: str) -> InvalidError:
    """Return the error for entering a block twice."""
    return InvalidError(f"the result of {call}() was entered twice; call {call}() again for a new one")


class _SingleUseBlock(AbstractAsyncContextManager[T, bool | None], Generic[T]):
    def __init__(self, call: str, inner: AbstractAsyncContextManager[T, bool | None]) -> None:
        self._call, self._inner, self._is_used = call, inner, False

    def __repr__(self) -> str:
        return f"the result of {self._call}()"

    if not TYPE_CHECKING:  # a type checker reports the missing methods itself
        __enter__ = __exit__ = reject_with

    async def __aenter__(self) -> T:
        if self._is_used:
            raise second_entry_error(self._call)
        self._is_used = True
        return await self._inner.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._inner.__aexit__(kind, error, trace)


def parse_space_cursor(after: str | None) -> tuple[str | None, str | None]:
    """Return the tenant and the name of the last space of a page of all tenants."""
    if after is None:
        return None, None
    try:
        return names.parts_of(after)
    except CorruptError as error:
        raise InvalidError(
            f"`after` is {after!a}; give `next` of a page of list_spaces(tenant=ALL)"
        ) from error
