"""What stored bytes may turn into, and what an encrypting serializer leaves to be read."""

from __future__ import annotations

import collections
import os
import pickle
import re
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import ormsgpack
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.serde.encrypted import EncryptedSerializer
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import (
    _messages_delta_reducer,  # pyright: ignore[reportPrivateUsage]
)
from typing_extensions import TypedDict

import keepstate
from keepstate.adapters.langgraph import KeepstateSaver, classes
from keepstate.adapters.langgraph.classes import Classes, NotAllowedWarning
from keepstate.adapters.langgraph.serde import Values
from keepstate.errors import CorruptError, InvalidError
from keepstate.values import types
from keepstate.values.codec import PLAIN
from tests.adapters.langgraph.saving import config, put, values

KEY = b"k" * 32


def sealing(key: bytes) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(strict(), key=key)


def strict(**more: Any) -> JsonPlusSerializer:
    return JsonPlusSerializer(allowed_msgpack_modules=None, **more)


@dataclass
class Ticket:
    title: str


def stored_object(name: str, fields: dict[str, Any]) -> bytes:
    """Return bytes in which an object of a class of this name stands."""
    return PLAIN + ormsgpack.packb(ormsgpack.Ext(types.OBJECT, ormsgpack.packb([name, 1, fields])))


# ---- what public reports of other savers were about

HARMFUL = {
    "any callable, by its name": stored_object("os.system", {"command": "touch harm"}),
    "a class of the standard library": stored_object("subprocess.Popen", {"args": ["touch", "harm"]}),
    "a class of LangChain that nobody lists": stored_object(
        "langchain_core.prompts.prompt.PromptTemplate",
        {"template": "{{ harm }}", "template_format": "jinja2"},
    ),
    "a method of a listed class": stored_object("langchain.HumanMessage.model_validate_json", {"json": "{}"}),
    "builtins": stored_object("builtins.eval", {"source": "__import__('os').system('touch harm')"}),
}


@pytest.mark.parametrize("stored", HARMFUL.values(), ids=HARMFUL.keys())
def test_a_name_in_stored_bytes_is_never_imported_nor_called(
    stored: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    with pytest.raises(InvalidError, match="is not allowed"):
        Values(Classes()).load(stored, "here")

    assert not os.listdir(tmp_path)


def test_a_bytearray_is_made_of_bytes_alone() -> None:
    """Of a number, 28 bytes made two billion zeros."""
    bomb = stored_object("bytearray", {"bytes": 2_000_000_000})
    assert len(bomb) < 40

    tracemalloc.start()
    try:
        with pytest.raises(InvalidError, match="a stored bytearray holds bytes, not a int"):
            Values(Classes()).load(bomb, "here")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 << 20


def test_a_constructor_envelope_stays_the_dict_that_it_is() -> None:
    envelope = {"lc": 2, "type": "constructor", "id": ["os", "system"], "kwargs": {"command": "touch harm"}}
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, given=envelope, lone={"text": "\ud800", **envelope})

        assert values(saver, at) == {"given": envelope, "lone": {"text": "\ud800", **envelope}}


def test_keys_of_a_filter_are_compared_and_nothing_else() -> None:
    with KeepstateSaver("memory://") as saver:
        put(saver, config(), 0, {"user": "a"}, text="x")

        assert not [*saver.list(None, filter={"user') OR 1=1 --": "a"})]
        assert not [*saver.list(None, filter={"user": "b' OR 'a'='a"})]
        assert len([*saver.list(None, filter={"user": "a"})]) == 1


