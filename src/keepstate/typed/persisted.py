"""The state as storage has it: JSON by name of key, whether or not the key is registered here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

from keepstate.errors import StateError
from keepstate.typed.encoded_value import Kept
from keepstate.typed.forms import admit_json
from keepstate.typed.key import UNSAID, Json, KeyScope, opened
from keepstate.typed.layout import RUN_SLOTS, key_in, slot_of
from keepstate.typed.options import Registered
from keepstate.values import codec

Unknown = Literal["keep", "error", "skip"]
"""What becomes of values whose key is not registered when a state is restored."""


@dataclass(frozen=True, slots=True)
class PersistedState:
    """The serialized form of a state; all of it is JSON.

    NaN and infinities, where values have them, are what `json` writes and reads as `NaN` and `Infinity`.

    Attributes:
        revision: The revision that it was exported at.
        extensions: The values by name of key.
        versions: The versions of the keys' classes that made them. What is not named can be read by a class
            of version 1 only: nobody knows whether an `upgrade` has been done.
        run_scoped: The names of keys whose values live as long as a run; a registered key knows that itself.
    """

    revision: int
    extensions: dict[str, Json]
    versions: dict[str, int] = field(default_factory=dict[str, int])
    run_scoped: list[str] = field(default_factory=list[str])


def exported(
    revision: int, slots: Mapping[str, Kept], registered: Mapping[str, Registered]
) -> PersistedState:
    """Return what is persistent, and what belongs to keys that are not registered here."""
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
        if stored.version != UNSAID:
            versions[name] = stored.version
        if slot.startswith(RUN_SLOTS):
            run_scoped.append(name)
        elif name in run_scoped:
            run_scoped.remove(name)
    return PersistedState(revision, extensions, versions, run_scoped)


def restored(
    state: PersistedState,
    registered: Mapping[str, Registered],
    unknown: Unknown,
    scope: KeyScope | None = None,
) -> dict[str, Kept]:
    """Return the slots that a persisted state stands for, or those of one scope.

    Raises:
        StateError: A value cannot be read, or belongs to no registered key and `unknown` is `error`.
    """
    if unknown not in ("keep", "error", "skip"):
        raise StateError(f"`unknown` is {unknown!r}; give 'keep', 'error' or 'skip'")
    admit_scope(scope)
    _admit(state)
    slots: dict[str, Kept] = {}
    for name, raw in state.extensions.items():
        version = state.versions.get(name, UNSAID)
        known = registered.get(name)
        kept_scope = KeyScope.RUN if name in state.run_scoped else KeyScope.THREAD
        if scope not in (None, kept_scope if known is None else known.scope):
            continue
        admit_json(raw, name)
        if known is not None:
            opened(known.key, codec.decode(codec.encode(raw)), version)
            kept_scope = known.scope
        elif unknown == "skip":
            continue
        elif unknown == "error":
            raise StateError(
                f"{name!r} is in the state and not registered; install its plugin first, or restore with "
                "unknown='keep'",
                state_key=name,
            )
        slots[slot_of(kept_scope, name)] = Kept(codec.encode(raw), version, state.revision)
    return slots


def admit_scope(scope: object) -> None:
    """Raise `StateError` for an argument that is neither a scope nor None."""
    if scope is not None and not isinstance(scope, KeyScope):
        raise StateError(f"`scope` is {scope!r}; give KeyScope.RUN, KeyScope.THREAD or None")


def _admit(state: PersistedState) -> None:
    given: Any = state
    if not isinstance(given, PersistedState):
        raise StateError(f"{given!r} is no PersistedState; `export_persisted` makes one")
    revision, extensions, versions, run_scoped = cast(
        "tuple[Any, Any, Any, Any]", (state.revision, state.extensions, state.versions, state.run_scoped)
    )
    if type(revision) is not int or revision < 0:
        raise StateError(f"the state has revision {revision!r}; a revision is an int of 0 or more")
    if not isinstance(extensions, dict) or not all(type(name) is str and name for name in state.extensions):
        raise StateError("the extensions of the state are no dict of names and values")
    if type(run_scoped) is not list or not all(type(name) is str for name in state.run_scoped):
        raise StateError(f"the run-scoped names of the state are {run_scoped!r}; give a list")
    if not isinstance(versions, dict) or not all(
        type(name) is str and type(version) is int and version > 0 for name, version in state.versions.items()
    ):
        raise StateError(f"the versions of the state are {versions!r}; versions count from 1")
