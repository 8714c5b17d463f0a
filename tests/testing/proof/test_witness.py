"""The witness checker accepts what was, and finds what was planted."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from keepstate_testing.proof import Attempt, End, Findings, Kind, Look, Refused, Saw, Took, Wrote, witness
from keepstate_testing.proof.operations import Demand, History

from keepstate.stores.protocol import Change, Check, Delete, Put
from tests.testing.proof.serial import KEYS, SPACE, Serial, without_revision

A, B, C, D = KEYS
replace = msgspec.structs.replace


@given(st.integers(0, 2**32), st.integers(0, 60), st.integers(0, 40))
def test_a_history_that_was_is_accepted(seed: int, steps: int, spread_ns: int) -> None:
    serial = Serial(seed=seed, spread_ns=spread_ns)
    for _ in range(steps):
        serial.act()

    found = witness(serial.history, serial.end())
    serial.close()

    assert found.found == []


@given(st.integers(0, 2**32), st.integers(0, 10_000))
def test_a_read_of_another_value_is_never_accepted(seed: int, place: int) -> None:
    serial = Serial(seed=seed)
    for _ in range(30):
        serial.act()
    serial.apply(Put(A, b"there"))
    serial.read(A)
    looks = serial.history.looks
    seen = [(look, key) for look in looks for key, entry in look.found.items() if entry is not None]
    look, key = seen[place % len(seen)]
    right = look.found[key]
    assert right is not None
    look.found[key] = replace(right, checksum=(right.checksum or 0) ^ 1)

    found = witness(serial.history, serial.end())
    serial.close()

    assert found.counts()["disordered"] >= 1


# ---- planted


def falsified(serial: Serial) -> tuple[History, End]:
    """Return a history of four revisions to falsify: revision 1 to 4 write A and B, A, C, D."""
    serial.apply(Put(A, b"1"), Put(B, b"1"))
    serial.apply(Put(A, b"2"), checks=[Check(A, version=1)])
    serial.read(A, B)
    serial.apply(Put(C, b"3"))
    serial.apply(Put(D, b"4"))
    serial.read(C, D)
    return serial.history, serial.end()


def lose_the_last_revision(history: History, end: End) -> End:
    kept = {key: entry for key, entry in end.entries.items() if key != D}
    history.looks.clear()
    return replace(without_revision(end, 4), revision=3, entries=kept)


def lose_an_entry(history: History, end: End) -> End:
    return replace(end, entries={key: entry for key, entry in end.entries.items() if key != C})


def lose_a_log_record(history: History, end: End) -> End:
    return without_revision(end, 3)


def put_back_an_old_value(history: History, end: End) -> End:
    old = Saw(1, 1, None, history.attempts[0].writes[0].checksum)
    return replace(end, entries={**end.entries, A: old})


def tell_two_batches_one_revision(history: History, end: End) -> End:
    history.attempts.append(replace(history.attempts[3], began_ns=5_000, ended_ns=5_001))
    return end


def remove_before_it_expires(history: History, end: End) -> End:
    first = history.attempts[0]
    first.writes[1] = replace(first.writes[1], ttl_ms=1_000_000)
    removed = Change(5, B, deleted=True)
    kept = {key: entry for key, entry in end.entries.items() if key != B}
    return replace(end, revision=5, entries=kept, log=[*end.log, removed])


def write_for_nobody(history: History, end: End) -> End:
    entry = Saw(5, 3, None, 77)
    return replace(
        end, revision=5, entries={**end.entries, C: entry}, log=[*end.log, Change(5, C, deleted=False)]
    )


def keep_an_entry_that_nobody_wrote(history: History, end: End) -> End:
    return replace(end, entries={**end.entries, b"\x00object": Saw(2, 2, None, 5)})


def apply_what_was_refused(history: History, end: End) -> End:
    history.attempts[3].answer = Refused(None, 0, 0, "StoreUnavailableError: not reached")
    history.looks.clear()
    return end


def apply_half_a_batch(history: History, end: End) -> End:
    log = [item for item in end.log if (item.revision, item.key) != (1, B)]
    return replace(end, log=log)


def log_another_value(history: History, end: End) -> End:
    log = [replace(item, new=b"other") if item.key == B else item for item in end.log]
    return replace(end, log=log)


def apply_on_a_failed_check(history: History, end: End) -> End:
    history.attempts[1].checks = [Demand(A, 0)]
    return end


def apply_on_another_revision(history: History, end: End) -> End:
    history.attempts[2].at = 1
    return end


def begin_after_a_later_one_ended(history: History, end: End) -> End:
    history.attempts[0].began_ns = 5_000
    history.attempts[0].ended_ns = 5_001
    return end


def read_the_past(history: History, end: End) -> End:
    look = history.looks[0]
    history.looks[0] = replace(look, began_ns=5_000, ended_ns=5_001)
    return end


def read_the_future(history: History, end: End) -> End:
    look = history.looks[1]
    history.looks[1] = replace(look, began_ns=1_000, ended_ns=1_001)
    return end


def read_what_is_not_so(history: History, end: End) -> End:
    history.looks[0].found[A] = Saw(1, 1, None, None)
    return end


def read_absence(history: History, end: End) -> End:
    history.looks[0].found[A] = None
    return end


def turn_time_back(history: History, end: End) -> End:
    first = history.attempts[0].answer
    assert isinstance(first, Took)
    history.attempts[2].answer = Took(3, first.now_ms - 1)
    return end


def refuse_without_reason(history: History, end: End) -> End:
    attempt = Attempt(SPACE, 5_000, [], [Demand(A, 2)], None, b"", 5_001, Refused(A, 2, 0))
    history.attempts.append(attempt)
    return end


def refuse_for_the_past(history: History, end: End) -> End:
    attempt = Attempt(SPACE, 5_000, [], [Demand(A, 2)], None, b"", 5_001, Refused(A, 1, 0))
    history.attempts.append(attempt)
    return end


def refuse_for_the_future(history: History, end: End) -> End:
    attempt = Attempt(SPACE, 900, [], [Demand(A, 1)], None, b"", 901, Refused(A, 2, 0))
    history.attempts.append(attempt)
    return end


def refuse_the_right_revision(history: History, end: End) -> End:
    history.attempts.append(Attempt(SPACE, 5_000, [], [], 4, b"", 5_001, Refused(None, 4, 0)))
    return end


def judge_wrongly(history: History, end: End) -> End:
    history.attempts.append(Attempt(SPACE, 5_000, [], [Demand(A, 1)], None, b"", 5_001, Took(4, end.now_ms)))
    return end


def apply_again(history: History, end: End) -> End:
    again = [replace(item, revision=5, old=item.new) for item in end.log if item.revision == 1]
    entries = {
        key: replace(entry, version=5, checksum=history.attempts[0].writes[0].checksum)
        if key in (A, B)
        else entry
        for key, entry in end.entries.items()
    }
    return replace(end, revision=5, entries=entries, log=[*end.log, *again])


PLANTED: tuple[tuple[Kind, Callable[[History, End], End]], ...] = (
    (Kind.LOST, lose_the_last_revision),
    (Kind.LOST, lose_an_entry),
    (Kind.LOST, lose_a_log_record),
    (Kind.LOST, put_back_an_old_value),
    (Kind.LOST, tell_two_batches_one_revision),
    (Kind.LOST, remove_before_it_expires),
    (Kind.GHOST, write_for_nobody),
    (Kind.GHOST, keep_an_entry_that_nobody_wrote),
    (Kind.GHOST, apply_what_was_refused),
    (Kind.PARTIAL, apply_half_a_batch),
    (Kind.PARTIAL, log_another_value),
    (Kind.DISORDERED, apply_on_a_failed_check),
    (Kind.DISORDERED, apply_on_another_revision),
    (Kind.DISORDERED, begin_after_a_later_one_ended),
    (Kind.DISORDERED, read_the_past),
    (Kind.DISORDERED, read_the_future),
    (Kind.DISORDERED, read_what_is_not_so),
    (Kind.DISORDERED, read_absence),
    (Kind.DISORDERED, turn_time_back),
    (Kind.DISORDERED, refuse_without_reason),
    (Kind.DISORDERED, refuse_for_the_past),
    (Kind.DISORDERED, refuse_for_the_future),
    (Kind.DISORDERED, refuse_the_right_revision),
    (Kind.DISORDERED, judge_wrongly),
    (Kind.APPLIED_TWICE, apply_again),
)


def test_the_history_that_is_falsified_is_right_as_it_was(serial: Serial) -> None:
    assert witness(*falsified(serial)).found == []


@pytest.mark.parametrize(("kind", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_what_was_planted_is_found(serial: Serial, kind: Kind, plant: Callable[[History, End], End]) -> None:
    history, end = falsified(serial)

    found = witness(history, plant(history, end))

    assert kind in {finding.kind for finding in found.found}, str(found)


def test_a_scan_that_overlooks_an_entry_is_found(serial: Serial) -> None:
    serial.apply(Put(A, b"1"), Put(C, b"1"))
    del serial.scan(b"\x01").found[C]

    assert witness(serial.history, serial.end()).counts()["disordered"] == 1


def test_a_scan_may_miss_what_has_expired(serial: Serial) -> None:
    serial.apply(Put(A, b"1", ttl_ms=5), Put(C, b"1"))
    serial.clock.advance(5)
    serial.scan(b"\x01")

    assert witness(serial.history, serial.end()).found == []


def test_a_reader_that_still_sees_what_has_expired_is_found(serial: Serial) -> None:
    serial.apply(Put(A, b"1", ttl_ms=5))
    look = serial.read(A)
    serial.history.looks[0] = replace(look, now_ms=look.now_ms + 5)
    serial.clock.advance(6)

    assert witness(serial.history, serial.end()).counts()["disordered"] == 1


def test_a_reader_whose_time_is_before_that_of_an_earlier_one_is_found(serial: Serial) -> None:
    serial.read(A)
    look = serial.read(B)
    serial.history.looks[1] = replace(look, now_ms=look.now_ms - 1)

    assert witness(serial.history, serial.end()).counts()["disordered"] == 1


def test_what_the_store_itself_removes_after_its_time_is_nobodys(serial: Serial) -> None:
    serial.apply(Put(A, b"1", ttl_ms=5))
    serial.clock.advance(5)
    serial.sweep()
    serial.apply(Delete(A), Put(B, b"2"))

    assert witness(serial.history, serial.end()).found == []


def test_a_batch_whose_answer_was_lost_may_stand_after_all_that_ended_later(serial: Serial) -> None:
    serial.apply(Put(A, b"1"), unheard=True)
    serial.apply(Put(A, b"2"))

    assert witness(serial.history, serial.end()).found == []


def test_a_log_that_told_otherwise_is_found(serial: Serial) -> None:
    serial.apply(Put(A, b"1"), Put(B, b"1"))
    serial.apply(Put(B, b"2"))
    serial.follow(0, 9)
    serial.follow(1, 9)
    serial.apply(Put(C, b"3"))
    [whole, later] = serial.history.pages
    assert witness(serial.history, serial.end()).found == []

    serial.history.pages[0] = replace(later, after=0)

    assert witness(serial.history, serial.end()).counts()["disordered"] == 1
    assert whole.checksum != later.checksum


def test_a_log_that_told_of_what_is_gone_is_found(serial: Serial) -> None:
    serial.apply(Put(B, b"1"))
    serial.follow(0, 9)
    serial.history.pages[0] = replace(serial.history.pages[0], upto=2)

    assert witness(serial.history, serial.end()).counts()["lost"] == 1


def test_findings_show_counts_and_examples(serial: Serial) -> None:
    history, end = falsified(serial)

    found = witness(history, lose_an_entry(history, end))

    assert str(found) == (
        "6 operations: 1 lost, 0 ghosts, 0 partial, 0 disordered, 0 applied_twice\n"
        f"  lost: space: {C!r} is not there in the end; it was {end.entries[C]}"
    )


def test_findings_are_no_truth_value() -> None:
    with pytest.raises(TypeError, match="say what you ask"):
        assert Findings()


def test_a_million_operations_would_be_judged_in_a_minute() -> None:
    operations = 40_000
    history, end = made(operations)

    begun_s = time.process_time()
    found = witness(history, end)
    judging_s = time.process_time() - begun_s

    assert found.found == []
    assert judging_s < 60 * operations / 1_000_000


def made(operations: int) -> tuple[History, End]:
    """Return a long history: of five operations, two write two keys under a check, three read three."""
    dice, keys = random.Random(1), [b"\x01%d" % number for number in range(40)]
    history, entries, log = History(SPACE, [], [], [], []), dict[bytes, Saw](), list[Change]()
    revision = 0
    for number in range(operations):
        span = number * 10 - dice.randint(0, 60), number * 10 + dice.randint(0, 60)
        if number % 5 < 3:
            found = {key: entries.get(key) for key in dice.sample(keys, 3)}
            history.looks.append(Look(SPACE, *span, revision, revision, found))
            continue
        revision += 1
        chosen = dice.sample(keys, 2)
        checks = [Demand(key, entries[key].version if key in entries else 0) for key in chosen[:1]]
        writes = [Wrote(key, revision) for key in chosen]
        history.attempts.append(
            Attempt(SPACE, span[0], writes, checks, None, b"", span[1], Took(revision, revision))
        )
        for key in chosen:
            created = entries[key].created if key in entries else revision
            entries[key] = Saw(revision, created, None, revision)
            log.append(Change(revision, key, deleted=False))
    return history, End(revision, revision, entries, log)
