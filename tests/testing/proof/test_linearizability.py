"""The search for an order finds one where there is one, and agrees with the witness where both can tell."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, permutations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from keepstate_testing.proof import witness
from keepstate_testing.proof.linearizability import Call, State, is_linearizable, sample
from keepstate_testing.proof.operations import FOREVER

from keepstate.stores.protocol import Check, Put
from tests.testing.proof.serial import KEYS, Serial

A, B, _, _ = KEYS

values = st.one_of(st.none(), st.integers(1, 2))
pairs = st.lists(st.tuples(st.integers(0, 1), values), max_size=2, unique_by=lambda pair: pair[0])


@st.composite
def calls(draw: st.DrawFn) -> Call:
    began_ns = draw(st.integers(0, 12))
    heard = draw(st.sampled_from([True, True, True, False]))
    ended_ns = began_ns + draw(st.integers(0, 6)) if heard else FOREVER
    return Call(began_ns, ended_ns, heard, draw(pairs), draw(pairs))


@given(st.lists(calls(), max_size=5))
def test_an_order_is_found_where_there_is_one(some: list[Call]) -> None:
    assert is_linearizable(some, 2) is has_an_order(some)


def has_an_order(some: Sequence[Call]) -> bool:
    """Try every order of every choice of the unheard calls."""
    heard, unheard = [call for call in some if call.heard], [call for call in some if not call.heard]
    return any(
        explains(order)
        for count in range(len(unheard) + 1)
        for chosen in combinations(unheard, count)
        for order in permutations([*heard, *chosen])
    )


def explains(order: Sequence[Call]) -> bool:
    state: State | None = (None, None)
    for place, call in enumerate(order):
        if any(later.ended_ns < call.began_ns for later in order[place + 1 :]):
            return False
        state = call.on(state) if state is not None else None
    return state is not None


def test_a_search_that_takes_too_long_says_so() -> None:
    many = [Call(0, 9, True, [], [(0, number)]) for number in range(12)]

    assert is_linearizable([*many, Call(10, 11, True, [(0, 99)])], 1, steps=500) is None


def test_an_unheard_batch_explains_what_was_seen_after_it(serial: Serial) -> None:
    serial.apply(Put(A, b"1"), unheard=True)
    serial.read(A)

    assert is_linearizable(sample(serial.history, [A], most=10), 1) is True


def test_what_nobody_wrote_is_not_explained(serial: Serial) -> None:
    serial.apply(Put(A, b"1"))
    serial.read(A)
    serial.history.attempts.clear()

    assert is_linearizable(sample(serial.history, [A], most=10), 1) is False


def test_a_refusal_is_a_sight_of_another_version(serial: Serial) -> None:
    serial.apply(Put(A, b"1"))
    serial.apply(Put(A, b"2"), checks=[Check(A, version=0)])
    serial.history.attempts[0].began_ns = 5_000
    serial.history.attempts[0].ended_ns = 5_001

    assert is_linearizable(sample(serial.history, [A], most=10), 1) is False


def test_half_a_batch_is_not_explained(serial: Serial) -> None:
    serial.apply(Put(A, b"1"), Put(B, b"1"))
    serial.read(A, B).found[B] = None

    assert is_linearizable(sample(serial.history, [A, B], most=10), 2) is False


def test_what_ends_behind_a_sample_is_left_open(serial: Serial) -> None:
    serial.apply(Put(A, b"1"))
    serial.apply(Put(A, b"2"))
    serial.read(A)
    serial.history.looks[0] = msgspec.structs.replace(serial.history.looks[0], began_ns=0, ended_ns=9_000)
    serial.history.attempts[0].ended_ns = 9_000

    calls = sample(serial.history, [A], most=2)

    assert [call.heard for call in calls] == [False]


@given(st.integers(0, 2**32), st.integers(0, 25), st.integers(0, 60))
def test_the_search_accepts_what_was(seed: int, steps: int, spread_ns: int) -> None:
    serial = told(seed, steps, spread_ns)
    serial.close()

    assert is_linearizable(sample(serial.history, KEYS, most=100), len(KEYS)) is True


@given(st.integers(0, 2**32), st.integers(1, 25), st.integers(0, 60), st.integers(0, 99), st.integers(0, 99))
def test_what_the_witness_accepts_has_an_order(
    seed: int, steps: int, spread_ns: int, first: int, second: int
) -> None:
    serial = told(seed, steps, spread_ns)
    exchange_times(serial, first, second)
    accepted = witness(serial.history, serial.end()).found == []
    serial.close()

    has_order = is_linearizable(sample(serial.history, KEYS, most=100), len(KEYS))

    assert has_order is True or not accepted


def told(seed: int, steps: int, spread_ns: int) -> Serial:
    """Return a history whose entries do not expire."""
    serial = Serial(seed=seed, spread_ns=spread_ns, expiring=False)
    for _ in range(steps):
        serial.act()
    return serial


def exchange_times(serial: Serial, first: int, second: int) -> None:
    """Let two operations have been in the other's time: it most often could not be so."""
    attempts = serial.history.attempts
    if attempts:
        one, other = attempts[first % len(attempts)], attempts[second % len(attempts)]
        one.began_ns, other.began_ns = other.began_ns, one.began_ns
        one.ended_ns, other.ended_ns = other.ended_ns, one.ended_ns
