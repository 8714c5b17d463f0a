"""Conversion between the names of steps and the stored forms of variables.

Invariant: nothing is imported and no source runs except through `bind`, with the executor of the agent's own
steps. A value without a stored form is left unchanged, and the state refuses it by name.
"""

from __future__ import annotations

import copyreg
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import cache, partial, reduce
from importlib import import_module, metadata
from types import FunctionType, GenericAlias, ModuleType, UnionType
from typing import Any, Final, cast

import msgspec

from keepstate.errors import InvalidError
from keepstate.values.codec import Codec
from keepstate.workspace.definitions import (
    FORMS,
    MARKS,
    Definition,
    Import,
    Instance,
    Node,
    Reference,
    StepSource,
    decorators,
    find_names_read,
    strip_defaults,
)

Executor = Callable[[str, dict[str, Any]], object]
"""Runs source in a namespace, as `exec` does."""

_ATOMS: Final = frozenset({str, bytes, int, float, bool, complex, type(None)})
_SEQUENCES: Final = frozenset({list, tuple, set, frozenset})
_MAPPINGS: Final = frozenset({dict, OrderedDict, Counter, defaultdict})
_TYPE_FORMS: Final = (GenericAlias, UnionType)
_update: Final[Any] = cast("Any", dict).update
_by_steps: Final[set[str]] = set()
"""Modules that steps imported first, so other processes may not have them."""


class Modules:
    """The modules that bindings may name.

    Args:
        listed: Modules, each with its submodules. By default: the standard library, installed packages, and
            the modules that the process had imported before any step did.
    """

    def __init__(self, listed: Collection[str] | None) -> None:
        if listed is not None and not _are_names(listed):
            raise InvalidError(f"`imports` is {listed!r}. Pass a list of names of modules.")
        self._listed = None if listed is None else frozenset({"builtins", *listed})

    def __contains__(self, module: object) -> bool:
        if not isinstance(module, str) or module == "__main__":
            return False
        if self._listed is not None:
            parts = module.split(".")
            return any(".".join(parts[:count]) in self._listed for count in range(1, len(parts) + 1))
        top = module.partition(".")[0]
        is_loaded = module in sys.modules and module not in _by_steps
        return is_loaded or top in sys.stdlib_module_names or top in _list_installed()


def _are_names(listed: object) -> bool:
    if isinstance(listed, str) or not isinstance(listed, Collection):
        return False
    return all(isinstance(each, str) for each in cast("Collection[object]", listed))


@cache
def _list_installed() -> frozenset[str]:
    return frozenset(metadata.packages_distributions())


