"""Execution of a policy's steps: Python source in a namespace of the inputs and the variables.

Running such source runs code with all rights of this process. The same holds for definitions that a state
stores from earlier steps. Both go through the executor. A caller's own executor may run them elsewhere, or
refuse them.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, NoReturn

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.workspace.bindings import Bindings, Executor, Modules, record_imports

_SOURCE: Final = "<step>"
_MODULE_NAMES: Final = frozenset({
    "__annotations__", "__annotate__", "__conditional_annotations__", "__doc__", "__warningregistry__",
})  # fmt: skip
"""Names that the interpreter binds in a module."""


class TaskSucceeded(BaseException):
    """Carries a task's result out of a step, past any `except Exception` in it."""

    def __init__(self, result: object) -> None:
        super().__init__(result)
        self.result = result


class TaskGaveUp(BaseException):
    """Carries a task's failure out of a step, past any `except Exception` in it."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


def execute(source: str, namespace: dict[str, Any]) -> None:
    """Run source in this process."""
    exec(compile(source, _SOURCE, "exec", dont_inherit=True), namespace)


class Namespace:
    """The names of a task's steps: one dict for all steps, so that later steps find earlier functions.

    Args:
        inputs: The task's arguments by name.
        state: The variables.
        names: The dict.
        executor: Runs the steps.
        codec: Encodes the variables; None if they are stored by reference.
        modules: Modules that variables may be imported from.

    Attributes:
        printed: Output of the last step.
        refused: Errors of the last step's variables that cannot be stored, by name.
        missing: Reasons why variables could not be bound to their names, by name.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        state: MutableMapping[str, Any],
        names: dict[str, Any],
        executor: Executor,
        codec: Codec | None,
        modules: Modules,
    ) -> None:
        self.printed: list[str] = []
        self.refused: dict[str, InvalidError] = {}
        self.missing: dict[str, str] = {}
        self._state, self._executor = state, executor
        self._given = {
            # The interpreter's own exit() first closes standard input of the whole process.
            "__builtins__": {**vars(builtins), "print": self._print, "exit": _exit, "quit": _exit},
            "task_success": _end_with_success,
            "task_fail": _end_with_failure,
            **inputs,
        }
        names.clear()
        names.update(self._given)
        self._names = names
        self._held: set[str] = set()
        self._bindings = None if codec is None else Bindings(names, codec, modules)

    def take(self, now: Mapping[str, Any]) -> dict[str, str]:
        """Bind the current variables, and return why some are newly missing. Inputs take precedence."""
        for name in self._held - now.keys():
            self._names.pop(name, None)
            self.missing.pop(name, None)
        forms = {name: value for name, value in now.items() if not self._is_given(name)}
        self._held = set(now)
        if self._bindings is None:
            self._names.update(forms)
            return {}
        missing = self._bindings.bind(forms, self._execute_definition)
        self.printed.clear()
        fresh = {name: reason for name, reason in missing.items() if self.missing.get(name) != reason}
        self.missing = missing
        return fresh

    def run(self, source: str) -> None:
        """Run one step, and store its changes of the variables, even if it fails."""
        self.printed.clear()
        self.refused = {}
        try:
            with record_imports():
                self._executor(source, self._names)
        finally:
            self._store_variables(source)

    def _execute_definition(self, source: str, names: dict[str, Any]) -> None:
        try:
            self._executor(source, names)
        except (TaskSucceeded, TaskGaveUp) as end:
            raise InvalidError("its definition ends the task") from end

    def _store_variables(self, source: str) -> None:
        kept = {name: value for name, value in [*self._names.items()] if self._is_variable(name)}
        for name in kept:
            self.missing.pop(name, None)
        if self._bindings is not None:
            kept, self.refused = self._bindings.to_forms(source, kept)
        absent = self._held - kept.keys() - self._given.keys() - self.missing.keys()
        for name in absent:
            del self._state[name]
        for name, value in kept.items():
            self._state[name] = value
        self._held = set(self._state)

    def _is_variable(self, name: str) -> bool:
        return name not in _MODULE_NAMES and not self._is_given(name)

    def _is_given(self, name: str) -> bool:
        """Return whether a name holds an input of the task, and not a variable."""
        return name in self._given and self._names.get(name, self) is self._given[name]

    def _print(self, *values: object, sep: str | None = " ", end: str | None = "\n", **_: object) -> None:
        space, line = " " if sep is None else sep, "\n" if end is None else end
        self.printed.append(space.join(map(str, values)) + line)


def format_error(error: BaseException) -> str:
    """Format an error for the policy: the line in its step, and the error."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _SOURCE]
    line = f" (line {frames[-1].lineno})" if frames else ""
    is_exit = bool(frames) and isinstance(error, SystemExit)
    hint = "; to end the task call task_success(value) or task_fail(message)" if is_exit else ""
    return f"{type(error).__name__}: {error}{line}{hint}"


def _end_with_success(result: object = None) -> NoReturn:
    """End the task with a result."""
    raise TaskSucceeded(result)


def _exit(code: object = None) -> NoReturn:
    """End the step, as `sys.exit` does."""
    raise SystemExit(code)


def _end_with_failure(message: object = "") -> NoReturn:
    """End the task without a result."""
    raise TaskGaveUp(str(message))
