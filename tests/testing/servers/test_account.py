"""The account that servers run under is not root, has a name, and owns its folder."""

from __future__ import annotations

import os
from pathlib import Path

from keepstate_testing.servers import Account, unprivileged

IS_ROOT = os.geteuid() == 0


def test_the_account_of_servers_is_not_root_and_has_a_name() -> None:
    said = unprivileged().run("id", "--user", "--name", folder=Path("/")).stdout.strip()

    assert said not in {"", "root"}
    assert not said.isdigit()


def test_a_command_that_fails_or_is_missing_cannot_be_run() -> None:
    account = Account.own()

    assert [account.can_run("true"), account.can_run("false"), account.can_run("/missing")] == [
        True,
        False,
        False,
    ]


if IS_ROOT:

    def test_a_named_account_owns_what_it_is_given(tmp_path: Path) -> None:
        nobody = Account.named("nobody")

        nobody.give(tmp_path)

        assert tmp_path.stat().st_uid == nobody.uid
        assert nobody.run("id", "--user", folder=Path("/")).stdout.strip() == str(nobody.uid)
