"""What every command has: which store, in what form to show it, and which classes to load."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import IO, Annotated, Any, Final, cast

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.highlighter import JSONHighlighter
from rich.text import Text

from keepstate._runner import runner_of
from keepstate.engine.history.archive import confirm_archives
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError, NotFoundError
from keepstate.opening import DEFAULT_URL, source_of, store_class
from keepstate.stores.urls import StoreUrl
from keepstate.values import codec
from keepstate.values.builtin import TYPE, json_form

URL_VARIABLE = "KEEPSTATE_URL"
FILES = ("sqlite", "file")

_SHORT: Final = {"\t": r"\t", "\n": r"\n", "\r": r"\r"}
_STYLES: Final = "\n\r\t\x1b\x07"
"""Control sequences that rich writes: ends of lines, colours, moves of a progress bar, and links."""


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class Session:
    """Options of every command."""

    url: Annotated[str | None, Parameter(help=f"The store; default: {URL_VARIABLE}, then {DEFAULT_URL}.")] = (
        None
    )
    json: Annotated[bool, Parameter(negative="", help="Print JSON, one document or one a line.")] = False
    tenant: Annotated[str | None, Parameter(help="The tenant whose spaces are meant, if any.")] = None
    app: Annotated[str | None, Parameter(help="Import this module first; it registers classes.")] = None
    archives: Annotated[
        Path | None, Parameter(help="Read archives in this folder, if a space names one.")
    ] = None

    def chosen_url(self) -> str:
        """Return the URL from the option, the environment, or the default."""
        return self.url or os.environ.get(URL_VARIABLE) or DEFAULT_URL

    @asynccontextmanager
    async def opened(self, *, makes: bool = False) -> AsyncGenerator[Keepstate]:
        """Yield the store, opened, with values in builtin form.

        Args:
            makes: Whether the command may make a store where there is none, which then has to outlive it.
                Otherwise a slip of the pen in a URL would look like an empty store.
        """
        self.load()
        if self.archives is not None:
            confirm_archives(self.archives)
        url = self.chosen_url()
        parsed = checked(url)
        if makes:
            refuse_memory(parsed)
        else:
            refuse_absent(parsed)
        read = codec.to_builtin if self.app is None else _brought_up_to_date
        async with Keepstate(source_of(url, "async"), tenant=self.tenant, read=read) as ks:
            yield ks

    def command(self, *words: str) -> str:
        """Return a command that can be pasted: for the same store, its password left out."""
        if self.url is not None and self.url != (os.environ.get(URL_VARIABLE) or DEFAULT_URL):
            words = (*words, "--url", str(StoreUrl.parse(self.url)))
        if self.tenant is not None:
            words = (*words, "--tenant", self.tenant)
        return " ".join(["keepstate", *map(quoted, words)])

    def refuse_tenant(self) -> None:
        """Raise `InvalidError` for a command that is about the whole store if a tenant is given."""
        if self.tenant is not None:
            raise InvalidError("this command is about the whole store; leave --tenant out")

    def load(self) -> None:
        """Import the application's module, which registers its classes."""
        if self.app is None:
            return
        sys.path.insert(0, os.getcwd())
        try:
            import_module(self.app)
        except Exception as error:  # whatever the application's own module raises
            raise InvalidError(
                f"--app {self.app} cannot be imported: {type(error).__name__}: {error}"
            ) from error


def checked(url: str) -> StoreUrl:
    """Return the parts of a URL whose scheme and options are right, whether or not anything is there."""
    parsed = StoreUrl.parse(url)
    store_class(parsed.scheme).from_url(parsed, runner=runner_of("async"))
    return parsed


def refuse_absent(url: StoreUrl) -> None:
    """Raise `NotFoundError` for a file that is not there, where nothing is to be made."""
    if url.backend in FILES and not Path(url.path).exists():
        raise NotFoundError(f"there is no store at {url}; `keepstate put` would make one")


async def refuse_nothing(ks: Keepstate, space: str) -> None:
    """Raise `NotFoundError` where nothing is in a space: its name may be mistyped."""
    if not await is_there(ks, space):
        raise NotFoundError(f"nothing is in space {space!r} of {ks.url}; `keepstate spaces` lists them")


