"""Which tool calls a message makes and answers, in the forms in which model APIs write them."""

from __future__ import annotations

from typing import Any

import pytest

from keepstate import BoundedState, Session
from keepstate.engine.space.keepstate import Keepstate
from keepstate.errors import InvalidError
from keepstate.sessions.messages import links
from tests.sessions.talking import said


def blocks(*content: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content), **more}


TEXT = {"type": "text", "text": "hi", "id": "msg_1"}


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_use", "id": "c1", "name": "f", "input": {}},
        {"type": "server_tool_use", "id": "c1", "name": "web_search"},
        {"type": "mcp_tool_use", "id": "c1", "server_name": "s"},
        {"type": "tool_call", "id": "c1", "name": "f", "args": {}},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f"},
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1"},
        {"type": "local_shell_call", "id": "lsh_1", "call_id": "c1"},
    ],
)
def test_a_block_that_calls_a_tool_is_a_call(block: dict[str, Any]) -> None:
    assert links(blocks(TEXT, block)) == ([], ["c1"])
    assert links(blocks(block, tool_calls=[{"id": "c1"}, {"id": "c2"}])) == ([], ["c1", "c2"])


@pytest.mark.parametrize(
    "block",
    [
        {"type": "tool_result", "tool_use_id": "c1", "content": "found"},
        {"type": "web_search_tool_result", "tool_use_id": "c1", "content": []},
        {"type": "mcp_tool_result", "tool_use_id": "c1", "content": []},
        {"type": "server_tool_result", "tool_call_id": "c1", "output": "found"},
        {"type": "function_call_output", "id": "fco_1", "call_id": "c1", "output": "found"},
        {"type": "computer_call_output", "call_id": "c1", "output": {}},
    ],
)
def test_a_block_with_what_a_tool_has_found_answers_its_call(block: dict[str, Any]) -> None:
    assert links({"role": "user", "content": [block, TEXT]}) == (["c1"], [])
    assert links(blocks({"type": "server_tool_use", "id": "c1"}, block, TEXT)) == ([], [])


@pytest.mark.parametrize(
    "block",
    [
        TEXT,
        {"id": "x"},
        {"type": None, "id": "x"},
        {"type": "image_url", "id": "img_1", "image_url": {"url": "…"}},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "mcp_call", "id": "mcp_1", "output": "found"},
        {"type": "web_search_tool_result", "content": []},
    ],
)
def test_other_blocks_are_no_calls_whatever_id_they_have(block: dict[str, Any]) -> None:
    assert links(blocks(block)) == ([], [])


async def test_a_block_with_an_id_is_cut_and_counted_as_any_other(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=50, persistence=ks)
    await state.add_message(blocks({**TEXT, "text": "a long story " * 40}))
    picture = {"type": "image_url", "id": "img_1", "image_url": {"url": "…"}}

    assert str((await state.get_context())[0]["content"][0]["text"]).startswith("a long story")
    with pytest.raises(InvalidError, match="cannot be cut"):
        await state.add_message(blocks(picture))


async def test_what_a_provider_s_own_tool_has_found_stays_with_its_call(ks: Keepstate) -> None:
    state = BoundedState("1", max_tokens=500, persistence=ks)
    used, found = (
        {"type": "server_tool_use", "id": "s1", "name": "web_search"},
        {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []},
    )
    told = [said("Look"), blocks(used, found, TEXT), said("Again"), blocks(used), blocks(found, TEXT)]
    for message in told:
        await state.add_message(message)

    assert await state.get_context() == told
    await state.add_message(said("x" * 1_800))
    assert all(links(message) == ([], []) for message in await state.get_context())


async def test_what_cannot_be_counted_is_refused_by_where_it_stands(ks: Keepstate) -> None:
    state, conversation = BoundedState("1", persistence=ks), Session("s", persistence=ks).conversation
    wrong = {"role": "user", "content": "x", "notes": {"seen": [1, object()]}}
    for adding in (state.add_message(wrong), conversation.append({"role": "user", "content": "x"}, wrong)):
        with pytest.raises(InvalidError, match=r"^notes\.seen\[1\]: builtins\.object has no form in JSON"):
            await adding
    with pytest.raises(InvalidError, match=r"^content\[1\]\.text: builtins\.object has no form in JSON"):
        await conversation.append(blocks({"type": "image"}, {"type": "text", "text": object()}))

    assert await state.get_context() == [] and await conversation.count() == 0
