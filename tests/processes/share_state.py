"""Work on a shared state: `python share_state.py PLACE NAME HOW`.

`disk:FOLDER` is a disk, any other place a URL. HOW is `raise` or `merge`: what it does when another process
has committed meanwhile. With `read` it only reads, and prints the commit it finds, and the one after.
"""

from __future__ import annotations

import sys

from keepstate import ConflictError, Disk, Versioned
from keepstate.workspace import Agent

COMMITS = 20


def work(place: str, name: str, how: str) -> None:
    """Add 1 to `n`, twenty times, and its own name to `seen` as often."""
    state = opened(
        place, on_conflict="merge" if how == "merge" else "raise", rules={"n": "counter", "seen": "append"}
    )

    @Agent(name).task
    def count(state: Versioned) -> None:
        state["n"] = state.get("n", 0) + 1
        state.setdefault("seen", []).append(name)

    done = 0
    while done < COMMITS:
        try:
            count(state=state)
            done += 1
        except ConflictError:
            if how == "merge":
                raise
            state.discard()
    state.close()


def read(place: str) -> None:
    """Read all there is, in a task too."""
    state = opened(place)

    @Agent("reader").task
    def look(state: Versioned) -> int:
        return len(dict(state))

    before = state.current_commit
    look(state=state)
    state.commit()
    print(before, state.current_commit)
    state.close()


def opened(place: str, **options: object) -> Versioned:
    """Open a state at a place."""
    store = Disk(place.removeprefix("disk:")) if place.startswith("disk:") else place
    return Versioned(store, **options)  # type: ignore[arg-type]


if __name__ == "__main__":
    if sys.argv[3] == "read":
        read(sys.argv[1])
    else:
        work(*sys.argv[1:])
