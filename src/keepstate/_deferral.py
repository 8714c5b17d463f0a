"""Imports that wait for the first use of a module, so that a process imports only what it uses.

A module that names classes of other rooms in annotations, or makes their objects on request, defers them:

    if TYPE_CHECKING:
        from keepstate.engine.queue import queue as _queue
    else:
        defer_imports(globals(), _queue="keepstate.engine.queue.queue")

`typing.get_type_hints` evaluates `-> _queue.Queue` as any other annotation, and imports the module.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


class _Deferred:
    """A placeholder for a module. The module takes its place in the namespace when it is first used."""

    __slots__ = ("_alias", "_module", "_namespace")

    def __init__(self, namespace: dict[str, Any], alias: str, module: str) -> None:
        self._namespace, self._alias, self._module = namespace, alias, module

    def __repr__(self) -> str:
        return f"<module {self._module!r}, not used yet>"

    def __getattr__(self, name: str) -> Any:
        module = import_module(self._module)
        self._namespace[self._alias] = module
        return getattr(module, name)


def defer_imports(namespace: dict[str, Any], **modules: str) -> None:
    """Bind modules to names of a namespace, and import each when one of its attributes is first used.

    Args:
        namespace: The `globals()` of the caller.
        modules: The full name of each module, by the name to bind.
    """
    for alias, module in modules.items():
        namespace[alias] = _Deferred(namespace, alias, module)
