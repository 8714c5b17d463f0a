"""WHICH promises hold in any order of events?

A world in which several processes share one store over a bad network, on clocks that jump, all of it inside
one event loop whose time is virtual: hours pass in milliseconds, and the same seed is the same run. The
engine and `StoreBase` are the real ones, over the spaces of the memory store; the network between them loses,
delays, repeats and reorders. Invariant: nothing in a world reads a real clock, real randomness, or the order
of a set.

To add one: a workload in `workloads/` with its steps and its final check, and its row in `workloads.every`.
"""

from keepstate_testing.simulation.dials import Dials
from keepstate_testing.simulation.run import BrokenPromiseError, Report, simulate

__all__ = ["BrokenPromiseError", "Dials", "Report", "simulate"]
