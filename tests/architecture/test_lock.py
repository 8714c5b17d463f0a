"""The lock names every package by version and hash, for every Python, and no place to fetch it from."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

import pytest
from packaging.markers import Marker
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.tree import ROOT

LOCK = (ROOT / "requirements-dev.txt").read_text(encoding="utf-8")
BENCH = (ROOT / "requirements-bench.txt").read_text(encoding="utf-8")
INSPECTOR = (ROOT / "requirements-inspector.txt").read_text(encoding="utf-8")
ADK = (ROOT / "requirements-google-adk.txt").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
PLATFORMS = (("linux", "x86_64"), ("linux", "aarch64"), ("darwin", "arm64"))


@pytest.mark.parametrize(
    "lock", [LOCK, BENCH, ADK, INSPECTOR], ids=["dev", "bench", "google-adk", "inspector"]
)
def test_the_lock_names_no_host_no_url_and_no_path(lock: str) -> None:
    lines = [line for line in lock.splitlines() if not line.startswith("    --hash=sha256:")]

    assert [line for line in lines if re.search(r"://|@|^-|\.{0,2}/|\.(com|org|net|io)\b", line)] == []


def test_every_locked_package_has_one_version_and_a_hash() -> None:
    loose = [
        line for line, hashes in packages() if not re.match(r"[a-z0-9-]+==[\w.]+( ;|$)", line) or not hashes
    ]

    assert loose == []
    assert all(
        re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", text) for _, hashes in packages() for text in hashes
    )


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(("platform", "machine"), PLATFORMS)
def test_the_lock_holds_what_the_project_asks_for(python: str, platform: str, machine: str) -> None:
    place = {
        "python_version": python,
        "python_full_version": f"{python}.9",
        "sys_platform": platform,
        "platform_machine": machine,
    }
    pins = {pin.name: pin for pin in locked() if applies(pin.marker, place)}

    missing = [
        str(wanted)
        for wanted in asked_for()
        if applies(wanted.marker, place)
        and not (
            (pin := pins.get(canonicalize_name(wanted.name)))
            and wanted.specifier.contains(str(pin.specifier)[2:], prereleases=True)
        )
    ]

    assert missing == []


def test_the_lock_of_adk_holds_what_its_extra_asks_for() -> None:
    (wanted,) = map(Requirement, PROJECT["project"]["optional-dependencies"]["google-adk"])
    (pinned,) = re.findall(rf"^{wanted.name}==(\S+)", ADK, re.MULTILINE)

    assert wanted.specifier.contains(pinned)


def test_the_lock_brings_what_builds_and_installs_it() -> None:
    wanted = {Requirement(text).name for text in PROJECT["build-system"]["requires"]} | {"uv"}

    assert wanted <= {pin.name for pin in locked()}


def packages() -> Iterator[tuple[str, list[str]]]:
    """Yield each package's line and its hashes."""
    for block in re.split(r"\n(?=\S)", LOCK.strip()):
        line, *hashes = (part.strip().removesuffix("\\").strip() for part in block.splitlines())
        yield line, hashes


def locked() -> Iterator[Requirement]:
    return (Requirement(line) for line, _ in packages())


def asked_for() -> Iterator[Requirement]:
    """Yield what the project itself needs, with every extra but those of other locks, and the test group."""
    project = PROJECT["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    groups = [project["dependencies"], *(extras[name] for name in extras if name != "google-adk")]
    groups.append(PROJECT["dependency-groups"]["test"])
    return (Requirement(text) for group in groups for text in group)


def applies(marker: Marker | None, place: dict[str, str]) -> bool:
    return marker is None or marker.evaluate(place)
