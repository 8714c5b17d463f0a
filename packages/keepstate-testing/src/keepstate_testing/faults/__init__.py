"""WHICH faults does a store meet?

Deliberate faults between a store and its server or disk, such as lines that lose data. Invariant: a fault
happens when it is ordered, or by a seed, never by chance.

To add one: a module whose first line names the fault. The code that chooses the moment is separate from the
code that makes the fault.
"""

from keepstate_testing.faults.mishaps import LOST_ANSWERS as LOST_ANSWERS
from keepstate_testing.faults.mishaps import Chosen as Chosen
from keepstate_testing.faults.mishaps import CutReply as CutReply
from keepstate_testing.faults.mishaps import CutRequest as CutRequest
from keepstate_testing.faults.mishaps import Delay as Delay
from keepstate_testing.faults.mishaps import HalfClose as HalfClose
from keepstate_testing.faults.mishaps import Late as Late
from keepstate_testing.faults.mishaps import Mishap as Mishap
from keepstate_testing.faults.mishaps import Plan as Plan
from keepstate_testing.faults.mishaps import Silence as Silence
from keepstate_testing.faults.mishaps import every_request as every_request
from keepstate_testing.faults.mishaps import having as having
from keepstate_testing.faults.proxy import Proxy as Proxy

__all__ = [
    "LOST_ANSWERS",
    "Chosen",
    "CutReply",
    "CutRequest",
    "Delay",
    "HalfClose",
    "Late",
    "Mishap",
    "Plan",
    "Proxy",
    "Silence",
    "every_request",
    "having",
]
