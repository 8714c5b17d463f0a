"""Validates the arguments of a saver before any work, and marks configs that go back in time.

Values are not converted to text, except numbers and UUIDs: callers that lost their thread id would otherwise
share the thread "None" and read the data of others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn, Self, TypeGuard, cast
from uuid import UUID

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from keepstate.adapters.langgraph.queries import Wanted
from keepstate.adapters.langgraph.records import Names
from keepstate.engine.kernel.arguments import check_text
from keepstate.errors import InvalidError

_PICKLE: Final = "or allow it in pickle=SignedPickle(…)"
_SERDE: Final = "or give a serializer of your own, serde=, that stores it"
_STRICT: Final = "JsonPlusSerializer(allowed_msgpack_modules=None)"

Address = tuple[str, str, str | None]
"""Thread, namespace, and checkpoint if one is named."""


def check_config(config: object) -> Address:
    """Return the thread, namespace and checkpoint that a config names.

    Raises:
        InvalidError: The config names no thread, or a name is not text.
    """
    named = _named("config", config)
    if "thread_id" not in named:
        raise InvalidError('the config names no thread; give {"configurable": {"thread_id": …}}')
    line, id = named.get("checkpoint_ns") or "", named.get("checkpoint_id") or None
    thread = check_thread(named["thread_id"])
    return thread, check_text("checkpoint_ns", line), None if id is None else check_text("checkpoint_id", id)


def _named(what: str, config: object) -> Mapping[str, Any]:
    named: object = None
    if _is_mapping(config):
        named = config.get("configurable", {})
    if not _is_mapping(named):
        raise InvalidError(f'`{what}` is {config!r}; give {{"configurable": {{"thread_id": …}}}}')
    return named


def _is_mapping(given: object) -> TypeGuard[Mapping[str, Any]]:
    # A dict is told at once: `isinstance` asks an abstract class in Python.
    return type(given) is dict or isinstance(given, Mapping)


def check_thread(given: object, what: str = "thread_id") -> str:
    """Return the id of a thread as text; it may be a number or a UUID."""
    if isinstance(given, int | UUID) and not isinstance(given, bool):
        return str(given)
    text = check_text(what, given)
    if not text:
        raise InvalidError(f"`{what}` is empty; give the id of a thread")
    return text


def check_ids(what: str, given: object) -> list[str]:
    """Return ids of threads or runs as texts."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidError(f"`{what}` is {given!r}; give a list of ids")
    return [check_thread(one, what) for one in cast("Iterable[object]", given)]


