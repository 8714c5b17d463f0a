"""Real conversations, one commit a message: what they weigh, and that each of their moments comes back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import keepstate
from tests.engine.history.conftest import blocking_history


@pytest.mark.slow
@pytest.mark.shared("data/tau_airline.json")
def test_200_conversations_weigh_at_most_three_times_their_messages(
    shared_data: Path, tmp_path: Path
) -> None:
    conversations: list[list[Any]] = [one["traj"] for one in json.loads(shared_data.read_bytes())]
    plain_bytes = sum(len(msgspec.msgpack.encode(message)) for one in conversations for message in one)
    path = tmp_path / "keepstate.db"
    with keepstate.sync.open(f"sqlite:///{path}?durability=normal") as ks:
        histories = [blocking_history(ks, f"conversation/{n}") for n in range(len(conversations))]
        for history, messages in zip(histories, conversations, strict=True):
            for message in messages:
                history.append("messages", message)
        moments = 0
        for history, messages in zip(histories, conversations, strict=True):
            texts = [json.dumps(messages[:number]) for number in range(1, len(messages) + 1)]
            for number in range(1, len(messages) + 1):
                # As text, because the order of keys counts too.
                assert json.dumps(history.checkout(f"main#{number}")["messages"]) == texts[number - 1]
                moments += 1

    assert moments == 5_308
    assert path.stat().st_size <= 3 * plain_bytes
