"""Real conversations in the page: `KEEPSTATE_CONVERSATIONS` names a folder with files `*.json` of them."""

from __future__ import annotations

import json
import os
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from tests.browser.conftest import Tabs, faults_of, serve_stores, walk
from tests.browser.places import place
from tests.browser_fixtures import Chromium

FOLDER = os.environ.get("KEEPSTATE_CONVERSATIONS", "")
FEW = 20
"""Of so many conversations, one is looked at in every view."""
pytestmark = [
    pytest.mark.deep,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not FOLDER, reason="KEEPSTATE_CONVERSATIONS names no folder with conversations"),
]


def test_every_view_shows_real_conversations(chromium: Chromium, tmp_path: Path) -> None:
    files = sorted(Path(FOLDER).glob("*.json"))
    assert files, f"{FOLDER} has no *.json"
    for file in files:
        runs = json.loads(file.read_bytes())
        with serve_stores(tmp_path / file.stem, ["conversations"], runs) as stores:
            tabs = Tabs(chromium, stores)
            chromium.run(look(tabs, runs))
            chromium.run(tabs.close())


async def look(tabs: Tabs, runs: list[dict[str, Any]]) -> None:
    """Look at each conversation, and at some of them in every view."""
    places = {place(view=view): "" for view in ("inbox", "find", "store")}
    for number, run in enumerate(runs):
        space = f"conversations.db/{run['task_id']}/{run['trial']}"
        places[place(view="conversation", space=space)] = last_words(run)
        if number % FEW == 0:
            places |= views_of(space, run)
    wrong: list[str] = []
    async for page, where, text in walk(await tabs.open("conversations"), places):
        wrong += [f"{where}: {each}" for each in await faults_of(page, text)]
    assert wrong == [], "\n".join(islice(wrong, 20))


def views_of(space: str, run: dict[str, Any]) -> dict[str, str]:
    """Return the other views of the space of a conversation, with what they must show."""
    count = len(run["traj"])
    return {
        place(view="timeline", space=space): f"of {count}",
        place(view="timeline", space=space, at=str(count // 2)): f"of {count}",
        place(view="conversation", space=space, at=str(count // 2)): f"of {count}",
        place(view="tasks", space=space): "",
        place(view="documents", space=space): "conversation",
        place(view="documents", space=space, id="conversation"): "task_id",
        place(view="branches", space=space): "main",
        place(view="compare", space=space): "Pick what should have been different",
        place(view="events", space=space): "",
        place(view="about", space=space): "Entries",
    }


def last_words(run: dict[str, Any]) -> str:
    """Return the beginning of the last text that a person or the agent has written."""
    said = [each["content"] for each in run["traj"] if each["role"] != "tool" and each["content"]]
    return str(said[-1]).strip().splitlines()[0][:40].strip()
