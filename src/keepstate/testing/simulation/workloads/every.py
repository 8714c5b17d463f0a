"""All workloads, as a world mixes them."""

from __future__ import annotations

from keepstate.testing.simulation.workloads.counting import Counting
from keepstate.testing.simulation.workloads.dropping import Dropping
from keepstate.testing.simulation.workloads.expiring import Expiring
from keepstate.testing.simulation.workloads.keeping import Keeping
from keepstate.testing.simulation.workloads.leasing import Leasing
from keepstate.testing.simulation.workloads.limiting import Limiting
from keepstate.testing.simulation.workloads.playing import Playing
from keepstate.testing.simulation.workloads.recording import Recording
from keepstate.testing.simulation.workloads.transferring import Transferring
from keepstate.testing.simulation.workloads.working import WorkingCopy

EVERY = (
    Counting,
    Transferring,
    Limiting,
    Leasing,
    WorkingCopy,
    Recording,
    Expiring,
    Keeping,
    Playing,
    Dropping,
)
