"""One conversation in each form: an order with a picture, reasoning, two calls, results and an answer."""

from __future__ import annotations

from typing import Any

PNG = "iVBORw0KGgo="
DATA_URL = f"data:image/png;base64,{PNG}"
SYSTEM, ASKED, ANSWER = "You book flights.", "Where is this? Find flights.", "There are two flights."
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "call_1": ("find", {"to": "Rome", "stops": [1, None]}),
    "call_2": ("weather", {"at": "Rome"}),
}
RESULTS = {"call_1": "AZ 609, AZ 611", "call_2": "Sunny, 24 °C"}


def called(id: str) -> tuple[str, str]:
    """Return the name of a call's tool, and its arguments as text."""
    name, arguments = CALLS[id]
    return name, '{"to": "Rome", "stops": [1, null]}' if "to" in arguments else '{"at": "Rome"}'


CHAT: list[Any] = [
    {"role": "system", "content": SYSTEM},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": ASKED},
            {"type": "image_url", "image_url": {"url": DATA_URL, "detail": "low"}},
        ],
        "name": "ann",
    },
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": id, "type": "function", "function": {"name": called(id)[0], "arguments": called(id)[1]}}
            for id in CALLS
        ],
    },
    *({"role": "tool", "tool_call_id": id, "content": text} for id, text in RESULTS.items()),
    {"role": "assistant", "content": ANSWER},
]

RESPONSES: list[Any] = [
    {"role": "developer", "content": SYSTEM},
    {
        "type": "message",
        "role": "user",
        "content": [
            {"type": "input_text", "text": ASKED},
            {"type": "input_image", "image_url": DATA_URL, "detail": "low"},
        ],
    },
    [
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "I must search."}],
            "encrypted_content": "gAAAA",
        },
        *(
            {
                "type": "function_call",
                "id": f"fc_{id}",
                "call_id": id,
                "name": called(id)[0],
                "arguments": called(id)[1],
                "status": "completed",
            }
            for id in CALLS
        ),
    ],
    [{"type": "function_call_output", "call_id": id, "output": text} for id, text in RESULTS.items()],
    {
        "type": "message",
        "id": "msg_1",
        "role": "assistant",
        "status": "completed",
        "content": [{"type": "output_text", "text": ANSWER, "annotations": []}],
    },
]

ANTHROPIC: list[Any] = [
    {"role": "system", "content": [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": ASKED},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PNG}},
        ],
    },
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "I must search.", "signature": "EqQB"},
            {"type": "redacted_thinking", "data": "EmwK"},
            *(
                {"type": "tool_use", "id": id, "name": name, "input": given}
                for id, (name, given) in CALLS.items()
            ),
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": id, "content": text} for id, text in RESULTS.items()
        ],
    },
    {"role": "assistant", "content": [{"type": "text", "text": ANSWER}]},
]

GEMINI: list[Any] = [
    {"role": "system", "parts": [{"text": SYSTEM}]},
    {"role": "user", "parts": [{"text": ASKED}, {"inlineData": {"mimeType": "image/png", "data": PNG}}]},
    {
        "role": "model",
        "parts": [
            {"text": "I must search.", "thought": True},
            *(
                {"functionCall": {"id": id, "name": name, "args": given}, "thoughtSignature": "AQI="}
                for id, (name, given) in CALLS.items()
            ),
        ],
    },
    {
        "role": "user",
        "parts": [
            {"functionResponse": {"id": id, "name": CALLS[id][0], "response": {"output": text}}}
            for id, text in RESULTS.items()
        ],
    },
    {"role": "model", "parts": [{"text": ANSWER}]},
]


def langchain() -> list[Any]:
    """Return the conversation as messages of LangChain."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    return [
        SystemMessage(SYSTEM),
        HumanMessage(
            [{"type": "text", "text": ASKED}, {"type": "image", "base64": PNG, "mime_type": "image/png"}],
            name="ann",
        ),
        AIMessage(
            [
                {"type": "thinking", "thinking": "I must search.", "signature": "EqQB"},
                *(
                    {"type": "tool_use", "id": id, "name": name, "input": {}}
                    for id, (name, _) in CALLS.items()
                ),
            ],
            tool_calls=[
                {"name": name, "args": given, "id": id, "type": "tool_call"}
                for id, (name, given) in CALLS.items()
            ],
            usage_metadata={"input_tokens": 7, "output_tokens": 3, "total_tokens": 10},
            response_metadata={"model_provider": "anthropic"},
            id="run-1",
        ),
        *(ToolMessage(text, tool_call_id=id) for id, text in RESULTS.items()),
        AIMessage(ANSWER),
    ]


def pydantic_ai() -> list[Any]:
    """Return the conversation as messages of Pydantic AI."""
    from pydantic_ai.messages import (
        BinaryImage,
        ModelRequest,
        ModelResponse,
        SystemPromptPart,
        TextPart,
        ThinkingPart,
        ToolCallPart,
        ToolReturnPart,
        UserPromptPart,
    )

    picture = BinaryImage(b"\x89PNG\r\n\x1a\n", media_type="image/png", _identifier="4caece")
    return [
        ModelRequest(parts=[SystemPromptPart(SYSTEM), UserPromptPart([ASKED, picture])]),
        ModelResponse(
            parts=[
                ThinkingPart("I must search.", signature="EqQB", provider_name="anthropic"),
                *(ToolCallPart(name, given, id) for id, (name, given) in CALLS.items()),
            ],
            model_name="test",
        ),
        ModelRequest(parts=[ToolReturnPart(CALLS[id][0], text, id) for id, text in RESULTS.items()]),
        ModelResponse(parts=[TextPart(ANSWER)]),
    ]


GIVEN: dict[str, Any] = {
    "chat": lambda: CHAT,
    "responses": lambda: RESPONSES,
    "anthropic": lambda: ANTHROPIC,
    "gemini": lambda: GEMINI,
    "langchain": langchain,
    "pydantic_ai": pydantic_ai,
}
"""The conversation as it is given to `append`, by form."""
