"""Requests and replies get lost on their way: nothing is lost, applied twice or told wrongly.

The proof of promise 2 on real servers, in both modes, behind a proxy that spoils what it carries. What a
commit was told is compared with the space's log, read past the proxy.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random

import pytest
from keepstate_testing.faults import (
    Chosen,
    CutReply,
    CutRequest,
    Delay,
    HalfClose,
    Late,
    Plan,
    Silence,
    every_request,
)

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import HistoryLostError, OutcomeUnknownError
from keepstate.stores.base import StoreBase
from keepstate.stores.protocol import ABSENT, Batch, Check, Conflict, Delete, Put
from keepstate.testing.store_contract.stage import applied, entry_of, only_async, revision_of, value_of
from tests.crashes.lossy_stage import LOG, WRITES, Account, HistorySession, LossyStage, space_in
from tests.tally import first_seed

SEED = first_seed()
A = b"\x01a"
NOTHING = Account(0, 0, 0, 0)


@dataclass(frozen=True)
class Size:
    """How many commits: `tasks` beside each other on each of `handles`; that share of requests is spoiled."""

    handles: int
    tasks: int
    commits: int
    share: float

    @property
    def total(self) -> int:
        return self.handles * self.tasks * self.commits


SIZES = [
    pytest.param(Size(3, 2, 20, 0.2), id="short"),
    pytest.param(Size(4, 2, 640, 0.05), id="long", marks=[pytest.mark.deep, pytest.mark.timeout(300)]),
]

FALLING_SILENT = [
    pytest.param(WRITES, id="in a write"),
    pytest.param(every_request, id="in everything", marks=pytest.mark.deep),  # libpq waits 2 s to connect
]


class TestLostReplies(LossyStage):
    @pytest.mark.parametrize("size", SIZES)
    async def test_commits_over_a_lossy_line_are_told_what_the_log_holds(
        self, space: str, size: Size, tally: Callable[..., None]
    ) -> None:
        handles = [await self.behind() for _ in range(size.handles)]
        session = HistorySession()
        self.proxy.plan = Plan(SEED, share=size.share, chosen=WRITES)

        async def work(store: StoreBase, worker: int) -> None:
            for number in range(size.commits):
                await session.commit(store, space, b"%d/%d" % (worker, number), races=number % 2 == 0)

        workers = [(store, worker) for worker, store in enumerate(handles * size.tasks)]
        await self.together(*(work(store, worker) for store, worker in workers))
        self.proxy.plan = None

        account = await self._account(session, space, *handles)
        cut = self.proxy.happened[CutRequest] + self.proxy.happened[CutReply]
        tally(
            f"{self.kind}: lost replies",
            operations=len(session.told),
            cut_replies=cut,
            **account._asdict(),
        )
        assert account == NOTHING, f"seed {SEED}"
        assert session.answered == len(session.told) == size.total
        assert cut > 0.03 * size.total

    @pytest.mark.parametrize("size", SIZES)
    async def test_requests_that_arrive_after_their_own_retries_apply_once(
        self, space: str, size: Size, tally: Callable[..., None]
    ) -> None:
        handles = [await self.behind(timeout_s=0.15) for _ in range(size.handles)]
        session = HistorySession()
        delays = [
            lambda random: Delay(request_s=0.15 + 0.1 * random.random()),
            lambda random: Delay(reply_s=0.2),
        ]
        self.proxy.plan = Plan(SEED, share=2 * size.share, draws=delays, chosen=WRITES)

        async def work(store: StoreBase, worker: int) -> None:
            for number in range(size.commits // 4):
                await session.commit(store, space, b"%d/%d" % (worker, number), races=number % 2 == 0)

        workers = [(store, worker) for worker, store in enumerate(handles * size.tasks)]
        await self.together(*(work(store, worker) for store, worker in workers))
        self.proxy.plan = None
        await self.pass_time(300)

        account = await self._account(session, space, *handles)
        late = self.proxy.happened[Delay]
        tally(
            f"{self.kind}: late requests",
            operations=len(session.told),
            faults=late,
            **account._asdict(),
        )
        assert account == NOTHING, f"seed {SEED}"
        assert session.answered == len(session.told) == size.handles * size.tasks * (size.commits // 4)
        assert late > 0.02 * len(session.told)

    @only_async
    @pytest.mark.parametrize("size", SIZES)
    async def test_cancelled_commits_apply_once_or_never_and_leave_the_others_their_answers(
        self, space: str, size: Size, tally: Callable[..., None]
    ) -> None:
        store, session, random = await self.behind(), HistorySession(), Random(SEED)
        self.proxy.plan = Plan(SEED, share=size.share, chosen=WRITES)

        for number in range(size.commits):
            names = [b"%d/%d" % (number, task) for task in range(size.tasks * 3)]
            tasks = [
                asyncio.create_task(session.commit(store, space, name, races=place % 2 == 0))
                for place, name in enumerate(names)
            ]
            await asyncio.sleep(random.random() * 0.004)
            doomed = set(random.sample(names, len(names) // 3))
            for name, task in zip(names, tasks, strict=True):
                if name in doomed:
                    task.cancel()
            ended = await asyncio.gather(*tasks, return_exceptions=True)
            for name, end in zip(names, ended, strict=True):
                assert end is None or (name in doomed and isinstance(end, asyncio.CancelledError))
        self.proxy.plan = None

        account = await self._account(session, space, store)
        cancelled = len(session.told) - session.answered
        tally(
            f"{self.kind}: cancelled commits",
            operations=len(session.told),
            cancelled=cancelled,
            **account._asdict(),
        )
        assert account == NOTHING, f"seed {SEED}"
        assert cancelled > 0.05 * len(session.told)

    async def test_a_late_original_does_not_apply_after_its_retry_was_refused(self, space: str) -> None:
        store, direct = await self.behind(), await self.beside()
        await applied(direct, space, Put(LOG, b"first", stamp=True))
        await revision_of(store, space)
        self.proxy.spoil(Late(), chosen=WRITES)
        self.proxy.plan = Plan(SEED, share=1.0, draws=[lambda random: CutRequest()], chosen=WRITES)

        with ThreadPoolExecutor(1) as elsewhere:
            there_first = elsewhere.submit(self._write_once_the_original_is_held, space)
            (outcome,) = await store.apply([Batch(space, [Put(A, b"late")], [Check(A, version=ABSENT)])])
            there_first.result()
        await applied(direct, space, Delete(A))  # what the original asks for holds again
        released = self.proxy.release()

        assert outcome == Conflict(A, 2)
        assert released == 1
        assert await entry_of(direct, space, A) is None
        assert await revision_of(direct, space) == 3

    async def test_a_late_original_does_not_apply_after_its_outcome_was_settled(self, space: str) -> None:
        store, direct = await self.behind(retry_for_s=0.0), await self.beside()
        await revision_of(store, space)
        self.proxy.spoil(Late(), chosen=WRITES)

        (outcome,) = await store.apply([Batch(space, [Put(A, b"late")])])
        assert isinstance(outcome, OutcomeUnknownError)
        assert outcome.token is not None
        settled = await space_in(direct, space).outcome(outcome.token)
        released = self.proxy.release()

        assert (settled, released) == (None, 1)
        assert await entry_of(direct, space, A) is None
        assert await space_in(direct, space).outcome(outcome.token) is None

    @pytest.mark.parametrize("chosen", FALLING_SILENT)
    @pytest.mark.parametrize("mishap", [Silence(), HalfClose()], ids=str)
    async def test_a_server_that_never_answers_leaves_a_doubt_in_time_and_its_outcome_ends_it(
        self, space: str, mishap: Silence | HalfClose, chosen: Chosen
    ) -> None:
        store, direct = await self.behind(timeout_s=0.25, retry_for_s=0.5), await self.beside()
        await applied(direct, space, Put(A, b"1"))
        assert await revision_of(store, space) == 1
        self.proxy.plan = Plan(SEED, share=1.0, draws=[lambda random: mishap], chosen=chosen)

        (outcome,) = await store.apply([Batch(space, [Put(A, b"2")], [Check(A, version=1)])])
        self.proxy.plan = None

        assert isinstance(outcome, OutcomeUnknownError)
        assert outcome.token is not None
        assert outcome.space == space
        # Where everything falls silent, the call that goes before a handle's first batch may do so.
        settled = await space_in(direct, space).outcome(outcome.token)
        assert settled == 2 or (settled is None and chosen is not WRITES)
        assert await value_of(direct, space, A) == (b"2" if settled else b"1")

    @only_async
    @pytest.mark.timed
    async def test_as_it_is_set_by_default_a_silent_server_leaves_a_doubt_within_30_s(
        self, space: str
    ) -> None:
        store = await self.behind_by_default()
        await applied(store, space, Put(A, b"1"))
        self.proxy.plan = Plan(SEED, share=1.0, draws=[lambda random: Silence()])
        since_s = time.monotonic()

        (outcome,) = await store.apply([Batch(space, [Put(A, b"2")])])

        assert isinstance(outcome, OutcomeUnknownError)
        assert time.monotonic() - since_s < 31.0

    async def test_a_loss_of_history_is_told_as_one_although_its_first_answer_was_lost(
        self, space: str
    ) -> None:
        store = await self.behind()
        await applied(store, space, Put(A, b"1"))
        self.direct.flush()
        self.proxy.spoil(CutReply(), chosen=WRITES)

        (outcome,) = await store.apply([Batch(space, [Put(A, b"2")], [Check(A, version=1)])])

        assert isinstance(outcome, HistoryLostError)
        assert await entry_of(store, space, A) is None

    @only_async
    async def test_who_is_cancelled_in_a_flush_takes_no_answer_from_the_others(self, space: str) -> None:
        store, session = await self.behind(), HistorySession()
        await applied(store, space, Put(A, b"1"))
        self.proxy.spoil(Delay(reply_s=30), Delay(reply_s=0.5), chosen=WRITES)
        names = [b"%d" % number for number in range(9)]
        tasks = [
            asyncio.create_task(session.commit(store, space, name, races=False), name=name.decode())
            for name in names
        ]

        for flushes, cancelled in ((1, tasks[0]), (2, tasks[4])):
            while self.proxy.happened[Delay] < flushes:
                await asyncio.sleep(0.001)
            cancelled.cancel()
        await asyncio.wait(tasks)

        assert [task.cancelled() for task in tasks] == [name in (b"0", b"4") for name in names]
        assert session.answered == 7
        assert await self._account(session, space, store) == NOTHING

    @only_async
    async def test_a_caller_with_a_time_limit_of_its_own_leaves_a_store_of_use(self, space: str) -> None:
        store = await self.behind()
        await applied(store, space, Put(A, b"1"))
        self.proxy.spoil(Silence(), chosen=WRITES)

        beside = await self.beside()

        async def give_up_once_it_applied(limit: asyncio.Timeout) -> None:
            while await revision_of(beside, space) < 2:
                await asyncio.sleep(0.01)
            limit.reschedule(asyncio.get_running_loop().time())

        with pytest.raises(TimeoutError):
            async with asyncio.timeout(None) as limit:
                giving_up = asyncio.create_task(give_up_once_it_applied(limit))
                await store.apply([Batch(space, [Put(A, b"2")])])
        await giving_up

        assert (await applied(store, space, Put(A, b"3"))).revision == 3

    def _write_once_the_original_is_held(self, space: str) -> None:
        """Let somebody else write what the original wants to write first, and then the retry through."""
        other = finish(self.another(ThreadRunner()).open())
        until_s = time.monotonic() + 60
        while not self.proxy.happened[Late] and time.monotonic() < until_s:
            time.sleep(0.001)
        finish(applied(other, space, Put(A, b"there first")))
        finish(other.close())
        self.proxy.plan = None

    async def _account(self, session: HistorySession, space: str, *handles: StoreBase) -> Account:
        """Return the account by the server's own word; every handle must still be of use."""
        for store in handles:
            assert await value_of(store, space, b"\x01unwritten") is None
        return await session.settled(await self.beside(), space)
