"""Every link in the documents leads somewhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.pages import PAGES, ROOT, anchors, links, shown

ENTRANCE = ROOT / "README.md"


@pytest.mark.parametrize("page", PAGES, ids=shown)
def test_each_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = [link for link in links(page) if not link.startswith("https://") and not leads(page, link)]

    assert dead == []


def test_each_page_can_be_reached_from_the_first() -> None:
    reached, todo = set[Path](), [ENTRANCE]
    while todo:
        page = todo.pop()
        if page.is_dir():
            todo += page.glob("*.md")
        elif page not in reached and page in PAGES:
            reached.add(page)
            todo += [target(page, link) for link in links(page) if not link.startswith("https://")]

    assert [shown(page) for page in PAGES if page not in reached] == []


def target(page: Path, link: str) -> Path:
    """Return the file that a link of a page names."""
    path = link.partition("#")[0]
    return (page.parent / path).resolve() if path else page


def leads(page: Path, link: str) -> bool:
    """Return whether file and heading of a link are there."""
    file, anchor = target(page, link), link.partition("#")[2]
    return file.exists() and (not anchor or anchor in anchors(file))
