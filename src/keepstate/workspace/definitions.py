"""The stored forms of definitions and imports in steps.

A function or class is stored as the source of its definition, an imported name as module and name. Decoding
only creates these records. Source runs and modules are imported where the agent's own steps run, in
`bindings`.
"""

from __future__ import annotations
import __future__

import ast
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType
from typing import Any, Final, TypeAlias

import msgspec

from keepstate.values.schema import CLASSES

FunctionNode: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Node: TypeAlias = FunctionNode | ast.ClassDef | ast.Assign | ast.AnnAssign

_LATER: Final = "from __future__ import annotations\n"
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@CLASSES.register("keepstate.definition")
class Definition(msgspec.Struct, frozen=True, kw_only=True):
    """A function or class that a step defined.

    Attributes:
        name: The name that the source binds.
        source: The statement.
        order: Position in which definitions run again.
        defaults: Values of its default arguments, which are not computed again.
        keyword_defaults: Values of the defaults of keyword-only arguments, by name.
        given: Values of variables that the statement itself reads.
        attributes: Plain attributes of the function or class.
    """

    name: str
    source: str
    order: int
    defaults: tuple[Any, ...] = ()
    keyword_defaults: dict[str, Any] = {}
    given: dict[str, Any] = {}
    attributes: dict[str, Any] = {}


@CLASSES.register("keepstate.import")
class Import(msgspec.Struct, frozen=True, kw_only=True):
    """A module, or a name in a module.

    Attributes:
        module: The module.
        name: The name in it, with dots for nested names; None for the module itself.
        also: Submodules that were imported with it.
    """

    module: str
    name: str | None = None
    also: tuple[str, ...] = ()


@CLASSES.register("keepstate.instance")
class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """An object of a class that a step defined.

    Attributes:
        of: The variable that holds the class.
        args: Arguments of `__new__`.
        state: Its attributes, or the result of `__getstate__`.
        items: Its items, if it is a list.
        pairs: Its keys and values, if it is a dict.
    """

    of: str
    args: tuple[Any, ...] = ()
    state: Any = None
    items: tuple[Any, ...] = ()
    pairs: tuple[tuple[Any, Any], ...] = ()

    def __hash__(self) -> int:
        kind = _kind(self.state)
        parts: Any = self.state.values() if kind is dict else self.state if kind in (list, tuple) else ()
        return hash((self.of, *(part for part in [*self.args, *parts] if type(part) in _HASHED)))


@CLASSES.register("keepstate.reference")
class Reference(msgspec.Struct, frozen=True):
    """A function or class inside a value, by the variable that also holds it."""

    name: str


def _kind(value: object) -> Any:
    return type(value)


_HASHED: Final = frozenset({str, bytes, int, float, bool, type(None)})


