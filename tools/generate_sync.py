"""Writes the blocking twins in `src/keepstate/sync` from the asynchronous classes.

A twin holds the asynchronous object and drives each call to its end. It has the same names, signatures and
docstrings; what the object takes or gives that has a twin itself is unwrapped and wrapped. Public methods and
documented attributes are taken over, but for the seams of the engine that `SEAMS` names. A class whose
`__init__`, its own or its parent's, takes `_mode` is made by its users: its twin takes the same arguments,
and makes the object in the blocking mode; to one that takes `_face` it gives itself, for users may derive
from the twin. Other twins are made around an object.

`generate_sync.py` writes the files; with `--check` it only says whether they are as they would be written.
"""

from __future__ import annotations

import argparse
import ast
import builtins
import itertools
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # as a program it finds its tables there

from tools.twin_sources import MADE, MAKERS, Source, bases_of, is_options, is_parent, maker_of, read_all  # noqa: E402
from tools.twins import (  # noqa: E402
    DUNDERS,
    HELPERS,
    HOMES,
    ITEMS,
    MAKING,
    MODES,
    MODULES,
    REWORDED,
    SEAMS,
    home_of,
)

SOURCE = ROOT / "src" / "keepstate"
TARGET = SOURCE / "sync"

Function = ast.FunctionDef | ast.AsyncFunctionDef


class UnclearError(Exception):
    """The source leaves open what its twin is like; the message says what to write there."""


def main() -> int:
    """Write the twins, or say which of them are not as they would be written."""
    parser = argparse.ArgumentParser(description="Writes keepstate's blocking twins.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a twin is out of date")
    checking = parser.parse_args().check
    stale: list[str] = []
    for name, text in generated():
        path = TARGET / f"{home_of(name).replace('.', '/')}.py"
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT).as_posix())
            if not checking:
                path.write_text(text, encoding="utf-8")
    if checking and stale:
        print(f"out of date: {', '.join(stale)}; run: python tools/generate_sync.py")
        return 1
    print(f"{len(MODULES)} modules of blocking twins, {len(stale)} written" if not checking else "up to date")
    return 0


def generated() -> Iterator[tuple[str, str]]:
    """Yield each module's name and its twins' text."""
    for module, source in read_all(MODULES, SOURCE).items():
        yield module, twins_of(source)


def twins_of(source: Source) -> str:
    """Return the text of the twins of one module."""
    for parent in {base for name in MODULES[source.name] for base in bases_of(source.classes[name])}:
        if parent in MAKERS:
            source.origins = {**MAKERS[parent][1], **source.origins}
    bodies = [
        deferring(twin_of(source.classes[name], package_of(source.name)), source)
        for name in MODULES[source.name]
    ]
    return formatted("\n".join([*head(source, "\n\n\n".join(bodies)), *bodies]) + "\n")


def deferring(body: str, source: Source) -> str:
    """Return a twin's text that finds the twins of what the source defers by the module they stand in."""
    nodes = (node for cls in source.classes.values() for node in ast.walk(cls))
    found = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        if node.value.id in source.deferred and node.attr in HOMES
    }
    lines = body.splitlines(keepends=True)
    tokens = list(tokenize.generate_tokens(iter(lines).__next__))
    for before, token in reversed(list(itertools.pairwise(tokens))):
        if token.type == tokenize.NAME and token.string in found and before.string not in (".", "class"):
            row, column = token.start
            line = lines[row - 1]
            lines[row - 1] = f"{line[:column]}{alias_of(token.string)}.{line[column:]}"
    return "".join(lines)


def alias_of(twin: str) -> str:
    """Return the name of the module of a twin in modules that defer it."""
    return f"_{HOMES[twin].rpartition('.')[2]}_twins"


