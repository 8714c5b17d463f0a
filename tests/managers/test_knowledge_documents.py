"""What handing out failed documents reads: those that are handed out, and not all that wait behind them."""

from __future__ import annotations

from typing import Any

import keepstate
from keepstate import KnowledgeStateManager
from keepstate.stores.wrappers.measured import MeasuredStore, Measurement

FAILED = 1000


async def test_few_of_many_failed_documents_are_handed_out_in_order_by_few_reads() -> None:
    told: list[Measurement] = []
    async with keepstate.open("memory://") as ks:
        inner: Any = ks.store
        bases = KnowledgeStateManager(persistence=MeasuredStore(inner, told.append))
        for number in range(FAILED):
            await bases.fail_document("kb", f"{number:04}", "timeout")

        told.clear()
        first = await bases.retry_failed_documents("kb", limit=3)
        found = sum(each.count for each in told if each.operation == "scan")
        second = await bases.retry_failed_documents("kb", limit=3)

    assert [each.document_id for each in (*first, *second)] == [f"{number:04}" for number in range(6)]
    assert found < FAILED / 2
