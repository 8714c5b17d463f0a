"""Serve the chat on this machine: `python -m examples.chat --help`."""

from __future__ import annotations

import argparse

import uvicorn

from examples.chat.app import create_app


def main() -> None:
    """Serve until Ctrl-C."""
    parser = argparse.ArgumentParser(prog="python -m examples.chat", description="Serve a chat.")
    parser.add_argument("--url", default="sqlite:///chat.db", help="the store; default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    options = parser.parse_args()
    # The streams of open tabs never end by themselves; the tabs come back to the next server.
    uvicorn.run(create_app(options.url), host="127.0.0.1", port=options.port, timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
