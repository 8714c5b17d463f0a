"""Options of every command: the store, the form of the output, and the module that registers classes."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

from cyclopts import Parameter

from keepstate._deferral import defer_imports
from keepstate.cli.display import plain, shown, visible, write_json
from keepstate.errors import InvalidError, NotFoundError
from keepstate.names import DEFAULT_URL

if TYPE_CHECKING:
    import msgspec

    from keepstate import _runner
    from keepstate import opening as _opening
    from keepstate.adapters import opentelemetry as _telemetry
    from keepstate.engine.history import archive as _archive
    from keepstate.engine.kernel import observation as _observation
    from keepstate.engine.space import keepstate as _engine
    from keepstate.stores import urls as _urls
    from keepstate.values import builtin as _builtin
    from keepstate.values import codec as _codec
else:
    defer_imports(
        globals(),
        msgspec="msgspec",
        _runner="keepstate._runner",
        _archive="keepstate.engine.history.archive",
        _observation="keepstate.engine.kernel.observation",
        _engine="keepstate.engine.space.keepstate",
        _opening="keepstate.opening",
        _urls="keepstate.stores.urls",
        _codec="keepstate.values.codec",
        _builtin="keepstate.values.builtin",
    )


URL_VARIABLE = "KEEPSTATE_URL"
TRACE_VARIABLE = "KEEPSTATE_TRACE"
FILES = ("sqlite", "file")
_COMPARED = 1_000
"""The largest number of names that a mistyped one is compared with."""
_SIMILAR: Final = 0.8


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Session:
    """Options of every command."""

    url: Annotated[str | None, Parameter(help=f"The store; default: {URL_VARIABLE}, then {DEFAULT_URL}.")] = (
        None
    )
    json: Annotated[bool, Parameter(negative="", help="Print JSON: one document, or one on each line.")] = (
        False
    )
    tenant: Annotated[str | None, Parameter(help="The tenant of the spaces; default: none.")] = None
    app: Annotated[str | None, Parameter(help="Import this module first, to register its classes.")] = None
    archives: Annotated[
        Path | None, Parameter(help="Allow archives in this folder, if a space names one.")
    ] = None

    def chosen_url(self) -> str:
        """Return the URL from the option, the environment, or the default."""
        return self.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @asynccontextmanager
    async def opened(
        self, *, makes: bool = False, telemetry: _telemetry.Telemetry | None = None
    ) -> AsyncGenerator[_engine.Keepstate]:
        """Yield the store, opened, with values in builtin form.

        Args:
            telemetry: The observer of its operations, instead of that of `KEEPSTATE_TRACE`.
            makes: Whether the command may create the store. The store must then outlive the command. The
                other commands reject an absent store, because a typing error would look like an empty one.
        """
        self.load()
        if self.archives is not None:
            _archive.confirm_archives(self.archives)
        url = self.chosen_url()
        parsed = check_url(url)
        if makes:
            reject_memory(parsed)
        else:
            require_file(parsed)
        read = _codec.to_builtin if self.app is None else _upcast
        observe = trace_from_environment() if telemetry is None else telemetry
        meta = None if telemetry is None else telemetry.meta
        async with _engine.Keepstate(
            _opening.source_of(url, "async"), tenant=self.tenant, read=read, observe=observe, meta=meta
        ) as ks:
            yield ks

    def write(self, value: object, text: str) -> None:
        """Print a result: the value as one line of JSON, or the text."""
        write_json(value) if self.json else shown().print(plain(text))

    def command(self, *words: str) -> str:
        """Return a command for the same store that can be pasted; without the store's password."""
        if self.url is not None and self.url != (os.environ.get(URL_VARIABLE) or DEFAULT_URL):
            words = (*words, "--url", str(_urls.StoreUrl.parse(self.url)))
        if self.tenant is not None:
            words = (*words, "--tenant", self.tenant)
        return " ".join(["keepstate", *map(quote, words)])

    def reject_tenant(self) -> None:
        """Raise `InvalidError` if a tenant is given, for a command that covers the whole store."""
        if self.tenant is not None:
            raise InvalidError("this command covers the whole store; leave out --tenant")

    def load(self) -> None:
        """Import the application's module, which registers its classes."""
        if self.app is not None:
            sys.path.insert(0, os.getcwd())
            _import(self.app, f"--app {self.app}")


class Trace:
    """Prints each operation at its end, indented below the operation that it is part of.

    The lines name spaces and calls. They contain no document, value or text of an error, which may be secret.
    """

    def begin(self, operation: _observation.Operation) -> None:
        """Do nothing, because a line shows how an operation ended."""

    def end(self, operation: _observation.Operation) -> None:
        """Print one line."""
        depth, outer = 0, operation.parent
        while outer is not None:
            depth, outer = depth + 1, outer.parent
        words = [f"{operation.duration_s * 1000:9.2f} ms  {'  ' * depth}{operation.name}"]
        if operation.space is not None:
            words.append(f"space={operation.space}")
        if operation.tenant is not None:
            words.append(f"tenant={operation.tenant}")
        if operation.attempts > 1:
            words.append(f"attempts={operation.attempts}")
        if operation.revision:
            words.append(f"revision={operation.revision}")
        if operation.error is not None:
            words.append(f"error={type(operation.error).__name__}")
        print(visible(" ".join(words)), file=sys.stderr)


