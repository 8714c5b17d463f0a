"""The set-up is made anew when what it is made from changes, and says what stands in its way."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools import bootstrap

LOCK = """\
ruff==0.17.5 \\
    --hash=sha256:aa
uv==0.13.8 \\
    --hash=sha256:bb \\
    --hash=sha256:cc
uvloop==1.0 \\
    --hash=sha256:dd
"""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout whose `.venv` was made from the lock as it stands."""
    lock, venv = tmp_path / "requirements-dev.txt", tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    lock.write_text(LOCK, encoding="utf-8")
    (venv / ".ready").write_text(bootstrap.fingerprint(tmp_path, lock), encoding="utf-8")
    monkeypatch.setattr(bootstrap, "ROOT", tmp_path)
    monkeypatch.setattr(bootstrap, "MADE_FROM", (lock,))
    monkeypatch.setattr(bootstrap, "VENV", venv)
    monkeypatch.setattr(bootstrap, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(bootstrap, "READY", venv / ".ready")
    return tmp_path


def test_a_set_up_that_nothing_changed_is_left_as_it_is(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bootstrap.main() == 0

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("changed", ["requirements-dev.txt", ".venv/bin/python", ".venv/.ready"])
def test_a_set_up_is_made_anew_when_something_changed_or_is_gone(checkout: Path, changed: str) -> None:
    made_from = bootstrap.fingerprint(checkout, checkout / "requirements-dev.txt")
    assert bootstrap.is_ready(made_from)
    if changed == "requirements-dev.txt":
        (checkout / changed).write_text(LOCK + "more==1\n", encoding="utf-8")
    else:
        (checkout / changed).unlink()

    assert not bootstrap.is_ready(bootstrap.fingerprint(checkout, checkout / "requirements-dev.txt"))


def test_a_checkout_that_moved_is_set_up_anew(checkout: Path) -> None:
    lock = checkout / "requirements-dev.txt"

    assert bootstrap.fingerprint(checkout, lock) != bootstrap.fingerprint(checkout.parent, lock)


def test_a_python_without_venv_names_the_package_to_install(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / ".venv" / ".ready").unlink()
    monkeypatch.setenv("PATH", str(checkout))
    monkeypatch.setitem(sys.modules, "ensurepip", None)

    code = bootstrap.main()

    assert code == 1
    said = capsys.readouterr().err
    assert "lacks the standard module 'ensurepip'" in said
    assert f"apt install python3.{sys.version_info[1]}-venv" in said


def test_an_old_python_is_told_which_one_is_needed(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkout / ".venv" / ".ready").unlink()
    monkeypatch.setenv("PATH", str(checkout))
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))

    code = bootstrap.main()

    assert code == 1
    assert "needs Python 3.11 or newer" in capsys.readouterr().err


def test_the_lock_gives_one_package_with_its_hashes_and_no_other() -> None:
    taken = bootstrap.requirement("uv", LOCK)

    assert taken == "uv==0.13.8 \\\n    --hash=sha256:bb \\\n    --hash=sha256:cc\n"


def test_a_command_that_fails_is_named(checkout: Path) -> None:
    with pytest.raises(bootstrap.SetupError, match=r"-c raise SystemExit\(3\)` ended with 3"):
        bootstrap.run(sys.executable, "-c", "raise SystemExit(3)")


def test_one_python_of_each_minor_version_is_told_the_oldest_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, name, does in (
        ("a", "python3.12", "echo 3.12.10"),
        ("b", "python3.12", "echo 3.12.9"),
        ("a", "python3.13", "exit 127"),
        ("b", "python3.14", "echo 3.14.0rc1"),
    ):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / name).write_text(f"#!/bin/sh\n{does}\n", encoding="utf-8")
        (tmp_path / folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'a'}:{tmp_path / 'b'}")

    code = bootstrap.main_pythons()

    assert code == 0
    assert capsys.readouterr().out.splitlines() == [
        "3.11 absent",
        f"3.12.9 {tmp_path}/b/python3.12",
        "3.13 absent",
        f"3.14.0rc1 {tmp_path}/b/python3.14",
    ]


def test_another_python_is_set_up_in_a_folder_of_its_own() -> None:
    words = [sys.executable, str(bootstrap.__file__), "--venv", ".venv-of-nothing"]
    module = "import runpy, sys; sys.argv = sys.argv[1:]; print(runpy.run_path(sys.argv[0])['PYTHON'])"

    told = subprocess.run([words[0], "-c", module, *words[1:]], capture_output=True, text=True, check=True)

    assert told.stdout.strip().endswith("/.venv-of-nothing/bin/python")