def test_damage_is_told_and_never_read_as_a_checkpoint() -> None:
    with KeepstateSaver("memory://") as saver:
        at = put(saver, config(), 0, text="x")
        handle = saver._handles.blocking()
        from keepstate._finish import finish
        from keepstate.adapters.langgraph.records import checkpoint_key
        from keepstate.stores.protocol import Batch, Put

        key = checkpoint_key("", at["configurable"]["checkpoint_id"])
        stored = finish(handle.store.read("thread/t", [key])).entries[0]
        assert stored is not None
        flipped = bytes((*stored.value[:30], stored.value[30] ^ 1, *stored.value[31:]))
        finish(handle.store.apply([Batch("thread/t", [Put(key, flipped)])]))

        with pytest.raises(CorruptError):
            saver.get_tuple(at)


# ---- classes of the application


class Colour(Enum):
    RED = 1


class Ticketed(TypedDict):
    tickets: list[Ticket]
    colour: Colour | None


def test_a_class_comes_back_in_another_process_if_it_is_allowed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url) as saver:
        put(saver, config(), 0, ticket=Ticket("a"))
        assert values(saver, config()) == {"ticket": Ticket("a")}

    refused, allowed = elsewhere(url, (), ((Ticket.__module__, "Ticket"),))

    assert "is not allowed" in refused
    assert "Ticket(title='a')" in allowed


def test_the_classes_that_a_graph_s_schemas_name_are_allowed_by_the_graph(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url, allow=[Ticket, Colour]) as saver:
        put(saver, config(), 0, tickets=[Ticket("a")], colour=Colour.RED)
    states = "from tests.adapters.langgraph.test_serializing import StateGraph, Ticketed, TypedDict"

    [other, *both] = elsewhere(
        url,
        "[StateGraph(TypedDict('Other', {'n': int}))]",
        "[StateGraph(Ticketed)]",
        "[StateGraph(Ticketed).add_node('n', print).set_entry_point('n').compile()]",
        before=states,
    )

    assert "is not allowed" in other
    assert len(both) == 2
    assert all("[Ticket(title='a')]" in line and "Colour.RED" in line for line in both)


def elsewhere(url: str, *allows: object, before: str = "") -> list[str]:
    """Return what another process says of the latest checkpoint, once for each list of allowed classes."""
    lists = [one if before and isinstance(one, str) else repr(one) for one in allows]
    code = (
        "from keepstate.adapters.langgraph import KeepstateSaver\n"
        f"{before}\n"
        f"for allow in [{', '.join(lists)}]:\n"
        f"    with KeepstateSaver({url!r}, allow=allow) as saver:\n"
        "        try:\n"
        "            print(saver.get({'configurable': {'thread_id': 't'}})['channel_values'])\n"
        "        except Exception as error:\n"
        "            print(type(error), error)\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()


@pytest.mark.filterwarnings("always")
def test_who_stores_a_class_that_others_will_not_read_is_told_once(
    recwarn: pytest.WarningsRecorder,
) -> None:
    @dataclass
    class Own:
        n: int

    for step in range(2):
        with KeepstateSaver("memory://") as saver:
            put(saver, config(), step, one=Own(1), more=[Own(2)])

    told = [warning for warning in recwarn if warning.category is NotAllowedWarning]
    assert len(told) == 1
    assert "Own" in str(told[0].message) and "allow=[" in str(told[0].message)


def test_who_stores_a_class_sees_the_warning_where_nothing_was_configured(tmp_path: Path) -> None:
    code = (
        "from tests.adapters.langgraph.test_serializing import KeepstateSaver, Ticket, config, put\n"
        f"with KeepstateSaver('sqlite:///{tmp_path}/a.db') as saver: put(saver, config(), 0, t=Ticket('a'))\n"
        "with KeepstateSaver('memory://', allow=[Ticket]) as saver: put(saver, config(), 0, t=Ticket('a'))\n"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stderr.count("NotAllowedWarning: objects of ") == 1


@pytest.mark.filterwarnings("error")
def test_graphs_allow_the_classes_of_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classes, "_TOLD", set[str]())
    with KeepstateSaver("memory://") as saver:
        clone = saver.with_allowlist({(Ticket.__module__, "Ticket")})

        at = put(clone, config(), 0, ticket=Ticket("a"))

        assert values(clone, at) == values(saver, at) == {"ticket": Ticket("a")}
        assert saver.with_allowlist({(Ticket.__module__, "Ticket")}) is clone
        assert type(clone) is KeepstateSaver


def test_what_cannot_come_back_is_refused_by_its_path() -> None:
    with KeepstateSaver("memory://") as saver, pytest.raises(InvalidError) as refused:
        put(saver, config(), 0, notes={"deep": [1, object()]})

    assert refused.value.path == "notes.deep[1]"
    assert "notes" in str(refused.value)


# ---- serializers of LangGraph


@pytest.fixture
def sealed(tmp_path: Path) -> Iterator[KeepstateSaver]:
    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db", serde=sealing(KEY)) as saver:
        yield saver


def test_with_encryption_nothing_readable_is_stored(sealed: KeepstateSaver, tmp_path: Path) -> None:
    graph = StateGraph(MessagesState)
    graph.add_node("secretnode", lambda _: {"messages": [AIMessage("secretanswer")]})
    graph.add_edge(START, "secretnode")
    app = graph.compile(checkpointer=sealed)
    app.invoke(
        {"messages": [HumanMessage("secretquestion " * 20)]},
        {
            "configurable": {"thread_id": "t", "user_email": "secret@example.com"},
            "metadata": {"secretkey": 1},
        },
    )
    assert len(app.get_state(config()).values["messages"]) == 2
    assert [*sealed.list(None, filter={"user_email": "secret@example.com"})]
    sealed.close()

    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir())

    assert len(stored) > 4_096
    assert b"secret" not in stored
    assert b"messages" not in stored


