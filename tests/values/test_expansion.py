"""Few stored bytes never take much memory: they are refused before, and what is written is read again."""

from __future__ import annotations

import sys
import tracemalloc
from hashlib import sha256
from pathlib import Path

import pytest

from keepstate import sync
from keepstate.engine.history.bundle import _MAGIC, Bundle, _line, read_bundle, write_bundle
from keepstate.errors import CorruptError, InvalidError
from keepstate.values import codec, limits
from keepstate.values.codec import COMPRESSED, STATES
from keepstate.values.compression import Expansion
from keepstate.values.encode_ext import array_head
from keepstate.values.refs import Kind, Ref, name_of

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


def test_empty_lists_in_a_kilobyte_are_refused_before_they_are_made() -> None:
    """33 million of them took 2.1 GB."""
    bomb = COMPRESSED + zstd.compress(array_head(33_000_000) + b"\x90" * 33_000_000)
    assert len(bomb) < 4_000

    tracemalloc.start()
    try:
        for read in (codec.decode, codec.to_builtin):
            with pytest.raises(CorruptError, match="more lists and dicts"):
                read(bomb)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100 << 20


def test_bytes_inflate_by_what_was_stored() -> None:
    bomb = COMPRESSED + zstd.compress(b"\xc6" + (200 << 20).to_bytes(4) + bytes(200 << 20))

    with pytest.raises(CorruptError, match="claims"):
        codec.decode(bomb)


@pytest.mark.parametrize(
    "value",
    [[[]] * 2_000_000, bytes(80 << 20), [{"role": "user", "text": "ok"}] * 300_000, "那是一句话。" * 500_000],
    ids=["lists", "zeros", "messages", "text"],
)
def test_what_compresses_well_comes_back(value: object) -> None:
    assert codec.decode(codec.encode(value)) == value


def doubled(levels: int) -> tuple[bytes, dict[bytes, bytes]]:
    """Return a list of two lists of two lists …, each pair one object that stands twice."""
    objects = dict[bytes, bytes]()
    encoding = array_head(2) + b"\x01\x02"
    for _ in range(levels):
        name = name_of(Kind.BLOB, encoding)
        objects[name] = encoding
        encoding = array_head(2) + 2 * Ref(Kind.BLOB, name, 1, len(encoding), True).encoding()
    return encoding, objects


def test_shared_objects_count_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bundle of 1.4 KB held 2 to the 40 lists."""
    monkeypatch.setattr(limits, "SHARED_BYTES", 1 << 20)
    monkeypatch.setattr("keepstate.values.compression._UNWEIGHED_BYTES", 1 << 14)
    encoding, objects = doubled(40)
    assert sum(map(len, objects.values())) < 4_000

    tracemalloc.start()
    try:
        with pytest.raises(CorruptError, match="repeats its parts"):
            STATES.assemble(encoding, objects)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 << 20
    assert STATES.assemble(*doubled(6))[0][0][0][1][1][1] == [1, 2]


@pytest.mark.parametrize("is_dict", [False, True], ids=["list", "dict"])
def test_shared_nodes_of_a_tree_count_each_time(is_dict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave and branches are objects too, and a list may name one tree often."""
    monkeypatch.setattr(limits, "SHARED_BYTES", 1 << 20)
    monkeypatch.setattr("keepstate.values.compression._UNWEIGHED_BYTES", 1 << 14)
    spent = list[int]()
    spend = Expansion.spend
    monkeypatch.setattr(Expansion, "spend", lambda *of: (spent.append(len(of[1])), spend(*of))[1])
    texts = [f"{number:06} {sha256(bytes(number)).hexdigest()}" for number in range(4_000)]
    tree = STATES.to_merkle(dict.fromkeys(texts, 1) if is_dict else texts)
    read = STATES.assemble(tree.encoding, tree.objects)

    assert list(read) == texts
    assert sum(spent) == sum(map(len, tree.objects.values()))
    with pytest.raises(CorruptError, match="repeats its parts"):
        STATES.assemble(array_head(400) + tree.encoding * 400, tree.objects)


def test_the_values_of_one_state_count_together(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{number:06} {sha256(bytes(number)).hexdigest()}" for number in range(400)]
    with sync.open("memory://") as ks:
        history = ks.space("s").history
        history.commit({f"key {number}": texts for number in range(400)})
        monkeypatch.setattr(limits, "SHARED_BYTES", 1 << 20)
        monkeypatch.setattr("keepstate.values.compression._UNWEIGHED_BYTES", 1 << 14)

        with pytest.raises(CorruptError, match="repeats its parts"):
            history.checkout("main")
        assert history.checkout("main", load=False).fetch("key 399") == texts


def test_a_value_that_repeats_itself_too_often_is_refused_when_it_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "SHARED_BYTES", 1 << 20)
    monkeypatch.setattr("keepstate.values.compression._UNWEIGHED_BYTES", 1 << 14)
    part = [[number, []] for number in range(2_000)]

    with pytest.raises(InvalidError, match="repeats its parts"):
        STATES.to_merkle([part] * 100)
    planted = STATES.to_merkle([part] * 2)
    assert STATES.assemble(planted.encoding, planted.objects) == [part] * 2


def bundle_of(*lines: bytes) -> bytes:
    data = _MAGIC + b"".join(lines)
    return data + sha256(data).digest()


def test_a_bundle_inflates_by_what_it_has(tmp_path: Path) -> None:
    """66 KB of them took 2.3 GB."""
    path = tmp_path / "bomb"
    zeros = [zstd.compress(bytes(1 << 20) + bytes((number,))) for number in range(8)]
    path.write_bytes(bundle_of(*(_line("O", 0, COMPRESSED + one) for one in zeros)))

    with pytest.raises(CorruptError, match="expand to more than 256 times"):
        read_bundle(str(path))


def test_what_a_bundle_was_given_is_read_again(tmp_path: Path) -> None:
    objects = [b"\xc6" + (1 << 20).to_bytes(4) + bytes((number,)) * (1 << 20) for number in range(8)]
    bundle = Bundle(objects={name_of(Kind.BLOB, one): (Kind.BLOB, one) for one in objects})

    write_bundle(bundle, str(tmp_path / "zeros"))

    assert read_bundle(str(tmp_path / "zeros")).objects == bundle.objects
