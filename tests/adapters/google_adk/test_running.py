"""The services in the programs of users: the page, a runner, and the commands of ADK."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.adk.cli.service_registry import ServiceRegistry, get_service_registry, load_services_module
from google.adk.cli.utils.service_factory import (
    create_artifact_service_from_options,
    create_memory_service_from_options,
    create_session_service_from_options,
)

from keepstate.adapters.google_adk import (
    KeepstateArtifactService,
    KeepstateMemoryService,
    KeepstateSessionService,
    register_services,
)
from keepstate.stores.urls import BACKENDS
from tests.docs.pages import ROOT, blocks
from tests.docs.test_examples import APART, run_python

PAGE = ROOT / "docs" / "how-to" / "google-adk.md"
SERVICES = "from keepstate.adapters.google_adk import register_services\n\nregister_services()\n"


@pytest.mark.filterwarnings("ignore")  # of ADK: what it calls experimental, and what it calls itself
def test_the_page_runs_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    namespace: dict[str, object] = {"__name__": "example_google_adk"}
    count = 0

    with asyncio.Runner() as loop:
        for block in blocks(PAGE):
            if block.mark.startswith("file="):
                (tmp_path / block.mark.removeprefix("file=")).write_text(block.text)
            elif block.mark == APART:
                run_python(block, namespace, loop)
                count += 1
    sys.modules.pop("agent", None)

    assert count >= 6
    assert any(block.text == SERVICES for block in blocks(PAGE))


def test_the_commands_of_adk_find_the_services(tmp_path: Path) -> None:
    (tmp_path / "services.py").write_text(SERVICES)
    try:
        load_services_module(str(tmp_path))
        url = f"keepstate+sqlite:///{tmp_path}/agents.db"
        made = (
            create_session_service_from_options(
                base_dir=tmp_path, session_service_uri=url, session_db_kwargs={"guard_shared": True}
            ),
            create_artifact_service_from_options(base_dir=tmp_path, artifact_service_uri=url),
            create_memory_service_from_options(base_dir=tmp_path, memory_service_uri=url),
        )
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("services", None)

    kinds = (KeepstateSessionService, KeepstateArtifactService, KeepstateMemoryService)
    assert [type(each) for each in made] == list(kinds)
    assert all(each._handles.url.startswith("sqlite:///") for each in made)
    assert made[0]._guards_shared


def test_every_scheme_of_a_store_is_registered() -> None:
    registry = ServiceRegistry()
    register_services(registry)
    register_services(registry)

    for scheme in BACKENDS:
        for tiered in ("", "tiered+"):
            assert f"keepstate+{tiered}{scheme}" in registry._session_factories
    assert registry.create_session_service("sqlite:///x.db") is None
    assert isinstance(registry.create_memory_service("keepstate+memory://x"), KeepstateMemoryService)
    assert "keepstate+sqlite" not in ServiceRegistry()._session_factories
    assert isinstance(get_service_registry(), ServiceRegistry)


AGENT = """
from google.adk.agents import LlmAgent
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

class Parrot(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        answer = llm_request.contents[-1].parts[0].text.upper()
        yield LlmResponse(content=types.Content(role="model", parts=[types.Part(text=answer)]))

root_agent = LlmAgent(name="parrot", model=Parrot(model="parrot"))
"""


@pytest.mark.filterwarnings("ignore")
async def test_the_server_of_adk_keeps_its_sessions_here(tmp_path: Path) -> None:
    """As `adk api_server` does, in a process of its own; its sessions are read in this one."""
    (tmp_path / "parrot").mkdir()
    (tmp_path / "parrot" / "__init__.py").write_text("from . import agent\n")
    (tmp_path / "parrot" / "agent.py").write_text(AGENT)
    (tmp_path / "services.py").write_text(SERVICES)
    program = f"""
from google.adk.cli.fast_api import get_fast_api_app
from fastapi.testclient import TestClient

url = "keepstate+sqlite:///{tmp_path}/a.db"
app = get_fast_api_app(agents_dir={str(tmp_path)!r}, session_service_uri=url, web=False)
with TestClient(app) as client:
    assert client.post("/apps/parrot/users/ann/sessions/1").status_code == 200
    for text in ("hello", "again"):
        message = {{"role": "user", "parts": [{{"text": text}}]}}
        said = {{"app_name": "parrot", "user_id": "ann", "session_id": "1", "new_message": message}}
        answer = client.post("/run", json=said)
        assert answer.status_code == 200, answer.text
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        env={**os.environ, "GOOGLE_API_KEY": "none"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3_000:]

    async with KeepstateSessionService(tmp_path / "a.db") as sessions:
        session: Any = await sessions.get_session(app_name="parrot", user_id="ann", session_id="1")
    texts = [event.content.parts[0].text for event in session.events]
    assert texts == ["hello", "HELLO", "again", "AGAIN"]
