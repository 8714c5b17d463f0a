"""How does a store prove itself?

What keepstate tests itself with, public for other people's backends: contract suites, models, faults and
real servers. Invariant: nothing above imports it, and it needs pytest, hypothesis or a driver only where it
uses them.

To add one: a module that says in its first line what it proves, and a how-to page that shows it at work.
"""
