"""What one step binds, another one uses: in its task, in the next, and after opening the state again."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from keepstate import Disk, InvalidError, Live, MergeConflictError, Versioned, events, view
from keepstate.workspace import (
    Agent,
    AgentTask,
    Definition,
    ErrorEvent,
    Import,
    Instance,
    OutputEvent,
    Reference,
)
from tests.workspace.conftest import EVERYWHERE, Place, opening_at, store_at

KEPT: dict[str, tuple[str, str]] = {
    "module": ("import math", "math.floor(4.5) == 4"),
    "module below another": (
        "import xml.etree.ElementTree",
        "xml.etree.ElementTree.fromstring('<a/>').tag == 'a'",
    ),
    "two modules below another": (
        "import xml.dom.minidom\nimport xml.sax.saxutils",
        "(xml.sax.saxutils.escape('<'), xml.dom.minidom.Document().nodeType) == ('&lt;', 9)",
    ),
    "alias": ("import math as m", "m.floor(4.5) == 4"),
    "function of C": ("from math import sqrt", "sqrt(9) == 3"),
    "bound method of a module": ("from random import random", "0 <= random() < 1"),
    "function of Python": ("from textwrap import dedent", "dedent('  a') == 'a'"),
    "class": ("from string import Template", "Template('$a').substitute(a=1) == '1'"),
    "datetime": ("from datetime import datetime", "datetime(2020, 1, 2).day == 2"),
    "object of a module": ("from os import environ", "'PATH' in environ"),
    "ufunc": ("from numpy import sin", "float(sin(0.0)) == 0"),
    "builtin": ("order = sorted", "order([2, 1]) == [1, 2]"),
    "def": ("def double(x):\n    return 2 * x", "double(4) == 8"),
    "def that calls another": (
        "def outer(x):\n    return inner(x) + 1\n\ndef inner(x):\n    return 2 * x",
        "outer(4) == 9",
    ),
    "lambda": ("double = lambda x: 2 * x; triple = lambda x: 3 * x", "(double(4), triple(4)) == (8, 12)"),
    "class of a step": (
        (
            "class Box:\n    size = 3\n    def __init__(self, n):\n        self.n = n\n    def area(self):\n"
            "        return self.size * self.n"
        ),
        "Box(2).area() == 6",
    ),
    "instance of a class": (
        "class Box:\n    def __init__(self, n):\n        self.n = n\n\nbox = Box([1])",
        "type(box) is Box and box.n == [1]",
    ),
    "instance with slots and a dict": (
        (
            "class Low:\n    __slots__ = ('a',)\n\nclass High(Low):\n    pass\n\n"
            "high = High()\nhigh.a, high.b = 1, 2"
        ),
        "(high.a, high.b) == (1, 2)",
    ),
    "instance of a dataclass": (
        (
            "from dataclasses import dataclass\n\n@dataclass\nclass Point:\n    x: int\n    y: int = 0\n\n"
            "p = Point(1)\nmany = {'all': [Point(1), (Point(2, 3),)]}"
        ),
        "p == Point(1, 0) and many == {'all': [p, (Point(2, 3),)]}",
    ),
    "instance of a namedtuple": (
        "from collections import namedtuple\nPoint = namedtuple('Point', 'x y')\np = Point(1, 2)",
        "p.y == 2 and type(p) is Point",
    ),
    "instance of a NamedTuple": (
        "from typing import NamedTuple\n\nclass Point(NamedTuple):\n    x: int\n\np = Point(1)",
        "p == Point(1) and p.x == 1",
    ),
    "member of an Enum": (
        "import enum\n\nclass Colour(enum.Enum):\n    RED = 1\n\nc = {Colour.RED: Colour.RED}",
        "c[Colour.RED] is Colour.RED",
    ),
    "exception of a step": (
        (
            "class OddError(ValueError):\n    def __init__(self, n):\n        super().__init__('odd', n)\n"
            "        self.n = n\n\nerror = OddError(3)"
        ),
        "type(error) is OddError and error.args == ('odd', 3) and error.n == 3",
    ),
    "Counter": ("from collections import Counter\nc = Counter('aab')", "c.most_common(1) == [('a', 2)]"),
    "defaultdict": (
        "from collections import defaultdict\nd = defaultdict(list)\nd['a'].append(1)",
        "d['b'] == [] and d['a'] == [1]",
    ),
    "deque": (
        "from collections import deque\nd = deque([1, 2], 2)",
        "d.append(3) or [*d] == [2, 3]",
    ),
    "OrderedDict": (
        "from collections import *\nd = OrderedDict(b=1, a=2)",
        "d.popitem() == ('a', 2)",
    ),
    "Fraction": ("from fractions import Fraction\nhalf = Fraction(1, 2)", "half + half == 1"),
    "pattern": ("import re\np = re.compile('A', re.I)", "p.match('a').group() == 'a'"),
    "range": ("r = range(0, 10, 3)", "[*r] == [0, 3, 6, 9]"),
    "exception": (
        "try:\n    {}['a']\nexcept KeyError as error:\n    error.add_note('seen')\n    kept = error",
        "kept.args == ('a',) and kept.__notes__ == ['seen']",
    ),
    "numpy array": (
        "import numpy as np\na = np.arange(3)",
        "int(a.sum()) == 3 and a.dtype.kind == 'i'",
    ),
    "decorated def": (
        (
            "def twice(f):\n    def inner(x):\n        return f(f(x))\n    return inner\n\n"
            "@twice\ndef add(x):\n    return x + 1"
        ),
        "add(1) == 3",
    ),
    "cached def": (
        "import functools\n@functools.cache\ndef fib(n):\n    return n and n * fib(n - 1) or 1",
        "fib(5) == 120",
    ),
    "async def": (
        "import asyncio\n\nasync def wait(x):\n    await asyncio.sleep(0)\n    return x",
        "wait(3).send(None) is None",
    ),
    "generator function": ("def count(n):\n    yield from range(n)", "[*count(3)] == [0, 1, 2]"),
    "default arguments": (
        "data = [1, 2]\ndef size(n=len(data), *, rows=data):\n    return n, rows\ndata = None",
        "size() == (2, [1, 2])",
    ),
    "default arguments by name alone": (
        "data = [1, 2]\ndef kept(*, rows=data):\n    return rows\ndata = None",
        "kept() == [1, 2]",
    ),
    "class that reads a variable": (
        "limit = 3\nclass Box:\n    most = limit * 2\nlimit = 0",
        "Box.most == 6",
    ),
    "class with a base of a step": (
        (
            "class Base:\n    def hello(self):\n        return self.name\n\n"
            "class Child(Base):\n    name = 'a'\n\nchildren = [Child()]"
        ),
        "children[0].hello() == 'a' and isinstance(children[0], Base)",
    ),
    "attributes of functions and classes": (
        (
            "def call():\n    call.count += 1\n    return call.count\ncall.count = 0\ncall()\n"
            "class Box:\n    made = []\n    count = 0\nBox.made.append(1)\nBox.count += 1"
        ),
        "call() == 2 and (Box.made, Box.count) == ([1], 1)",
    ),
    "functions in a dict": (
        "from math import floor\ndef double(x): return 2 * x\ntools = {'d': double, 'f': floor, 'l': len}",
        "[f(x) for f, x in zip(tools.values(), (2, 2.5, 'ab'))] == [4, 2, 2] and tools['d'] is double",
    ),
    "two names of one function": ("def double(x):\n    return 2 * x\n\nother = double", "other is double"),
    "def inside of a block": (
        "if True:\n    for _ in range(2):\n        def text():\n            return '''a\n  b'''",
        "text() == 'a\\n  b'",
    ),
    "slots and frozen": (
        "from dataclasses import *\n@dataclass(frozen=True, slots=True)\nclass P:\n    x: int\np = {P(1)}",
        "P(1) in p",
    ),
    "list of a class of a step": (
        "class Row(list):\n    pass\n\nrow = Row([1, 2])",
        "type(row) is Row and row == [1, 2]",
    ),
    "type": ("Rows = list[int] | None", "Rows == (list[int] | None)"),
}
"""What a step binds, and what is true of it in another."""

REFUSED = {
    "a lambda in a list": ("kept = [lambda: 1]", r"kept\[0\]: the function <lambda> is code"),
    "a generator": ("kept = (n for n in [1])", "kept: a running generator"),
    "a closure": (
        "def around(n):\n    def inside():\n        return n\n    return inside\nkept = around(3)",
        "kept: the function around.<locals>.inside uses n of the function around it",
    ),
    "a lock": ("import threading\nkept = threading.Lock()", "kept: _thread.lock is not registered"),
    "a bound method": ("kept = [].append", "kept: the source of list.append is not a def"),
    "an object of a class that is gone": (
        "class Box:\n    pass\nkept = Box()\ndel Box",
        "kept: builtins.Box is not registered",
    ),
    "a default argument that is none": (
        "import threading\ndef kept(x=threading.Lock()):\n    return x",
        "kept has a default argument that cannot be stored",
    ),
    "a factory of a defaultdict": (
        "from collections import defaultdict\nkept = defaultdict(lambda: 1)",
        "kept: the factory of this defaultdict is <lambda>",
    ),
}


class Script:
    """A policy that takes its steps from a list."""

    def __init__(self, *steps: str) -> None:
        self._steps: Iterator[str] = iter(steps)

    def __call__(self, task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        return next(self._steps)


def run(state: Any, *steps: str, **options: Any) -> Any:
    """Run a task in these steps."""

    @Agent("ana", policy=Script(*steps), **options).task
    def work() -> Any:
        """Do the work."""

    return work(state=state)


def errors(state: Any) -> list[str]:
    return [event.error for event in events(state) if isinstance(event, ErrorEvent)]


@pytest.fixture(params=["live", *EVERYWHERE])
def reopened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Open one state again and again: of the process, or of a store."""
    if request.param == "live":
        live = Live()
        yield lambda: live
    else:
        yield from opening_at(store_at(request.param, request, tmp_path))


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_step_makes_the_next_one_uses(reopened: Any, kind: str) -> None:
    make, check = KEPT[kind]
    state = reopened()

    assert run(state, make, f"same = {check}", "task_success(same)") is True
    assert errors(state) == []


