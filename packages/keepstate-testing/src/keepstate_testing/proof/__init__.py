"""Was anything lost, invented, torn, or told in an impossible order?

Clients write down what they are about to do, and what they were told; checkers compare that with the log and
the entries that are there in the end. Invariant: a checker is a pure function of what was written down. What
a client did not hear the end of may have happened or not; what it heard must have.

To add one: a module with a function of a `History` and an `End` that gives `Findings`, and histories in which
it finds what was planted.
"""

from keepstate_testing.proof.ending import End as End
from keepstate_testing.proof.ending import read_end as read_end
from keepstate_testing.proof.ending import settle as settle
from keepstate_testing.proof.findings import Finding as Finding
from keepstate_testing.proof.findings import Findings as Findings
from keepstate_testing.proof.findings import Kind as Kind
from keepstate_testing.proof.operations import Attempt as Attempt
from keepstate_testing.proof.operations import History as History
from keepstate_testing.proof.operations import Look as Look
from keepstate_testing.proof.operations import Refused as Refused
from keepstate_testing.proof.operations import Saw as Saw
from keepstate_testing.proof.operations import Took as Took
from keepstate_testing.proof.operations import Wrote as Wrote
from keepstate_testing.proof.recorded_store import RecordedStore as RecordedStore
from keepstate_testing.proof.recorder import Recorder as Recorder
from keepstate_testing.proof.recorder import load as load
from keepstate_testing.proof.witness import witness as witness

__all__ = [
    "Attempt",
    "End",
    "Finding",
    "Findings",
    "History",
    "Kind",
    "Look",
    "RecordedStore",
    "Recorder",
    "Refused",
    "Saw",
    "Took",
    "Wrote",
    "load",
    "read_end",
    "settle",
    "witness",
]
