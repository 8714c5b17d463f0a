"""Pickles are off; on request they are signed for their place and listed, and nothing harmful runs."""

from __future__ import annotations

import hmac
import os
import pickle
import pickletools
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from keepstate import CorruptError, InvalidError, KeepstateError, SignedPickle, sync
from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.stores.memory import MemoryStore
from keepstate.stores.protocol import Batch, Put
from keepstate.values import codec
from keepstate.values.types import PICKLE, join_pickle

KEY = bytes(range(32))
PLACE = b"\x02s\x00\x02doc"


class Client:
    """A class that nobody registered, and that cannot be taken apart into fields."""

    __slots__ = ("opened_at", "price", "url")

    def __init__(self, url: str, price: Decimal = Decimal("1.5")) -> None:
        self.url, self.price, self.opened_at = url, price, datetime(2026, 1, 2)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Client) and (self.url, self.price) == (other.url, other.price)

    __hash__ = None  # type: ignore[assignment]


@dataclass
class Unlisted:
    name: str


class Holder:
    def __init__(self, held: object) -> None:
        self.held = held


class Runs:
    """Runs a command when it is unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (self.command,)


@pytest.fixture
def signed() -> SignedPickle:
    return SignedPickle(KEY, allow=[Client, Holder])


def forged(dumped: bytes, *, key: bytes = KEY, place: bytes = PLACE) -> bytes:
    """Return a stored value with this pickle, signed as whoever has the key could."""
    body = join_pickle("tests.Client", dumped)
    stored = codec.PLAIN + b"\xc9" + len(body).to_bytes(4) + bytes((PICKLE,)) + body
    head = b"keepstate signed 1\x00" + len(place).to_bytes(4) + place
    return codec.SIGNED + hmac.digest(key, head + stored, "sha256") + stored


# ---- what it is for


def test_an_allowed_object_comes_back_wherever_it_stands(signed: SignedPickle) -> None:
    value = {"clients": [Client("a"), (Client("b"), {"deep": Client("c")})], 1: Client("d")}

    assert signed.decode(signed.encode(value, PLACE), PLACE) == value


def test_a_value_without_pickles_is_stored_as_ever(signed: SignedPickle) -> None:
    value = {"plain": [1, 2.5, "text"]}

    assert signed.encode(value, PLACE) == codec.encode(value)
    assert signed.decode(codec.encode(value), PLACE) == value


def test_a_large_value_with_pickles_is_compressed(signed: SignedPickle) -> None:
    value = [Client("a"), "x" * 100_000]

    stored = signed.encode(value, PLACE)

    assert len(stored) < 5_000
    assert signed.decode(stored, PLACE) == value


def test_the_form_of_a_signed_value_is_frozen() -> None:
    stored = bytes.fromhex(
        "41eab9cadc81163ca857b85d42a078b7bb492b3efc397a70c4d516e8dcdfcc9d4001c73d25000f646563696d61"
        "6c2e446563696d616c80059521000000000000008c07646563696d616c948c07446563696d616c9493948c0331"
        "2e3594859452942e"
    )

    assert SignedPickle(KEY, allow=[]).decode(stored, PLACE) == Decimal("1.5")


def test_an_object_that_is_not_listed_is_refused_with_its_path(signed: SignedPickle) -> None:
    with pytest.raises(InvalidError, match=r"clients\[1\].*Unlisted is not registered"):
        signed.encode({"clients": [Client("a"), Unlisted("b")]}, PLACE)
    with pytest.raises(InvalidError, match="is not registered"):
        codec.encode([Client("a")])


def test_what_an_object_holds_must_be_listed_too(signed: SignedPickle) -> None:
    with pytest.raises(InvalidError, match=r"\[0\].*Unlisted, which is not allowed"):
        signed.encode([Holder(Unlisted("b"))], PLACE)
    with pytest.raises(InvalidError, match="cannot be pickled"):
        signed.encode([Holder(lambda: 0)], PLACE)


def test_typed_reads_look_into_signed_values(signed: SignedPickle) -> None:
    stored = signed.encode([Client("a")], PLACE)

    with pytest.raises(InvalidError):
        signed.decode(stored, PLACE, dict[str, int])


@pytest.mark.parametrize(("key", "allow"), [(b"short", []), ("k" * 32, []), (KEY, ["Client"])])
def test_what_is_no_key_and_no_class_is_refused(key: Any, allow: Any) -> None:
    with pytest.raises(InvalidError):
        SignedPickle(key, allow=allow)


def test_its_key_is_neither_shown_nor_pickled(signed: SignedPickle) -> None:
    assert repr(signed) == "<SignedPickle of Client, Holder>"
    with pytest.raises(TypeError, match="where it is used"):
        pickle.dumps(signed)


# ---- what is refused


def test_another_key_is_refused(signed: SignedPickle) -> None:
    stored = signed.encode([Client("a")], PLACE)

    with pytest.raises(CorruptError, match="not signed by this key for this place"):
        SignedPickle(KEY[::-1], allow=[Client]).decode(stored, PLACE)


@pytest.mark.parametrize("place", [b"\x02t\x00\x02doc", b"\x02s\x00\x02other", b"", PLACE + b"\x00"])
def test_a_signed_value_at_another_place_is_refused(signed: SignedPickle, place: bytes) -> None:
    stored = signed.encode([Client("a")], PLACE)

    with pytest.raises(CorruptError, match="not signed by this key for this place"):
        signed.decode(stored, place)


def test_a_flipped_bit_anywhere_is_refused_before_anything_is_unpickled(signed: SignedPickle) -> None:
    stored = signed.encode([Client("a")], PLACE)

    for at in range(1, len(stored)):
        damaged = bytearray(stored)
        damaged[at] ^= 1
        with pytest.raises(CorruptError):
            signed.decode(bytes(damaged), PLACE)


def test_a_pickle_that_is_not_signed_is_refused(signed: SignedPickle, tmp_path: Path) -> None:
    body = join_pickle("tests.Client", pickle.dumps(Runs(f"touch {tmp_path}/ran")))
    unsigned = codec.PLAIN + b"\xc9" + len(body).to_bytes(4) + bytes((PICKLE,)) + body

    reads: list[Callable[[], object]] = [
        lambda: signed.decode(unsigned, PLACE),
        lambda: codec.decode(unsigned),
    ]
    for read in reads:
        with pytest.raises(InvalidError, match="where it was signed"):
            read()
    assert list(tmp_path.iterdir()) == []


def harmful(folder: Path) -> dict[str, bytes]:
    """Return pickles that would make a file in the folder, or fill the memory, were they run."""
    command = f"touch {folder}/ran"
    text = command.encode()
    short = b"\x8c" + bytes((len(text),)) + text
    runs = pickle.dumps(Runs(command))
    by_name = b"cos\nsystem\n(" + b"V" + text + b"\ntR."
    return {
        "a reduce": runs,
        "a reduce of protocol 0": pickle.dumps(Runs(command), 0),
        "one in a list": pickle.dumps([1, {"a": Runs(command)}]),
        "one in an allowed object": pickle.dumps(Holder(Runs(command))),
        "a name of protocol 2": b"\x80\x02" + by_name,
        "an instance by its name": b"(" + b"V" + text + b"\nios\nsystem\n.",
        "an object from the stack": b"(cos\nsystem\nV" + text + b"\no.",
        "a name with dots": b"\x80\x04\x8c\x02os\x8c\x0bpath.os.foo\x93.",
        "eval": b"c__builtin__\neval\n(V__import__('os').system('" + text + b"')\ntR.",
        "getattr": b"cbuiltins\ngetattr\n(cos\npath\nVsystem\ntR.",
        "the allowed class's globals": b"c" + __name__.encode() + b"\nClient.__init__.__globals__\n.",
        "an extension": b"\x80\x02\x82\x01.",
        "a persistent id": b"\x80\x02" + short[:1].replace(b"\x8c", b"\x8c") + short[1:] + b"Q.",
        "a memo of four thousand million": b"\x80\x02Nr\xff\xff\xff\xff.",
        "a memo by a large number": b"Np99999999999\n.",
        "a frame that lies": b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7fN.",
        "bytes that lie": b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.",
        "an int that lies": b"\x80\x02\x8b\xff\xff\xff\x7f.",
        "digits without end": b"I" + b"9" * 5_000 + b"\n.",
        "something behind it": pickle.dumps(1) + by_name,
        "half": runs[:-4],
        "nothing": b"",
        "a set state of slots": b"\x80\x02c" + __name__.encode() + b"\nUnlisted\n)\x81.",
        "buffers out of band": b"\x80\x05\x97.",
        "many marks": b"(" * 100_000 + b".",
    }


NAMES = sorted(harmful(Path("folder")))


@pytest.mark.parametrize("name", NAMES)
def test_a_harmful_pickle_is_refused_and_runs_nothing(
    name: str, signed: SignedPickle, tmp_path: Path
) -> None:
    """Even if it is signed: whoever has the key still makes nothing but objects of the list."""
    tracemalloc.start()
    try:
        with pytest.raises(KeepstateError):
            signed.decode(forged(harmful(tmp_path)[name]), PLACE)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert list(tmp_path.iterdir()) == []
    assert peak < 16 << 20


def test_the_harmful_pickles_are_harmful(tmp_path: Path) -> None:
    """Read by pickle itself, they do what they should."""
    for name in (
        "a reduce",
        "a reduce of protocol 0",
        "a name of protocol 2",
        "one in an allowed object",
        "eval",
    ):
        pickle.loads(harmful(tmp_path)[name])
        (tmp_path / "ran").unlink()
    assert any(
        step.name == "LONG_BINPUT"
        for step, _, _ in pickletools.genops(harmful(tmp_path)["a memo of four thousand million"])
    )


def test_bytes_that_nobody_pickled_are_errors_or_objects(signed: SignedPickle) -> None:
    from random import Random

    from tests.crashes.hostile import bent

    dumped = pickle.dumps(Client("a"), 5)
    for seed in range(3_000):
        data = bent(dumped, Random(seed))
        try:
            signed.decode(forged(data), PLACE)
        except KeepstateError:
            continue


# ---- in a store


@pytest.fixture
def store() -> Any:
    store = finish(MemoryStore(runner=ThreadRunner()).open())
    yield store
    finish(store.close())


def test_every_part_of_a_space_keeps_allowed_objects(store: MemoryStore, signed: SignedPickle) -> None:
    with sync.open(store, tenant="app", pickle=signed) as ks:
        space = ks.space("run")
        space.documents.put("client", Client("a"))
        assert space.documents.update("client", lambda old: [old, Client("b")]) == [Client("a"), Client("b")]
        assert space.documents.update("new", lambda old: old, default=Client("c")) == Client("c")
        assert space.documents.get("new") == Client("c")
        space.events.append(Client("d"))
        assert [event.data for event in space.events.read()] == [Client("d")]
        space.queue.put(Client("e"), id="task")
        (task,) = space.queue.claim("worker", lease_s=60)
        assert task.payload == Client("e")
        task.complete(Client("f"))
        info = space.queue.get("task")
        assert info is not None
        assert info.result == Client("f")
        with space.documents.watch(after=0, timeout_s=0) as watch:
            assert [change.new for change in watch][-1] == Client("c")
        with space.transaction() as tx:
            tx.events.append(Client("g"))
            assert tx.events.read()[-1].data == Client("g")


def test_a_row_that_was_moved_is_refused(store: MemoryStore, signed: SignedPickle) -> None:
    with sync.open(store, pickle=signed) as ks:
        ks.space("s").documents.put("a", Client("a"))
        (entry,) = finish(store.scan("s", b"\x02")).entries
        finish(store.apply([Batch("s", [Put(entry.key[:-1] + b"b", entry.value)])]))
        finish(store.apply([Batch("t", [Put(entry.key, entry.value)])]))

        assert ks.space("s").documents.get("a") == Client("a")
        for space, name in (("s", "b"), ("t", "a")):
            with pytest.raises(CorruptError, match=f"document '{name}' of '{space}' is damaged"):
                ks.space(space).documents.get(name)


def test_who_has_no_key_reads_the_rest_and_that_it_is_a_pickle(
    store: MemoryStore, signed: SignedPickle
) -> None:
    with sync.open(store, pickle=signed) as ks:
        ks.space("s").documents.put("a", {"plain": 1, "client": Client("a")})
    (entry,) = finish(store.scan("s", b"\x02")).entries

    shown = codec.to_builtin(entry.value)

    assert shown["plain"] == 1
    assert shown["client"]["@type"] == "pickle"
    assert shown["client"]["class"] == f"{__name__}.Client"
    with sync.open(store) as ks, pytest.raises(InvalidError, match="pickle=SignedPickle"):
        ks.space("s").documents.get("a")
