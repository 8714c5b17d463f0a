"""Tokens are counted by tiktoken, with a table that is at hand, and its absence is told clearly."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tiktoken

import keepstate
from keepstate import BoundedState, InvalidError, MissingExtraError, TokenCounter, UnsupportedError


@pytest.fixture
def encoding() -> tiktoken.Encoding:
    """An encoding of bytes and two pairs, made here: tiktoken's own come from the network."""
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257}
    return tiktoken.Encoding(
        "bytes", pat_str=r"\s?\w+|\s|.", mergeable_ranks=ranks, special_tokens={"<end>": 300}
    )


def test_what_is_said_is_counted_and_each_message_is_three_more(encoding: tiktoken.Encoding) -> None:
    count = TokenCounter(encoding)

    assert count({"role": "user", "content": "the"}) == 3 + 4 + 1
    assert count({"role": "user", "content": None}) == 3 + 4
    assert count({"role": "user", "content": "then", "name": "the"}) == 3 + 4 + 2 + 1 + 1
    assert count({"role": "user", "content": "<end>"}) == 3 + 4 + 5
    calls = [{"id": "1", "function": {"name": "find"}}]
    assert count({"role": "user", "tool_calls": calls}) == 3 + 4 + len(
        '[{"id":"1","function":{"name":"find"}}]'
    )


async def test_a_context_is_within_the_budget_of_its_counter(encoding: tiktoken.Encoding) -> None:
    count = TokenCounter(encoding)
    async with keepstate.open("memory://") as ks:
        state = BoundedState("1", max_tokens=120, counter=count, persistence=ks)
        for number in range(30):
            await state.add_message({"role": "user", "content": f"the message {number}"})

        context = await state.get_context()
        assert 2 < len(context) < 30
        assert sum(map(count, context)) == await state.count_tokens() <= 120


def test_a_table_that_cannot_be_fetched_is_told_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    with pytest.raises(UnsupportedError, match="TIKTOKEN_CACHE_DIR"):
        TokenCounter("p50k_base")({"role": "user", "content": "the"})


def test_what_is_no_encoding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidError, match="not an encoding"):
        TokenCounter(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match=r"It has .*o200k_base"):
        TokenCounter("gpt")({"content": "x"})
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(MissingExtraError, match=r"keepstate\[tokens\]"):
        TokenCounter()({"content": "x"})
    assert repr(TokenCounter()) == "<TokenCounter o200k_base>"
