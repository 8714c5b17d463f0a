"""Store URLs: what is taken literally, what is refused, and what the refusal says to write."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import keepstate.sync
from keepstate.adapters.langgraph.official import opened
from keepstate.errors import InvalidError, KeepstateError
from keepstate.stores.urls import StoreUrl, shown

MISSPELLED = [
    "redis:/ann:s3cret@h",
    "redis:ann:s3cret@h",
    "redis//ann:s3cret@h",
    "redis//s3cret",
    "redis:\\\\ann:s3cret@h",
    "rediss:://ann:s3cret@h",
    "redis ://ann:s3cret@h",
    " redis://ann:s3cret@h#0",
    "ann:s3cret@redis://h",
    "ann:s3cret@h:6379",
    "ann:s3cret://h",
    "redis://ann:s3cret",
    "redis://ann:s3cret:6379",
    "redis://h:6379:s3cret",
    "redis://s3cret@h",
    "redis://s3cret:@h",
    "redis://ann;s3cret@h/db",
    "redis://ann%3As3cret@h/db",
    "redis://ann:s3cret%zz@h",
    "redis://ann:s3/cret@h/0",
    "redis://ann:12/s3cret@h/0",
    "redis://ann:s3?cret@h/0",
    "redis://ann:12?s3cret=x@h/0",
    "redis://ann:12?s3cret@h/0",
    "redis://ann:12#s3cret@h/0",
    "redis://ann:s3cret@h/db",
    "redis://ann:s3cret@h:x/0",
    "redis://ann:s3cret@[::1/0",
    "redis:///ann:s3cret@h",
    "redis://h/0?password=s3cret",
    "redis://h/0?pasword=s3cret&timeout_s=x",
    "redis://ann:s3cret@h/0?timeout_s=x",
    "redis://ann:s3cret@h/0?s3cret",
    "postgresql://ann:s3cret@h:54x2/db",
    "postgresql://ann;s3cret@h/db?schema=A",
    "postgresql://ann s3cret@h/db?schema=A",
    "postgresql://ann/s3cret@h/db",
    "postgresql://ann:s3cret@h/db?sslpasword=s3cret",
    "tiered+redis://h/0?warm=redis://ann:s3cret",
    "tiered+memory://x?warm=redis:/ann:s3cret@h",
    "mongo://ann:s3cret@h",
    "redis://ann:s3cret@h\ud800",
    "redis://ann:s3cret@h/0?prefix=\ud800",
    "postgresql://ann:s3cret@h/db\udcff",
    "ann:s3cret@h\udcff",
]


@pytest.mark.parametrize("url", MISSPELLED)
def test_no_error_or_repr_shows_the_password_of_a_misspelled_url(url: str) -> None:
    said, coded = [shown(url)], url.encode(errors="surrogatepass")
    for call in (
        lambda: keepstate.sync.open(url),
        lambda: keepstate.sync.open(coded),  # type: ignore[call-overload]  # a mistake that is made
        lambda: keepstate.RedisBackend(coded),  # type: ignore[arg-type]  # likewise
        lambda: keepstate.StateConfig(backend=coded, url=coded),  # type: ignore[arg-type]  # likewise
        lambda: keepstate.RedisBackend(url),
        lambda: keepstate.PostgresBackend(url),
        lambda: keepstate.StateConfig(backend=url, redis_url=url, url=url),
        lambda: keepstate.StateManager(url),
        lambda: keepstate.sync.StateManager(persistence="redis", redis_url=url),
        lambda: keepstate.AgentStateStore(persistence="postgres", url=url),
        lambda: opened(url).__enter__(),
    ):
        try:
            said.append(repr(call()))
        except KeepstateError as error:
            said += (str(error), repr(error), *map(str, chained(error)))

    assert [text for text in said if re.search("s3|cret", text)] == []


@pytest.mark.parametrize(
    "url",
    ["redis://ann:s3cret@h", "tiered+rediss://ann:s3cret@h", "Postgres://ann:s3cret@h/db", "x://s3cret@h"],
)
def test_a_url_in_place_of_a_path_is_refused_and_not_shown(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = Path(url) if url[0] != "x" else url
    for call in (
        lambda: keepstate.SQLiteBackend(path),
        lambda: keepstate.FileBackend(path),
        lambda: keepstate.sync.StateManager(persistence="sqlite", file_path=path),
        lambda: keepstate.AgentStateStore(persistence="file", file_path=path),
        lambda: keepstate.sync.open(path),
    ):
        with pytest.raises(InvalidError) as caught:
            call()
        assert not re.search("s3|cret", "".join(map(str, chained(caught.value))))

    assert not re.search("s3|cret", repr(keepstate.StateConfig(backend="sqlite", file_path=path)))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["a\ud800.db", Path("a\udcff.db")])
def test_a_path_that_utf_8_cannot_hold_is_refused_in_words(path: str | Path) -> None:
    for call in (
        lambda: keepstate.SQLiteBackend(path),
        lambda: keepstate.sync.StateManager(persistence="file", file_path=path),
        lambda: keepstate.sync.open(Path(path)),
    ):
        with pytest.raises(InvalidError, match="UTF-8"):
            call()


def chained(error: BaseException) -> Iterator[BaseException]:
    following: BaseException | None = error
    while following is not None:
        yield following
        hidden = following.__suppress_context__
        following = following.__cause__ or (None if hidden else following.__context__)


def test_settings_show_all_but_the_password() -> None:
    redis = keepstate.RedisBackend("redis://ann:s3cret@h:6379/0", key_prefix="p")
    config = keepstate.StateConfig(backend=redis, redis_url="rediss://:s3cret@h")

    shows = "RedisBackend(url='redis://ann@h:6379/0', db=0, key_prefix='p', connection_pool_size=16)"
    assert repr(redis) == shows
    assert repr(config).startswith(f"StateConfig(backend={shows}, auto_save=True, ")
    assert "redis_url='rediss://h'" in repr(config)
    assert repr(keepstate.StateConfig(backend="redis")).startswith("StateConfig(backend='redis', ")


@pytest.mark.parametrize("url", ["sqlite:////a@b/c:d@e.db", "file:///a@b.journal", "redis://[::1]:6379/0"])
def test_signs_of_paths_and_hosts_are_taken_as_they_are(url: str) -> None:
    assert StoreUrl.parse(url).path in ("/a@b/c:d@e.db", "a@b.journal", "0")


@pytest.mark.parametrize("url", ["sqlite:///x.db#frag", "memory://a#b", "redis://ann:s3cret@h/0#x"])
def test_a_part_after_a_number_sign_is_refused_without_showing_a_secret(url: str) -> None:
    with pytest.raises(InvalidError, match="Write %23") as caught:
        StoreUrl.parse(url)

    assert "s3cret" not in str(caught.value)


def test_quoted_signs_are_part_of_the_file_s_name(tmp_path: Path) -> None:
    with keepstate.sync.open(f"sqlite:///{tmp_path}/a%23b%3Fc%25d.db") as ks:
        ks.space("s").documents.put("k", 1)

    assert (tmp_path / "a#b?c%d.db").is_file()


def test_a_value_of_an_option_that_may_be_a_secret_is_not_shown() -> None:
    class Options(msgspec.Struct):
        api_key: int = 0

    with pytest.raises(InvalidError, match=r"Invalid option api_key=… of .*: Expected `int`"):
        StoreUrl.parse("x://h?api_key=s3cret").parse_options(Options)


def test_a_sign_that_quotes_nothing_is_refused_in_words() -> None:
    with pytest.raises(InvalidError, match="has a % that quotes nothing"):
        StoreUrl.parse("redis://ann:s3cret%zz@h")


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
        ("sqlite:///x.db?durability=ful", "durability=ful of sqlite://: use full or normal"),
        (
            "file:///x.journal?format=xml",
            "format=xml of file://: use json or json-zstd or msgpack or msgpack-zstd",
        ),
        ("sqlite:///x.db?unsafe_fs=maybe", "unsafe_fs=maybe of sqlite://: use 1 or 0, true or false"),
        ("sqlite:///x.db?durability=full&wait_s=0", "wait_s=0 of sqlite://: Expected `float` > 0.0"),
        ("redis://h/0?max_connections=no", "max_connections=no of redis://: Expected `int`"),
    ],
)
def test_a_wrong_option_is_named_with_the_values_it_may_have(url: str, wanted: str) -> None:
    with pytest.raises(InvalidError) as caught:
        keepstate.sync.open(url)

    assert wanted in str(caught.value)
