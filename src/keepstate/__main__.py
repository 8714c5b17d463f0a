"""`python -m keepstate` is the `keepstate` command."""

from __future__ import annotations

from keepstate.cli.app import main

if __name__ == "__main__":
    main()
