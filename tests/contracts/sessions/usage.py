"""The usage of a session: counted with its messages, under budgets of session and user."""

from __future__ import annotations

from decimal import Decimal

import pytest

from keepstate import ANY_USER, Budget, BudgetExceededError, Spend, Usage
from keepstate.errors import InvalidError, NotOwnerError
from tests.contracts.sessions.conversations import said, texts
from tests.contracts.sessions.stage import SessionStage


def used(cost: int, model: str = "large") -> Usage:
    return Usage(model=model, input_tokens=100, output_tokens=20, cost=Decimal(cost))


class UsageContract(SessionStage):
    """What a session, and its user, count of the calls of models."""

    async def test_a_message_and_its_usage_are_written_once(self) -> None:
        session = self.session()
        talk = session.conversation
        assert await talk.append(said("a"), said("b"), usage=used(2)) == 1
        for _ in range(2):
            assert await talk.append(said("c"), id="request/1", usage=used(3, "small")) == 2

        first, second, third = await talk.page()
        assert (first.usage, second.usage, third.usage) == ((), (used(2),), (used(3, "small"),))
        assert {name: sums.cost for name, sums in (await session.usage.totals("month")).by_model.items()} == {
            "large": 2,
            "small": 3,
        }
        await talk.pop(2)
        await session.end()
        assert (await session.usage.totals()).total.cost == 5
        assert (await self.session("other").usage.totals()).total.cost == 0

    async def test_no_message_is_added_whose_usage_exceeds_a_budget(self) -> None:
        session = self.session()
        await session.usage.set_budget("all", Budget(cost=Decimal(5)))
        await session.conversation.append(said("a"), usage=used(4))

        with pytest.raises(BudgetExceededError):
            await session.conversation.append(said("b"), id="b", usage=used(2))
        assert await texts(session.conversation) == ["a"]
        await session.usage.set_budget("all", Budget(cost=Decimal(6)))
        await session.conversation.append(said("b"), id="b", usage=used(2))

        assert (await session.usage.budgets())["all"].used_cost == 6

    async def test_a_spend_is_counted_with_its_message_in_session_and_user(self) -> None:
        session = self.session(user_id="ann")
        ledger = session.usage.within(session.user.usage)
        await session.user.usage.set_budget("user", Budget(cost=Decimal(5)))
        async with ledger.reserve(cost=Decimal(4), tokens=500) as spend:
            with pytest.raises(BudgetExceededError):
                await session.user.usage.record(used(2))
            spend.record(used(1, "small"))
            spend.record(used(2))
            await session.conversation.append(said("a"), spend=spend)
            with pytest.raises(InvalidError, match="was settled"):
                spend.record(used(1))

        assert (await session.conversation.page())[0].usage == (used(1, "small"), used(2))
        for usage in (session.usage, session.user.usage):
            assert (await usage.totals()).total.cost == 3
        state = (await session.user.usage.budgets())["user"]
        assert state.used_cost == 3
        assert state.reserved_cost == 0

    async def test_the_ledger_of_an_owned_session_opens_for_its_owner_only(self) -> None:
        owned = self.session(user_id="ann")
        await owned.conversation.append(said("a"), usage=used(2))
        await owned.usage.set_budget("cost", Budget(cost=Decimal(9)))

        for stranger in (self.session(user_id="bob"), self.session()):
            ledger = stranger.usage
            for refused in (
                ledger.totals(), ledger.budgets(), ledger.delete_budget("cost"), ledger.record(used(1)),
                ledger.set_budget("none", Budget(calls=0)), ledger.set_zone("Europe/Berlin"),
            ):  # fmt: skip
                with pytest.raises(NotOwnerError):
                    await refused
            with pytest.raises(NotOwnerError):
                async with ledger.reserve(cost=Decimal(1)):
                    raise AssertionError("reserved")

        assert (await owned.usage.totals()).total.cost == 2
        assert list(await self.session(user_id=ANY_USER).usage.budgets()) == ["cost"]

    async def test_a_reply_stores_and_counts_its_spend_in_the_batch_that_ends_it(self) -> None:
        session = self.session(user_id="ann")
        await session.usage.set_budget("cost", Budget(cost=Decimal(9)))
        talk = session.conversation
        async with session.usage.reserve(cost=Decimal(4)) as spend, talk.reply(spend=spend) as reply:
            await reply.write("Hello")
            spend.record(used(2))
        with pytest.raises(ZeroDivisionError):
            async with session.usage.reserve(cost=Decimal(4)) as spend, talk.reply(spend=spend):
                spend.record(used(1))
                raise ZeroDivisionError

        done, failed = await session.conversation.page()
        assert (done.status, done.usage) == ("done", (used(2),))
        assert (failed.status, failed.usage) == ("failed", (used(1),))
        assert (await session.usage.totals()).total.cost == 3
        assert (await session.usage.budgets())["cost"].reserved_cost == 0

    async def test_a_spend_that_no_message_took_is_counted_by_its_block(self) -> None:
        session = self.session()
        spends: list[Spend] = []
        with pytest.raises(ZeroDivisionError):
            async with session.usage.reserve(cost=Decimal(4)) as spend:
                spends.append(spend)
                spend.record(used(2))
                raise ZeroDivisionError

        assert (await session.usage.totals()).total.cost == 2
        assert await session.conversation.count() == 0
        with pytest.raises(InvalidError, match="`usage` and `spend`"):
            await session.conversation.append(said("a"), usage=used(1), spend=spends[0])
        with pytest.raises(InvalidError, match="nothing reserved"):
            await self.session("other").conversation.append(said("a"), spend=spends[0])

    async def test_a_transaction_counts_with_what_it_writes(self) -> None:
        session = self.session(user_id="ann")

        with pytest.raises(ZeroDivisionError):
            async with session.transaction() as inside:
                await inside.conversation.append(said("a"), usage=used(2))
                await inside.usage.record(used(1))
                raise ZeroDivisionError
        assert (await session.usage.totals()).total.cost == 0
        async with session.transaction() as inside:
            await inside.conversation.append(said("a"), usage=used(2))
            await inside.usage.record(used(1))
            if not self.in_passed_space:
                with pytest.raises(InvalidError, match="is not part of this transaction"):
                    await inside.user.usage.record(used(1))

        assert (await session.usage.totals()).total.cost == 3
