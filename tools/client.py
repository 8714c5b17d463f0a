"""Build the TypeScript client in `clients/typescript`, and its tests, if a file of them has changed.

`make setup` does not need it: the tests of the client and its page build it when they run. It needs Node 20
or newer and npm. The types of the API are generated from the OpenAPI document by each build, so they cannot
differ from it; a change of the API that breaks the client does not compile.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tools import bootstrap

ROOT = Path(__file__).resolve().parent.parent
CLIENT = ROOT / "clients" / "typescript"
DOCUMENT = ROOT / "docs" / "reference" / "openapi.json"
MODULES, GENERATED = CLIENT / "node_modules", CLIENT / "src" / "api.ts"
_INSTALLED, _BUILT = MODULES / ".installed", MODULES / ".built"


def make_client() -> Path:
    """Install what the client is built with, build it, and return its folder; at once if nothing changed.

    Raises:
        SetupError: There is no Node, or a command failed. What it printed is part of the message.
    """
    npm = bootstrap.find_npm()  # also puts a wheel's Node on the path, for the tests
    if npm is None:
        raise bootstrap.SetupError(f"the client needs Node {bootstrap.OLDEST_NODE} or newer; install it")
    with _lock():
        lock = CLIENT / "package-lock.json"
        installed = bootstrap.fingerprint(CLIENT, lock)
        built = bootstrap.fingerprint(CLIENT, DOCUMENT, lock, Path(__file__), *sources())
        if _holds(_BUILT, built) and (CLIENT / "dist").is_dir() and (CLIENT / "build").is_dir():
            return CLIENT
        if not _holds(_INSTALLED, installed):
            _run(*npm, "ci", "--silent")
            _INSTALLED.write_text(installed, encoding="utf-8")
        for folder in ("dist", "build"):  # of files that are no longer there
            shutil.rmtree(CLIENT / folder, ignore_errors=True)
        _run(*npm, "run", "--silent", "build")
        _run(*npm, "run", "--silent", "build:tests")
        _BUILT.write_text(built, encoding="utf-8")
    return CLIENT


def sources() -> list[Path]:
    """Return the files that the client is built from."""
    found = [*CLIENT.glob("src/*.ts"), *CLIENT.glob("tests/*"), *CLIENT.glob("*.json")]
    return sorted(path for path in found if path != GENERATED)


@contextmanager
def _lock() -> Generator[None]:
    """Let one process build at a time; the others find it built."""
    MODULES.mkdir(exist_ok=True)
    # Next to what npm removes when it installs.
    with (CLIENT / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _holds(file: Path, text: str) -> bool:
    return file.exists() and file.read_text(encoding="utf-8") == text


def _run(*words: str) -> None:
    done = subprocess.run(words, cwd=CLIENT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise bootstrap.SetupError(
            f"`{' '.join(words)}` in {CLIENT.name} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
        )


if __name__ == "__main__":
    print(make_client())
