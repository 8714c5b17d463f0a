"""The tool that tries each framework at the ends of its versions knows each extra of an adapter."""

from __future__ import annotations

import pytest

from tools.bounds import ROOT, TESTS, lowest, main, read_extras


def test_each_framework_has_tests_and_a_lowest_version() -> None:
    extras = read_extras((ROOT / "pyproject.toml").read_text(encoding="utf-8"))

    for extra, tests in TESTS.items():
        assert (ROOT / "tests" / "adapters" / tests).exists()
        assert all("==" in lowest(each) for each in extras[extra])


def test_the_lowest_version_is_that_of_the_requirement() -> None:
    assert lowest("psycopg[binary,pool]>=3.2") == "psycopg[binary,pool]==3.2"
    assert lowest("a2a-sdk>=1.3,<2") == "a2a-sdk==1.3"
    with pytest.raises(ValueError, match="no lowest version"):
        lowest("mcp<3")


def test_an_extra_without_an_adapter_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["zones"]) == 2
    assert "zones" in capsys.readouterr().out
