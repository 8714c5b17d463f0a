"""Commit to a history and archive it, over and over: `URL FILE`."""

from __future__ import annotations

import sys

from keepstate import sync


def work(url: str, file: str) -> None:
    with sync.open(url) as ks:
        history = ks.space("run/1").history
        print("ready", flush=True)
        n = history.checkout()["n"] + 1 if list(history.branches()) else 0
        while True:
            for _ in range(5):
                history.commit({"n": n, "text": ["word"] * 2000})
                n += 1
            history.archive(file, keep_last=2)
            print("archived", flush=True)


if __name__ == "__main__":
    work(sys.argv[1], sys.argv[2])
