"""The documents as the tests see them: pages, their code blocks, links and tables.

A `python` block is executed, in order, one namespace a page; `python file=NAME` is saved under that name
beside them; of `console run`, each line that begins with `$` is executed. `python google-adk` is executed
where the packages of ADK are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

_FENCE = re.compile(r"^```(\w*)[ ]*([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    language: str
    mark: str
    text: str


def shown(page: Path) -> str:
    """Return the page as a message names it."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[Block]:
    """Yield a page's fenced blocks in order; `line` is where a block's text begins."""
    text = page.read_text()
    for fence in _FENCE.finditer(text):
        line = text.count("\n", 0, fence.start(3)) + 1
        yield Block(page, line, fence[1], fence[2].strip(), fence[3])


def prose(page: Path) -> str:
    """Return a page without its fenced blocks."""
    return _FENCE.sub("", page.read_text())


def links(page: Path) -> list[str]:
    """Return where a page's links lead."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """Return the names by which the page's headings are found."""
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in _HEADING.findall(prose(page)))
    return {heading.strip().replace(" ", "-") for heading in plain}


def tables(page: Path, *, under: str = "") -> dict[str, list[str]]:
    """Return the rows of a page's tables, or of those under one heading, by the name in the first cell."""
    text = page.read_text()
    if under:
        _, found, text = text.partition(f"\n## {under}\n")
        assert found, f"{shown(page)} has no heading {under!r}"
        text = text.partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
        for line in text.splitlines()
        if line.startswith("|") and not set(line) <= set("|-: ")
    ]
    return {name[1]: cells for cells in rows if (name := re.match(r"`([^`]+)`", cells[0]))}
