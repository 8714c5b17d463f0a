"""A few words with a Redis or Valkey server, for starting and tending it; no driver is needed for that.

One connection a conversation, RESP2. Not for the tests' own data.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import BinaryIO

from keepstate.errors import StorageError, StoreUnavailableError

Reply = str | int | None | list["Reply"]
"""What a command answers; texts are decoded as UTF-8."""


def ask(host: str, port: int, *words: str, timeout_s: float = 10.0) -> Reply:
    """Send one command on a connection of its own and return its reply.

    Raises:
        StoreUnavailableError: No server answers there.
        StorageError: The server answers with an error, or is another kind of server.
    """
    (reply,) = ask_each(host, port, words, timeout_s=timeout_s)
    return reply


def ask_each(host: str, port: int, *commands: Sequence[str], timeout_s: float = 10.0) -> list[Reply]:
    """Send commands on one connection of their own, each when the one before is answered.

    So a command is about the writes before it (WAIT knows only those of its own connection).

    Raises:
        StoreUnavailableError: No server answers there.
        StorageError: The server answers one with an error, or is another kind of server.
    """
    try:
        with (
            socket.create_connection((host, port), timeout_s) as connection,
            connection.makefile("rb") as answers,
        ):
            replies: list[Reply] = []
            for words in commands:
                connection.sendall(_encoded(words))
                replies.append(_read_reply(answers))
            return replies
    except OSError as error:
        asked = ", ".join(words[0] for words in commands)
        raise StoreUnavailableError(f"no answer from {host}:{port} to {asked}: {error}") from error


def read_fields(reply: Reply) -> dict[str, str]:
    """Return the `name:value` lines of a reply such as that of INFO."""
    lines = (line.partition(":") for line in str(reply).splitlines())
    return {name: value for name, colon, value in lines if colon}


def _encoded(words: Sequence[str]) -> bytes:
    parts = [f"*{len(words)}\r\n".encode()]
    for word in words:
        encoded = word.encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(encoded), encoded))
    return b"".join(parts)


def _read_reply(answers: BinaryIO) -> Reply:
    line = answers.readline()
    if not line.endswith(b"\r\n"):
        raise ConnectionError("the server closed the connection")
    kind, rest = line[:1], line[1:-2].decode(errors="replace")
    if kind == b"+":
        return rest
    if kind == b"-":
        raise StorageError(f"the server refuses: {rest}")
    if kind == b":":
        return int(rest)
    if kind not in (b"$", b"*"):
        raise StorageError("the process that answers is not a Redis server")
    size = int(rest)
    if size < 0:
        return None
    if kind == b"$":
        return answers.read(size + 2)[:-2].decode()
    return [_read_reply(answers) for _ in range(size)]
