"""The names that `import keepstate` gives, as an editor lists them."""

from __future__ import annotations

import builtins
import inspect
from importlib import import_module
from importlib.metadata import version
from pkgutil import walk_packages
from types import ModuleType
from typing import Any

import pytest

import keepstate
from keepstate import errors, managers, sessions, typed, workspace

OF_LOCKS = {"exclusive.ttl_s", "AgentRun.lease_ttl_s"}
OF_DONE_TASKS = {"put.keep_s", "TaskSpec.keep_s"}
"""A done task and its id are kept for a week, as the pages say."""
"""Times after which a holder that crashed loses its lease; nothing stored ends by them."""
OF_LINKS = {"link.expires_s"}
"""A week after which a link opens nothing more; the approval stays."""
ELSEWHERE = "keepstate.adapters.google_adk"
"""An adapter whose framework is in an environment of its own."""
OF_CACHES = {"ToolStateManager.cache_ttl"}
"""Times after which a result is computed again; the record of the execution stays."""


def test_an_editor_lists_the_public_names() -> None:
    shown = {name for name in dir(keepstate) if not name.startswith("_")}

    assert set(keepstate.__all__) <= shown
    assert all(hasattr(keepstate, name) for name in shown)


def test_a_star_import_takes_few_names_and_shadows_no_builtin() -> None:
    assert len(keepstate.__all__) <= 40
    assert not set(keepstate.__all__) & {*vars(builtins), "events", "sync", "view"}


@pytest.mark.parametrize("room", [managers, sessions, typed, workspace])
def test_a_room_exports_its_own_public_names(room: ModuleType) -> None:
    own = {
        name
        for name in dir(keepstate)
        if getattr(getattr(keepstate, name), "__module__", "").startswith(f"{room.__name__}.")
    }

    assert own <= set(room.__all__)
    assert set(room.__all__) <= set(dir(room))
    assert all(getattr(room, name) is getattr(keepstate, name) for name in own)


def test_the_version_is_that_of_what_is_installed() -> None:
    assert "__version__" in dir(keepstate)
    assert keepstate.__version__ == version("keepstate")


def test_every_error_of_the_tree_can_be_caught_by_the_package_s_name() -> None:
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type)}

    assert {name for name in tree if name.endswith("Error")} <= set(dir(keepstate))


def test_nothing_ends_by_time_unless_the_caller_says_so() -> None:
    defaults: dict[str, Any] = {}
    for package in ("adapters", "engine", "managers", "sessions", "typed", "workspace"):
        root = import_module(f"keepstate.{package}")
        for found in walk_packages(root.__path__, f"{root.__name__}.", onerror=_check_is_elsewhere):
            if found.name == ELSEWHERE:
                continue
            module = import_module(found.name)
            for kind in filter(inspect.isclass, vars(module).values()):
                if kind.__module__ == found.name:
                    defaults |= _times_of(kind)
    timed = {name for name, default in defaults.items() if isinstance(default, int | float)}

    assert len(defaults) > 10
    assert timed == OF_LOCKS | OF_CACHES | OF_DONE_TASKS | OF_LINKS


def _check_is_elsewhere(name: str) -> None:
    assert name == ELSEWHERE


def _times_of(kind: type) -> dict[str, Any]:
    """Return the defaults of all arguments of a class's methods by which something ends."""
    return {
        f"{kind.__name__ if method == '__init__' else method}.{parameter.name}": parameter.default
        for method, function in inspect.getmembers(kind, inspect.isfunction)
        for parameter in inspect.signature(function).parameters.values()
        if "ttl" in parameter.name or parameter.name in ("max_age_s", "keep_s", "expires_s")
    }