def trace_from_environment() -> _observation.Observer | None:
    """Return the observer of a command, or None unless the variable is set."""
    return Trace() if os.environ.get(TRACE_VARIABLE, "") not in ("", "0") else None


PLAIN: Final = Session()


def _import(module: str, what: str) -> Any:
    try:
        return import_module(module)
    except Exception as error:  # anything that the application's own module raises
        raise InvalidError(f"{what} cannot be imported: {type(error).__name__}: {error}") from error


def import_named(text: str, form: str) -> Any:
    """Return the object that `MODULE:NAME` names, imported from the current folder or the search path.

    Args:
        text: The module and the name.
        form: The form that an error asks for, such as `MODULE:FUNCTION`.
    """
    module, colon, name = text.partition(":")
    if not colon:
        raise InvalidError(f"{text!r} has no colon; write {form}")
    if "" not in sys.path:
        sys.path.insert(0, "")
    found = _import(module, text)
    try:
        return getattr(found, name)
    except Exception as error:  # AttributeError, or anything that the module's own __getattr__ raises
        raise InvalidError(f"{text} cannot be imported: {type(error).__name__}: {error}") from error


def check_url(url: str) -> _urls.StoreUrl:
    """Return the parts of a URL with a known scheme and known options; the store may be absent."""
    parsed = _urls.StoreUrl.parse(url)
    _opening.store_class(parsed.scheme).from_url(parsed, runner=_runner.runner_of("async"))
    return parsed


def require_file(url: _urls.StoreUrl) -> None:
    """Raise `NotFoundError` for the URL of an absent file."""
    if url.backend in FILES and not Path(url.path).exists():
        raise NotFoundError(
            f"there is no store at {url}; name another by --url or {URL_VARIABLE}, or create this one by "
            "`keepstate put`"
        )


async def require_space(ks: _engine.Keepstate, space: str) -> None:
    """Raise `NotFoundError` for an empty space, because its name may be mistyped."""
    if not await is_there(ks, space):
        hint = nearest(space, [name async for name in _names(ks)])
        raise NotFoundError(f"nothing is in space {space!r} of {ks.url}; {hint}`keepstate spaces` lists them")


def nearest(word: str, known: Sequence[str]) -> str:
    """Return a question that names the most similar of the known words; empty if none is similar."""
    near = get_close_matches(word, known, n=1, cutoff=_SIMILAR)
    return f"did you mean {near[0]!r}? " if near else ""


async def _names(ks: _engine.Keepstate) -> AsyncGenerator[str]:
    """Yield the names of the first spaces, to find one that was meant."""
    left = _COMPARED
    async for name in ks.spaces():
        yield name
        if (left := left - 1) == 0:
            return


async def is_there(ks: _engine.Keepstate, space: str) -> bool:
    """Return whether a space holds data."""
    async for name in ks.spaces(space):
        return name == space
    return False


def reject_memory(url: _urls.StoreUrl) -> None:
    """Raise `InvalidError` for a store in memory, for a command whose result must outlive it."""
    if url.backend == "memory":
        raise InvalidError(
            f"{url} ends with this command, and what it wrote too; give {DEFAULT_URL} or a server"
        )


def _upcast(encoded: bytes) -> Any:
    """Return the builtin form of a value in the current version of the application's classes."""
    return _codec.to_builtin(_codec.encode(_codec.decode(encoded)))


def quote(word: str) -> str:
    """Return a word as a shell takes it."""
    if re.fullmatch(r"\w[\w./:#~@-]*|--[a-z]+", word):
        return word
    return shlex.quote(word) if re.search(r'["$`!\\]', word) else f'"{word}"'


def read_value(text: str) -> Any:
    """Return the value of typed JSON, or of JSON on standard input for `-`."""
    given = sys.stdin.read() if text == "-" else text
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidError(
            f"{given[:40]!r} is not JSON ({error}); text needs quotes: '\"like this\"'"
        ) from error
    _reject_forms(value)
    return value


def _reject_forms(value: object) -> None:
    """Raise `InvalidError` for the form in which `get` shows a type that JSON does not have."""
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if _builtin.TYPE in fields:
            raise InvalidError(
                f"a {fields[_builtin.TYPE]!r} would be stored as the dict that shows it: put takes plain "
                f"JSON without {_builtin.TYPE!r}; write such a value from Python"
            )
        parts = fields.values()
    elif isinstance(value, list):
        parts = cast("list[object]", value)
    for part in parts:
        _reject_forms(part)