def formatted(text: str) -> str:
    """Return the text as the project's formatter writes it, with its imports in order."""
    ours = 'lint.isort.known-first-party = ["keepstate"]'  # also of a file that is not there yet
    for words in (("check", "--select=I", "--fix", "--quiet", "--config", ours), ("format", "--quiet")):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(TARGET / "twins.py"), "-"]
        text = subprocess.run(
            command, input=text, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout
    return text


# ---- the head of a module


def head(source: Source, body: str) -> Iterator[str]:
    """Yield the docstring, imports and type variables that the body needs."""
    yield f'"""Blocking twins of `keepstate.{source.name}`.'
    yield '\nWritten by tools/generate_sync.py; change the source and run it again.\n"""\n'
    yield "from __future__ import annotations\n"
    namespace, _, module = f"keepstate.{source.name}".rpartition(".")
    package = package_of(source.name)
    alias = "" if package == module else f" as {package}"
    used = names_in(body)
    if package in used:
        yield f"from {namespace} import {module}{alias}"
    variables = [text for name, text in source.variables.items() if name in used]
    used |= {"TypeVar"} if variables or "TypeVar" in used else set()
    own = set(MODULES[source.name]) | set(source.variables) | {package, "Inner"}
    twins = {alias_of(name): f"keepstate.sync.{home}" for name, home in HOMES.items()}
    deferred = {name: module for name, module in (twins | source.deferred).items() if name in used}
    own |= set(deferred)
    if deferred:
        yield "from typing import TYPE_CHECKING"
        yield "from keepstate._deferral import defer_imports"
    for name in sorted(used - own):
        if name in HOMES:
            yield f"from keepstate.sync.{HOMES[name]} import {name}"
        elif origin := HELPERS.get(name) or source.origins.get(name):
            yield f"from {origin} import {name}"
        elif not hasattr(builtins, name) and name not in bound_in(body):
            raise UnclearError(f"{source.name}.py does not say where {name} comes from: import it by `from`")
    yield ""
    if deferred:
        yield "if TYPE_CHECKING:"
        for name, module in deferred.items():
            yield "    from {0} import {2} as {name}".format(*module.rpartition("."), name=name)
        yield "else:"
        words = ", ".join(f"{name}={module!r}" for name, module in deferred.items())
        yield f"    defer_imports(globals(), {words})"
    yield from variables


def names_in(body: str) -> set[str]:
    """Return the names that a text reads."""
    nodes = ast.walk(ast.parse(body))
    return {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}


def bound_in(body: str) -> set[str]:
    """Return the names that a text makes by itself: arguments and variables."""
    nodes = list(ast.walk(ast.parse(body)))
    stored = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    return stored | {node.arg for node in nodes if isinstance(node, ast.arg)}


# ---- one class


def twin_of(cls: ast.ClassDef, package: str) -> str:
    """Return the text of one twin."""
    if bases_of(cls) == ["TypedDict"]:
        return options_of(cls)
    generic = [ast.unparse(base) for base in cls.bases if isinstance(base, ast.Subscript)]
    own = [base[base.index("[") :] for base in generic if base.startswith("Generic[")]
    inner = f"{package}.{cls.name}" + "".join(own)
    parents = [base.id for base in cls.bases if isinstance(base, ast.Name) and base.id in HOMES]
    lines: list[str] = []
    if is_parent(cls.name):
        lines.append(f"Inner = TypeVar('Inner', bound={inner})\n\n")
        inner = "Inner"
    bases = [*(f"{parent}[{inner}]" for parent in parents or ["Twin"]), *generic]
    lines.append(f"class {cls.name}({', '.join(bases)}):")
    lines += [*docstring(cls.name, ast.get_docstring(cls)), ""]
    lines += [f"    {name}: {kind} = {package}.{cls.name}.{name}" for name, kind in constants_of(cls).items()]
    if cls.name in MADE:
        lines += making(cls, f"{package}.{cls.name}")
    for name, meaning in attributes_of(cls):
        lines += attribute(cls, name, meaning)
    for node in cls.body:
        if isinstance(node, Function) and is_offered(cls.name, node.name) and not is_needless(cls, node):
            lines += method(cls, node)
    return "\n".join(lines)


def options_of(cls: ast.ClassDef) -> str:
    """Return the text of a `TypedDict` of options as they are given in blocking use, without the mode."""
    fields = [node for node in cls.body if isinstance(node, ast.AnnAssign)]
    words = [ast.unparse(word) for word in cls.keywords]
    return "\n".join(
        [
            f"class {cls.name}({', '.join(['TypedDict', *words])}):",
            *docstring(cls.name, ast.get_docstring(cls)),
            "",
            *(
                f"    {ast.unparse(node.target)}: {in_blocking_form(node.annotation)}"
                for node in fields
                if ast.unparse(node.target) not in MAKING
            ),
        ]
    )


def constants_of(cls: ast.ClassDef) -> dict[str, str]:
    """Return the public names that the class gives to all its objects, and what they are."""
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in cls.body
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id.isupper()
        and not node.target.id.startswith("_")
        and ast.unparse(node.annotation).startswith("ClassVar")
    }


