"""A deploy and its rollback: two versions of an application's code work on one store, and lose nothing.

`python -m examples.rollback` plays it. `older` and `newer` are the two versions of the application. Each runs
as a process of its own, and adds a dollar to each trip, some number of times.
"""
