"""What a saver may be asked: what cannot work is refused in words, before anything is done.

Nothing is made a text that is none: all whose id was lost would share a thread, and read one another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, cast
from uuid import UUID

from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.queries import Wanted
from keepstate.adapters.langgraph.records import Names
from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError

_PICKLE: Final = "or allow it in pickle=SignedPickle(…)"
_SERDE: Final = "or give a serializer of your own, serde=, that stores it"
_STRICT: Final = "JsonPlusSerializer(allowed_msgpack_modules=None)"

Place = tuple[str, str, str | None]
"""Thread, namespace, and checkpoint if one is named."""


def place_in(config: object) -> Place:
    """Return what a config names.

    Raises:
        InvalidError: It names no thread, or what it names is no name.
    """
    named = _named("config", config)
    if "thread_id" not in named:
        raise InvalidError('the config names no thread; give {"configurable": {"thread_id": …}}')
    line, id = named.get("checkpoint_ns") or "", named.get("checkpoint_id") or None
    thread = thread_named(named["thread_id"])
    return thread, check_text("checkpoint_ns", line), None if id is None else check_text("checkpoint_id", id)


def _named(what: str, config: object) -> Mapping[str, Any]:
    named: object = None
    if isinstance(config, Mapping):
        named = cast("Mapping[str, object]", config).get("configurable", {})
    if not isinstance(named, Mapping):
        raise InvalidError(f'`{what}` is {config!r}; give {{"configurable": {{"thread_id": …}}}}')
    return cast("Mapping[str, Any]", named)


def thread_named(given: object, what: str = "thread_id") -> str:
    """Return the id of a thread, which may be a number or a UUID, as text."""
    if isinstance(given, int | UUID) and not isinstance(given, bool):
        return str(given)
    text = check_text(what, given)
    if not text:
        raise InvalidError(f"`{what}` is empty; give the id of a thread")
    return text


def named_all(what: str, given: object) -> list[str]:
    """Return ids of threads or run as texts."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidError(f"`{what}` is {given!r}; give a list of ids")
    return [thread_named(one, what) for one in cast("Iterable[object]", given)]


def channels_named(given: object) -> list[str]:
    """Return names of channels."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidError(f"`channels` is {given!r}; give a list of names")
    return [check_text("channels", one) for one in cast("Iterable[object]", given)]


def admit_wanted(config: object, metadata: object, before: object, limit: object) -> Wanted:
    """Return which checkpoints are asked for."""
    named: Mapping[str, Any] = {} if config is None else _named("config", config)
    thread, line, id = (named.get(name) for name in ("thread_id", "checkpoint_ns", "checkpoint_id"))
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidError(f"`filter` is {metadata!r}; give a dict of what metadata must have")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidError(f"`limit` is {limit!r}; give how many at most, or None")
    before_id = None if before is None else _named("before", before).get("checkpoint_id")
    return Wanted(
        None if "thread_id" not in named else thread_named(thread),
        None if line is None else check_text("checkpoint_ns", line),
        None if not id else check_text("checkpoint_id", id),
        None if not before_id else check_text("before", before_id),
        cast("Mapping[str, Any]", metadata or {}),
        limit,
    )


def admit_checkpoint(checkpoint: object, metadata: object) -> str:
    """Return the id of a checkpoint that can be stored."""
    if not isinstance(checkpoint, Mapping):
        raise InvalidError(f"`checkpoint` is {checkpoint!r}; give what a graph makes")
    given = cast("Mapping[str, object]", checkpoint)
    if not isinstance(given.get("channel_values"), Mapping):
        raise InvalidError("`checkpoint` has no `channel_values`; give what a graph makes")
    if not isinstance(metadata, Mapping):
        raise InvalidError(f"`metadata` is {metadata!r}; give a dict")
    id = check_text("checkpoint[id]", given.get("id"))
    if not id:
        raise InvalidError("`checkpoint[id]` is empty; give what a graph makes")
    return id


def admit_writes(writes: object, task: object, path: object) -> None:
    """Raise `InvalidError` unless these are writes of a task."""
    check_text("task_id", task)
    check_text("task_path", path)
    if isinstance(writes, str | bytes) or not isinstance(writes, Sequence):
        raise InvalidError(f"`writes` is {writes!r}; give pairs of a channel and a value")
    for one in cast("Sequence[object]", writes):
        pair = cast("tuple[object, ...]", one)
        if not isinstance(one, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidError(f"`writes` has {one!r}; give pairs of a channel and a value")


def admit_serde(serde: object) -> None:
    """Raise `InvalidError` for an object that is not a serializer, and for one that runs what bytes name.

    A serializer inside one that encrypts is judged too: the cipher does not bind the type that a value is
    decoded as, so that a user's encrypted bytes could be read as an object to make.
    """
    pairs = (("dumps_typed", "loads_typed"), ("dumps", "loads"))
    if not any(all(callable(getattr(serde, name, None)) for name in pair) for pair in pairs):
        raise InvalidError(
            f"`serde` is {serde!r}; give a serializer of LangGraph, with dumps_typed and loads_typed"
        )
    advice = f"give {_STRICT}, or a list of your classes in the place of None"
    while isinstance(serde, EncryptedSerializer):
        serde = serde.serde
        advice = f"give {_STRICT} as the serializer inside the EncryptedSerializer, or a list of your classes"
    if isinstance(serde, JsonPlusSerializer) and (permitted := _permitted(serde)):
        raise InvalidError(f"`serde` runs what stored bytes name: {permitted}; {advice}")


def _permitted(serde: JsonPlusSerializer) -> str:
    """Return the option by which a serializer calls whatever stored bytes name; empty if it has none."""
    # LangGraph has no public name for them. Where one is missing, the serializer counts as permissive.
    named: Mapping[str, object] = vars(serde)
    if named.get("pickle_fallback", True):
        return "pickle_fallback=True loads any pickle"
    if named.get("_allowed_json_modules", True) is True:
        return "allowed_json_modules=True imports and calls any class"
    if named.get("_allowed_msgpack_modules", True) is True and not named.get("_custom_unpack_ext_hook"):
        return "allowed_msgpack_modules, which is True unless it is given, imports and calls any function"
    return ""


def refuse(error: InvalidError, names: Names, part: str = "", *, by: str = "") -> NoReturn:
    """Raise that something cannot be stored, by its own name and in words that help here.

    Args:
        error: The error of a value in a list of parts.
        names: The checkpoint that it belongs to.
        part: What the part is called; where nothing is said, the error names it already.
        by: The task that has written it.
    """
    path, text = error.path or "", str(error).replace(_PICKLE, _SERDE)
    if part:
        place, path = f"{path}: ", part + path.partition("]")[2]
        text = f"cannot be stored: {path}: {text.removeprefix(place)}"
    what = f"checkpoint {names.id} of thread {names.thread!r}"
    if by:
        what = f"what task {by} has written on {what}"
    raise InvalidError(f"{what}{' ' if part else ': '}{text}", path=path) from error
