"""Hold a journal: `python hold_journal.py PATH HOW`, where HOW is `hold`, `write` or `fork`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from keepstate.stores.protocol import Put
from tests.stores.file.disks import A, B, opened, put


def say(word: object) -> None:
    os.write(1, f"{word}\n".encode())  # in one piece: parent and child speak at the same time


def main(path: str, how: str) -> None:
    store = opened(Path(path))
    if how == "fork" and (child := os.fork()):
        say(child)
    elif how == "fork":
        say("left")
        time.sleep(60)
        os._exit(0)
    say("holds")
    if how == "write":
        for i in range(1_000_000):
            say(put(store, Put(A, b"%d" % i), Put(B, b"%d" % i * 1_000)))
    time.sleep(60)


if __name__ == "__main__":
    main(*sys.argv[1:])
