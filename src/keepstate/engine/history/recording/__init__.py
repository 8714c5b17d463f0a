"""HOW does a space keep every moment of its documents? Each batch that changes some is a commit as well.

Invariant: once a space is recorded, the state of its `main` is that of its documents at every revision, but
for documents that have expired since the last change. Each batch that changes documents checks whether the
space is recorded, also that of a handle which does not know yet; if so, the batch that applies has a commit
in it, made on the head that it checks. Whoever moves `main` by other means is refused.

To add what a commit should tell: `Recorder` writes them all.
"""