async def is_there(ks: Keepstate, space: str) -> bool:
    """Return whether a space holds something."""
    async for name in ks.spaces(space):
        return name == space
    return False


def refuse_memory(url: StoreUrl) -> None:
    """Raise `InvalidError` for a store that ends with this process, where something is to be kept."""
    if url.backend == "memory":
        raise InvalidError(
            f"{url} ends with this command, and what it wrote too; give {DEFAULT_URL} or a server"
        )


def _brought_up_to_date(encoded: bytes) -> Any:
    """Return the builtin form after the application's upcasters."""
    return codec.to_builtin(codec.encode(codec.decode(encoded)))


class Terminal(Console):
    """A console that prints nothing on which a terminal would act, but for its own styles.

    A closed pipe is left to `commands.run`.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print objects; a text as `visible` returns it, line by line."""
        texts = (visible(one, keep="\n") if isinstance(one, str) else one for one in objects)
        super().print(*texts, **options)

    @property
    def file(self) -> IO[str]:
        """Return the stream, behind which nothing is left to escape."""
        is_plain = getattr(self, "_color_system", None) is None
        return cast("IO[str]", _Escaping(super().file, "\n" if is_plain else _STYLES))

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def on_broken_pipe(self) -> None:
        """Leave it to `commands.run` that nobody reads the output any more."""
        raise BrokenPipeError


class _Escaping:
    """A stream whose text passes `visible`.

    Args:
        stream: The stream.
        keep: Characters that rich itself writes there.
    """

    def __init__(self, stream: IO[str], keep: str) -> None:
        self._stream, self._keep = stream, keep

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write a text."""
        return self._stream.write(visible(text, keep=self._keep))


def said() -> Console:
    """Return where messages and progress go."""
    return Terminal(stderr=True, highlight=False, soft_wrap=True)


def shown() -> Console:
    """Return where results go."""
    return Terminal(highlight=False, soft_wrap=not sys.stdout.isatty())


def plain(text: str) -> Text:
    """Return stored text for a table: its brackets are no markup, its control characters harmless."""
    return Text(visible(text))


def quoted(word: str) -> str:
    """Return a word as a shell takes it."""
    if re.fullmatch(r"\w[\w./:#~@-]*|--[a-z]+", word):
        return word
    return shlex.quote(word) if re.search(r'["$`!\\]', word) else f'"{word}"'


def visible(text: str, *, keep: str = "") -> str:
    """Return text without characters on which a terminal would act, each written as JSON escapes it.

    These are all that are not printable: the control characters (C0, DEL, C1) and those that are not seen,
    such as the ones that turn the direction of a line.

    Args:
        text: The text.
        keep: Characters that are left as they are.
    """
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() or sign in keep else _escape(sign) for sign in text)


def _escape(sign: str) -> str:
    if sign in _SHORT:
        return _SHORT[sign]
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def write_json(value: object) -> None:
    """Print one JSON document on a line of its own."""
    sys.stdout.write(text_of(value) + "\n")
    sys.stdout.flush()


def text_of(value: object) -> str:
    """Return a stored value as one line of JSON."""
    return visible(msgspec.json.encode(json_form(value)).decode())


def write_indented(value: object) -> None:
    """Print a stored value as JSON over several lines."""
    text = msgspec.json.format(text_of(value), indent=2)
    shown().print(JSONHighlighter()(Text(text)), soft_wrap=True)


def read_value(text: str) -> Any:
    """Return what a user has typed: JSON, or `-` for JSON on standard input."""
    given = sys.stdin.read() if text == "-" else text
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError) as error:
        raise InvalidError(
            f"{given[:40]!r} is no JSON ({error}); text needs quotes: '\"like this\"'"
        ) from error
    _refuse_forms(value)
    return value


def _refuse_forms(value: object) -> None:
    """Raise `InvalidError` for what `get` shows in place of a type that JSON does not have."""
    parts: Iterable[object] = ()
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        if TYPE in fields:
            raise InvalidError(
                f"a {fields[TYPE]!r} would be stored as the dict that shows it: put takes plain JSON without "
                f"{TYPE!r}; write such a value from Python"
            )
        parts = fields.values()
    elif isinstance(value, list):
        parts = cast("list[object]", value)
    for part in parts:
        _refuse_forms(part)
