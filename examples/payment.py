"""An agent that pays only if two people say yes, whatever is killed in between.

Each command is a process of its own, and all share one store:

    python -m examples.payment ask 1200 acme      the agent wants to pay
    python -m examples.payment work               runs the agent's tasks, until Ctrl-C
    python -m examples.payment pending            what waits for a person
    python -m examples.payment answer PENDING yes --by ann
    python -m examples.payment paid               what was paid

The bank is a file with a line for each payment. It stands for a service outside of the store, so a payment is
a step with `once=True`: it runs at most once. If a kill leaves open whether it was paid, a person looks and
tells, by `queue.settle`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import keepstate
from keepstate import Keepstate, KeepstateError, Retry, Task

PEOPLE = ("ann", "bob", "carl")


async def pay(task: Task) -> str:
    """Ask two of three people, and pay what they saw."""
    order = task.payload
    question = f"Pay {order['amount']} to {order['to']}?"
    answer = await task.ask(
        "approved", question, subject=order, to=PEOPLE, need=2, expires_s=86_400, default=False
    )
    if not answer.approved:
        reason = f"{answer.by} said no. {answer.note}" if answer.by else "there was no answer in time"
        return f"not paid: {reason}".strip()
    return await task.step("transfer", transfer, answer.subject, once=True)


async def transfer(order: dict[str, Any]) -> str:
    """Pay. Put the call of your bank here."""
    with Path(order["bank"]).open("a", encoding="utf-8") as bank:
        bank.write(f"{order['amount']} to {order['to']}\n")
    return f"paid {order['amount']} to {order['to']}"


async def ask(ks: Keepstate, options: argparse.Namespace) -> None:
    """Put the task of a payment."""
    order = {"amount": options.amount, "to": options.to, "bank": str(options.bank)}
    put = await ks.space("orders").queue.put(order, id=f"pay/{options.to}/{options.amount}")
    print(put.id, "is asked for" if put.added else f"was asked for before, and is {put.state}")


async def work(ks: Keepstate, options: argparse.Namespace) -> None:
    """Run the tasks of the agent, until a signal or until it is idle."""
    orders = ks.space("orders").by("agent")  # who asks may not answer
    await orders.queue.run(pay, lease_s=options.lease_s, idle_s=options.idle_s, retry=Retry(first_s=0.1))


async def pending(ks: Keepstate, options: argparse.Namespace) -> None:
    """Print what waits for an answer."""
    for approval in await ks.space("orders").approvals.pending(to=options.by):
        print(f"{approval.id}\t{approval.question}")


async def answer(ks: Keepstate, options: argparse.Namespace) -> None:
    """Answer as one person."""
    approvals = ks.space("orders").approvals
    seen = await approvals.get(options.id)
    if seen is None:
        raise SystemExit(f"nothing is asked under {options.id!r}")
    settled = await approvals.answer(
        options.id, options.answer == "yes", by=options.by, note=options.note, saw=seen.digest
    )
    print(f"{options.id} is {settled.state}")


async def paid(ks: Keepstate, options: argparse.Namespace) -> None:
    """Print what became of each payment."""
    for task in await ks.space("orders").queue.list("done"):
        print(f"{task.id}\t{await ks.space('orders').queue.result(task.id)}")


Command = Callable[[Keepstate, argparse.Namespace], Coroutine[Any, Any, None]]


def parse(arguments: list[str]) -> argparse.Namespace:
    """Return the command and its options."""
    parser = argparse.ArgumentParser(
        prog="python -m examples.payment", description="Pay if two people agree."
    )
    parser.add_argument("--url", default="sqlite:///payment.db", help="the store; default: %(default)s")
    commands = parser.add_subparsers(required=True)

    def command(run: Command) -> argparse.ArgumentParser:
        added = commands.add_parser(run.__name__, help=(run.__doc__ or "").partition("\n")[0])
        added.set_defaults(run=run)
        return added

    asking = command(ask)
    asking.add_argument("amount", type=int)
    asking.add_argument("to")
    asking.add_argument("--bank", type=Path, default=Path("bank.txt"), help="the file that is the bank")
    working = command(work)
    working.add_argument("--lease-s", type=float, default=30)
    working.add_argument("--idle-s", type=float, help="end after so many seconds without a task")
    command(pending).add_argument("--by", help="only what this person may answer")
    answering = command(answer)
    answering.add_argument("id")
    answering.add_argument("answer", choices=["yes", "no"])
    answering.add_argument("--by", required=True)
    answering.add_argument("--note", default="")
    command(paid)
    return parser.parse_args(arguments)


async def main(arguments: list[str]) -> None:
    """Run one command."""
    options = parse(arguments)
    async with keepstate.open(options.url) as ks:
        await options.run(ks, options)


if __name__ == "__main__":
    try:
        asyncio.run(main(sys.argv[1:]))
    except KeepstateError as error:
        sys.exit(f"payment: {error}")
