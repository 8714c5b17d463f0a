"""Commands print nothing on which a terminal would act, and files for their owner alone."""

from __future__ import annotations

import hashlib
import io
import json
import re
import stat
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from keepstate import CorruptError, sync
from keepstate.cli import exits
from keepstate.cli.app import run
from keepstate.cli.display import Terminal, visible, write_table
from keepstate.engine.history.bundle import read_bundle

HOSTILE = "".join(map(chr, (*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x202A, 0x202F),
                            *range(0x2066, 0x206A), 0x2028, 0xFEFF, 0xE0041)))  # fmt: skip
"""C0, DEL, C1, all that turns the direction of a line, and others that are not seen."""
ACTS = re.compile(
    "[\0-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\u2028\ufeff\U000e0041]"
)
LARGE = 10**5000


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A store whose every name, value and message is hostile."""
    url = f"sqlite:///{tmp_path}/store.db"
    with sync.open(url, author=f"a{HOSTILE}") as ks:
        space = ks.space(f"run{HOSTILE}", record=True)
        space.documents.put(f"plan{HOSTILE}", {f"step{HOSTILE}": HOSTILE})
        space.documents.put("talk", [{"role": f"user{HOSTILE}", "content": HOSTILE, f"x{HOSTILE}": HOSTILE}])
        space.documents.put(f"plan{HOSTILE}", {f"step{HOSTILE}": [HOSTILE]})
        space.events.append({"said": HOSTILE}, stream=f"log{HOSTILE}", type=f"kind{HOSTILE}")
        space.queue.put(HOSTILE, id=f"task{HOSTILE}")
        space.history.tag("tag\u202e\u2066")
    return url


SPACE = f"run{HOSTILE}"
COMMANDS = (
    ["spaces"], ["ls", SPACE], ["get", SPACE, f"plan{HOSTILE}"], ["get", SPACE, "talk"],
    ["get", SPACE, HOSTILE],
    ["log", SPACE], ["show", SPACE], ["show", SPACE, "--full"], ["diff", SPACE, "main~1", "main"],
    ["blame", SPACE, "talk"], ["branch", SPACE], ["tag", SPACE], ["events", SPACE, f"log{HOSTILE}"],
    ["events", SPACE, HOSTILE], ["queue", "counts", SPACE], ["queue", "list", SPACE, "ready"],
    ["queue", "show", SPACE, f"task{HOSTILE}"], ["verify"], ["ls", HOSTILE],
    ["show", SPACE, HOSTILE], [HOSTILE], ["ls", "--limit", HOSTILE],
)  # fmt: skip


@pytest.mark.parametrize("form", [[], ["--json"]], ids=["text", "json"])
@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: " ".join(map(ascii, words))[:30])
def test_no_command_prints_what_a_terminal_acts_on(
    url: str, words: list[str], form: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run([*words, *form, "--url", url])

    printed = capsys.readouterr()
    assert printed.out + printed.err
    assert ACTS.findall(printed.out + printed.err) == []


@pytest.mark.parametrize("typed", ['"\udcff"', '{"a": "\ud800"}', "-"])
def test_a_value_that_utf_8_cannot_hold_is_refused_in_words(
    url: str, typed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO('"\udcff"'))

    assert run(["put", "s", "k", typed, "--url", url]) == exits.USAGE

    assert "is not JSON" in capsys.readouterr().err


def test_json_says_the_same_value_in_escapes(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    run(["get", SPACE, f"plan{HOSTILE}", "--json", "--url", url])
    told = json.loads(capsys.readouterr().out)

    assert told["key"] == f"plan{HOSTILE}"
    assert told["value"] == {f"step{HOSTILE}": [HOSTILE]}


def test_what_people_write_stays_as_it_is() -> None:
    text = "Grüße, 世界, مرحبا, שלום, e\u0301 \U0001f600"

    assert visible(text) == text


def test_a_console_keeps_its_own_colours_and_escapes_the_rest() -> None:
    stream = io.StringIO()
    console = Terminal(file=stream, force_terminal=True, color_system="standard")

    console.print("[bold]\x1b[31mred\x9b31m\u202e", style="green")

    assert ACTS.sub("", stream.getvalue()).count("\\u") == 3
    assert set(ACTS.findall(stream.getvalue())) <= {"\x1b"}
    assert "\x1b[31mred" not in stream.getvalue()


def test_a_row_of_a_table_is_one_line_in_a_pipe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")

    write_table(("id", "error"), [("one", "a long text " * 20)])

    _, row = capsys.readouterr().out.splitlines()
    assert row.split(maxsplit=1) == ["one", "a long text " * 20]


def test_integers_of_5000_digits_are_shown_and_read_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    with sync.open(url) as ks:
        space = ks.space("s", record=True)
        space.documents.put("d", {LARGE: 1})
        space.documents.put("d", {LARGE: 2, (LARGE, 1): 3})
    digits = "1" * 5000
    (tmp_path / "chat.jsonl").write_text(f'{{"role": "user", "content": "x", "n": {digits}}}\n')
    monkeypatch.setattr(sys, "stdin", io.StringIO("[" * 100_000))

    assert run(["diff", "s", "main~1", "main", "--url", url]) == exits.OK
    assert hex(LARGE)[:20] in capsys.readouterr().out
    assert run(["diff", "s", "main~1", "main", "--json", "--url", url]) == exits.OK
    assert run(["put", "s", "n", digits, "--url", url]) == exits.USAGE
    assert run(["put", "s", "n", "-", "--url", url]) == exits.USAGE
    assert run(["import", str(tmp_path / "chat.jsonl"), "--space", "t", "--url", url]) == exits.USAGE
    assert "4,300 digits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "line", [b"\x91" * 200_000 + b"\xc0", b"\x81\xa1k" * 200_000 + b"\xc0", b"\x92\xa1C" + b"\x91" * 100_000]
)
def test_a_bundle_with_a_deep_line_is_damaged(line: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep.bundle"
    data = b"keepstate history 2\n" + len(line).to_bytes(4) + line
    path.write_bytes(data + hashlib.sha256(data).digest())

    with pytest.raises(CorruptError, match="is damaged"):
        read_bundle(str(path))


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """Export one history to a path."""
    with sync.open("memory://") as ks:
        space = ks.space("s", record=True)
        space.documents.put("plan", 1)
        yield space.history.export_bundle


def test_an_export_is_for_its_owner_alone(tmp_path: Path, exported: Any) -> None:
    exported(tmp_path / "new")
    (tmp_path / "given").touch()
    (tmp_path / "given").chmod(0o640)

    exported(tmp_path / "given")

    assert [mode(tmp_path / "new"), mode(tmp_path / "given")] == [0o600, 0o640]


def test_an_export_over_a_private_file_stays_private(tmp_path: Path, exported: Any) -> None:
    (tmp_path / "private").touch()
    (tmp_path / "private").chmod(0o400)

    exported(tmp_path / "private")

    assert mode(tmp_path / "private") == 0o400
    assert read_bundle(str(tmp_path / "private")).commits


def test_an_export_to_a_link_leaves_what_it_leads_to(tmp_path: Path, exported: Any) -> None:
    (tmp_path / "precious").write_bytes(b"what somebody else keeps")
    (tmp_path / "link").symlink_to(tmp_path / "precious")

    exported(tmp_path / "link")

    assert (tmp_path / "precious").read_bytes() == b"what somebody else keeps"
    assert not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize(
    "words",
    [
        ["redis://ann:s3cret@h"],
        ["spaces", "a", "redis://ann:s3cret@h"],
        ["spaces", "--uri=redis://ann:s3cret@h"],
        ["ls", "redis://ann:s3cret@h"],
        ["put", "s", "k", "redis://ann:s3cret@h"],
        ["import", "redis://ann:s3cret@h"],
    ],
    ids=lambda words: words[0],
)
def test_a_url_in_the_wrong_place_is_shown_without_its_password(
    url: str, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*words, "--url", url]) != exits.OK

    told = capsys.readouterr().err
    assert "redis://ann@h" in told
    assert "s3cret" not in told


def test_a_history_on_standard_input_is_refused_in_words(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["export", SPACE, str(tmp_path / "bundle"), "--url", url]) == exits.OK
    with (tmp_path / "bundle").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        assert run(["import", "-", "--url", url]) == exits.USAGE

    assert "standard input holds a history" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["spaces"], ["doctor"], ["verify"], ["sweep"]], ids=" ".join)
def test_a_command_makes_no_store_behind_a_tier(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = run([*words, "--url", f"tiered+sqlite:///{tmp_path}/typo.db"])

    assert code == exits.FAILED
    assert "there is no store at tiered+sqlite://" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_what_ends_with_the_command_is_not_written_behind_a_tier(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["put", "s", "k", "1", "--url", "tiered+memory://x"]) == exits.USAGE
    assert "ends with this command" in capsys.readouterr().err


def test_the_forms_of_a_value_are_still_json() -> None:
    assert msgspec.json.decode(visible('"\u009b \u2028 \U000e0041"')) == "\u009b \u2028 \U000e0041"