def test_a_browser_is_the_one_that_is_named_or_the_first_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KEEPSTATE_CHROMIUM", raising=False)
    assert bootstrap.find_browser() is None
    executable(tmp_path / "google-chrome", "")
    assert bootstrap.find_browser() == str(tmp_path / "google-chrome")
    executable(tmp_path / "chromium", "")
    assert bootstrap.find_browser() == str(tmp_path / "chromium")

    monkeypatch.setenv("KEEPSTATE_CHROMIUM", "/opt/chromium")

    assert bootstrap.find_browser() == "/opt/chromium"


@pytest.mark.parametrize("installs", [True, False])
def test_root_on_debian_installs_a_browser_and_says_so_if_it_cannot(
    installs: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    done = "cp $0 $(dirname $0)/chromium" if installs else "echo no such mirror"
    executable(tmp_path / "apt-get", f'echo "$@" >> {tmp_path}/words\n{done}\n')
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.delenv("KEEPSTATE_CHROMIUM", raising=False)
    monkeypatch.setattr(bootstrap, "BROWSERS", ("chromium",))
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: bootstrap_path(tmp_path, name))
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 0)

    bootstrap.bring_browser()

    words = (tmp_path / "words").read_text(encoding="utf-8")
    said = capsys.readouterr().err
    assert "update" in words and "install --yes --no-install-recommends chromium fonts-inter" in words
    assert (bootstrap.NO_BROWSER in said, "no such mirror" in said) == (not installs, not installs)


def test_a_person_without_rights_is_told_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    executable(tmp_path / "apt-get", f"touch {tmp_path}/called\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("KEEPSTATE_CHROMIUM", raising=False)
    monkeypatch.setattr(bootstrap.os, "geteuid", lambda: 1000)

    bootstrap.bring_browser()

    assert not (tmp_path / "called").exists()
    assert "apt install chromium fonts-inter" in capsys.readouterr().err


def executable(path: Path, does: str) -> None:
    path.write_text(f"#!/bin/sh\n{does}", encoding="utf-8")
    path.chmod(0o755)


def bootstrap_path(folder: Path, name: str) -> str | None:
    """Return what is in a folder, because the machine may have a browser of its own."""
    return str(folder / name) if (folder / name).exists() else None


@pytest.mark.skipif(shutil.which("npm") is None, reason="the build needs npm, which is not on the path")
def test_the_inspector_is_built_when_a_file_of_it_changes(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    static = checkout / "src" / "keepstate" / "inspector" / "static"
    static.mkdir(parents=True)
    (checkout / "docs" / "reference").mkdir(parents=True)
    (checkout / "docs" / "reference" / "openapi.json").write_text("{}", encoding="utf-8")
    folder = checkout / "inspector"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "page").write_text("one", encoding="utf-8")
    built = f"cp src/page {static}/index.html"
    package = {"name": "page", "version": "0.0.0", "scripts": {"build": built}}
    (folder / "package.json").write_text(json.dumps(package), encoding="utf-8")
    lock = {"name": "page", "version": "0.0.0", "lockfileVersion": 3, "packages": {"": {"name": "page"}}}
    (folder / "package-lock.json").write_text(json.dumps(lock), encoding="utf-8")

    assert bootstrap.main() == 0
    first = (static / "index.html").read_text(encoding="utf-8"), capsys.readouterr().err
    assert bootstrap.main() == 0
    second = capsys.readouterr().err
    (folder / "src" / "page").write_text("two", encoding="utf-8")
    assert bootstrap.main() == 0
    third = (static / "index.html").read_text(encoding="utf-8")
    (static / "index.html").unlink()
    assert bootstrap.main() == 0

    assert first[0] == "one" and "built the inspector" in first[1]
    assert (second, third) == ("", "two")
    assert (static / "index.html").exists()


def test_an_inspector_that_cannot_be_built_fails_the_set_up(
    checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = checkout / "inspector"
    folder.mkdir()
    (checkout / "docs" / "reference").mkdir(parents=True)
    (checkout / "docs" / "reference" / "openapi.json").write_text("{}", encoding="utf-8")
    (folder / "package-lock.json").write_text("not json", encoding="utf-8")
    (folder / "package.json").write_text("{}", encoding="utf-8")
    if shutil.which("npm") is None:
        pytest.skip("the build needs npm, which is not on the path")

    assert bootstrap.main() == 1
    assert "npm ci" in capsys.readouterr().err
