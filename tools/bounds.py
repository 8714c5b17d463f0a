"""Tries each framework at the lowest version that its extra allows, and at the newest one.

    .venv/bin/python tools/bounds.py [--newest] [EXTRA …]

The version is put into `.venv/bounds/EXTRA`, with all that it needs, and comes first on the path of the
adapter's tests on embedded stores. A row of the table is printed for each extra. The exit code is 1 if one
failed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tools.bootstrap import VENV, find_uv  # noqa: E402 - the path above is for it

TESTS: Final = {
    "a2a": "a2a",
    "agent-framework": "agent_framework",
    "claude-agent": "claude_agent",
    "google-adk": "google_adk",
    "key-value": "key_value/test_key_value.py",
    "langchain": "test_langchain.py",
    "langgraph": "langgraph",
    "mcp": "mcp_events",
    "openai-agents": "openai_agents",
    "otel": "opentelemetry",
    "pydantic-ai": "pydantic_ai/test_conversations.py",
    "pydantic-ai-harness": "pydantic_ai/test_harness_stores.py",
}
"""The tests of each extra's adapter, below `tests/adapters`."""
NEEDED: Final = {"otel": ["opentelemetry-sdk"], "key-value": ["py-key-value-aio[memory]"]}
"""Packages that only the tests of an adapter need."""
ELSEWHERE: Final = "not (file or redis or cluster or postgres)"


def main(words: list[str]) -> int:
    """Try the extras that are named, or all; return 1 if one failed."""
    newest = "--newest" in words
    extras = [word for word in words if word != "--newest"] or list(TESTS)
    if unknown := sorted(set(extras) - TESTS.keys()):
        print(f"no adapter has the extra {', '.join(unknown)}; give some of {', '.join(TESTS)}")
        return 2
    declared = read_extras((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    print("| extra | versions | tests on embedded stores |\n|---|---|---|", flush=True)
    failed = False
    for extra in extras:
        wanted = declared[extra] if newest else [lowest(each) for each in declared[extra]]
        is_good, told = try_versions(extra, wanted)
        failed |= not is_good
        print(f"| {extra} | {told} |", flush=True)
    return int(failed)


def read_extras(text: str) -> dict[str, list[str]]:
    """Return the requirements of each extra."""
    project: dict[str, Any] = tomllib.loads(text)["project"]
    extras: dict[str, list[str]] = project["optional-dependencies"]
    return extras


def lowest(requirement: str) -> str:
    """Return a requirement for the lowest version that a requirement allows: `mcp==2` for `mcp>=2,<3`."""
    found = re.fullmatch(r"([\w.\[\],-]+?)>=([\w.]+)(,.*)?", requirement)
    if found is None:
        raise ValueError(f"{requirement!r} has no lowest version; write it as NAME>=VERSION")
    return f"{found[1]}=={found[2]}"


def try_versions(extra: str, wanted: list[str]) -> tuple[bool, str]:
    """Run the tests of an adapter with some versions; return whether they passed, and cells of the table."""
    folder = VENV / "bounds" / extra
    uv, settings = find_uv()
    environment = {**os.environ, **settings}
    install = [uv, "pip", "install", "--quiet", "--directory", tempfile.gettempdir(), "--upgrade"]
    install += ["--python", str(VENV / "bin" / "python"), "--target", str(folder)]
    done = subprocess.run([*install, *wanted, *NEEDED.get(extra, ())], env=environment, check=False)
    if done.returncode:
        return False, f"{', '.join(wanted)} | cannot be installed"
    tests = f"tests/adapters/{TESTS[extra]}"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", "-k", ELSEWHERE]
    ran = subprocess.run(
        [*command, tests],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    if ran.returncode:
        print(ran.stdout[-4_000:] + ran.stderr[-2_000:], file=sys.stderr)
    last = (ran.stdout.strip().splitlines() or ["nothing ran"])[-1]
    return ran.returncode == 0, f"{', '.join(wanted)} | {last.strip('= ')}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