def test_with_encryption_not_even_a_delta_channel_is_named(sealed: KeepstateSaver, tmp_path: Path) -> None:
    channel = DeltaChannel(_messages_delta_reducer, snapshot_frequency=2)
    schema: Any = TypedDict("schema", {"secretchannel": Annotated[list, channel]})
    graph = StateGraph(schema)
    graph.add_node("say", lambda _: {"secretchannel": [AIMessage("said")]})
    graph.add_edge(START, "say")
    app = graph.compile(checkpointer=sealed)
    for _ in range(6):
        app.invoke({"secretchannel": [HumanMessage("hi")]}, config())
    assert len(app.get_state(config()).values["secretchannel"]) == 12
    sealed.close()

    assert b"secret" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_who_has_no_key_prunes_what_is_encrypted_and_keeps_what_is_needed(
    sealed: KeepstateSaver, tmp_path: Path
) -> None:
    channel = DeltaChannel(_messages_delta_reducer, snapshot_frequency=7)
    schema: Any = TypedDict("schema", {"told": Annotated[list, channel]})
    graph = StateGraph(schema)
    graph.add_node("say", lambda _: {"told": [AIMessage("said")]})
    graph.add_edge(START, "say")
    app = graph.compile(checkpointer=sealed)
    for turn in range(12):
        app.invoke({"told": [HumanMessage(f"hi {turn}")]}, config())
    before = app.get_state(config()).values
    count = len([*sealed.list(config())])

    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db") as keyless:
        gone = keyless.prune(["t"])

    assert 10 < gone < count - 1
    assert len([*sealed.list(config())]) == count - gone
    assert app.get_state(config()).values == before and len(before["told"]) == 24


def test_under_encryption_a_growing_list_still_costs_what_was_added(
    sealed: KeepstateSaver, tmp_path: Path
) -> None:
    messages: list[Any] = []
    at = config()
    for step in range(200):
        messages.append(HumanMessage(f"{step} " * 120, id=str(step)))
        at = put(sealed, at, step, messages=messages)
    assert values(sealed, at)["messages"] == messages
    sealed.close()

    assert (tmp_path / "a.db").stat().st_size < 200 * 8_000


