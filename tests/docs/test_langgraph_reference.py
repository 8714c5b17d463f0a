"""The page of LangGraph's saver and store says what they take and do."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.store.base import BaseStore

from keepstate.adapters.langgraph import KeepstateSaver, KeepstateStore
from tests.docs.pages import ROOT

PAGE = ROOT / "docs" / "reference" / "langgraph.md"
OF_LANGGRAPH = {KeepstateSaver: BaseCheckpointSaver, KeepstateStore: BaseStore}
INTERFACE = {"embeddings"}
"""Of LangGraph's interface, though its base class has none."""


def rows(kind: type, column: str) -> set[str]:
    """Return the names in the first cells of a class's table."""
    section = PAGE.read_text().partition(f"\n## {kind.__name__}\n")[2].partition("\n## ")[0]
    table = section.partition(f"| {column} |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for cell in cells for name in re.findall(r"`(\w+)[`(]", cell)}


@pytest.mark.parametrize("kind", OF_LANGGRAPH)
def test_each_argument_has_a_row_and_no_other_has(kind: Any) -> None:
    assert rows(kind, "argument") == set(inspect.signature(kind).parameters)


@pytest.mark.parametrize("kind", OF_LANGGRAPH)
def test_each_method_that_langgraph_has_none_of_has_a_row(kind: Any) -> None:
    own = {name for name in dir(kind) if callable(getattr(kind, name)) and not name.startswith("_")}
    listed = rows(kind, "method")

    assert listed <= own
    assert own - set(dir(OF_LANGGRAPH[kind])) - INTERFACE <= listed
