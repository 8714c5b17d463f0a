"""HOW is every moment kept? The commits of a space, their branches and tags, and what is done with them.

Invariant: a commit and all that it refers to are written by the batch that puts a branch on it, or ahead of
that batch, which then checks that no garbage was collected meanwhile; and what is not written because it is
there already can be reached from a branch or tag which the same batch checks. So a collector that runs beside
writers never takes what a commit needs.

To add an operation: do its work through a `HistorySession`, and call it from `History`.
"""