@pytest.mark.parametrize("kind", KEPT)
def test_what_a_task_makes_a_later_one_uses_after_opening_it_again(reopened: Any, kind: str) -> None:
    make, check = KEPT[kind]
    run(reopened(), make, "task_success()")
    run(reopened(), "unrelated = 1", "task_success()")
    state = reopened()

    assert run(state, f"task_success({check})") is True
    assert errors(state) == []


@pytest.mark.parametrize("kind", REFUSED)
def test_live_keeps_by_reference_what_every_store_refuses(kind: str) -> None:
    state = Live()

    run(state, REFUSED[kind][0], "before = id(kept)", "task_success()")

    assert run(state, "task_success(kept)") is state["kept"]
    assert id(state["kept"]) == state["before"]
    assert errors(state) == []


@pytest.mark.parametrize("kind", REFUSED)
def test_what_cannot_be_kept_is_refused_by_name_at_the_end_of_its_step(place: Place, kind: str) -> None:
    make, reason = REFUSED[kind]
    state = place()

    run(state, f"before = 1\n{make}", "task_success()")

    assert [
        error for error in errors(state) if re.match(rf"kept was not stored after this step: {reason}", error)
    ]
    assert state["before"] == 1 and "kept" not in place()


def test_outside_of_steps_definitions_are_records_and_nothing_runs(anywhere: Place) -> None:
    state = anywhere()
    run(
        state,
        "import math as m\nclass Box:\n    print('runs')\n    def __init__(self, n):\n        self.n = n\n\n"
        "boxes = {'a': Box(1), 'b': [Box]}",
        "task_success()",
    )
    again = anywhere()

    assert again["m"] == Import(module="math")
    assert again["boxes"] == {"a": Instance(of="Box", state={"n": 1}), "b": [Reference("Box")]}
    assert isinstance(again["Box"], Definition)
    assert again["Box"].source.startswith("class Box:\n    print('runs')\n") and again["Box"].order == 1
    assert "Definition(name='Box'" in view(again) and "printed: runs" in view(again)
    assert Agent().task(lambda state: [*state])(state=again) == ["m", "Box", "boxes"]
    assert len([event for event in events(again) if isinstance(event, OutputEvent)]) == 1


