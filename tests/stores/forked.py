"""Stores whose contract starts its processes as forks, which costs a tenth of an interpreter's start."""

from __future__ import annotations

from subprocess import PIPE

from keepstate.stores.base import StoreBase
from keepstate.testing.store_contract import SharedAcrossProcesses
from tests.processes import Program

INCREMENTER = "keepstate.testing.store_contract.incrementer"


class SharedAcrossForks(SharedAcrossProcesses):
    """The contract's processes, which a program of the kit is run in."""

    def start_process(self, store: StoreBase, space: str, times: int) -> Program:
        return Program("-m", INCREMENTER, self.store_url(store), space, times, stdout=PIPE, stderr=PIPE)
