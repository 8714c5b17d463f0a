"""WHICH state survives kills?

Several processes work on one store, each with several tasks or threads, while they and the store's server are
killed. Afterwards `keepstate_testing.proof` judges their records. Invariant: this package catches only errors
that the store's protocol names, and a call that was killed before its answer counts as unknown.

To add one: an action in `workload`, and its required result in `promises`.
"""

from keepstate_testing.chaos.plan import Crash as Crash
from keepstate_testing.chaos.plan import Plan as Plan
from keepstate_testing.chaos.report import Report as Report
from keepstate_testing.chaos.trial import run as run

__all__ = ["Crash", "Plan", "Report", "run"]