class StepSource:
    """The source of one step, and the statements that bind its names."""

    def __init__(self, text: str) -> None:
        self._lines = text.splitlines(keepends=True)
        self._text = text
        self.imports: dict[str, Import] = {}
        self.stars: list[str] = []
        self._binders: dict[str, list[Node]] = {}
        self._functions: list[FunctionNode] = []
        self._is_later = False
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError):
            return
        for node in _iterate_outer(tree):
            self._record(node)
        self._functions = [node for node in ast.walk(tree) if isinstance(node, FunctionNode)]

    def _record(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    self._record_module(alias)
            case ast.ImportFrom(module="__future__", names=names):
                self._is_later |= any(alias.name == "annotations" for alias in names)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                self.stars += [module] * (names[0].name == "*")
                for alias in names:
                    self.imports[alias.asname or alias.name] = Import(module=module, name=alias.name)
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                self._binders.setdefault(name, []).append(node)
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                self._binders.setdefault(name, []).append(node)
            case _:
                pass

    def _record_module(self, alias: ast.alias) -> None:
        if alias.asname is not None:
            self.imports[alias.asname] = Import(module=alias.name)
            return
        top = alias.name.partition(".")[0]
        known = self.imports.get(top)
        also = () if known is None else known.also
        if alias.name != top:
            also = (*also, alias.name)
        self.imports[top] = Import(module=top, also=also)

    def function(self, function: FunctionType) -> FunctionNode | None:
        """Return the definition of a function or lambda, found by its code."""
        code = function.__code__
        for node in self._functions:
            name = "<lambda>" if isinstance(node, ast.Lambda) else node.name
            if code.co_name == name and code.co_firstlineno == _first_line(node):
                made = _find_code(compile(self._compilable(node), "<step>", "exec", self._flags, True), name)
                if made is not None and _code_key(made) == _code_key(code):
                    return node
        return None

    def binder(self, name: str) -> Node | None:
        """Return the last statement outside of functions that defines or assigns a name."""
        return self._binders.get(name, [None])[-1]

    def statement(self, node: Node, name: str) -> str:
        """Return source that binds a name by this definition alone."""
        return (_LATER if self._is_later else "") + self._compilable(node, name)

    def _compilable(self, node: Node, name: str = "_") -> str:
        if isinstance(node, ast.Lambda):
            return f"{name} = ({ast.get_source_segment(self._text, node)})\n"
        if isinstance(node, ast.Assign | ast.AnnAssign):
            return f"{ast.get_source_segment(self._text, node)}\n"
        lines = "".join(self._lines[_first_line(node) - 1 : node.end_lineno])
        # Removing the indentation would change multi-line strings.
        return f"if True:\n{lines}" if node.col_offset else lines

    @property
    def _flags(self) -> int:
        return __future__.annotations.compiler_flag if self._is_later else 0


def find_names_read(node: Node) -> set[str]:
    """Return the names that a definition reads when it runs, not when it is called."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not decorators(node):
        return set()  # its defaults are stored as values; annotations may be missing
    reading = _NameCollector()
    reading.visit(node)
    return reading.names


def decorators(node: Node) -> list[ast.expr]:
    """Return the decorators of a definition."""
    return getattr(node, "decorator_list", [])


def strip_defaults(source: str) -> str:
    """Return the definition of a function with `...` for each default argument."""
    tree = ast.parse(source)
    node = next(node for node in ast.walk(tree) if isinstance(node, FunctionNode))
    node.args.defaults = [ast.Constant(...) for _ in node.args.defaults]
    node.args.kw_defaults = [each and ast.Constant(...) for each in node.args.kw_defaults]
    return ast.unparse(ast.fix_missing_locations(tree))


class _NameCollector(ast.NodeVisitor):
    def __init__(self) -> None:
        self.names: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.names.add(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for part in (*node.decorator_list, node.args, node.returns):
            if part is not None:
                self.visit(part)

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815  the name that NodeVisitor calls

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)


def _iterate_outer(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements outside of functions and classes, in order, including the definitions."""
    for node in ast.iter_child_nodes(tree):
        yield node
        if not isinstance(node, _SCOPES):
            yield from _iterate_outer(node)


def _first_line(node: FunctionNode | ast.ClassDef) -> int:
    return min([node.lineno, *(each.lineno for each in decorators(node))])


def _find_code(code: CodeType, name: str) -> CodeType | None:
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    found = next((each for each in inner if each.co_name == name), None)
    return found or next((deep for each in inner if (deep := _find_code(each, name)) is not None), None)


_OF_CALLS: Final = 0x3FF
"""Flags of the calling convention; the `__future__` flags depend on the compiling module."""


def _code_key(code: CodeType) -> tuple[Any, ...]:
    """Return the code of a function without its position."""
    consts: tuple[Any, ...] = tuple(
        _code_key(each) if isinstance(each, CodeType) else (type(each).__name__, repr(each))
        for each in code.co_consts
    )
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags & _OF_CALLS, consts


Form: TypeAlias = Definition | Import | Instance | Reference
FORMS: Final = (Definition, Import, Instance, Reference)
MARKS: Final[Mapping[bytes, type]] = {
    b"keepstate.instance": Instance,
    b"keepstate.reference": Reference,
    b"keepstate.import": Import,
}
"""Byte strings in the encoding of a value that contains such records."""
