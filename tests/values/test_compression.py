"""What is compressed comes back, whichever compressor took it and whoever used it before."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from keepstate.values.compression import compress, decompress


def text(size: int) -> bytes:
    return bytes(random.Random(size).choices(b"a state of few letters", k=size))


@pytest.mark.parametrize("size", [1_000, (1 << 17) - 1, 1 << 17, (1 << 17) + 1, 3_000_000])
def test_what_is_compressed_comes_back(size: int) -> None:
    packed = compress(text(size))

    assert packed is not None
    assert decompress(packed) == text(size)
    assert compress(text(size)) == packed


def test_what_threads_compress_at_once_comes_back_too() -> None:
    texts = [text(2_000 + size) for size in range(400)]

    with ThreadPoolExecutor(8) as threads:
        packed = [*threads.map(compress, texts)]

    assert [decompress(one or b"") for one in packed] == texts
