"""The tools for models, as clients of other projects use them: FastMCP's, and the SDK in TypeScript.

Each is installed from its registry into a folder of its own, so only `make deep` runs these tests.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import served
from tests.server.test_mcp import ARGUMENTS, HIDDEN, fill
from tests.server.test_running import COMMAND

pytestmark = [pytest.mark.deep, pytest.mark.timeout(600)]

TYPESCRIPT = ("@modelcontextprotocol/client@2.4.0", "@modelcontextprotocol/sdk@1.32.2")
FASTMCP = "fastmcp==4.2.3"

FASTMCP_CLIENT = """
import asyncio, json, sys
from fastmcp import Client
from fastmcp.client.transports import StdioTransport, StreamableHttpTransport

url, secret, command, calls = sys.argv[1], sys.argv[2], json.loads(sys.argv[3]), json.loads(sys.argv[4])

async def use(transport):
    async with Client(transport) as client:
        tools = [tool.name for tool in await client.list_tools()]
        results = {}
        for name in calls:
            result = await client.call_tool(name, calls[name], raise_on_error=False)
            results[name] = [result.is_error, result.content[0].text]
        (document,) = await client.read_resource("keepstate://run%2F1/plan")
        return {"tools": tools, "results": results, "document": document.text}

async def main():
    http = await use(StreamableHttpTransport(url, headers={"Authorization": f"Bearer {secret}"}))
    stdio = await use(StdioTransport(command[0], command[1:]))
    print(json.dumps([http, stdio]))

asyncio.run(main())
"""

TYPESCRIPT_CLIENT = """
const [package_, url, secret] = process.argv.slice(2, 5)
const [command, calls] = process.argv.slice(5).map((text) => JSON.parse(text))
const old = package_.includes("/sdk")
const part = (name, other) => import(old ? `${package_}/client/${name}.js` : `${package_}${other}`)
const { Client } = await part("index", "")
const { StreamableHTTPClientTransport } = await part("streamableHttp", "")
const { StdioClientTransport } = await part("stdio", "/stdio")

async function use(transport) {
  const client = new Client({ name: "probe", version: "1.0.0" })
  await client.connect(transport)
  const tools = (await client.listTools()).tools.map((tool) => tool.name)
  const results = {}
  for (const [name, given] of Object.entries(calls)) {
    const result = await client.callTool({ name, arguments: given })
    results[name] = [result.isError ?? false, result.content[0].text]
  }
  const document = (await client.readResource({ uri: "keepstate://run%2F1/plan" })).contents[0].text
  await client.close()
  return { tools, results, document }
}

const headers = { Authorization: `Bearer ${secret}` }
const http = await use(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }))
const stdio = await use(new StdioClientTransport({ command: command[0], args: command.slice(1) }))
console.log(JSON.stringify([http, stdio]))
"""


@pytest.fixture(scope="module")
def typescript(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the clients in TypeScript, and the script that uses them."""
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    folder = tmp_path_factory.mktemp("typescript")
    (folder / "package.json").write_text('{"private": true, "type": "module"}', "utf-8")
    (folder / "client.js").write_text(TYPESCRIPT_CLIENT, "utf-8")
    options = ("--no-audit", "--no-fund", "--ignore-scripts", "--no-package-lock")
    subprocess.run([npm, "install", *options, *TYPESCRIPT], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def fastmcp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with FastMCP, and the script that uses its client."""
    folder = tmp_path_factory.mktemp("fastmcp")
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "-q", FASTMCP], check=True, capture_output=True)
    (folder / "client.py").write_text(FASTMCP_CLIENT, "utf-8")
    return folder


async def answers_of(command: Sequence[str | Path], folder: Path, url: str) -> list[dict[str, Any]]:
    """Return what a client got over HTTP, and then over stdio."""
    async with served(url, is_live=True, mcp="write") as door:
        await fill(door)
        secret = await door.secret("agent", ["read", "write"], tenant="acme")
        stdio = [*COMMAND, "mcp", "--url", url, "--tenant", "acme", "--write"]
        calls = ARGUMENTS | {"diff": {"space": "run/1", "a": "nowhere"}}
        words = [*map(str, command), f"{door.base}/mcp", secret, json.dumps(stdio), json.dumps(calls)]
        process = await asyncio.create_subprocess_exec(
            *words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 240)
    assert process.returncode == 0, err.decode()
    answers: list[dict[str, Any]] = json.loads(out.decode().splitlines()[-1])
    return answers


def check(answers: list[dict[str, Any]]) -> None:
    """Compare what a client got with what was stored."""
    assert len(answers) == 2
    for answer in answers:
        assert answer["tools"] == [*ARGUMENTS]
        assert json.loads(answer["document"]) == {"goal": HIDDEN}
        is_wrong, text = answer["results"]["diff"]
        assert is_wrong and "nowhere" in text
        is_wrong, text = answer["results"]["state"]
        assert not is_wrong and json.loads(text)["value"]["plan"] == {"goal": HIDDEN}
    first = answers[0]["results"]
    assert [name for name, (is_wrong, _) in first.items() if is_wrong] == ["diff"], first


async def test_the_client_of_fastmcp_uses_each_tool(fastmcp: Path, tmp_path: Path) -> None:
    command = [fastmcp / "venv" / "bin" / "python", fastmcp / "client.py"]

    check(await answers_of(command, fastmcp, f"sqlite:///{tmp_path}/keepstate.db"))


@pytest.mark.parametrize("package", [each.rpartition("@")[0] for each in TYPESCRIPT])
async def test_the_clients_in_typescript_use_each_tool(
    typescript: Path, tmp_path: Path, package: str
) -> None:
    command: list[str | Path] = ["node", typescript / "client.js", package]

    check(await answers_of(command, typescript, f"sqlite:///{tmp_path}/keepstate.db"))