def test_a_value_that_was_never_encrypted_is_refused_under_encryption(
    sealed: KeepstateSaver, tmp_path: Path
) -> None:
    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db") as plain:
        at = put(plain, config(), 0, text="planted by somebody else")

    with pytest.raises(CorruptError, match="never encrypted"):
        sealed.get_tuple(at)


def test_what_a_serializer_stored_is_not_read_without_it(sealed: KeepstateSaver, tmp_path: Path) -> None:
    at = put(sealed, config(), 0, text="x")

    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db") as plain, pytest.raises(InvalidError, match="serde="):
        plain.get_tuple(at)


class Planted:
    """A class that stored bytes name and no list allows."""

    made: list[str] = []  # noqa: RUF012 - what the bytes of a tampering store have made

    def __init__(self, text: str) -> None:
        self.made.append(text)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return Planted, ("pickled",)


def inside(serde: JsonPlusSerializer) -> EncryptedSerializer:
    return EncryptedSerializer.from_pycryptodome_aes(serde, key=KEY)


PERMISSIVE = {
    "allowed_msgpack_modules": JsonPlusSerializer(),
    "allowed_json_modules": strict(allowed_json_modules=True),
    "pickle_fallback": strict(pickle_fallback=True),
}


@pytest.mark.parametrize("option", PERMISSIVE)
@pytest.mark.parametrize("around", [lambda serde: serde, inside, lambda serde: inside(inside(serde))])
def test_a_serializer_that_runs_what_stored_bytes_name_is_refused(
    option: str, around: Callable[[Any], Any]
) -> None:
    with pytest.raises(InvalidError, match=option) as refused:
        KeepstateSaver("memory://", serde=around(PERMISSIVE[option]))

    assert "JsonPlusSerializer(allowed_msgpack_modules=None)" in str(refused.value)


@pytest.mark.parametrize(
    "serde",
    [
        strict(),
        strict(allowed_json_modules=[(__name__, "Ticket")]),
        JsonPlusSerializer(allowed_msgpack_modules=[(__name__, "Ticket")]),
        JsonPlusSerializer(__unpack_ext_hook__=lambda code, data: (code, data)),
        sealing(KEY),
    ],
)
def test_a_serializer_that_names_its_classes_is_taken(serde: Any) -> None:
    with KeepstateSaver("memory://", serde=serde) as saver:
        at = put(saver, config(), 0, text="x", many=[1, 2])

        assert values(saver, at) == {"text": "x", "many": [1, 2]}


def test_what_a_serializer_would_call_for_planted_bytes_is_not_called_by_a_strict_one() -> None:
    named = ormsgpack.packb(ormsgpack.Ext(0, ormsgpack.packb([__name__, "Planted", "called"])))
    pickled = pickle.dumps(Planted.__new__(Planted))

    JsonPlusSerializer().loads_typed(("msgpack", named))
    PERMISSIVE["pickle_fallback"].loads_typed(("pickle", pickled))
    assert Planted.made == ["called", "pickled"]
    assert strict().loads_typed(("msgpack", named)) == "called"
    with pytest.raises(NotImplementedError):
        strict().loads_typed(("pickle", pickled))

    assert Planted.made == ["called", "pickled"]


def test_the_store_itself_may_be_encrypted(tmp_path: Path) -> None:
    keys = keepstate.KeyRing(KEY)
    with KeepstateSaver(f"sqlite:///{tmp_path}/a.db", encryption=keys) as saver:
        at = put(saver, config(), 0, messages=[HumanMessage("secretquestion " * 20)])
        at = put(saver, at, 1, messages=[HumanMessage("secretquestion " * 20), AIMessage("secretanswer")])
        assert len(values(saver, at)["messages"]) == 2

    assert b"secret" not in (tmp_path / "a.db").read_bytes()


class Loud(str):
    __slots__ = ()