def check_channels(given: object) -> list[str]:
    """Return names of channels."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise InvalidError(f"`channels` is {given!r}; give a list of names")
    return [check_text("channels", one) for one in cast("Iterable[object]", given)]


def check_wanted(config: object, metadata: object, before: object, limit: object) -> Wanted:
    """Return the selection of checkpoints to list."""
    named: Mapping[str, Any] = {} if config is None else _named("config", config)
    thread, line, id = (named.get(name) for name in ("thread_id", "checkpoint_ns", "checkpoint_id"))
    if metadata is not None and not isinstance(metadata, Mapping):
        raise InvalidError(f"`filter` is {metadata!r}; give a dict of fields that the metadata must have")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidError(f"`limit` is {limit!r}; give a number of checkpoints, or None")
    before_id = None if before is None else _named("before", before).get("checkpoint_id")
    return Wanted(
        None if "thread_id" not in named else check_thread(thread),
        None if line is None else check_text("checkpoint_ns", line),
        None if not id else check_text("checkpoint_id", id),
        None if not before_id else check_text("before", before_id),
        cast("Mapping[str, Any]", metadata or {}),
        limit,
    )


def check_checkpoint(checkpoint: object, metadata: object) -> str:
    """Return the id of a checkpoint to store."""
    if not _is_mapping(checkpoint):
        raise InvalidError(f"`checkpoint` is {checkpoint!r}; give the checkpoint of a graph")
    if not _is_mapping(checkpoint.get("channel_values")):
        raise InvalidError("`checkpoint` has no `channel_values`; give the checkpoint of a graph")
    if not _is_mapping(metadata):
        raise InvalidError(f"`metadata` is {metadata!r}; give a dict")
    id = check_text("checkpoint[id]", checkpoint.get("id"))
    if not id:
        raise InvalidError("`checkpoint[id]` is empty; give the checkpoint of a graph")
    return id


def check_writes(writes: object, task: object, path: object) -> None:
    """Check the writes of a task."""
    check_text("task_id", task)
    check_text("task_path", path)
    if isinstance(writes, str | bytes) or not isinstance(writes, Sequence):
        raise InvalidError(f"`writes` is {writes!r}; give pairs of a channel and a value")
    for one in cast("Sequence[object]", writes):
        pair = cast("tuple[object, ...]", one)
        if not isinstance(one, tuple | list) or len(pair) != 2 or not isinstance(pair[0], str):
            raise InvalidError(f"`writes` has {one!r}; give pairs of a channel and a value")


def check_serde(serde: object) -> None:
    """Check a serializer: it may not import or call code that stored bytes name.

    A serializer inside an encrypting one is checked too. The cipher does not protect the type that a value is
    decoded as, so a user's encrypted bytes could be read as an object to create.
    """
    pairs = (("dumps_typed", "loads_typed"), ("dumps", "loads"))
    if not any(all(callable(getattr(serde, name, None)) for name in pair) for pair in pairs):
        raise InvalidError(
            f"`serde` is {serde!r}; give a serializer of LangGraph, with dumps_typed and loads_typed"
        )
    advice = f"give {_STRICT}, or a list of your classes instead of None"
    while isinstance(serde, EncryptedSerializer):
        serde = serde.serde
        advice = f"give {_STRICT} as the serializer inside the EncryptedSerializer, or a list of your classes"
    if isinstance(serde, JsonPlusSerializer) and (permitted := _permitted(serde)):
        raise InvalidError(f"`serde` runs code that stored bytes name: {permitted}; {advice}")


def _permitted(serde: JsonPlusSerializer) -> str:
    """Return the option that lets a serializer call any code that stored bytes name; empty without one."""
    # LangGraph has no public names for these. A missing one counts as permissive.
    named: Mapping[str, object] = vars(serde)
    if named.get("pickle_fallback", True):
        return "pickle_fallback=True loads any pickle"
    if named.get("_allowed_json_modules", True) is True:
        return "allowed_json_modules=True imports and calls any class"
    if named.get("_allowed_msgpack_modules", True) is True and not named.get("_custom_unpack_ext_hook"):
        return "allowed_msgpack_modules, which is True unless it is given, imports and calls any function"
    return ""


def raise_unstorable(error: InvalidError, names: Names, part: str = "", *, by: str = "") -> NoReturn:
    """Raise the error of a value that cannot be stored, with its checkpoint and its path.

    Args:
        error: The error of a value in a list of parts.
        names: The checkpoint of the value.
        part: The name of the part; empty if the error names it already.
        by: The task that wrote the value.
    """
    path, text = error.path or "", str(error).replace(_PICKLE, _SERDE)
    if part:
        prefix, path = f"{path}: ", part + path.partition("]")[2]
        text = f"cannot be stored: {path}: {text.removeprefix(prefix)}"
    what = f"checkpoint {names.id} of thread {names.thread!r}"
    if by:
        what = f"a write of task {by} on {what}"
    raise InvalidError(f"{what}{' ' if part else ': '}{text}", path=path) from error


# ---- going back in time


class Past(str):
    """The id of a checkpoint that is not the latest; a run that stores with this id forks on purpose.

    LangGraph builds the config that a run stores with from the config that the saver returned. The class of
    the id shows whether the saver returned it. A note in the saver or in a context variable would also apply
    to other callers who read old checkpoints at the same time.
    """

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        # As for a plain text, a subclass compares by its own rule.
        return str.__eq__(self, other) if type(other) in (str, Past) else NotImplemented

    def __ne__(self, other: object) -> bool:
        return str.__ne__(self, other) if type(other) in (str, Past) else NotImplemented

    __hash__ = str.__hash__

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


def as_past(found: CheckpointTuple, *, is_past: bool) -> CheckpointTuple:
    """Return a checkpoint whose configs allow a fork: at its parent, and at itself if it is in the past."""
    config = _past(found.config) if is_past else found.config
    parent = found.parent_config
    return found._replace(config=config, parent_config=None if parent is None else _past(parent))


def _past(config: RunnableConfig) -> RunnableConfig:
    named = config.get("configurable", {})
    return {**config, "configurable": named | {"checkpoint_id": Past(named["checkpoint_id"])}}
