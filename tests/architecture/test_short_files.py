"""A file of under 40 lines of code has a reason to be a file of its own."""

from __future__ import annotations

from tools.sizes import lengths

SHORTEST_FILE = 40

REASONS = {
    "adapters/langgraph/on_store.py": "what the saver and the store share, which do not import one another",
    "adapters/pydantic_values.py": "what Pydantic AI and its harness share, of which either may be missing",
    "adapters/google_adk/registration.py": "joins the three services, which know nothing of each other",
    "__main__.py": "`python -m keepstate` looks for a file of this name",
    "_clock.py": "the only file that reads time and randomness; ruff forbids it elsewhere by path",
    "_deferral.py": "the floor of all that imports later; asks nothing of the rest of the floor",
    "adapters/langgraph/identities.py": "reads the memory of CPython's lists, and has to be easy to remove",
    "approval_links/strict_json.py": "reads what strangers send, and is tried alone with hostile texts",
    "server/limits.py": "numbers that keys, streams and operations share, and that operators read",
    "cli/completion.py": "a command of its own, which no other one shares anything with",
    "cli/exits.py": "the table of exit codes that the documents and all commands share",
    "engine/kernel/recorded.py": "names that the unit, the recorder and a migration share",
    "engine/kernel/transitions.py": "a table for four domains of managers, which do not import one another",
    "engine/history/part.py": "the base of the four classes of a history, each in its own file",
    "kv.py": "the public import path of `KVStore`",
    "managers/arguments.py": "checks for all domains of managers, which do not import one another",
    "testing/plugin.py": "loaded by every pytest where keepstate is installed, and so imports nothing else",
    "testing/store_contract/contract.py": "joins the parts of the contract, which know nothing of each other",
    "testing/store_contract/incrementer.py": "a program that the contract starts as a process",
}
"""Short files by their path in the package. An `__init__` has names only, and needs no reason."""


def test_each_short_file_has_a_reason() -> None:
    short = {
        path
        for path, lines in lengths().items()
        if lines < SHORTEST_FILE and not path.endswith("__init__.py") and not path.startswith("sync/")
    }

    assert sorted(short - REASONS.keys()) == [], "merge it with a neighbor, or give it a reason"


def test_no_reason_is_left_for_a_file_that_has_grown_or_gone() -> None:
    lines = lengths()

    assert [path for path in REASONS if not 0 < lines.get(path, 0) < SHORTEST_FILE] == []