def test_what_langgraph_turns_into_something_simpler_is_read_as_that_anywhere() -> None:
    given = {
        "error": ValueError("no"),
        "texts": [Loud("a")],
        "default": collections.defaultdict(list, {"a": [1]}),
    }
    written, read = Values(Classes()), Values(Classes())

    found = read.load(written.dump(given), "here")

    assert found == {"error": "ValueError('no')", "texts": ["a"], "default": {"a": [1]}}
    assert [type(value) for value in (found["texts"][0], found["default"])] == [str, dict]


# ---- read by another one


@pytest.mark.parametrize(
    ("stored_by", "read_by", "kind", "words"),
    [
        (sealing(KEY), sealing(b"o" * 32), InvalidError, "the key that stored it"),
        (sealing(KEY), None, InvalidError, "a serializer stored 'msgpack+aes' here; give the saver the same"),
        (strict(), None, InvalidError, "a serializer stored 'msgpack' here; give the saver the"),
        (strict(), sealing(KEY), CorruptError, "never encrypted"),
        (None, sealing(KEY), CorruptError, "never encrypted"),
        (sealing(KEY), strict(), InvalidError, "the serializer and the key that stored it"),
    ],
)
def test_what_another_serializer_or_key_has_stored_is_told_by_its_checkpoint_and_what_to_give(
    stored_by: Any, read_by: Any, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url, serde=stored_by) as saver:
        at = put(saver, config(), 0, x={"a": 1}, items=["q"])
        saver.put_writes(at, [("x", 1)], "task")
    id = at.get("configurable", {})["checkpoint_id"]

    with KeepstateSaver(url, serde=read_by) as other:
        for ask in (other.get_tuple, lambda at: [*other.list(at)]):
            with pytest.raises(kind) as refused:
                ask(at)

            assert words in str(refused.value)
            assert f"checkpoint {id} of thread 't'" in str(refused.value)
            assert "upcaster" not in str(refused.value)


def test_a_class_that_is_not_allowed_is_told_by_its_channel(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/a.db"
    with KeepstateSaver(url) as saver:
        id = put(saver, config(), 0, plain=1, ticket=Ticket("a")).get("configurable", {})["checkpoint_id"]

    assert f"channel 'ticket' of checkpoint {id} of thread 't': an object" in elsewhere(url, ())[0]


@pytest.mark.parametrize("text", ["[\0-\U0010ffff]" * 600, "a" * 4097, "(?:" * 2000 + "a" + ")?" * 2000])
def test_a_pattern_that_takes_long_to_compile_is_not_made(text: str) -> None:
    re.purge()

    with pytest.raises(InvalidError, match=r"regex@1 does not fit re\.Pattern: ValueError\('a pattern "):
        Values(Classes()).load(stored_object("regex", {"pattern": text, "flags": int(re.IGNORECASE)}), "here")


def test_a_pattern_that_would_not_be_read_is_refused_when_it_is_written() -> None:
    with pytest.raises(InvalidError, match=r"has 4097 characters, and at most 4096 are stored"):
        Values(Classes()).dump(re.compile("a" * 4097))


def test_a_pattern_prints_nothing_when_it_is_read(capfd: pytest.CaptureFixture[str]) -> None:
    given = stored_object("regex", {"pattern": "a+b", "flags": int(re.DEBUG | re.ASCII)})

    pattern = Values(Classes()).load(given, "here")

    assert (pattern.pattern, pattern.flags) == ("a+b", int(re.ASCII))
    assert capfd.readouterr() == ("", "")


def test_a_pattern_that_prints_when_it_is_compiled_is_stored_without_that(
    capfd: pytest.CaptureFixture[str],
) -> None:
    pattern = re.compile("a+b", re.DEBUG | re.ASCII)
    capfd.readouterr()

    read = Values(Classes()).load(Values(Classes()).dump(pattern), "here")

    assert (read.pattern, read.flags) == ("a+b", int(re.ASCII))
    assert capfd.readouterr() == ("", "")
