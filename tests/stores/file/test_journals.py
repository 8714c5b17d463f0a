"""Where a journal stands, how it reads, and how it is written anew when it has grown."""

from __future__ import annotations

import stat
from pathlib import Path

import msgspec
import pytest

from keepstate._finish import finish
from keepstate._runner import ThreadRunner
from keepstate.errors import CompactedError, InvalidError, StoreUnavailableError
from keepstate.opening import store_class
from keepstate.stores.file import FileStore
from keepstate.stores.file.json_form import ReadableBytes
from keepstate.stores.protocol import Applied, Batch, Check, Conflict, Delete, Durability, Put
from keepstate.stores.urls import StoreUrl
from keepstate.testing.clocks import ManualClock
from keepstate.values import codec
from keepstate.values.key import Stamp, stored_key
from tests.stores.file.disks import SPACE, A, B, FailingFiles, opened, put, revision, values

MEGABYTE = b"x" * (1 << 20)
C = b"\x02c"
MEMBERS = stored_key(2, "documents", "members")


def from_url(text: str) -> FileStore:
    url = StoreUrl.parse(text)
    store = store_class(url.scheme).from_url(url, runner=ThreadRunner())
    assert isinstance(store, FileStore)
    return store


# ---- where it stands


def test_a_url_names_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    for url in ("file:///relative.journal", f"file:///{tmp_path}/absolute.journal?format=json"):
        store = finish(from_url(url).open())
        put(store, Put(A, b"1"))
        finish(store.close())

    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "absolute.journal",
        "absolute.journal.lock",
        "relative.journal",
        "relative.journal.lock",
    ]


def test_a_path_with_a_slash_at_its_end_is_a_folder_and_holds_keepstate_journal(tmp_path: Path) -> None:
    for url in (f"file:///{tmp_path}/", f"file:///{tmp_path}/new/state/"):
        store = finish(from_url(url).open())
        put(store, Put(A, b"1"))
        finish(store.close())

    assert (tmp_path / "keepstate.journal").is_file()
    assert (tmp_path / "new/state/keepstate.journal").is_file()


def test_a_folder_named_as_if_it_were_a_file_is_refused_and_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(InvalidError, match=f"Write file:///{tmp_path}/keepstate.journal"):
        finish(from_url(f"file:///{tmp_path}").open())

    assert list(tmp_path.iterdir()) == []


def test_where_no_file_can_be_made_the_advice_is_another_place() -> None:
    with pytest.raises(StoreUnavailableError, match=r"/proc/x\.lock.*path in a folder that you may"):
        finish(from_url("file:////proc/x").open())


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailableError, match=r"missing.*Create it"):
        opened(tmp_path / "missing" / "journal")


@pytest.mark.parametrize(
    "url", ["file://", "file://host/x", "file:///x?format=xml", "file:///x?durability=full"]
)
def test_a_url_that_names_no_journal_is_invalid(url: str) -> None:
    with pytest.raises(InvalidError):
        from_url(url)


def test_a_link_and_its_target_are_one_journal(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "journal")
    store, same = opened(tmp_path / "journal"), opened(tmp_path / "link")

    put(store, Put(A, b"1"))

    assert values(same) == [b"1", None]
    finish(store.close())
    finish(same.close())


def test_it_is_durable_and_one_process_s(tmp_path: Path) -> None:
    store = opened(tmp_path / "journal")

    assert (store.capabilities.durability, store.capabilities.shared) == (Durability.POWER, False)
    finish(store.close())


def test_a_flush_is_one_sync(tmp_path: Path) -> None:
    files = FailingFiles()
    store = opened(tmp_path / "journal", files)
    before = files.syncs

    finish(store.apply([Batch(f"{i}", [Put(A, b"1")]) for i in range(100)]))
    finish(store.read(SPACE, [A]))

    assert files.syncs == before + 1
    finish(store.close())


# ---- how it reads


def test_a_json_journal_shows_plain_values_and_keys(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    store = opened(path, format="json")
    members = {"name": "Ada", "tags": ["first", None, 1.5, True], "n": -(2**40)}
    put(store, Put(MEMBERS, codec.encode(members)), Put(b"\x00\xff", b"\x00\xff"))
    finish(store.close())

    line = path.read_bytes().splitlines()[-1]
    [shown] = msgspec.json.decode(line)

    assert shown["space"] == SPACE
    assert shown["put"][0] == {"key": {"path": [2, "documents", "members"]}, "value": {"json": members}}
    assert shown["put"][1] == {"key": {"base64": "AP8="}, "value": {"base64": "AP8="}}


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -1, 2**63, 2**64 - 1, 0.1, -0.0, 1e308, float("nan"), float("inf"), "", "\ud800", "é\n😀",
     b"x", [], {}, {"b": 1, "a": 2}, {1: 2}, (1, 2), {1, 2}, 2**70, "x" * 10_000, [[[[]]]]],
)  # fmt: skip
def test_what_json_shows_comes_back_as_the_same_bytes(value: object) -> None:
    data = codec.encode(value)

    shown = msgspec.json.encode(ReadableBytes.value(data))

    assert msgspec.json.decode(shown, type=ReadableBytes).data() == data


