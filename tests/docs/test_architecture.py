"""What ARCHITECTURE.md names is there: files, folders, and each folder of the package."""

from __future__ import annotations

import re

from tests.docs.pages import ROOT

PAGE = (ROOT / "ARCHITECTURE.md").read_text()
PACKAGE = ROOT / "src" / "keepstate"
STARTS = (ROOT, PACKAGE, PACKAGE / "testing" / "store_contract", ROOT / "tests" / "values")


def test_each_file_and_folder_that_is_named_exists() -> None:
    named = {name for name in re.findall(r"`([\w./]+)`", PAGE) if "/" in name or name.endswith(".py")}

    assert len(named) > 30
    assert [name for name in named if not any((start / name).exists() for start in STARTS)] == []


def test_each_folder_of_the_package_is_drawn() -> None:
    folders = [path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]

    assert [folder for folder in folders if not re.search(rf"\b{folder}\b", PAGE)] == []
