"""Names say what a thing is, and no text names the machine that it was written on."""

from __future__ import annotations

import re

from tests.architecture.tree import files, python_files, shown

EMPTY_WORDS = {"base2", "common", "helper", "helpers", "misc", "util", "utils"}
# Where packages come from and where the checkout stood are no part of the project.
OF_ONE_MACHINE = re.compile(
    rb"(?<![\w.-])/(?:work|root|home|Users)/[\w.-]+"
    rb"|\bpypi\.(?:org|python)|\bpython(?:hosted)\.org|registry\.(?:npmjs|yarnpkg)|\bdeb\.debian\.org"
)


def test_no_file_or_folder_has_an_empty_name() -> None:
    words = {shown(path): {path.stem, *path.parts} & EMPTY_WORDS for path in python_files()}

    assert {name: empty for name, empty in words.items() if empty} == {}


def test_no_text_names_a_machine_or_a_package_registry() -> None:
    named = {shown(path): OF_ONE_MACHINE.findall(path.read_bytes()) for path in files()}

    assert {name: found for name, found in named.items() if found} == {}