def test_a_name_that_becomes_a_plain_value_has_no_source_any_more(anywhere: Place) -> None:
    state = anywhere()
    run(state, "def f():\n    return 1", "f = f()", "task_success()")

    assert anywhere()["f"] == 1
    assert run(anywhere(), "task_success(f)") == 1


def test_time_travel_brings_back_the_source_of_then(anywhere: Place) -> None:
    state = anywhere()
    run(state, "def f():\n    return 1", "task_success()")
    then = state.current_commit or ""
    run(state, "def f():\n    return 2", "task_success()")
    assert run(state, "task_success(f())") == 2

    assert "return 1" in state.checkout(then)["f"].source
    state.rollback(to=then)
    assert run(state, "task_success(f())") == 1
    assert run(anywhere(), "task_success(f())") == 1


def test_branches_define_each_their_own_and_merge(anywhere: Place) -> None:
    state = anywhere()
    run(state, "def f():\n    return 1", "task_success()")
    trial = state.branch("trial")
    run(trial, "def g():\n    return f() + 1", "task_success()")
    run(state, "from math import floor", "task_success()")
    state.merge(trial)
    assert run(state, "task_success((f(), g(), floor(2.5)))") == (1, 2, 2)

    run(trial, "def f():\n    return 3", "task_success()")
    run(state, "def f():\n    return 4", "task_success()")
    with pytest.raises(MergeConflictError):
        state.merge(trial)
    state.merge(trial, rules={"f": "theirs"})
    assert run(anywhere(), "task_success(g())") == 4


