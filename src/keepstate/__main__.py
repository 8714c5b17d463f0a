"""The `keepstate` command, run as `python -m keepstate`."""

from __future__ import annotations

from keepstate.cli.app import main

if __name__ == "__main__":
    main()