@pytest.mark.parametrize(
    "data", [b"", b"\x01", b"\x01\xc1", b"\x01\xcd\x00\x01", b"\x01\x01\x01", b"text", b"\x11x"]
)
def test_what_json_cannot_show_is_base64(data: bytes) -> None:
    shown = ReadableBytes.value(data)

    assert shown.base64 == data
    assert msgspec.json.decode(msgspec.json.encode(shown), type=ReadableBytes).data() == data


@pytest.mark.parametrize(
    "key",
    [stored_key(1), stored_key(2, "a", 1, "b"), stored_key(1, "log", Stamp(7, 3)), stored_key(0, b"\xff"),
     stored_key(1, -5, 2**80), b"\x01garbage", b"\x02\x02\xff\x00", stored_key(1, "\ud800")],
)  # fmt: skip
def test_every_key_comes_back_as_the_same_bytes(key: bytes) -> None:
    assert msgspec.json.decode(msgspec.json.encode(ReadableBytes.key(key)), type=ReadableBytes).data() == key


def test_a_journal_keeps_its_format_until_another_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    heads: list[bytes] = []
    for format in ("json", None, "msgpack", None):
        store = opened(path, format=format)
        put(store, Put(A, b"1"))
        finish(store.close())
        heads.append(path.read_bytes().split(b" ")[3])

    assert heads == [b"json", b"json", b"msgpack", b"msgpack"]
    again = opened(path)
    assert revision(again) == 4
    finish(again.close())


def test_two_handles_cannot_want_two_formats(tmp_path: Path) -> None:
    store = opened(tmp_path / "journal", format="json")

    with pytest.raises(InvalidError, match="format=json"):
        opened(tmp_path / "journal", format="msgpack")

    put(store, Put(A, b"1"))
    finish(store.close())


# ---- how it is written anew


@pytest.mark.parametrize("format", ["json", "json-zstd", "msgpack", "msgpack-zstd"])
def test_a_journal_stays_small_when_its_state_does(tmp_path: Path, format: str) -> None:
    path = tmp_path / "journal"
    store = opened(path, format=format)
    sizes: set[int] = set()
    for i in range(40):
        put(store, Put(A, bytes([i]) * (1 << 20)))
        sizes.add(path.stat().st_size)

    finish(store.close())

    assert max(sizes) < 12 << 20
    again = opened(path)
    assert (revision(again), values(again)) == (40, [bytes([39]) * (1 << 20), None])
    finish(again.close())


@pytest.mark.parametrize("format", ["json", "json-zstd", "msgpack", "msgpack-zstd"])
def test_all_that_is_remembered_survives_a_rewrite(tmp_path: Path, format: str) -> None:
    path, clock = tmp_path / "journal", ManualClock()
    store = finish(FileStore(path, format=format, runner=ThreadRunner(), clock=clock).open())  # type: ignore[arg-type]
    finish(store.apply([Batch("dropped", [Put(A, b"1")])]))
    finish(store.drop("dropped"))
    put(store, Put(B, b"1"), Put(A, b"1", ttl_ms=5_000))
    finish(store.apply([Batch(SPACE, [Put(B, b"2"), Delete(A)], token=b"t")]))
    finish(store.apply([Batch(SPACE, [Put(B, b"x")], [Check(A, version=9)], token=b"u", retry_of=0)]))
    put(store, Put(b"\x01log", b"", stamp=True), Put(A, b"3", ttl_ms=9_000), Put(b"\x00object", MEGABYTE))
    put(store, Put(C, b"1", ttl_ms=1_000))
    clock.advance(1_000)
    put(store, Put(B, b"3"), Put(C, b"2"))
    before = everything(store)
    assert [change.key for change in finish(store.changes(SPACE, 0)).items if change.expired] == [C]

    for i in range(12):
        finish(store.apply([Batch("other", [Put(A, bytes([i]) * (1 << 20))])]))

    size = path.stat().st_size
    assert size < 12 << 20, "it was written anew"
    assert everything(store) == before
    finish(store.close())
    again = finish(FileStore(path, runner=ThreadRunner(), clock=clock).open())
    assert everything(again) == before
    [found, refused] = finish(
        again.apply([Batch(SPACE, [Put(B, b"z")], token=token) for token in (b"t", b"u")])
    )
    assert isinstance(found, Applied)
    assert (found.revision, refused) == (2, Conflict(A, 0))
    with pytest.raises(CompactedError):
        finish(again.changes("dropped", 1))
    clock.advance(9_000)
    assert values(again)[0] is None
    finish(again.close())


def everything(store: FileStore) -> object:
    """Return all that can be read of the space and of what was dropped."""
    scans = [finish(store.scan(SPACE, section)).entries for section in (b"\x00", b"\x01", b"\x02")]
    changes = finish(store.changes(SPACE, 0))
    return scans, changes, finish(store.changes("dropped", 2)), finish(store.spaces(after="other"))


def test_a_rewritten_journal_keeps_its_permissions(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    finish(opened(path).close())
    path.chmod(0o600)

    finish(opened(path, format="json").close())

    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_what_a_crash_left_of_a_rewrite_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "journal.new"
    left.write_bytes(b"half a journal")

    finish(opened(tmp_path / "journal").close())

    assert not left.exists()