def package_of(module: str) -> str:
    """Return the package that a module stands in, by which its twins call it."""
    return module.partition(".")[0]


def making(cls: ast.ClassDef, inner: str) -> list[str]:
    """Return the lines of the twin's own `__init__`."""
    node = maker_of(cls)
    assert node is not None
    given = without_seams(node.args)
    own = [f"{one.arg}={MAKING[one.arg]}" for one in node.args.kwonlyargs if one.arg in MAKING]
    words = ", ".join(word for word in (passed(given), *own) if word)
    return [
        f"    def __init__({parameters(given)}) -> None:",
        f"        super().__init__({inner}({words}))\n",
    ]


def without_seams(arguments: ast.arguments) -> ast.arguments:
    """Return the arguments but for those that only twins give."""
    pairs = zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
    kept = [(argument, default) for argument, default in pairs if argument.arg not in MAKING]
    return ast.arguments(
        posonlyargs=arguments.posonlyargs,
        args=arguments.args,
        vararg=arguments.vararg,
        kwonlyargs=[argument for argument, _ in kept],
        kw_defaults=[default for _, default in kept],
        kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )


def is_offered(cls: str, name: str) -> bool:
    """Return whether a method has a twin."""
    return name in DUNDERS or name in ITEMS or not (name.startswith("_") or name in SEAMS.get(cls, ()))


def docstring(cls: str, text: str | None, indent: str = "    ") -> list[str]:
    """Return the lines of a docstring, in the words of blocking use."""
    if text is None:
        return []
    if indent == "    ":
        for old, new in REWORDED.get(cls, {}).items():
            if old not in text:
                raise UnclearError(
                    f"the docstring of {cls} no longer says {old!r}: bring REWORDED in line with it"
                )
            text = text.replace(old, new)
    opening = 'r"""' if "\\" in text else '"""'
    closing = '\n"""' if "\n" in text else '"""'
    lines = f"{opening}{text}{closing}".splitlines()
    return [f"{indent}{line}" if line else "" for line in lines]


