"""What pickles and what refuses to: the same on every backend, and told what to send instead."""

from __future__ import annotations

import pickle

import pytest

import keepstate.sync
from keepstate.engine.queue.queue import Claim
from keepstate.engine.space.space import Space
from keepstate.errors import LeaseLostError


async def test_a_claimed_task_refuses_and_its_claim_is_sent_in_its_place(space: Space) -> None:
    await space.queue.put("work", id="t")
    (task,) = await space.queue.claim("w", lease_s=60)
    with pytest.raises(TypeError, match=r"Send Claim\(task\.id, task\.token\)"):
        pickle.dumps(task)
    sent: Claim = pickle.loads(pickle.dumps(Claim(task.id, task.token)))
    await space.queue.complete(sent)

    with pytest.raises(LeaseLostError):
        await task.heartbeat()


async def test_a_lease_refuses(space: Space) -> None:
    lease = await space.leases.acquire("l", 60)

    with pytest.raises(TypeError, match="acquire it where it is needed"):
        pickle.dumps(lease)


def test_blocking_twins_refuse_just_so() -> None:
    with keepstate.sync.open("memory://") as ks:
        space = ks.space("a")
        space.queue.put("work")
        held = [space.queue.claim("w", lease_s=60)[0], space.leases.acquire("l", 60), ks.store]
        for thing in [*held, ks, space]:
            with pytest.raises(TypeError, match="cannot be pickled"):
                pickle.dumps(thing)
