"""Bytes that nobody wrote: a value or an error of our own, and never a crash, a hang, or much memory.

`KEEPSTATE_SEED=n` begins with that seed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any
from zlib import crc32

import msgspec
import pytest

from keepstate import CorruptError, EncryptedStore, KeepstateError, KeyRing, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.file import FileStore
from keepstate.stores.file.frames import FRAME_HEAD_BYTES, Head, frames
from keepstate.stores.protocol import Batch, Put
from keepstate.stores.redis.encoding import decode_changes, decode_entry, decode_state
from keepstate.stores.sqlite import schema
from keepstate.stores.wrappers.sealing import Sealer
from keepstate.testing.clocks import ManualClock
from keepstate.values import codec, limits
from keepstate.values.codec import COMPRESSED, PLAIN, Codec
from keepstate.values.key import unpack
from tests.crashes.hostile import LARGE, Row, bent, every_use, hostile_rows, store_of, used_space
from tests.formats.format_1 import KEYS, REGISTRY, STORED, VALUES
from tests.tally import Tally, first_seed

FIRST = first_seed()
LONGEST_S = 5.0
"""More of the processor's time than any of these inputs may take; other load does not count."""


@dataclass(frozen=True)
class Size:
    """How many inputs of each kind."""

    inputs: int

    def seeds(self) -> range:
        return range(FIRST, FIRST + self.inputs)


def sizes(short: int, long: int) -> list[Any]:
    deep = [pytest.mark.deep, pytest.mark.timeout(600)]
    return [pytest.param(Size(short), id="short"), pytest.param(Size(long), id="long", marks=deep)]


def survives(read: Callable[[], object], seed: int) -> bool:
    """Return whether it gave a value; anything but that or one of keepstate's own errors fails the test."""
    began_s = time.process_time()
    try:
        read()
        return True
    except KeepstateError:
        return False
    except Exception as error:
        raise AssertionError(f"seed {seed}: {type(error).__name__} is no answer to hostile bytes") from error
    finally:
        assert time.process_time() - began_s < LONGEST_S, f"seed {seed} took too long"


# ---- values and keys


@pytest.mark.parametrize("size", sizes(4_000, 60_000))
def test_a_bent_value_is_a_value_or_an_error(size: Size, tally: Tally) -> None:
    corpus = [PLAIN + bytes.fromhex(written) for _, written in VALUES]
    corpus += [bytes.fromhex(written) for _, written in STORED]
    readers: Sequence[Callable[[bytes], object]] = (
        Codec(REGISTRY).decode, codec.to_builtin, lambda data: codec.decode(data, type=dict[str, list[int]]),
    )  # fmt: skip
    for seed in size.seeds():
        random = Random(seed)
        data = bent(random.choice(corpus), random)
        if random.random() < 0.3:
            data = bent(data[:200] + random.choice(corpus)[1:], random)
        for read in readers:
            survives(lambda: read(data), seed)  # noqa: B023  called at once

    tally("hostile bytes: values", inputs=size.inputs)


@pytest.mark.parametrize("size", sizes(400, 10_000))
def test_a_bent_value_takes_memory_by_its_size(size: Size, tally: Tally) -> None:
    corpus = [PLAIN + bytes.fromhex(written) for _, written in VALUES]
    for seed in size.seeds():
        random = Random(seed)
        data = bent(b"".join(random.choice(corpus)[1:] for _ in range(5)), random)
        data = PLAIN + b"\xdd" + random.randbytes(4) + data
        tracemalloc.start()
        survives(lambda: codec.to_builtin(data), seed)  # noqa: B023  called at once
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 128 * len(data) + (1 << 20), f"seed {seed}"

    tally("hostile bytes: values", inputs=size.inputs)


@pytest.mark.parametrize("size", sizes(3_000, 100_000))
def test_a_bent_key_is_a_path_or_corrupt(size: Size, tally: Tally) -> None:
    corpus = [bytes.fromhex(written) for _, written in KEYS]
    for seed in size.seeds():
        random = Random(seed)
        data = bent(random.choice(corpus) + random.choice(corpus), random)
        survives(lambda: unpack(data), seed)  # noqa: B023  called at once

    tally("hostile bytes: keys", inputs=size.inputs)


