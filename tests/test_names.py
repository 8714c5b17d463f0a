"""The names that `import keepstate` gives, as an editor lists them."""

from __future__ import annotations

from importlib.metadata import version

import keepstate
from keepstate import errors


def test_an_editor_lists_the_public_names_and_no_others() -> None:
    shown = {name for name in dir(keepstate) if not name.startswith("_")}

    assert shown == set(keepstate.__all__)
    assert all(hasattr(keepstate, name) for name in shown)


def test_the_version_is_that_of_what_is_installed() -> None:
    assert "__version__" in dir(keepstate)
    assert keepstate.__version__ == version("keepstate")


def test_every_error_of_the_tree_can_be_caught_by_the_package_s_name() -> None:
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type)}

    assert {name for name in tree if name.endswith("Error")} <= set(keepstate.__all__)