class Bindings:
    """The functions, classes and imports among the names of one run of a task.

    Args:
        names: The names of the steps.
        codec: Encodes the variables.
        modules: Modules that may be imported.
    """

    def __init__(self, names: dict[str, Any], codec: Codec, modules: Modules) -> None:
        self._names, self._codec, self._modules = names, codec, modules
        self._step = StepSource("")
        # Objects by identity, with their forms. Holding the objects keeps their identities unique.
        self._known: dict[int, tuple[Any, Definition | Import]] = {}
        self._stored: dict[str, tuple[object, object]] = {}
        self._bound: dict[int, str] = {}
        self._order = 0

    # ---- from names to forms

    def to_forms(
        self, source: str, variables: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, InvalidError]]:
        """Return the stored forms of variables after a step, and the errors of those without one.

        Args:
            source: The source of the step.
            variables: The variables.
        """
        self._step = StepSource(source)
        forms: dict[str, Any] = {}
        refused: dict[str, InvalidError] = {}
        self._bound = {id(value): name for name, value in variables.items() if _is_code(value)}
        code = sorted(variables, key=lambda name: (not _is_code(variables[name]), self._line_of(name)))
        for name in code:
            try:
                forms[name] = self._to_form(name, variables[name])
            except InvalidError as error:
                refused[name], forms[name] = error, variables[name]
        self._stored = {name: (forms[name], variables[name]) for name in variables}
        return {name: forms[name] for name in variables}, refused

    def _line_of(self, name: str) -> int:
        binder = self._step.binder(name)
        return 0 if binder is None else binder.lineno

    def _to_form(self, name: str, value: Any) -> object:
        if (known := self._known.get(id(value))) is not None:
            return self._refresh_attributes(value, known[1])
        if _is_code(value):
            made = self._find_import(name, value) or self._make_definition(name, value)
            self._known[id(value)] = value, made
            return self._refresh_attributes(value, made)
        is_imported = name in self._step.imports or bool(self._step.stars)
        if not self._known and not is_imported:
            return value
        if self._is_storable(value):
            return value
        if is_imported and (form := self._find_import(name, value)) is not None:
            self._known[id(value)] = value, form
            return form
        return self._lower(value, set())

    def _is_storable(self, value: object) -> bool:
        try:
            self._codec.canonical(value)
        except InvalidError:
            return False
        return True

    def _find_import(self, name: str, value: Any) -> Import | None:
        """Return the module and name under which other processes find an object, or None."""
        form = self._step.imports.get(name)
        if form is None or _find_object(form) is not value:
            stars = [Import(module=module, name=name) for module in self._step.stars]
            form = next((star for star in stars if _find_object(star) is value), None) or _find_home(value)
        if form is None:
            return None
        if form.module not in self._modules:
            raise InvalidError(
                f"{name}: other processes may not have the module {form.module}. List it in "
                "Agent(imports=[…]).",
                path=name,
            )
        return form

    def _make_definition(self, name: str, value: Any) -> Definition:
        step = self._step
        node: Node | None = None
        if isinstance(value, FunctionType) and value.__globals__ is self._names and not value.__closure__:
            node = step.function(value)
        if node is None:
            node = step.binder(name)
            if node is None or not (hasattr(node, "name") or isinstance(value, type) or _is_type_form(value)):
                raise InvalidError(f"{name}: {_explain_missing(value)}", path=name)
        bound = getattr(node, "name", name)
        self._order += 1
        made = Definition(
            name=bound,
            source=step.statement(node, bound),
            order=self._order,
            given={
                read: self._read_given(name, read)
                for read in sorted(find_names_read(node))
                if self._is_read(read)
            },
        )
        if isinstance(value, FunctionType) and not decorators(node):
            defaults = self._stored_copy(name, value.__defaults__ or ())
            keywords = self._stored_copy(name, value.__kwdefaults__ or {})
            made = msgspec.structs.replace(made, defaults=defaults, keyword_defaults=keywords)
        return made

    def _is_read(self, read: str) -> bool:
        return (
            read in self._names
            and id(self._names[read]) not in self._bound
            and not _is_code(self._names[read])
        )

    def _read_given(self, name: str, read: str) -> object:
        return self._stored_copy(name, self._names[read], f", which reads {read} when it is defined")

    def _stored_copy(self, name: str, value: object, what: str = " has a default argument") -> Any:
        try:
            return self._codec.assemble(self._codec.canonical(self._lower(value, set())), {})
        except InvalidError as error:
            raise InvalidError(f"{name}{what} that cannot be stored: {error}", path=name) from error

    def _refresh_attributes(self, value: Any, form: Definition | Import) -> Definition | Import:
        """Return the form of a function or class with its current attributes."""
        if isinstance(form, Import) or issubclass(value if isinstance(value, type) else object, Enum | tuple):
            return form
        held: Mapping[str, Any] = getattr(value, "__dict__", {})
        plain = {key: each for key, each in held.items() if not key.startswith("__") and not _is_code(each)}
        lowered = {key: self._lower(each, set()) for key, each in plain.items()}
        kept = {key: each for key, each in lowered.items() if self._is_storable(each)}
        return msgspec.structs.replace(form, attributes=kept) if kept != form.attributes else form

    def _lower(self, value: Any, opened: set[int]) -> Any:
        """Replace objects that only steps can make by records."""
        kind = _kind(value)
        if kind in _ATOMS or id(value) in opened:
            return value
        if _is_code(value):
            return self._make_reference(value)
        opened.add(id(value))
        try:
            if kind in _SEQUENCES:
                return kind([self._lower(item, opened) for item in value])
            if kind is deque:
                return deque([self._lower(item, opened) for item in value], value.maxlen)
            if kind in _MAPPINGS:
                pairs = {self._lower(k, opened): self._lower(v, opened) for k, v in value.items()}
                return _refill(value, pairs)
            of = self._class_name(kind)
            return value if of is None else self._instance(value, of, opened)
        finally:
            opened.discard(id(value))

    def _make_reference(self, value: Any) -> Any:
        name = self._bound.get(id(value))
        if name is not None:
            return Reference(name)
        home = _find_home(value)
        return home if home is not None and home.module in self._modules else value

    def _class_name(self, kind: type) -> str | None:
        """Return the name under which steps find a class that a step defined."""
        if (name := self._bound.get(id(kind))) is not None:
            return name if isinstance(self._known.get(id(kind), (0, None))[1], Definition) else None
        return kind.__qualname__ if _look_up(self._names, kind.__qualname__) is kind else None

    def _instance(self, value: Any, of: str, opened: set[int]) -> Instance:
        kind = _kind(value)
        try:
            # Enums of Python 3.11.3 and older reduce to `getattr` and the name; newer ones give the value.
            make, args, *rest = (kind, (value.value,)) if issubclass(kind, Enum) else value.__reduce_ex__(4)
        except (TypeError, ValueError) as error:
            raise InvalidError(
                f"an object of {of} cannot be reduced: {error}. Store its fields instead."
            ) from error
        if make is copyreg.__newobj__ and args[0] is kind:  # type: ignore[attr-defined]  # typeshed lacks it
            args = args[1:]
        elif make is not kind or not issubclass(kind, BaseException | Enum):
            raise InvalidError(f"an object of {of} has its own __reduce__. Store its fields instead.")
        state, items, pairs = (*rest, None, None, None)[:3]
        parts = (args, state, tuple(items or ()), tuple(pairs or ()))
        low_args, low_state, low_items, low_pairs = (self._lower(part, opened) for part in parts)
        return Instance(of=of, args=low_args, state=low_state, items=low_items, pairs=low_pairs)

    # ---- from forms to names

    def bind(self, forms: Mapping[str, Any], execute: Executor) -> dict[str, str]:
        """Bind variables to their names, and return the reasons of those that cannot be bound, by name.

        Args:
            forms: The stored forms of the variables.
            execute: Runs the source of definitions.
        """
        failed: dict[str, str] = {}
        todo: dict[str, Any] = {}
        for name, form in forms.items():
            stored = self._stored.get(name)
            if stored is not None and stored[0] is form:
                self._names[name] = stored[1]
            elif type(form) in FORMS:
                todo[name] = form
            else:
                self._names[name] = form
        self._order = max([self._order, *(form.order for form in forms.values() if type(form) is Definition)])
        for name in [name for name, form in todo.items() if type(form) is Import]:
            self._try_bind(name, partial(self._resolve, todo[name]), failed)
        self._run_definitions(
            {name: form for name, form in todo.items() if type(form) is Definition}, execute, failed
        )
        for name, form in forms.items():
            is_new = self._stored.get(name, (None,))[0] is not form
            if is_new and type(form) not in (Definition, Import) and self._holds_forms(form):
                self._names.pop(name, None)
                self._try_bind(name, partial(self._raise_value, form), failed)
        self._stored = {
            name: (form, self._names[name]) for name, form in forms.items() if name in self._names
        }
        for name, (form, value) in self._stored.items():
            if name in todo and isinstance(form, Definition | Import):
                self._known[id(value)] = value, form
        return failed

    def _try_bind(self, name: str, make: Callable[[], Any], failed: dict[str, str]) -> bool:
        try:
            self._names[name] = make()
        except (Exception, SystemExit) as error:  # noqa: BLE001  code of the agent, or of a module
            failed[name] = f"{type(error).__name__}: {error}"
            self._names.pop(name, None)
            return False
        failed.pop(name, None)
        return True

    def _run_definitions(
        self, todo: dict[str, Definition], execute: Executor, failed: dict[str, str]
    ) -> None:
        """Run definitions in order. A definition that needs a name that was redefined later runs after it."""
        made: dict[tuple[int, str], Any] = {}

        def make(form: Definition) -> Any:
            key = form.order, form.source
            if key not in made:
                made[key] = self._execute(form, execute)
            return made[key]

        left = sorted(todo, key=lambda name: (todo[name].order, name))
        while left:
            still = [name for name in left if not self._try_bind(name, partial(make, todo[name]), failed)]
            if still == left:
                return
            left = still

    def _execute(self, form: Definition, execute: Executor) -> Any:
        names = self._names
        lent = {name: names[name] for name in (*form.given, form.name) if name in names}
        try:
            names.update({name: self._raise_value(value) for name, value in form.given.items()})
            keeps_defaults = form.defaults or form.keyword_defaults
            execute(strip_defaults(form.source) if keeps_defaults else form.source, names)
            value = names[form.name]
        finally:
            for name in (*form.given, form.name):
                names.pop(name, None)
            names.update(lent)
        if keeps_defaults:
            value.__defaults__ = self._raise_value(form.defaults) or None
            value.__kwdefaults__ = self._raise_value(form.keyword_defaults) or None
        for name, attribute in form.attributes.items():
            setattr(value, name, self._raise_value(attribute))
        return value

    def _resolve(self, form: Import) -> Any:
        for module in (form.module, *form.also):
            if module not in self._modules:
                raise InvalidError(f"the module {module} is not allowed. List it in Agent(imports=[…]).")
            import_module(module)
        return sys.modules[form.module] if form.name is None else _find_object(form, is_strict=True)

    def _holds_forms(self, value: object) -> bool:
        try:
            encoding = self._codec.canonical(value)
        except InvalidError:
            return False
        return any(mark in encoding for mark in MARKS)

    def _raise_value(self, value: Any) -> Any:
        """Replace records by the objects that steps made."""
        kind = _kind(value)
        if kind in _SEQUENCES:
            return kind([self._raise_value(item) for item in value])
        if kind is deque:
            return deque([self._raise_value(item) for item in value], value.maxlen)
        if kind in _MAPPINGS:
            return _refill(value, {self._raise_value(k): self._raise_value(v) for k, v in value.items()})
        if kind is Reference:
            return self._names[value.name]
        if kind is Import:
            return self._resolve(value)
        return self._make_instance(value) if kind is Instance else value

    def _make_instance(self, form: Instance) -> Any:
        kind = _look_up(self._names, form.of)
        if not _is_class(kind):
            raise InvalidError(f"the class {form.of} no longer exists")
        args = self._raise_value(form.args)
        made = _new(kind, args)
        state = self._raise_value(form.state)
        if state is not None and hasattr(made, "__setstate__"):
            made.__setstate__(state)
        elif state is not None:
            _restore(made, *(state if _kind(state) is tuple else (state, None)))
        for item in self._raise_value(form.items):
            made.append(item)
        for key, value in self._raise_value(form.pairs):
            made[key] = value
        return made


