"""The reference says what the code says: names, errors, limits, URLs and their options."""

from __future__ import annotations

import inspect
import re
from functools import cached_property
from importlib import import_module
from typing import Any

import msgspec
import pytest

import keepstate
from keepstate import errors
from keepstate._runner import ThreadRunner
from keepstate.engine.space.space import Parts
from keepstate.opening import store_class
from keepstate.stores.urls import BACKENDS, StoreUrl
from keepstate.values import limits
from tests.docs.pages import PAGES, ROOT, tables

REFERENCE = ROOT / "docs" / "reference"
URLS = REFERENCE / "urls.md"
OPTIONS = {
    "file": ("keepstate.stores.file.store", "Options"),
    "sqlite": ("keepstate.stores.sqlite.store", "Options"),
    "redis": ("keepstate.stores.redis.options", "RedisOptions"),
    "postgresql": ("keepstate.stores.postgres.options", "PostgresOptions"),
    "http": ("keepstate.stores.http.client", "HttpOptions"),
    "tiered": ("keepstate.stores.wrappers.tiered", "TieredOptions"),
}


PUBLIC = [name for name in dir(keepstate) if not name.startswith("_")]


def test_each_public_name_has_a_row_and_no_other_has() -> None:
    assert set(tables(REFERENCE / "api.md")) == set(PUBLIC)


def test_each_public_class_function_and_method_has_a_docstring() -> None:
    things = {name: getattr(keepstate, name) for name in PUBLIC}
    own = {name: thing for name, thing in things.items() if hasattr(thing, "__name__")}
    methods = {
        f"{name}.{method}": thing
        for name, owner in own.items()
        if inspect.isclass(owner)
        for method, thing in vars(owner).items()
        if inspect.isfunction(thing) and not method.startswith("_")
    }

    assert len(methods) > 50
    assert [name for name, thing in {**own, **methods}.items() if not thing.__doc__] == []


def test_methods_that_the_names_page_lists_are_there() -> None:
    rows = tables(REFERENCE / "api.md")
    listed = {
        (name, method)
        for name, cells in rows.items()
        if inspect.isclass(owner := getattr(keepstate, name)) and not issubclass(owner, BaseException)
        for method in re.findall(r"`(\w+)`", cells[1].partition(":")[2] or cells[1])
        if method not in PUBLIC and method not in {"expected", "update"}
    }

    assert len(listed) > 50
    assert [f"{name}.{method}" for name, method in listed if not has(getattr(keepstate, name), method)] == []


def test_each_error_has_a_row_with_its_code_and_whether_it_is_retryable() -> None:
    rows = tables(REFERENCE / "errors.md")
    classes = [
        error
        for _, error in inspect.getmembers(errors, inspect.isclass)
        if issubclass(error, errors.KeepstateError)
    ]

    assert set(rows) == {error.__name__ for error in classes}
    for error in classes:
        facts = {name for name in inspect.get_annotations(error) if name not in {"code", "retryable"}}
        _, code, retryable, told, _ = rows[error.__name__]
        assert code == f"`{error.code}`"
        assert retryable == ("yes" if error.retryable else "no")
        assert set(re.findall(r"`(\w+)`", told)) == facts


def test_the_error_tree_is_the_one_in_the_docstring() -> None:
    tree = (errors.__doc__ or "").split("```")[1]

    assert tree in (REFERENCE / "errors.md").read_text()


def test_each_limit_has_a_row_with_its_number() -> None:
    told = {name: int(cells[1].replace(",", "")) for name, cells in tables(REFERENCE / "limits.md").items()}

    assert told == {name: number for name, number in vars(limits).items() if name.isupper()}


def test_each_scheme_has_a_row() -> None:
    assert set(tables(URLS)) >= set(BACKENDS)


@pytest.mark.parametrize("scheme", OPTIONS)
def test_each_option_has_a_row_with_its_default(scheme: str) -> None:
    module, name = OPTIONS[scheme]
    options = getattr(import_module(module), name)
    rows = tables(URLS, under=scheme)

    fields = {field.encode_name: field.default for field in msgspec.structs.fields(options)}
    assert set(rows) == set(fields)
    for option, default in fields.items():
        if default is not None:
            assert rows[option][1] == f"`{str(default).lower()}`"


def test_memory_has_no_options() -> None:
    url = StoreUrl.parse("memory://?size=1")

    with pytest.raises(errors.InvalidError, match="no options"):
        store_class("memory").from_url(url, runner=ThreadRunner())


def test_every_part_of_a_space_is_named_on_the_first_page() -> None:
    page = (ROOT / "README.md").read_text()

    parts = [name for name, part in vars(Parts).items() if isinstance(part, cached_property)]

    assert len(parts) >= 5
    assert [part for part in parts if f"`{part}`" not in page] == []


def test_every_public_name_is_spoken_of() -> None:
    text = "\n".join(page.read_text() for page in PAGES)

    assert [name for name in PUBLIC if not re.search(rf"\b{name}\b", text)] == []


def has(owner: Any, name: str) -> bool:
    """Return whether a class, or one of its instances by its own source, has an attribute of this name."""
    ours = [base for base in inspect.getmro(owner) if base.__module__.startswith("keepstate")]
    return hasattr(owner, name) or any(re.search(rf"\b{name}\b", inspect.getsource(base)) for base in ours)
