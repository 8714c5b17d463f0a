"""All workloads, as a world mixes them."""

from __future__ import annotations

from keepstate_testing.simulation.workloads.booking import Booking
from keepstate_testing.simulation.workloads.counting import Counting
from keepstate_testing.simulation.workloads.dropping import Dropping
from keepstate_testing.simulation.workloads.expiring import Expiring
from keepstate_testing.simulation.workloads.keeping import Keeping
from keepstate_testing.simulation.workloads.leasing import Leasing
from keepstate_testing.simulation.workloads.limiting import Limiting
from keepstate_testing.simulation.workloads.playing import Playing
from keepstate_testing.simulation.workloads.recording import Recording
from keepstate_testing.simulation.workloads.transferring import Transferring
from keepstate_testing.simulation.workloads.working import WorkingCopy

EVERY = (
    Counting,
    Transferring,
    Limiting,
    Booking,
    Leasing,
    WorkingCopy,
    Recording,
    Expiring,
    Keeping,
    Playing,
    Dropping,
)
