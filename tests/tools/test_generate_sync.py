"""The blocking twins are what the tool writes from the asynchronous source."""

from __future__ import annotations

import inspect
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import keepstate
from keepstate import sync
from tools import generate_sync
from tools.twin_sources import Source

ROOT = Path(__file__).resolve().parents[2]
TWINS = [
    name for names in generate_sync.MODULES.values() for name in names if name not in {"Manager", "Parts"}
]

SOURCE = '''
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from keepstate.engine.kernel.arguments import single_use
from typing import TypeVar
from keepstate.engine.documents.watch import Watch

T = TypeVar("T")


class Lease:
    """Something held.

    Attributes:
        name: What is held.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    async def renew(self, ttl_s: float = 1, *, others: Lease | None = None) -> None:
        r"""Holds it on; `\\\\d` is a digit."""

    async def steal(self, fn: Callable[[Lease], Awaitable[T] | T]) -> T:
        """Gives it to a function."""

    async def each(self) -> AsyncIterator[Lease]:
        """Yields leases."""

    @single_use
    async def watch(self) -> AsyncGenerator[Watch]:
        """Yields a watch."""

    def guards(self) -> bool:
        """A seam."""

    async def _hidden(self) -> None:
        """Private."""


class Leases:
    """Several."""
'''


def test_the_twins_are_up_to_date() -> None:
    done = run("--check")

    assert (done.returncode, done.stdout) == (0, "up to date\n")


def test_a_twin_that_was_changed_by_hand_is_named_with_the_command_that_mends_it(tmp_path: Path) -> None:
    copy = tmp_path / "checkout"
    for folder in ("src/keepstate", "tools"):
        for file in (ROOT / folder).rglob("*.py"):
            place = copy / file.relative_to(ROOT)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(file.read_bytes())
    (copy / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    changed = copy / "src/keepstate/sync/lease.py"
    written = changed.read_text(encoding="utf-8")
    changed.write_text(written + "\nx = 1\n", encoding="utf-8")

    refused = run("--check", root=copy)
    mended = run(root=copy)

    assert refused.returncode == 1
    assert refused.stdout == (
        "out of date: src/keepstate/sync/lease.py; run: python tools/generate_sync.py\n"
    )
    assert mended.returncode == 0 and changed.read_text(encoding="utf-8") == written


def test_each_kind_of_method_is_taken_over_in_its_own_way() -> None:
    text = generate_sync.twins_of(Source.read("engine.queue.lease", SOURCE))

    for line in (
        "class Lease(Twin[engine.Lease]):",
        "    def name(self) -> str:",
        "    def renew(self, ttl_s: float = 1, *, others: Lease | None = None) -> None:",
        "inner_of(others) if isinstance(others, Lease) else others",
        "    def steal(self, fn: Callable[[Lease], T]) -> T:",
        "        return finish(self._inner.steal(receiving(Lease, fn)))",
        "    def each(self) -> Iterator[Lease]:",
        "        return (Lease(each) for each in finish_each(self._inner.each()))",
        "    @single_use",
        "    def watch(self) -> Generator[Watch]:",
        "        with entered(self._inner.watch()) as inner:",
        "            yield Watch(inner)",
        "from keepstate.sync.watch import Watch",
    ):
        assert line in text


def test_seams_and_private_methods_stay_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(generate_sync.SEAMS, "Lease", {"guards"})
    text = generate_sync.twins_of(Source.read("engine.queue.lease", SOURCE))

    assert "guards" not in text and "_hidden" not in text


def test_an_attribute_without_a_type_is_refused_by_name() -> None:
    source = SOURCE.replace("def __init__(self, name: str)", "def __init__(self, other: str)")

    with pytest.raises(
        generate_sync.UnclearError, match=r"of what type its attribute name is: write `name: TYPE`"
    ):
        generate_sync.twins_of(Source.read("engine.queue.lease", source))


def test_what_users_make_takes_the_same_arguments_and_gets_its_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(generate_sync, "MADE", {"Lease"})
    made = SOURCE.replace("name: str)", 'name: str, *, _mode: str = "async")')
    text = generate_sync.twins_of(Source.read("engine.queue.lease", made))

    for line in (
        "    def __init__(self, name: str) -> None:",
        '        super().__init__(engine.Lease(name, _mode="blocking"))',
        "        return finish(self._inner.steal(receiving(lambda inner: around(Lease, inner), fn)))",
        "        return (around(Lease, each) for each in finish_each(self._inner.each()))",
    ):
        assert line in text


def test_a_result_that_holds_twins_in_a_way_nobody_said_is_refused() -> None:
    source = SOURCE.replace(
        "async def each(self) -> AsyncIterator[Lease]", "async def each(self) -> set[Lease]"
    )

    with pytest.raises(generate_sync.UnclearError, match=r"how a set\[Lease\] is put into twins is not said"):
        generate_sync.twins_of(Source.read("engine.queue.lease", source))


def test_a_docstring_that_was_to_be_reworded_and_changed_is_refused() -> None:
    with pytest.raises(generate_sync.UnclearError, match="the docstring of Keepstate no longer says"):
        generate_sync.twins_of(
            Source.read("engine.space.keepstate", 'class Keepstate:\n    """Something else."""\n')
        )


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_has_the_public_names_and_parameters_of_its_source(name: str) -> None:
    module = next(module for module, names in generate_sync.MODULES.items() if name in names)
    source = getattr(import_module(f"keepstate.{module}"), name)
    twin = getattr(import_module(f"keepstate.sync.{generate_sync.home_of(module)}"), name)
    seams = generate_sync.SEAMS.get(name, set())

    assert set(public(twin)) - attributes(twin) == set(public(source)) - seams - attributes(twin)
    for method in public(twin):
        if inspect.isfunction(made := inspect.getattr_static(twin, method)):
            assert list(inspect.signature(made).parameters) == list(
                inspect.signature(getattr(source, method)).parameters
            )


@pytest.mark.parametrize("name", sorted(generate_sync.MODULES))
def test_no_twin_speaks_of_what_only_an_event_loop_can_do(name: str) -> None:
    file = ROOT / "src/keepstate/sync" / f"{generate_sync.home_of(name).replace('.', '/')}.py"
    text = file.read_text(encoding="utf-8")
    for word in ("__aenter__", "__aexit__", "__anext__", "StopAsyncIteration"):
        text = text.replace(word, "")

    assert "async" not in text.lower() and "await" not in text.lower()


def test_every_twin_of_a_public_name_is_one_of_the_package() -> None:
    assert {name for name in TWINS if name in dir(keepstate)} | {"of", "open"} == set(sync.__all__)
    assert not [name for name in sync.__all__ if isinstance(getattr(sync, name), ModuleType)]


def public(cls: type) -> Iterator[str]:
    return (name for name in dir(cls) if not name.startswith("_"))


def attributes(cls: type) -> set[str]:
    """Return the properties that stand for plain attributes, which a class does not list."""
    documented = (inspect.getdoc(cls) or "").partition("Attributes:")[2]
    return {name for name in public(cls) if f"    {name}: " in documented}


def run(*words: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(root / "tools" / "generate_sync.py"), *words]
    return subprocess.run(command, cwd=root, check=False, capture_output=True, text=True)
