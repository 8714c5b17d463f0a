from __future__ import annotations

from keepstate.testing.clocks import ManualClock


def test_time_moves_only_when_it_is_turned() -> None:
    clock = ManualClock(1_000)
    clock.advance(500)
    clock.turn_back(300)

    assert clock.now_ms() == 1_200
    assert clock.monotonic_s() == clock.awake_or_asleep_s() == 0.5


def test_the_dice_fall_as_the_seed_says() -> None:
    first, same, other = ManualClock(seed=1), ManualClock(seed=1), ManualClock(seed=2)

    rolls = [(clock.random_bytes(16), clock.spread()) for clock in (first, same, other)]

    assert rolls[0] == rolls[1] != rolls[2]
    assert all(0 <= spread < 1 for _, spread in rolls)
