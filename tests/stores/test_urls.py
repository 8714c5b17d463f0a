"""Store URLs: what is taken literally, what is refused, and what the refusal says to write."""

from __future__ import annotations

from pathlib import Path

import pytest

import keepstate.sync
from keepstate.errors import InvalidError
from keepstate.stores.urls import StoreUrl


@pytest.mark.parametrize("url", ["sqlite:///x.db#frag", "memory://a#b", "redis://ann:s3cret@h/0#x"])
def test_a_part_after_a_number_sign_is_refused_without_showing_a_secret(url: str) -> None:
    with pytest.raises(InvalidError, match="write %23") as caught:
        StoreUrl.parse(url)

    assert "s3cret" not in str(caught.value)


def test_quoted_signs_are_part_of_the_file_s_name(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/a%23b%3Fc%25d.db") as ks:
        ks.space("s").documents.put("k", 1)

    assert (tmp_path / "a#b?c%d.db").is_file()


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("postgres://ann@h/db", "postgresql://ann@h/db"),
        ("Postgres://h/db?schema=a", "postgresql://h/db?schema=a"),
        ("tiered+postgres://h/db", "tiered+postgresql://h/db"),
        ("valkey://h:6379/1", "redis://h:6379/1"),
        ("valkeys://h:6379/1", "rediss://h:6379/1"),
    ],
)
def test_schemes_of_other_programs_are_taken_for_ours(url: str, wanted: str) -> None:
    assert str(StoreUrl.parse(url)) == wanted


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("sqlite:///x.db?durability=ful", "durability=ful: it is full or normal"),
        ("file:///x.journal?format=xml", "format=xml: it is json or msgpack"),
        ("sqlite:///x.db?unsafe_fs=maybe", "unsafe_fs=maybe: it is 1 or 0, true or false"),
        ("sqlite:///x.db?durability=full&wait_s=0", "wait_s=0: Expected `float` > 0.0"),
        ("redis://h/0?max_connections=no", "max_connections=no: Expected `int`"),
    ],
)
def test_a_wrong_option_is_named_with_the_values_it_may_have(url: str, wanted: str) -> None:
    with pytest.raises(InvalidError) as caught:
        keepstate.sync.open(url)

    assert wanted in str(caught.value)
