"""Runs the steps that a policy writes: Python source in a namespace made of the inputs and the variables.

Whoever runs such source runs code, with all that this process may do. An executor of the caller's own may run
it elsewhere, or refuse it.
"""

from __future__ import annotations

import builtins
import traceback
from collections.abc import Callable, Mapping, MutableMapping
from types import ModuleType
from typing import Any, Final, NoReturn, TypeAlias

Executor: TypeAlias = Callable[[str, dict[str, Any]], object]
"""Runs source in a namespace, as `exec` does."""

_SOURCE: Final = "<step>"


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
    """Runs source in this process."""
    exec(compile(source, _SOURCE, "exec"), namespace)


class Namespace:
    """What a task's steps see: one dict for all, so that functions defined in one find it in the next.

    Args:
        inputs: The task's arguments by name.
        state: The variables.
    """

    def __init__(self, inputs: Mapping[str, Any], state: MutableMapping[str, Any]) -> None:
        self.printed: list[str] = []
        self._state = state
        self._given = {
            # The interpreter's own exit() closes standard input of the whole process first.
            "__builtins__": {**vars(builtins), "print": self._print, "exit": _leave, "quit": _leave},
            "task_success": _succeed,
            "task_fail": _give_up,
            **inputs,
        }
        self._names = dict(self._given)
        self._held: set[str] = set()
        self.take()

    def take(self) -> None:
        """Takes the variables as they are now; inputs stand before them."""
        now = dict(self._state)
        for name in self._held - now.keys():
            self._names.pop(name, None)
        for name, value in now.items():
            if not self._is_given(name):
                self._names[name] = value
        self._held = set(now)

    def run(self, source: str, executor: Executor) -> None:
        """Runs one step, and keeps what it did to the variables, whether it ends well or not."""
        self.printed.clear()
        try:
            executor(source, self._names)
        finally:
            self._keep()

    def _keep(self) -> None:
        kept = {name: value for name, value in [*self._names.items()] if self._is_variable(name, value)}
        for name in [name for name in self._held if name not in kept and name not in self._given]:
            del self._state[name]
        for name, value in kept.items():
            self._state[name] = value
        self._held = set(self._state)

    def _is_variable(self, name: str, value: object) -> bool:
        # What is imported can be imported again.
        return not self._is_given(name) and not isinstance(value, ModuleType)

    def _is_given(self, name: str) -> bool:
        """Whether a name stands for what the task was given, and not for a variable."""
        return name in self._given and self._names.get(name, self) is self._given[name]

    def _print(self, *values: object, sep: str | None = " ", end: str | None = "\n", **_: object) -> None:
        space, line = " " if sep is None else sep, "\n" if end is None else end
        self.printed.append(space.join(map(str, values)) + line)


def told(error: BaseException) -> str:
    """Returns an error as the policy is told of it: where in its step, and what."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _SOURCE]
    place = f" (line {frames[-1].lineno})" if frames else ""
    is_exit = bool(frames) and isinstance(error, SystemExit)
    hint = "; to end the task call task_success(value) or task_fail(message)" if is_exit else ""
    return f"{type(error).__name__}: {error}{place}{hint}"


def _succeed(result: object = None) -> NoReturn:
    """Ends the task with a result."""
    raise TaskSucceeded(result)


def _leave(code: object = None) -> NoReturn:
    """Ends the step, as `sys.exit` does."""
    raise SystemExit(code)


def _give_up(message: object = "") -> NoReturn:
    """Ends the task without one."""
    raise TaskGaveUp(str(message))
