"""The build of the inspector: small, the same every time, in wheel and sdist, from a lock without hosts."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from keepstate.engine.approvals.shown_text import reveal

ROOT = Path(__file__).parent.parent.parent
INSPECTOR = ROOT / "inspector"
STATIC = ROOT / "src" / "keepstate" / "inspector" / "static"
MOST_BYTES = 100_000
"""All files together, compressed."""
SOURCES = sorted(path for path in (INSPECTOR / "src").rglob("*") if path.suffix in (".svelte", ".ts"))


def built() -> dict[str, bytes]:
    """Return the files that `make setup` has built."""
    return {str(path.relative_to(STATIC)): path.read_bytes() for path in STATIC.rglob("*") if path.is_file()}


def test_the_files_are_built_and_small() -> None:
    files = built()

    assert {"index.html"} < {*files}, "run make setup; it needs Node 20, or fetches the wheel that brings it"
    packed = {name: len(gzip.compress(content, mtime=0)) for name, content in files.items()}
    assert sum(packed.values()) <= MOST_BYTES, packed


@pytest.mark.skipif(shutil.which("npm") is None, reason="the build needs npm, which is not on the path")
def test_a_second_build_gives_the_same_bytes(tmp_path: Path) -> None:
    settings = {**os.environ, "KEEPSTATE_INSPECTOR_OUT": str(tmp_path / "static")}
    settings.pop("KEEPSTATE_OPENAPI", None)

    subprocess.run(
        ["npm", "run", "--silent", "build"], cwd=INSPECTOR, env=settings, check=True, capture_output=True
    )

    again = {
        str(path.relative_to(tmp_path / "static")): path.read_bytes()
        for path in (tmp_path / "static").rglob("*")
        if path.is_file()
    }
    assert again == built()


def test_wheel_and_sdist_have_the_files(tmp_path: Path) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 0, made.stderr

    wanted = {f"keepstate/inspector/static/{name}" for name in built()}
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        assert wanted <= {*wheel.namelist()}
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in wanted} <= names
    assert {"inspector/package-lock.json", "inspector/src/App.svelte", "inspector/.npmrc"} <= names
    assert not any("node_modules" in name for name in names)


def test_the_page_shows_an_escape_for_each_character_that_links_to_approvals_reveal() -> None:
    """Except two signs that stand for what cannot be shown, and the sign of those escapes: all are seen."""
    source = (INSPECTOR / "src" / "lib" / "text.ts").read_text("utf-8")
    written = source.partition("const HIDDEN =")[2].partition("/")[2].partition("/gu;")[0]
    escaped = re.compile(re.sub(r"\\u\{(\w+)\}", lambda found: f"\\U{found[1]:>08}", written))
    seen = "\ufffc\ufffd⟨"
    signs = [sign for sign in map(chr, range(0xE1000)) if sign not in seen and reveal(sign) != sign]

    assert len(signs) > 4_000 and [ascii(sign) for sign in signs if not escaped.fullmatch(sign)] == []


def test_the_lock_names_versions_and_hashes_and_no_host() -> None:
    lock = json.loads((INSPECTOR / "package-lock.json").read_text())
    package = json.loads((INSPECTOR / "package.json").read_text())

    assert '"resolved"' not in json.dumps(lock)
    assert all("integrity" in entry for name, entry in lock["packages"].items() if name)
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in package["devDependencies"].values())
    assert "dependencies" not in package


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_sources_show_text_only_and_keep_to_the_policy(path: Path) -> None:
    text = path.read_text()

    assert not re.search(
        r"\{@html|innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
    )
    assert not re.search(r"""\sstyle=(?!\{)""", text), (
        "the policy forbids style attributes: write style:name={…}"
    )
    assert "http://" not in text.replace("http://www.w3.org", "")
