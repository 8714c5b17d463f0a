"""The account of a server: PostgreSQL refuses to run as root, or under an account without a name.

Containers run their tests as root, or under a number that no account has. There the server gets a user
namespace of its own: inside it is `nobody`, outside it still owns its files, so it reaches a checkout under
/root. Where namespaces are forbidden (many containers) and the tests are root, it runs as the real `nobody`.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypedDict

LEAST: Final = "nobody"
"""The account with the fewest rights on a Unix machine."""


class Credentials(TypedDict, total=False):
    """The options of `subprocess` to start a process under another account."""

    user: int
    group: int
    extra_groups: Sequence[int]


@dataclass(frozen=True, slots=True)
class Account:
    """The way to start a process under an account: words before its command, its uid and its gid."""

    prefix: tuple[str, ...] = ()
    uid: int | None = None
    gid: int | None = None

    @classmethod
    def own(cls) -> Account:
        """Return the account of this process."""
        return cls()

    @classmethod
    def namespaced(cls) -> Account:
        """Return this process's account behind a user namespace in which it is `nobody`. Linux only."""
        account = cls.named(LEAST)
        return cls(prefix=("unshare", "--user", f"--map-user={account.uid}", f"--map-group={account.gid}"))

    @classmethod
    def named(cls, name: str) -> Account:
        """Return the account `name`; only root can use it."""
        import pwd

        entry = pwd.getpwnam(name)
        return cls(uid=entry.pw_uid, gid=entry.pw_gid)

    def credentials(self) -> Credentials:
        """Return the keyword arguments for `subprocess`."""
        if self.uid is None or self.gid is None:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": ()}

    def give(self, folder: Path) -> None:
        """Make the account the owner of `folder`."""
        if self.uid is not None and self.gid is not None:
            os.chown(folder, self.uid, self.gid)

    def run(self, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
        """Run a command to its end under this account; `stdout` holds all it said.

        Raises:
            OSError: The account cannot run it.
        """
        return subprocess.run(
            [*self.prefix, *command],
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            **self.credentials(),
        )

    def can_run(self, *command: str) -> bool:
        """Return whether the command starts and succeeds under this account."""
        try:
            return self.run(*command, folder=Path("/")).returncode == 0
        except OSError:
            return False


@functools.cache
def unprivileged() -> Account:
    """Return the first that works of this process's own account, a namespaced one, and `nobody`."""
    if os.geteuid() != 0 and _has_name(os.geteuid()):
        return Account.own()
    namespaced = Account.namespaced()
    if shutil.which("unshare") and namespaced.can_run("true"):
        return namespaced
    return Account.named(LEAST) if os.geteuid() == 0 else Account.own()


def _has_name(uid: int) -> bool:
    import pwd

    try:
        return bool(pwd.getpwuid(uid).pw_name)
    except KeyError:
        return False
