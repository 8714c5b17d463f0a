"""The page about other languages and the examples of workers, used as by a reader, against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import keepstate
from tests.clients.conftest import Backend
from tests.docs.pages import Block, blocks
from tests.docs.test_examples import assert_prints
from tools.client import CLIENT, ROOT

PAGE = ROOT / "docs" / "how-to" / "any-language.md"
WORKERS = ROOT / "examples" / "workers"
TSC = ("node", CLIENT / "node_modules" / "typescript" / "bin" / "tsc")
OPTIONS = {
    "strict": True, "target": "es2022", "module": "nodenext", "skipLibCheck": True, "outDir": "out",
    "types": ["node"], "typeRoots": [str(CLIENT / "node_modules" / "@types")],
}  # fmt: skip


def served(language: str) -> list[Block]:
    """Return the blocks of the page that need a server."""
    return [block for block in blocks(PAGE) if (block.language, block.mark) == (language, "served")]


@pytest.fixture(scope="module")
def project(client: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project that has installed the client, with the programs of the page and the example, built."""
    folder = tmp_path_factory.mktemp("project")
    (folder / "node_modules" / "@keepstate").mkdir(parents=True)
    (folder / "node_modules" / "@keepstate" / "client").symlink_to(client)
    (folder / "package.json").write_text('{"type": "module"}')
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": OPTIONS, "include": ["*.ts"]}))
    shutil.copy(WORKERS / "worker.ts", folder)
    for block in served("typescript"):
        (folder / f"line_{block.line}.ts").write_text(block.text)
    built = subprocess.run([*TSC, "-p", folder], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout
    return folder


def run(command: list[Any], folder: Path, backend: Backend, **environment: str) -> str:
    """Run a command in a folder, and return what it printed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **backend.environment, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_the_commands_of_the_page_print_what_it_tells(backend: Backend, tmp_path: Path) -> None:
    commands = 0
    for block in served("console"):
        for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
            command, _, told = part.partition("\n")
            printed = run(["sh", "-c", command], tmp_path, backend)
            if told.strip():
                assert_prints(told, printed)
            commands += 1

    assert commands >= 9


def test_the_programs_of_the_page_run(project: Path, backend: Backend) -> None:
    told = [run(["node", f"out/line_{block.line}.js"], project, backend) for block in served("typescript")]

    assert len(told) == 3
    assert [line.split()[-1] for line in told[0].splitlines()] == ["hello", "bye"]
    assert told[1] == "1 1 [ 'about tides' ]\n"
    assert "message { role: 'assistant', content: 'Hello, you.' }" in told[2]


async def answer(backend: Backend, value: bool) -> None:
    """Answer the pending question of the orders as a person."""
    async with keepstate.open(backend.store, author="ann") as ks:
        (asked,) = await ks.space("orders").approvals.pending()
        await ks.space("orders").approvals.answer(asked.id, value, by="ann", saw=asked.digest)


def test_the_worker_in_typescript_charges_what_a_person_allows(project: Path, backend: Backend) -> None:
    async def put() -> None:
        async with keepstate.open(backend.store) as ks:
            for id, amount in (("small", 5), ("large", 500)):
                await ks.space("orders").queue.put({"amount": amount, "items": ["tea"]}, id=id)

    async def results() -> list[Any]:
        async with keepstate.open(backend.store) as ks:
            orders = ks.space("orders")
            shipped = [event.data["receipt"] for event in await orders.events.read(stream="shipments")]
            return [await orders.queue.result("small"), await orders.queue.result("large"), shipped]

    def work() -> Mapping[str, Any]:
        report: Mapping[str, Any] = json.loads(
            run(["node", "out/worker.js", "orders"], project, backend, IDLE_S="0.3")
        )
        return report

    asyncio.run(put())
    first = work()
    asyncio.run(answer(backend, True))
    second = work()

    assert (first["completed"], first["waiting"], second["completed"]) == (1, 1, 1)
    small, large = "receipt of 5", "receipt of 500"
    assert asyncio.run(results()) == [
        {"state": "shipped", "receipt": small},
        {"state": "shipped", "receipt": large},
        [small, large],
    ]


def test_the_worker_in_shell_completes_fails_and_stops(backend: Backend, tmp_path: Path) -> None:
    script = (
        'payload=$(cat); case $payload in *wrong*) echo "no $payload" >&2; exit 3;; *slow*) '
        "while [ ! -e told ]; do sleep 0.05; done;; esac; "
        'printf \'{"seen": %s}\' "$payload"'
    )

    async def put(**tasks: Any) -> None:
        async with keepstate.open(backend.store) as ks:
            for id, payload in tasks.items():
                await ks.space("shell").queue.put(payload, id=id, max_attempts=1)

    async def ends() -> list[Any]:
        async with keepstate.open(backend.store) as ks:
            found = [await ks.space("shell").queue.get(id) for id in ("a", "b", "c", "d")]
            return [(task and task.state, task and task.result, task and task.error) for task in found]

    words = [WORKERS / "worker.sh", "shell", "sh", "-c", script]
    asyncio.run(put(a={"ä": [1.0, '"$x`']}, b="wrong"))
    run(words, tmp_path, backend, IDLE="1")
    asyncio.run(put(c="slow", d="later"))
    with subprocess.Popen(words, cwd=tmp_path, env={**os.environ, **backend.environment}) as worker:
        while (asyncio.run(ends()))[2][0] == "ready":
            time.sleep(0.05)
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "told").touch()
        assert worker.wait(60) == 0

    assert asyncio.run(ends()) == [
        ("done", {"seen": {"ä": [1.0, '"$x`']}}, None),
        ("dead", None, 'the command ended with 3\nno "wrong"\n'),
        ("done", {"seen": "slow"}, None),
        ("ready", None, None),
    ]


def test_the_worker_in_shell_ends_a_command_whose_claim_is_lost(backend: Backend, tmp_path: Path) -> None:
    async def watch(worker: subprocess.Popen[bytes]) -> str:
        async with keepstate.open(backend.store) as ks:
            queue = ks.space("cancelled").queue
            await queue.put(1, id="t")
            while not await queue.list("claimed"):
                await asyncio.sleep(0.05)
            await queue.cancel("t")
            while worker.poll() is None:
                await asyncio.sleep(0.1)
            info = await queue.get("t")
            return "" if info is None else info.state

    script = (WORKERS / "worker.sh").read_text().replace("lease_s=30", "lease_s=3")
    (tmp_path / "worker.sh").write_text(script)
    words = ["sh", tmp_path / "worker.sh", "cancelled", "sleep", "60"]
    with subprocess.Popen(words, env={**os.environ, **backend.environment, "IDLE": "1"}) as worker:
        assert asyncio.run(watch(worker)) == "cancelled"


def test_the_package_has_the_built_client_and_no_more(client: Path, backend: Backend) -> None:
    (packed,) = json.loads(run(["npm", "pack", "--dry-run", "--json", "--ignore-scripts"], client, backend))
    names = {each["path"] for each in packed["files"]}

    assert {"package.json", "README.md", "dist/index.js", "dist/index.d.ts", "dist/api.d.ts"} <= names
    assert {name for name in names if not name.startswith("dist/")} == {"package.json", "README.md"}
    lock = (client / "package-lock.json").read_text()
    assert "resolved" not in lock and "integrity" in lock
    assert "dependencies" not in json.loads((client / "package.json").read_text())


@pytest.mark.deep
def test_another_generator_takes_the_document_without_a_complaint(
    client: Path, backend: Backend, tmp_path: Path
) -> None:
    (words,) = re.findall(r"\$ npx (.* openapi-ts .*)", PAGE.read_text())
    copied = tmp_path / "docs" / "reference" / "openapi.json"
    copied.parent.mkdir(parents=True)
    copied.write_bytes((ROOT / "docs" / "reference" / "openapi.json").read_bytes())

    told = run(["npx", "--yes", *words.split()], tmp_path, backend, NO_COLOR="1")

    assert not re.search("warn|error|deprecat", told, re.IGNORECASE), told
    options = ("--strict", "--noEmit", "--skipLibCheck", "--target", "es2022", "--module", "esnext")
    lib = ("--moduleResolution", "bundler", "--lib", "es2022,dom,dom.iterable")
    run([*TSC, *options, *lib, "api/index.ts"], tmp_path, backend)
