"""LangGraph's own tests, which its source distributions ship: fetched when they are run."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tools.bootstrap import as_pip_fetches


def unpacked(package: str, folder: Path) -> Path:
    """Return a folder with the source of an installed package; skips where it cannot be had."""
    name = f"{package}=={version(package)}"
    with_pip = [sys.executable, "-m", "uv", "run", "--no-project", "--quiet", "--with", "pip"]
    pip = [*with_pip, "python", "-m", "pip"]
    fetched = subprocess.run(
        [*pip, "download", "--quiet", "--no-deps", "--no-binary", package, "--dest", str(folder), name],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **as_pip_fetches()},
    )
    if fetched.returncode:
        pytest.skip(f"{name} cannot be fetched: {fetched.stderr.strip()[-500:]}")
    (archive,) = folder.glob("*.tar.gz")
    # Python 3.11.4 brought the filter; the archive is one that pip has just fetched from the index.
    safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    with tarfile.open(archive) as tar:
        tar.extractall(folder, **safely)
    (found,) = (path for path in folder.iterdir() if path.is_dir())
    return found


def installed(folder: Path, *packages: str, with_needs: bool = False) -> Path:
    """Return a folder for the path, with packages that only those tests need; skips if they cannot be had.

    Args:
        folder: The folder.
        packages: The packages, with or without versions.
        with_needs: Put in what they need too, whatever the versions elsewhere are.
    """
    uv = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--python", sys.executable]
    uv += ["--directory", tempfile.gettempdir()] + ([] if with_needs else ["--no-deps"])
    done = subprocess.run(
        [*uv, "--target", str(folder), *packages],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **as_pip_fetches()},
    )
    if done.returncode:
        pytest.skip(f"{', '.join(packages)} cannot be fetched: {done.stderr.strip()[-500:]}")
    return folder