def attributes_of(cls: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the attributes that the docstring names, with what it says of them."""
    _, found, section = (ast.get_docstring(cls) or "").partition("Attributes:\n")
    if found:
        for entry in re.finditer(
            r"^    (\w+): (.+(?:\n {5,}.+)*)", section.partition("\n\n")[0], re.MULTILINE
        ):
            yield entry[1], re.sub(r"\s+", " ", entry[2])


def attribute(cls: ast.ClassDef, name: str, meaning: str) -> list[str]:
    """Return the lines of a property for a plain attribute."""
    kind = in_blocking_form(attribute_type(cls, name))
    return [
        "    @property",
        f"    def {name}(self) -> {kind}:",
        *docstring(cls.name, meaning, "        "),
        f"        return self._inner.{name}\n",
    ]


def attribute_type(cls: ast.ClassDef, name: str) -> ast.expr:
    """Return the type that the class, or the parameter of the same name, gives to an attribute."""
    for node in cls.body:
        match node:
            case ast.AnnAssign(target=ast.Name(id=left)) if left == name:
                return node.annotation
            case ast.FunctionDef(name="__init__"):
                for arg in (*node.args.args, *node.args.kwonlyargs):
                    if arg.arg == name and arg.annotation is not None:
                        return arg.annotation
            case _:
                pass
    raise UnclearError(
        f"{cls.name} does not say of what type its attribute {name} is: write `{name}: TYPE` in it"
    )


# ---- one method


def method(cls: ast.ClassDef, node: Function) -> list[str]:
    """Return the lines of a method's twin."""
    marks = [ast.unparse(mark) for mark in node.decorator_list]
    name = DUNDERS.get(node.name, node.name)
    returns = "None" if node.returns is None else in_blocking_form(node.returns)
    lines = [f"    @{MODES.get(mark, mark)}" for mark in marks]
    lines.append(f"    def {name}{signature(node)}:")
    if "overload" in marks:
        return [*lines[:-1], f"{lines[-1]} ..."]
    lines += docstring(cls.name, ast.get_docstring(node), "        ")
    target = f"self._inner.{node.name}"
    if is_overloaded(cls, node):  # no overload takes the union that the implementation takes
        lines.append(f"        {node.name}: Any = {target}")
        target = node.name
    called = (
        target if marks and marks[0] in {"property", "cached_property"} else f"{target}({passed(node.args)})"
    )
    return [*lines, *(f"        {line}" for line in steps(node, marks, returns, called)), ""]


def steps(node: Function, marks: list[str], returns: str, called: str) -> list[str]:
    """Return what the twin of a method does."""
    match node.name:
        case "__aenter__":
            return [f"finish({called})", "return self"]
        case "__aiter__":
            return ["return self"]
        case "__anext__":
            return [
                "try:",
                f"    return finish({called})",
                "except StopAsyncIteration:",
                "    raise StopIteration from None",
            ]
        case _:
            pass
    if node.name in ITEMS:
        names = [argument.arg for argument in node.args.args[1:]]
        return [ITEMS[node.name].format(*names, inner="self._inner")]
    if "single_use" in marks:
        given = returns.removeprefix("Generator[").removesuffix("]")
        return [f"with entered({called}) as inner:", f"    yield {wrapped(given, 'inner')}"]
    if returns.startswith("Iterator["):
        each = returns.removeprefix("Iterator[").removesuffix("]")
        plain = f"finish_each({called})"
        if each not in HOMES:
            return [f"return {plain}"]
        return [f"return ({around(each, 'each')} for each in {plain})"]
    if isinstance(node, ast.AsyncFunctionDef):
        called = f"finish({called})"
    if returns.partition("[")[0] in MADE and "[" in returns:  # no class says what it is generic in
        kind = returns.partition("[")[0]
        return [f"answer: {returns} = around_generic({kind}, {called})", "return answer"]
    if called.startswith(f"finish({node.name}("):  # what Any returned gets its type by a name
        return [f"answer: {returns} = {wrapped(returns, called)}", "return answer"]
    return [called] if returns == "None" else [f"return {wrapped(returns, called)}"]


def wrapped(returns: str, value: str) -> str:
    """Return the expression that puts twins around a value of a type that names them."""
    if not twins_in(returns):
        return value
    if (bare := returns.partition("[")[0]) in HOMES:
        return around(bare, value)
    if (listed := re.fullmatch(r"list\[(\w+)\]", returns)) is not None:
        return f"[{around(listed[1], 'each')} for each in {value}]"
    raise UnclearError(f"how a {returns} is put into twins is not said: add it to `wrapped`")


def around(twin: str, value: str) -> str:
    """Return the expression of a twin around an object."""
    return f"around({twin}, {value})" if twin in MADE else f"{twin}({value})"


def is_overloaded(cls: ast.ClassDef, node: Function) -> bool:
    """Return whether a method's twin has more than one signature."""
    return len({signature(overload) for overload in overloads(cls, node.name)}) > 1


def is_needless(cls: ast.ClassDef, node: Function) -> bool:
    """Return whether a node is an overload that only tells functions from coroutine functions."""
    return node in overloads(cls, node.name) and not is_overloaded(cls, node)


def overloads(cls: ast.ClassDef, name: str) -> list[Function]:
    """Return the overloads of a method."""
    found = [node for node in cls.body if isinstance(node, Function) and node.name == name]
    return [node for node in found if any(ast.unparse(mark) == "overload" for mark in node.decorator_list)]


def signature(node: Function) -> str:
    """Return a signature as it is written in blocking use."""
    return f"({parameters(node.args)}) -> {in_blocking_form(node.returns) if node.returns else 'None'}"


# ---- signatures


class ToBlocking(ast.NodeTransformer):
    """Turns the types of asynchronous use into those of blocking use."""

    def visit_Name(self, node: ast.Name) -> ast.Name:
        """Return the name's counterpart."""
        return ast.Name(MODES.get(node.id, node.id), node.ctx)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Return the bare name of a class that has a twin, which may stand in a deferred module."""
        is_deferred = isinstance(node.value, ast.Name) and node.value.id.startswith("_")
        return ast.Name(node.attr, node.ctx) if is_deferred and node.attr in HOMES else node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """Return T for `Awaitable[T]`."""
        self.generic_visit(node)
        return node.slice if isinstance(node.value, ast.Name) and node.value.id == "Awaitable" else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """Return T for what has become `T | T`."""
        self.generic_visit(node)
        return node.left if ast.dump(node.left) == ast.dump(node.right) else node


def in_blocking_form(annotation: ast.expr) -> str:
    """Return a type as it is written in blocking use."""
    return ast.unparse(ToBlocking().visit(ast.parse(ast.unparse(annotation), mode="eval").body))


def parameters(arguments: ast.arguments) -> str:
    """Return a signature's parameters as they are written in blocking use."""
    # a function, as it was just written
    return ast.unparse(ToBlocking().visit(ast.parse(f"def f({ast.unparse(arguments)}): ...").body[0].args))  # type: ignore[attr-defined]


def passed(arguments: ast.arguments) -> str:
    """Return how the twin hands its arguments on."""
    positional = [*arguments.posonlyargs, *arguments.args][1:]
    words = [handed(argument) for argument in positional]
    words += [several(arguments.vararg)] if arguments.vararg else []
    words += [f"{argument.arg}={handed(argument)}" for argument in arguments.kwonlyargs]
    if arguments.kwarg:
        name = arguments.kwarg.arg
        words.append(f"**inner_options({name})" if is_options(arguments.kwarg) else f"**{name}")
    return ", ".join(words)


def several(argument: ast.arg) -> str:
    """Return the expression for arguments of any number."""
    each = handed(ast.arg("each", argument.annotation))
    return f"*{argument.arg}" if each == "each" else f"*[{each} for each in {argument.arg}]"


def handed(argument: ast.arg) -> str:
    """Return the expression for one argument: what is inside a twin, or a function that is given twins."""
    if argument.annotation is None:
        return argument.arg
    kind = in_blocking_form(argument.annotation)
    if kind.startswith("Callable[[AnyTransaction]"):
        return f"receiving(transaction_twin, {argument.arg})"
    twins = twins_in(kind)
    if not twins:
        return argument.arg
    if kind.startswith("Callable[["):
        (only,) = twins
        made = f"lambda inner: around({only}, inner)" if only in MADE else only
        return f"receiving({made}, {argument.arg})"
    if kind in HOMES:
        return f"inner_of({argument.arg})"
    name = argument.arg
    return "".join(f"inner_of({name}) if isinstance({name}, {twin}) else " for twin in twins) + name


def twins_in(kind: str) -> list[str]:
    """Return the names in a type that have twins."""
    return [name for name in dict.fromkeys(re.findall(r"\w+", kind)) if name in HOMES]


if __name__ == "__main__":
    sys.exit(main())
