"""HOW does a space record every state of its documents? Each batch that changes documents is also a commit.

Take `recording` for commits that the engine makes; `history` is for commits that a caller makes. Not an API
boundary: `space(…, record=True)` is.

Invariant: once a space is recorded, the state of its `main` equals its documents at every revision, except
documents that have expired since the last change. Each batch that changes documents checks whether the space
is recorded, even in a handle that does not know it. If it is, the applied batch contains a commit that is
based on the head that it checks. Other callers cannot move `main`.

To add something to these commits: `RecordedCommits` writes them all.
"""
