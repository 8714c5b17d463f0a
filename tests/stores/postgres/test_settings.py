"""Which settings of a server with standbys lose data: one needs no real standby to be told."""

from __future__ import annotations

import pytest

from keepstate.stores.postgres.queries import StoredSetting, judge_settings


@pytest.mark.parametrize(
    ("commit", "standbys", "mend"),
    [
        ("on", "", "ALTER SYSTEM SET synchronous_standby_names"),
        ("local", "ANY 1 (*)", "ALTER SYSTEM SET synchronous_commit = 'on'"),
        ("on", "ANY 1 (*)", None),
    ],
)
def test_a_standby_that_nobody_waits_for_is_a_risk(commit: str, standbys: str, mend: str | None) -> None:
    stored = {
        "synchronous_commit": StoredSetting(commit, "default"),
        "synchronous_standby_names": StoredSetting(standbys, "configuration file"),
    }

    alone, followed = judge_settings(stored, has_standby=False), judge_settings(stored, has_standby=True)

    assert [setting.name for setting in alone] == ["synchronous_commit"]
    (found,) = (setting for setting in followed if setting.name == "synchronous_standby_names")
    assert (found.loses is None) is (mend is None)
    assert mend is None or mend in found.mend
