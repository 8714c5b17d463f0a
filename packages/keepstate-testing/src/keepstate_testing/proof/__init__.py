"""Was anything lost, invented, torn, or answered in an impossible order?

Clients record each operation before it begins, and its answer. Checkers compare the records with the log and
the final entries. Invariant: a checker is a pure function of the records. An operation without an answer may
have happened or not; an acknowledged one must have.

To add one: a module with a function of a `History` and an `End` that returns `Findings`, and histories with
planted errors that it finds.
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