def test_a_step_sees_what_others_defined_meanwhile(anywhere: Place) -> None:
    state, other = anywhere(on_conflict="merge"), anywhere(on_conflict="merge")

    def policy(task: AgentTask, inputs: dict[str, Any], shown: str) -> str:
        if "n = 1" in shown:
            return "task_success(f() + n)"
        run(other, "def f():\n    return 5", "task_success()")
        return "n = 1"

    @Agent(policy=policy).task
    def work() -> int: ...  # type: ignore[empty-body]

    assert work(state=state) == 6


def test_a_definition_that_needs_a_later_one_is_run_after_it(anywhere: Place) -> None:
    state = anywhere()
    run(state, "def deco(f):\n    return f\n\n@deco\ndef g():\n    return 1", "task_success()")
    run(state, "def deco(f):\n    return lambda: 2", "task_success()")

    assert run(anywhere(), "task_success(g())") == 2
    assert errors(state) == []


def test_what_cannot_be_made_again_is_told_and_stays_stored(anywhere: Place) -> None:
    state = anywhere()
    run(state, "def deco(f):\n    return f\n\n@deco\ndef g():\n    return 1", "task_success()")
    run(state, "del deco", "task_success()")
    again = anywhere()

    assert run(again, "n = 1", "task_success('g' in globals())") is False
    assert errors(again) == [
        (
            "g cannot be restored from its stored form: NameError: name 'deco' is not defined. "
            "Define or import it again."
        )
    ]
    assert isinstance(again["g"], Definition)
    assert run(again, "def g():\n    return 3", "task_success(g())") == 3


