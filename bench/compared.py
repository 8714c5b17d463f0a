"""One side of `bench.compare`: a process that runs public calls of the keepstate that it imports.

Each line it reads is a request in JSON, `["time", name, operations]` or `["count", name]`, and each line it
writes is an answer. It uses public names only, so that it runs with older trees too. A call that a tree lacks
is answered with the error.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import count, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

import apsw

from bench import others
from bench.harness import KEYS, VALUES
from keepstate import sync

Operation = Callable[[], object]
Maker = Callable[[Any, ExitStack], Iterator[Operation]]
"""Yields the operation to measure, as often as asked; what it does between two is not measured."""

TURNS = (5, 20, 50, 100)
_numbers = count()


def main() -> None:
    """Answer the requests of standard input until it ends."""
    others.admit()
    with TemporaryDirectory() as folder, ExitStack() as stack:
        made: dict[str, Iterator[Operation]] = {}
        for line in sys.stdin:
            what, name, *rest = json.loads(line)
            try:
                if name not in made:
                    made[name] = _calls(stack, Path(folder))[name]()
                answer = _time(made[name], *rest) if what == "time" else count_calls(made[name])
            except Exception as error:  # noqa: BLE001  an old tree may lack a call
                answer = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(answer), flush=True)


def _time(operations: Iterator[Operation], times: int) -> dict[str, Any]:
    """Return the processor's time of each operation of a block, in microseconds."""
    spent = 0.0
    for operation in islice(operations, times):
        begun = time.process_time()
        operation()
        spent += time.process_time() - begun
    return {"us": spent / times * 1e6}


def count_calls(operations: Iterator[Operation]) -> dict[str, int]:
    """Return the calls of Python functions and the SQL statements of one operation, after four."""
    for operation in islice(operations, 4):
        operation()
    operation = next(operations)
    counts: Counter[str] = Counter()

    def note(_frame: FrameType, event: str, _argument: object) -> None:
        counts[event] += 1

    _statements.clear()
    gc.disable()  # what it finds may have finalizers
    sys.setprofile(note)
    try:
        operation()
    finally:
        sys.setprofile(None)
        gc.enable()
    return {"calls": counts["call"] - 1, "statements": len(_statements)}


_statements: list[str] = []


def _traced(connection: apsw.Connection) -> None:
    def trace(_cursor: object, sql: str, _bindings: object) -> bool:
        _statements.append(sql)
        return True

    connection.exec_trace = trace


def _calls(stack: ExitStack, folder: Path) -> dict[str, Callable[[], Iterator[Operation]]]:
    """Return how to make each call, by name."""
    urls = {"memory": "memory://", "SQLite": f"sqlite:///{folder}/{{}}.db?durability=normal"}
    calls: dict[str, Callable[[], Iterator[Operation]]] = {}
    for store, url in urls.items():
        for name, maker in MAKERS.items():

            def make(url: str = url, maker: Maker = maker) -> Iterator[Operation]:
                if "sqlite" in url and _traced not in apsw.connection_hooks:
                    apsw.connection_hooks.append(_traced)
                ks = stack.enter_context(sync.open(url.format(f"db{next(_numbers)}")))
                return maker(ks, stack)

            calls[f"{store} {name}"] = make
    for turn in TURNS:

        def talk(turn: int = turn) -> Iterator[Operation]:
            return puts_at_turn(f"{folder}/{next(_numbers)}", turn, stack)

        calls[f"LangGraph put at turn {turn}"] = talk
    return calls


def _put(ks: Any, _: ExitStack) -> Iterator[Operation]:
    documents = ks.space("a").documents
    for number in count():
        yield partial(documents.put, KEYS[number % 1000], f"{number} {VALUES[number % 7]}")


def _get(ks: Any, _: ExitStack) -> Iterator[Operation]:
    documents = ks.space("a").documents
    documents.put("x", VALUES[0])
    while True:
        yield partial(documents.get, "x")


def _update(ks: Any, _: ExitStack) -> Iterator[Operation]:
    documents = ks.space("a").documents
    documents.put("x", {"count": 0})
    while True:
        yield lambda: documents.update("x", lambda old: {"count": old["count"] + 1})


def _event(ks: Any, _: ExitStack) -> Iterator[Operation]:
    events = ks.space("a").events
    for number in count():
        yield partial(events.append, {"kind": "next", "number": number})


def _work(ks: Any, _: ExitStack) -> Iterator[Operation]:
    queue = ks.space("a").queue

    def work() -> None:
        queue.put({"step": "next"})
        (task,) = queue.claim("worker", lease_s=60)
        task.complete()

    while True:
        yield work


def _transaction(ks: Any, _: ExitStack) -> Iterator[Operation]:
    space = ks.space("a")

    def transact() -> None:
        with space.transaction() as tx:
            for name in "xyz":
                tx.documents.update(name, lambda old: {"count": old["count"] + 1}, default={"count": 0})

    while True:
        yield transact


def _append(ks: Any, _: ExitStack) -> Iterator[Operation]:
    history = ks.space("a").history
    for number in count():
        yield partial(history.append, "messages", f"{number} {VALUES[number % 7]}")


def _state(keys: int) -> dict[str, Any]:
    return {f"key{number}": f"{number:04}" * 100 for number in range(keys)}


def _commit(ks: Any, _: ExitStack) -> Iterator[Operation]:
    history, state = ks.space("a").history, _state(20)
    for number in count():
        state = {**state, "key3": f"{number:04}" * 100}
        yield partial(history.commit, state)


def _draft(ks: Any, _: ExitStack) -> Iterator[Operation]:
    history = ks.space("a").history
    history.commit(_state(60))
    for number in count():
        draft = history.begin()
        draft["key3"] = f"{number:04}" * 100
        yield draft.commit


def _begin(ks: Any, _: ExitStack) -> Iterator[Operation]:
    history = ks.space("a").history
    history.commit(_state(60))
    while True:
        yield history.begin


def _turn(ks: Any, _: ExitStack) -> Iterator[Operation]:
    session = sync.Session("s1", user_id="u1", persistence=ks)

    def turn() -> None:
        session.conversation.append({"role": "user", "content": "What is next?"})
        session.get_context()
        session.conversation.append({"role": "assistant", "content": "This."})
        session.update({"step": "next"})

    while True:
        yield turn


def puts_at_turn(folder: str, turn: int, stack: ExitStack) -> Iterator[Operation]:
    """Yield the puts that begin turn `turn` of new threads, by one saver on SQLite."""
    from bench import savers  # its packages are measured elsewhere

    Path(folder).mkdir()
    saver = stack.enter_context(savers.opened(savers.OURS, folder))
    for number in count():
        talk = savers.Conversation(saver, f"talk-{number}")
        texts = savers.texts(turn, seed=number)
        for text in islice(texts, turn - 1):
            talk.put(text)
        arguments = talk.turn(next(texts))
        yield partial(saver.put, *arguments)


MAKERS: dict[str, Maker] = {
    "documents.put": _put,
    "documents.get": _get,
    "documents.update": _update,
    "transaction of 3 updates": _transaction,
    "events.append": _event,
    "queue.put, claim and complete": _work,
    "history.append": _append,
    "history.commit": _commit,
    "begin": _begin,
    "draft.commit": _draft,
    "Session turn": _turn,
}
NAMES = (
    *(f"{store} {name}" for store in ("memory", "SQLite") for name in MAKERS),
    *(f"LangGraph put at turn {turn}" for turn in TURNS),
)

if __name__ == "__main__":
    main()
