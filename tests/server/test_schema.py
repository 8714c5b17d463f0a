"""Schemathesis over all operations: the document promises nothing that the server does not do.

It is installed for the test, into a folder of its own, because the project needs nothing of it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from keepstate.server import Limits
from tests.server.conftest import ALL, served
from tests.server.test_rights import fill

REQUIREMENT = "schemathesis>=4.32,<5"
UNSAID = "positive_data_acceptance"
"""The check that what fits the schema is accepted. A schema does not say that a cursor is one of a listing,
or that of two fields one is given."""


@pytest.mark.deep
async def test_schemathesis_finds_nothing_to_complain_about(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    bin_folder = tmp_path / "venv" / "bin"
    subprocess.run([bin_folder / "pip", "install", "--quiet", REQUIREMENT], check=True)
    async with served(is_live=True, limits=Limits(comment_s=1)) as door:
        await fill(door)
        secret = await door.secret("ann", ALL, tenant="acme")
        process = await asyncio.create_subprocess_exec(
            str(bin_folder / "schemathesis"), "run", f"{door.base}/openapi.json",
            "--header", f"Authorization: Bearer {secret}",
            "--exclude-path-regex", "watch|follow", "--exclude-checks", UNSAID,
            "--phases", "coverage,fuzzing", "--max-examples", os.environ.get("SCHEMATHESIS_EXAMPLES", "5"),
            "--request-timeout", "60", "--workers", "2",
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
        )  # fmt: skip
        async with asyncio.timeout(1_800):
            output, _ = await process.communicate()

    text = output.decode()
    assert "failures" not in text.splitlines()[-1] and "❌" not in text, text[-20_000:]