def test_a_function_uses_the_names_of_the_task_that_calls_it(reopened: Any) -> None:
    run(reopened(), "k = 2\ndef f(x):\n    return k * x", "task_success()")

    assert run(reopened(), "k = 3", "task_success(f(2))") == 6


def test_an_object_changed_in_a_step_is_stored_as_changed(anywhere: Place) -> None:
    state = anywhere()
    run(
        state,
        "class Box:\n    def __init__(self):\n        self.items = []\n\nbox = Box()",
        "box.items.append(1)",
        "task_success()",
    )

    assert run(anywhere(), "box.items.append(2)", "task_success(box.items)") == [1, 2]


def test_only_listed_modules_are_imported_again(anywhere: Place) -> None:
    state = anywhere()
    run(state, "import json, math\nfrom json.decoder import JSONDecoder", "task_success()", imports=["json"])
    assert [
        error
        for error in errors(state)
        if error.startswith(
            "math was not stored after this step: math: other processes may not have the module math"
        )
    ]
    assert list(state) == ["json", "JSONDecoder"]

    run(state, "import math", "task_success()")
    assert run(state, "n = 0", "task_success('math' in globals())", imports=["json"]) is False
    assert "math cannot be restored from its stored form" in errors(state)[-1]


def test_a_module_beside_the_program_is_kept_only_if_it_is_listed(
    anywhere: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "beside_it.py").write_text("def f():\n    return 7\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    state = anywhere()
    run(state, "from beside_it import f", "task_success()")
    assert "Agent(imports=[…])" in errors(state)[0] and "f" not in state

    run(state, "from beside_it import f", "task_success()", imports=["beside_it"])
    monkeypatch.delitem(sys.modules, "beside_it")
    assert run(anywhere(), "task_success(f())", imports=["beside_it"]) == 7


def test_definitions_run_in_the_executor_of_the_steps(anywhere: Place) -> None:
    ran = list[str]()

    def executor(source: str, namespace: dict[str, Any]) -> None:
        ran.append(source)
        exec(source, namespace)

    state = anywhere()
    run(state, "def f():\n    return 1", "task_success()")
    assert run(anywhere(), "task_success(f())", executor=executor) == 1

    assert ran == ["def f():\n    return 1", "task_success(f())"]


def test_stored_source_that_ends_the_task_is_told(anywhere: Place) -> None:
    state = anywhere()
    state["f"] = Definition(name="f", source="task_success(1)", order=1)
    state["m"] = Import(module="no_such_module")
    state["o"] = Instance(of="f", args=(1,))
    state.commit()

    assert run(state, "task_success(2)") == 2
    assert [error.partition(" ")[0] for error in errors(state)] == ["m", "f", "o"]


def test_module_names_of_the_interpreter_are_not_variables(reopened: Any) -> None:
    state = reopened()
    run(state, "'''A text.'''\nx: int = 1", "task_success()")

    assert dict(state) == {"x": 1} and errors(state) == []


@pytest.mark.parametrize("wrong", ["json", [1], 3])
def test_a_wrong_list_of_modules_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidError, match="`imports` is"):
        Agent(imports=wrong)


_CHILD = """
import subprocess
import sys
from keepstate import Disk, Versioned
from tests.workspace.test_bindings import KEPT, errors, run

for number, (kind, (_, check)) in enumerate(KEPT.items()):
    with Versioned(Disk(f"{sys.argv[1]}/{number}")) as state:
        if run(state, f"task_success({check})") is not True or errors(state):
            print(kind)
"""


def test_another_process_uses_what_a_task_made(tmp_path: Path) -> None:
    for number, (make, _) in enumerate(KEPT.values()):
        with Versioned(Disk(tmp_path / str(number))) as state:
            run(state, make, "task_success()")

    child = subprocess.run(
        [sys.executable, "-c", _CHILD, str(tmp_path)], capture_output=True, text=True, check=False
    )

    assert (child.returncode, child.stdout) == (0, ""), child.stderr
