"""HOW does a space keep every past state? Its commits, their branches and tags, and the operations on them.

Take `history` for states that are committed; `documents` stores current values only. Not an API boundary:
`Space.history` is.

Invariant: the batch that moves a branch to a commit also writes the commit and everything it refers to. Parts
may be written ahead of that batch, which then checks that no garbage was collected meanwhile. Existing parts
are reachable from a branch or tag that the same batch checks. So a concurrent collector never
deletes what a commit needs.

To add an operation: do its work through a `HistorySession`, and call it from `History`.
"""
