"""LangGraph's own conformance suite for checkpointers: every capability, on every kind of store."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator

import pytest
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.report import CapabilityReport

from keepstate.adapters.langgraph import KeepstateSaver

ALL_TESTS = 81


def test_every_test_of_every_capability_passes(any_url: str) -> None:
    report = conformance(any_url)

    assert_whole(report)


def test_every_test_passes_on_a_cluster(redis_cluster_url: str) -> None:
    report = conformance(redis_cluster_url)

    assert_whole(report)


def conformance(url: str) -> CapabilityReport:
    """Return what the suite says of the saver on a store."""

    @checkpointer_test(name="KeepstateSaver")
    async def saver() -> AsyncIterator[KeepstateSaver]:
        async with KeepstateSaver(url, tenant=secrets.token_hex(4)) as made:
            yield made

    return asyncio.run(validate(saver))


def assert_whole(report: CapabilityReport) -> None:
    """Refuse a capability that was not found, or a test that failed."""
    failed = [failure for result in report.results.values() for failure in result.failures or ()]

    assert not failed
    assert all(result.detected and result.passed for result in report.results.values())
    assert sum(result.tests_passed for result in report.results.values()) == ALL_TESTS


def test_the_suite_itself_fails_a_saver_that_forgets_writes() -> None:
    class Forgetful(KeepstateSaver):
        async def aput_writes(self, *args: object, **options: object) -> None:
            return

    @checkpointer_test(name="Forgetful")
    async def saver() -> AsyncIterator[KeepstateSaver]:
        async with Forgetful("memory://") as made:
            yield made

    report = asyncio.run(validate(saver))

    with pytest.raises(AssertionError):
        assert_whole(report)