def test_nesting_without_end_is_refused_without_looking_at_all_of_it() -> None:
    """A few kilobytes of zstd become 64 MiB of brackets, and counting them took half a gigabyte."""
    from keepstate.values.compression import zstd

    packed = zstd.compress(b"\x91" * (64 << 20))

    tracemalloc.start()
    began_s = time.process_time()
    with pytest.raises(CorruptError, match=r"nests deeper|more lists and dicts"):
        codec.decode(COMPRESSED + packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < 160 << 20
    assert time.process_time() - began_s < LONGEST_S


def test_a_folder_of_time_zones_is_no_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its own data installed, zoneinfo tries to open it, and raises what the system raises."""
    from keepstate.values import types

    def opens(key: str) -> object:
        raise IsADirectoryError(key)

    monkeypatch.setattr(types, "ZoneInfo", opens)

    with pytest.raises(KeepstateError):
        codec.decode(PLAIN + b"\xc7\x08\x0c\x02America")


# ---- what stands in a space


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return used_space()


@pytest.mark.parametrize("size", sizes(120, 2_000))
def test_a_space_with_bent_rows_gives_values_or_errors(size: Size, rows: list[Row], tally: Tally) -> None:
    calls = 0
    for seed in size.seeds():
        store = store_of(hostile_rows(rows, Random(seed)))
        if store is None:
            continue
        for use in every_use(sync.open(store)):
            survives(use, seed)
            calls += 1
        finish(store.close())

    tally("hostile bytes: rows of a space", inputs=size.inputs, operations=calls)


@pytest.mark.parametrize("name", ["a", "large"])
def test_a_manifest_that_names_one_part_without_end_is_refused_unread(name: str, rows: list[Row]) -> None:
    """Six kilobytes would have filled as many gigabytes as they like."""

    part = next(key for key, value in rows if key[0] == 0 and len(value) == limits.VALUE_BYTES)
    lies = [2 << 40, len(LARGE), -1, 0, 300 << 20]
    for size in lies:
        manifest = [size, bytes(32), [part[-20:]] * 300]
        document = next(key for key, _ in rows if key.endswith(b"large"))
        hostile = {**dict(rows), document: b"\xd7" + msgspec.msgpack.encode(manifest)}
        store = store_of(list(hostile.items()))
        assert store is not None
        ks = sync.open(store)

        tracemalloc.start()
        with pytest.raises(CorruptError):
            ks.space("s").documents.get("large")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

        assert peak < 4 << 20
        assert ks.space("s").documents.get("a") is not None, name
        finish(store.close())


# ---- what stands in a store


@pytest.mark.parametrize("size", sizes(400, 40_000))
def test_bent_sealed_values_are_refused(size: Size, tally: Tally) -> None:
    sealer = Sealer(KeyRing(bytes(32)), bytes(16), ManualClock())
    opened = 0
    for seed in size.seeds():
        random = Random(seed)
        sealed = sealer.seal("s", b"\x01k", random.randbytes(random.randrange(50)))
        changed = bent(sealed, random)
        opened += survives(lambda: sealer.open("s", b"\x01k", changed), seed) and changed != sealed  # noqa: B023

    assert opened == 0
    tally("hostile bytes: encrypted values", inputs=size.inputs, corrupt=opened)


@pytest.mark.parametrize("size", sizes(1_000, 50_000))
def test_bent_records_of_the_log_are_changes_or_errors(size: Size, tally: Tally) -> None:
    logged = schema.encode_changes([(b"\x02k", False, b"old", b"new"), (b"\x01k", True, None, None)])
    record = b"\x06\x00\x02\x02k\x00\x00\x00\x03old\x00\x00\x00\x03new" * 2
    state = b"\x01" + bytes(56)
    for seed in size.seeds():
        random = Random(seed)
        survives(lambda: schema.decode_changes(bent(logged, random), 7), seed)  # noqa: B023
        survives(lambda: list(decode_changes(7, bent(record, random))), seed)  # noqa: B023
        survives(lambda: decode_state(bent(state, random), "s"), seed)  # noqa: B023
        survives(lambda: decode_entry(b"\x01k", bent(bytes(28), random), b"v", 5), seed)  # noqa: B023

    tally("hostile bytes: log records", inputs=4 * size.inputs)


def test_a_record_of_the_log_is_not_read_beyond_its_end() -> None:
    whole = b"\x06\x00\x02\x02k\x00\x00\x00\x03old\x00\x00\x00\x03new"
    assert [(change.old, change.new) for change in decode_changes(7, whole)] == [(b"old", b"new")]

    for size in range(1, len(whole)):
        with pytest.raises(CorruptError, match="cut off"):
            list(decode_changes(7, whole[:size]))


@pytest.mark.parametrize("form", ["json", "msgpack"])
@pytest.mark.parametrize("size", sizes(60, 2_000))
def test_whole_frames_of_bent_contents_are_corrupt_and_stay(
    size: Size, form: Any, tmp_path: Path, tally: Tally
) -> None:
    """Whoever can write the file can also write the checksums."""
    path = tmp_path / "state.keep"
    store = finish(FileStore(path, format=form, runner=ThreadRunner()).open())
    for i in range(6):
        finish(store.apply([Batch("s", [Put(b"\x02k", b'{"i": %d}' % i), Put(b"\x01log", b"", stamp=True)])]))
    finish(store.close())
    data = path.read_bytes()
    head = Head.of(data, str(path))
    payloads = [bytes(payload) for _, payload in frames(head, data, str(path))]
    for seed in size.seeds():
        random = Random(seed)
        hostile = list(payloads)
        place = random.randrange(len(hostile))
        hostile[place] = bent(hostile[place], random)
        journal = bytes(head)
        for payload in hostile:
            journal += head.frame(payload, len(journal))
        path.write_bytes(journal)

        def use() -> None:
            found = finish(FileStore(path, format=form, runner=ThreadRunner()).open())
            try:
                finish(found.read("s", [b"\x02k"]))
                finish(found.scan("s", b"\x01"))
                finish(found.changes("s", 0))
                finish(found.apply([Batch("s", [Put(b"\x02k", b"more")])]))
            finally:
                finish(found.close())

        survives(use, seed)

    tally("hostile bytes: journal frames", inputs=size.inputs)


@pytest.mark.parametrize("size", sizes(300, 30_000))
def test_a_bent_head_of_a_journal_is_told(size: Size, tally: Tally) -> None:
    head = bytes(Head("json", bytes(8)))
    for seed in size.seeds():
        random = Random(seed)
        survives(lambda: Head.of(bent(head, random), "state.keep"), seed)  # noqa: B023

    tally("hostile bytes: journal frames", inputs=size.inputs)
    with pytest.raises(CorruptError):
        Head.of(
            b"keepstate journal " + b"9" * 5_000 + b" msgpack " + b"0" * 16 + b" 00000000\n", "state.keep"
        )


def test_rows_without_encryption_are_refused_wherever_they_stand(rows: list[Row]) -> None:
    store = store_of([])
    assert store is not None
    sealed = finish(EncryptedStore(store, KeyRing(bytes(32))).open())
    finish(store.apply([Batch("s", [Put(key, value) for key, value in rows])]))

    for use in every_use(sync.open(sealed)):
        survives(use, 0)

    with pytest.raises(CorruptError, match="is not sealed"):
        sync.open(sealed).space("s").documents.get("a")
    finish(store.close())


def test_a_journal_of_heads_without_bodies_is_corrupt_at_once() -> None:
    """Each head is good and says that the rest of the file is its frame: two megabytes took two minutes."""
    head = Head("msgpack", bytes(8))
    start = len(bytes(head))
    size = 60_000 * FRAME_HEAD_BYTES
    journal = bytearray(bytes(head))
    for number in range(60_000):
        at = start + number * FRAME_HEAD_BYTES
        length = b"%08x" % (size - (number + 1) * FRAME_HEAD_BYTES)
        journal += b"frame %s %08x %08x\n" % (length, crc32(length, head._start(at)), 0)

    began_s = time.process_time()
    with pytest.raises(CorruptError):
        list(frames(head, bytes(journal), "state.keep"))
    assert time.process_time() - began_s < LONGEST_S


FUZZED = ("values", "stored", "keys", "frames", "records", "sealed", "pickles")


@pytest.mark.deep
@pytest.mark.timeout(300)
@pytest.mark.parametrize("target", FUZZED)
def test_bytes_that_a_fuzzer_finds_are_values_or_errors(target: str, tmp_path: Path, tally: Tally) -> None:
    """atheris goes where bending at random does not: into each branch that the code has."""
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris has no wheel for this interpreter and machine; the bent bytes above were read")
    inputs = 30_000
    command = [
        sys.executable,
        "-m",
        "tests.crashes.fuzzing",
        target,
        str(inputs),
        str(FIRST + 1),
        str(tmp_path),
    ]

    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)

    assert done.returncode == 0, done.stderr[-3_000:]
    tally(f"hostile bytes, fuzzed: {target}", inputs=inputs)
