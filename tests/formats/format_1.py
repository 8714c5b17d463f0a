"""Format 1, byte for byte: what is written here is stored somewhere, and is read for ever.

A line may be added; none is ever changed or removed. A new format gets a file of its own beside this one.
"""

from __future__ import annotations

import enum
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

import attrs
import msgspec
import numpy as np
import pydantic

from keepstate.values.key import Segment, Stamp
from keepstate.values.schema import Registry


@dataclass
class Profile:
    name: str
    tags: tuple[str, ...] = ()


class Point(NamedTuple):
    x: int
    y: int


class Colour(enum.Enum):
    RED = 1


class Right(enum.Flag):
    READ = 1
    WRITE = 2


class Packed(msgspec.Struct):
    a: int


@attrs.define
class Account:
    owner: str


class Message(pydantic.BaseModel):
    role: str
    content: str = ""


def noted() -> ValueError:
    error = ValueError("no", 1)
    error.add_note("seen")
    return error


REGISTRY = Registry()
REGISTRY.register(Profile, "profile", version=2)
for _kind in (Point, Colour, Right, Packed, Account, Message):
    REGISTRY.register(_kind, _kind.__name__.lower())

VALUES: list[tuple[Any, str]] = [
    (None, "c0"),
    (True, "c3"),
    (False, "c2"),
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (255, "ccff"),
    (256, "cd0100"),
    (65_535, "cdffff"),
    (65_536, "ce00010000"),
    (2**32 - 1, "ceffffffff"),
    (2**32, "cf0000000100000000"),
    (2**63, "cf8000000000000000"),
    (2**64 - 1, "cfffffffffffffffff"),
    (2**64, "c70901010000000000000000"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-128, "d080"),
    (-129, "d1ff7f"),
    (-(2**15) - 1, "d2ffff7fff"),
    (-(2**31) - 1, "d3ffffffff7fffffff"),
    (-(2**63), "d38000000000000000"),
    (-(2**63) - 1, "c70901ff7fffffffffffffff"),
    (2**200, "c71a010100000000000000000000000000000000000000000000000000"),
    (0.0, "cb0000000000000000"),
    (-0.0, "cb8000000000000000"),
    (1.5, "cb3ff8000000000000"),
    (math.inf, "cb7ff0000000000000"),
    (-math.inf, "cbfff0000000000000"),
    (math.nan, "cb7ff8000000000000"),
    ("", "a0"),
    ("ł", "a2c582"),
    ("x" * 31, "bf78787878787878787878787878787878787878787878787878787878787878"),
    ("x" * 32, "d9207878787878787878787878787878787878787878787878787878787878787878"),
    ("\ud800", "c70302eda080"),
    (b"", "c400"),
    (b"\x00\xff", "c40200ff"),
    ([], "90"),
    ([1, [2]], "92019102"),
    ([0] * 15, "9f000000000000000000000000000000"),
    ([0] * 16, "dc001000000000000000000000000000000000"),
    ({}, "80"),
    ({"a": 1, "b": [2]}, "82a16101a1629102"),
    ({"b": 1, "a": 2}, "82a16201a16102"),
    ({1: "a", "b": None}, "c707239401a161a162c0"),
    ({(1, "x"): {True: 2.5}}, "c7152392d6209201a178c70b2392c3cb4004000000000000"),
    ((), "d42090"),
    ((1, (2, "x")), "d7209201d6209202a178"),
    (set(), "d42190"),
    ({3, 1, 2}, "d62193010203"),
    ({"b", "a", (1,), 1.5, None}, "c7132195a161a162c0cb3ff8000000000000d5209101"),
    (frozenset({b"x"}), "d62291c40178"),
    (..., "c70003"),
    (1 - 2j, "d8043ff0000000000000c000000000000000"),
    (complex(math.nan, -0.0), "d8047ff80000000000008000000000000000"),
    (Decimal("1.10"), "d605312e3130"),
    (Decimal("-Infinity"), "c709052d496e66696e697479"),
    (UUID(int=1), "d80600000000000000000000000000000001"),
    (PurePosixPath("/a/b"), "c70507702f612f62"),
    (PureWindowsPath("C:\\x"), "c7050777433a5c78"),
    (datetime(2024, 2, 29, 12, 30, 15, 123456), "c70c0807e8021d0c1e0f0001e24000"),
    (datetime(2024, 1, 1, tzinfo=UTC), "c7150807e801010000000000000000010000000000000000"),
    (
        datetime(2024, 1, 1, tzinfo=timezone(timedelta(hours=-5), "EST")),
        "c7180807e80101000000000000000003fffffffbcf1dcc00455354",
    ),
    (
        datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        "c71a0807e80a1b021e000000000001024575726f70652f4265726c696e",
    ),
    (date(1, 1, 1), "d60900010101"),
    (time(23, 59, 59, 999_999), "d70a173b3b000f423f00"),
    (time(1, 2, tzinfo=timezone(timedelta(minutes=90))), "c7110a0102000000000000010000000141dd7600"),
    (timedelta(-1, 2, 3), "c70c0bffffffff0000000200000003"),
    (UTC, "c7090c010000000000000000"),
    (ZoneInfo("Asia/Tokyo"), "c70b0c02417369612f546f6b796f"),
    (deque([1, (2,)], 3), "c70726930301d5209102"),
    (deque(), "d52691c0"),
    (OrderedDict(b=1, a=2), "c7072794a16201a16102"),
    (Counter("aba"), "c7072894a16102a16201"),
    (defaultdict(list, {1: [2]}), "c7092993a46c697374019102"),
    (defaultdict(None), "d52991c0"),
    (range(1, 2**70, 3), "c70f2a9301c7090140000000000000000003"),
    (range(0), "d62a93000001"),
    (Fraction(-1, 3), "c7032b92ff03"),
    (re.compile("a.b", re.IGNORECASE), "c7062c92a3612e6222"),
    (re.compile(b"x"), "c7052c92c4017800"),
    (noted(), "c7222d93aa56616c75654572726f7292a26e6f0181a95f5f6e6f7465735f5f91a47365656e"),
    (
        FileNotFoundError(2, "gone", "f.txt"),
        "c7212d93b146696c654e6f74466f756e644572726f729302a4676f6e65a5662e74787480",
    ),
    (
        np.array([[1, 2], [3, 4]], dtype="<i2"),
        "c71d0d02033c6932000000000000000200000000000000020100020003000400",
    ),
    (np.array(["a", "bc"], dtype="<U2"), "c71d0d01033c5532000000000000000261000000000000006200000063000000"),
    (np.float32(1.5), "c7090e00033c66340000c03f"),
    (Profile("Ann", ("x",)), "c71f2493a770726f66696c650282a46e616d65a3416e6ea474616773c7032091a178"),
    (
        [Profile("Bo"), {Point(1, 2): Colour.RED}],
        "92c71b2493a770726f66696c650282a46e616d65a2426fa474616773d42090c7292392c70f2493a5706f696e740182a17801a17902c7132493a6636f6c6f75720181a46e616d65a3524544",
    ),
    (Right.READ | Right.WRITE, "c71b2493a572696768740181a56e616d657392a452454144a55752495445"),
    (Packed(1), "c70d2493a67061636b65640181a16101"),
    (Account("Ann"), "c7152493a76163636f756e740181a56f776e6572a3416e6e"),
    (
        Message(role="user"),
        "c7272494a76d6573736167650182a4726f6c65a475736572a7636f6e74656e74a091a7636f6e74656e74",
    ),
    (Message(role="user", content=""), "c71e2493a76d6573736167650182a4726f6c65a475736572a7636f6e74656e74a0"),
    (
        {
            "id": "msg_1",
            "role": "assistant",
            "content": "Hello",
            "tokens": 3,
            "at": 1.5,
            "tools": [],
            "meta": None,
        },
        "87a26964a56d73675f31a4726f6c65a9617373697374616e74a7636f6e74656e74a548656c6c6fa6746f6b656e7303a26174cb3ff8000000000000a5746f6f6c7390a46d657461c0",
    ),
]
"""A value and its canonical bytes."""

