"""Runs the steps that a policy writes: Python source in a namespace made of the inputs and the variables.

To run such source is to run code, with all that this process may do; so is to run the definitions that a
state keeps of earlier steps. Both go through the executor: one of the caller's own may run them elsewhere, or
refuse them.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Mapping, MutableMapping
from typing import Any, Final, NoReturn

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.workspace.bindings import Bindings, Executor, Modules, importing

_SOURCE: Final = "<step>"
_OF_MODULES: Final = frozenset({
    "__annotations__", "__annotate__", "__conditional_annotations__", "__doc__", "__warningregistry__",
})  # fmt: skip
"""What the interpreter itself binds in a module."""


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
    """What a task's steps see: one dict for all, so that functions defined in one find it in the next.

    Args:
        inputs: The task's arguments by name.
        state: The variables.
        names: The dict.
        executor: Runs the steps.
        codec: What encodes the variables; None where they are kept as they are.
        modules: What variables may be imported from.

    Attributes:
        printed: What the last step printed.
        refused: Why variables of the last step cannot be stored, by name.
        missing: Why variables could not be bound to their names, by name.
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
            # The interpreter's own exit() closes standard input of the whole process first.
            "__builtins__": {**vars(builtins), "print": self._print, "exit": _leave, "quit": _leave},
            "task_success": _succeed,
            "task_fail": _give_up,
            **inputs,
        }
        names.clear()
        names.update(self._given)
        self._names = names
        self._held: set[str] = set()
        self._bindings = None if codec is None else Bindings(names, codec, modules)

    def take(self, now: Mapping[str, Any]) -> dict[str, str]:
        """Take the variables as they are now, and return why some are missing since; inputs go first."""
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
        """Run one step, and keep what it did to the variables, whether it ends well or not."""
        self.printed.clear()
        self.refused = {}
        try:
            with importing():
                self._executor(source, self._names)
        finally:
            self._keep(source)

    def _execute_definition(self, source: str, names: dict[str, Any]) -> None:
        try:
            self._executor(source, names)
        except (TaskSucceeded, TaskGaveUp) as end:
            raise InvalidError("its definition ends the task") from end

    def _keep(self, source: str) -> None:
        kept = {name: value for name, value in [*self._names.items()] if self._is_variable(name)}
        for name in kept:
            self.missing.pop(name, None)
        if self._bindings is not None:
            kept, self.refused = self._bindings.forms(source, kept)
        absent = self._held - kept.keys() - self._given.keys() - self.missing.keys()
        for name in absent:
            del self._state[name]
        for name, value in kept.items():
            self._state[name] = value
        self._held = set(self._state)

    def _is_variable(self, name: str) -> bool:
        return name not in _OF_MODULES and not self._is_given(name)

    def _is_given(self, name: str) -> bool:
        """Whether a name stands for what the task was given, and not for a variable."""
        return name in self._given and self._names.get(name, self) is self._given[name]

    def _print(self, *values: object, sep: str | None = " ", end: str | None = "\n", **_: object) -> None:
        space, line = " " if sep is None else sep, "\n" if end is None else end
        self.printed.append(space.join(map(str, values)) + line)


def told(error: BaseException) -> str:
    """Return an error as the policy is told of it: where in its step, and what."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _SOURCE]
    place = f" (line {frames[-1].lineno})" if frames else ""
    is_exit = bool(frames) and isinstance(error, SystemExit)
    hint = "; to end the task call task_success(value) or task_fail(message)" if is_exit else ""
    return f"{type(error).__name__}: {error}{place}{hint}"


def _succeed(result: object = None) -> NoReturn:
    """End the task with a result."""
    raise TaskSucceeded(result)


def _leave(code: object = None) -> NoReturn:
    """End the step, as `sys.exit` does."""
    raise SystemExit(code)


def _give_up(message: object = "") -> NoReturn:
    """End the task without one."""
    raise TaskGaveUp(str(message))