@contextmanager
def record_imports() -> Generator[None]:
    """Record the modules that a step imports first."""
    before = set(sys.modules)
    try:
        yield
    finally:
        _by_steps.update(sys.modules.keys() - before)


def _refill(like: Any, pairs: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other items."""
    kind = _kind(like)
    made = kind()
    if kind is defaultdict:
        made.default_factory = like.default_factory
    if kind is Counter:
        _update(made, pairs)  # Counter.update would add the numbers
    else:
        made.update(pairs)
    return made


def _kind(value: object) -> Any:
    return type(value)


def _new(kind: Any, args: Any) -> Any:
    return kind(*args) if issubclass(kind, Enum) else kind.__new__(kind, *args)


def _restore(made: Any, own: Any, slots: Any) -> None:
    """Set the attributes of a new object without calling its `__setattr__`."""
    held: dict[str, Any] = own or {}
    for name, value in held.items():
        made.__dict__[name] = value
    held = slots or {}
    for name, value in held.items():
        object.__setattr__(made, name, value)


def _is_class(value: object) -> bool:
    return isinstance(value, type)


def _is_code(value: object) -> bool:
    """Return whether a value is a module, class, function or similar: found by name, or defined by source."""
    if isinstance(value, ModuleType) or _is_class(value) or _is_type_form(value):
        return True
    return (callable(value) and hasattr(type(value), "__get__")) or type(value).__name__ in _CODE_KINDS


_CODE_KINDS: Final = frozenset({"builtin_function_or_method", "ufunc", "_lru_cache_wrapper", "partial"})


def _is_type_form(value: object) -> bool:
    return isinstance(value, _TYPE_FORMS) or type(value).__module__ == "typing"


def _explain_missing(value: Any) -> str:
    shown = getattr(value, "__qualname__", type(value).__qualname__)
    if getattr(value, "__closure__", None):
        free = ", ".join(value.__code__.co_freevars)
        return f"the function {shown} uses {free} of the function around it. Write its def into the step."
    return f"the source of {shown} is not a def, class or lambda of this step. Define it as one of these."


def _find_home(value: Any) -> Import | None:
    if isinstance(value, ModuleType):
        return Import(module=value.__name__) if sys.modules.get(value.__name__) is value else None
    module, name = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    name = name or getattr(value, "__name__", None)
    if not isinstance(module, str) or not isinstance(name, str):
        if type(value).__module__ != "numpy" or not isinstance(name, str):
            return None
        module = "numpy"
    form = Import(module=module, name=name)
    return form if _find_object(form) is value else None


def _find_object(form: Import, *, is_strict: bool = False) -> Any:
    """Return the object that a form names in the loaded modules. If it is absent, return None or raise."""
    found: Any = sys.modules.get(form.module)
    for part in (form.name or "").split(".") if form.name else ():
        found = getattr(found, part) if is_strict else getattr(found, part, None)
    return found


def _look_up(names: Mapping[str, Any], path: str) -> Any:
    first, *rest = path.split(".")
    return reduce(lambda found, part: getattr(found, part, None), rest, names.get(first))