KEYS: list[tuple[tuple[Segment | Stamp, ...], str]] = [
    ((), ""),
    (("",), "0200"),
    (("documents", "user/1"), "02646f63756d656e74730002757365722f3100"),
    (("a\x00b", "\xff", "\ud800", "\U0001f600"), "026100ff620002c3bf0002eda0800002f09f988000"),
    ((b"", b"\x00\xff"), "01000100ffff00"),
    ((0, 1, 255, 256, 65_535, 65_536, 2**64 - 1), "20210121ff22010022ffff2301000028ffffffffffffffff"),
    (
        (2**64, 2**64 + 1, 2**200),
        "29000901000000000000000029000901000000000000000129001a0100000000000000000000000000000000000000000000000000",
    ),
    ((-1, -255, -256, -(2**64) + 1), "1ffe1f001efeff180000000000000000"),
    (
        (-(2**64), -(2**200)),
        "17fff6feffffffffffffffff17ffe5feffffffffffffffffffffffffffffffffffffffffffffffffff",
    ),
    ((UUID(int=2**127),), "3080000000000000000000000000000000"),
    (
        ("log", Stamp(1, 0), Stamp(2**64 - 1, 2**16 - 1)),
        "026c6f6700310000000000000001000031ffffffffffffffffffff",
    ),
]
"""A path and its packed bytes."""

DIGESTS: list[tuple[str, int, bytes, str]] = [
    ("node", 1, b"", "bfcbf49ceef9debfd120edb6660a5c42597335f6"),
    ("node", 1, b"\xc0", "222a355b76040a7e1133f81312f26e6e62cc4395"),
    ("commit", 1, b"\xc0", "c86549746d45f7a99e24b8e04719e560226581ae"),
    ("node", 2, b"\xc0", "1818275e63c52f135f6b225e7e9681a8f692d3ad"),
]
"""Kind, format, content and name."""

STORED: list[tuple[Any, str]] = [
    ({"a": 1}, "0181a16101"),
    ("a" * 5_000, "1128b52ffd608b125d000020da138861010084d30322"),
    ("ab" * 3_000 + "c", "1128b52ffd6074166d000030da177161626301006b57efb4"),
]
"""A value and bytes that it was stored as; compressed ones differ between versions of zstd."""
