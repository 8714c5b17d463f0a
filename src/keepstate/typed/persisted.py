"""The exported form of a state: JSON by key name, also for keys that are not registered here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from keepstate.errors import StateError
from keepstate.typed.forms import require_json
from keepstate.typed.key import UNKNOWN_VERSION, EncodedValue, Json, KeyScope, decode_stored
from keepstate.typed.layout import RUN_SLOTS, key_in, slot_of
from keepstate.typed.registry import Registered
from keepstate.values import codec

Unknown = Literal["keep", "error", "skip"]
"""The handling of unregistered keys when a state is restored."""


@dataclass(frozen=True, slots=True)
class PersistedState:
    """The serialized form of a state; all of it is JSON.

    NaN and infinities are included as `json` writes and reads them, as `NaN` and `Infinity`.

    Attributes:
        revision: The revision of the export.
        extensions: The values by key name.
        versions: The class versions that encoded the values. A value without a version can be read only by a
            class of version 1, because it is unknown whether `upgrade` was applied.
        run_scoped: The names of run-scoped keys; for a registered key its own scope applies.
    """

    revision: int
    extensions: dict[str, Json]
    versions: dict[str, int] = field(default_factory=dict[str, int])
    run_scoped: list[str] = field(default_factory=list[str])


def export_state(
    revision: int, slots: Mapping[str, EncodedValue], registered: Mapping[str, Registered]
) -> PersistedState:
    """Return the persistent values of registered keys, and the values of other keys."""
    extensions: dict[str, Json] = {}
    versions: dict[str, int] = {}
    run_scoped: list[str] = []
    for slot in sorted(slots):
        name = key_in(slot)
        known = registered.get(name)
        if known is not None and (not known.persistent or slot_of(known.scope, name) != slot):
            continue
        stored = slots[slot]
        extensions[name] = stored.raw
        versions.pop(name, None)
        if stored.version != UNKNOWN_VERSION:
            versions[name] = stored.version
        if slot.startswith(RUN_SLOTS):
            run_scoped.append(name)
        elif name in run_scoped:
            run_scoped.remove(name)
    return PersistedState(revision, extensions, versions, run_scoped)


def decode_state(
    state: PersistedState,
    registered: Mapping[str, Registered],
    unknown: Unknown,
    scope: KeyScope | None = None,
) -> dict[str, EncodedValue]:
    """Return the slots of a persisted state, of one scope or both.

    Raises:
        StateError: A value cannot be read, or its key is not registered and `unknown` is `error`.
    """
    if unknown not in ("keep", "error", "skip"):
        raise StateError(f"`unknown` is {unknown!r}. Pass 'keep', 'error' or 'skip'.")
    check_scope(scope)
    _check(state)
    slots: dict[str, EncodedValue] = {}
    for name, raw in state.extensions.items():
        version = state.versions.get(name, UNKNOWN_VERSION)
        known = registered.get(name)
        value_scope = KeyScope.RUN if name in state.run_scoped else KeyScope.THREAD
        if scope not in (None, value_scope if known is None else known.scope):
            continue
        require_json(raw, name)
        if known is not None:
            decode_stored(known.key, codec.decode(codec.encode(raw)), version)
            value_scope = known.scope
        elif unknown == "skip":
            continue
        elif unknown == "error":
            raise StateError(
                f"Key {name!r} of the state is not registered. Install its plugin first, or pass "
                "unknown='keep'.",
                state_key=name,
            )
        slots[slot_of(value_scope, name)] = EncodedValue(codec.encode(raw), version, state.revision)
    return slots


def check_scope(scope: object) -> None:
    """Raise `StateError` unless the argument is a scope or None."""
    if scope is not None and not isinstance(scope, KeyScope):
        raise StateError(f"`scope` is {scope!r}. Pass KeyScope.RUN, KeyScope.THREAD or None.")


def _check(state: PersistedState) -> None:
    given: Any = state
    if not isinstance(given, PersistedState):
        raise StateError(f"{given!r} is not a PersistedState. Pass the result of export_persisted().")
    revision, extensions, versions, run_scoped = cast(
        "tuple[Any, Any, Any, Any]", (state.revision, state.extensions, state.versions, state.run_scoped)
    )
    if type(revision) is not int or revision < 0:
        raise StateError(f"the state has revision {revision!r}; a revision is an int of 0 or more")
    if not isinstance(extensions, dict) or not all(type(name) is str and name for name in state.extensions):
        raise StateError("The extensions of the state are not a dict of names and values.")
    if type(run_scoped) is not list or not all(type(name) is str for name in state.run_scoped):
        raise StateError(f"The run-scoped names of the state are {run_scoped!r}. Pass a list of names.")
    if not isinstance(versions, dict) or not all(
        type(name) is str and type(version) is int and version > 0 for name, version in state.versions.items()
    ):
        raise StateError(f"The versions of the state are {versions!r}. Pass a dict of integers from 1.")
