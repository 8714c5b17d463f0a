"""What do agents keep?

`StateManager` and the managers of agents, their recovery, workflows, teams, knowledge, tools and speech.
Invariant: a manager keeps things only by the parts of spaces, and adds no storage of its own; two managers
are atomic together only on one space, in one transaction.

To add one: a subclass of `manager.Manager`, its records by `records.record`, its names by `place.Folder`, a
row in tools/twins.py, and `tests/contracts/managers.py` on every backend.
"""
