"""Chains of LangChain remember through a session, and lose nothing of what was said."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.chat_history import BaseChatMessageHistory
from langchain_core.language_models.fake_chat_models import FakeMessagesListChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.prompts import ChatPromptTemplate, MessagesPlaceholder
from langchain_core.runnables.history import RunnableWithMessageHistory

import keepstate
from keepstate import Session, sync
from keepstate.adapters.langchain import KeepstateChatMessageHistory
from keepstate.errors import InvalidError
from keepstate.sync import of

USAGE = {"input_tokens": 7, "output_tokens": 3, "total_tokens": 10, "input_token_details": {"cache_read": 2}}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
CALL = {"name": "search", "args": {"to": "NYC", "stops": [1, None]}, "id": "call_1", "type": "tool_call"}
EVERY_KIND: list[BaseMessage] = [
    SystemMessage("You book flights.", id="s1"),
    HumanMessage([{"type": "text", "text": "Where is this?"}, IMAGE], name="ann", example=True),
    AIMessage(
        [
            {"type": "text", "text": "I look."},
            {"type": "tool_use", "id": "call_1", "name": "search", "input": {}},
        ],
        tool_calls=[CALL],
        invalid_tool_calls=[
            {"name": "book", "args": "{bad", "id": "call_2", "error": "no JSON", "type": "invalid_tool_call"}
        ],
        usage_metadata=USAGE,
        response_metadata={"model": "m", "logprobs": [0.5, float("inf")]},
        additional_kwargs={"reasoning": "…"},
        id="a1",
    ),
    ToolMessage(
        "three flights", tool_call_id="call_1", artifact={"raw": b"\0\xff", "n": (1, 2)}, status="error"
    ),
    FunctionMessage(content="42", name="answer"),
    ChatMessage(content="I decide", role="supervisor"),
    AIMessage("", tool_calls=[CALL]),
    AIMessageChunk(content="half", chunk_position="last"),
    HumanMessage(""),
    HumanMessage("naïve 🦜 \0"),
    RemoveMessage(id="a1"),
]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/chains.db?durability=normal"


def test_every_kind_of_message_comes_back_equal(url: str) -> None:
    with sync.Session("s", persistence=url) as session:
        KeepstateChatMessageHistory(session).add_messages(EVERY_KIND)
    with sync.Session("s", persistence=url) as session:
        read = KeepstateChatMessageHistory(session).messages

        assert read == EVERY_KIND
        assert [type(message) for message in read] == [type(message) for message in EVERY_KIND]
        assert read[3].artifact == {"raw": b"\0\xff", "n": (1, 2)}  # type: ignore[attr-defined]


def test_who_reads_without_langchain_reads_messages_and_the_other_way_round(url: str) -> None:
    with sync.Session("s", persistence=url) as session:
        history = KeepstateChatMessageHistory(session)
        history.add_user_message("Book a flight")
        history.add_messages([AIMessage("", tool_calls=[CALL]), ToolMessage("none", tool_call_id="call_1")])
        plain = [
            {name: part for name, part in each.items() if name != "langchain"}
            for each in session.conversation.messages()
        ]
        session.conversation.append({"role": "assistant", "content": "There is none."})

        assert plain == [
            {"role": "user", "content": "Book a flight"},
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "none", "tool_call_id": "call_1"},
        ]
        assert history.messages[-1] == AIMessage("There is none.")


def test_what_would_not_come_back_equal_is_refused_and_nothing_is_added(url: str) -> None:
    class Mine(HumanMessage):
        pass

    with sync.Session("s", persistence=url) as session:
        history = KeepstateChatMessageHistory(session)
        for wrong in (
            Mine(content="x"),
            ToolMessage("x", tool_call_id="1", artifact=HumanMessage("inside")),
            ToolMessage("x", tool_call_id="1", artifact=object()),
        ):
            with pytest.raises(InvalidError):
                history.add_messages([HumanMessage("first"), wrong])

        assert history.messages == []
    with pytest.raises(InvalidError):
        KeepstateChatMessageHistory("s")  # type: ignore[arg-type]


def test_a_cleared_history_begins_anew_and_a_budget_is_kept(url: str) -> None:
    with sync.Session("s", persistence=url) as session:
        history = KeepstateChatMessageHistory(session)
        history.add_messages([HumanMessage(f"message number {number}") for number in range(900)])

        assert len(history.messages) == 900
        short = KeepstateChatMessageHistory(session, max_tokens=300).messages
        assert 0 < len(short) < 40 and short[-1] == HumanMessage("message number 899")
        history.clear()
        assert history.messages == []


def chain(answers: list[str], history_of: Any) -> RunnableWithMessageHistory:
    prompt = ChatPromptTemplate.from_messages(
        [("system", "You book flights."), MessagesPlaceholder("history"), ("human", "{input}")]
    )
    model = FakeMessagesListChatModel(responses=[AIMessage(answer) for answer in answers])
    return RunnableWithMessageHistory(
        prompt | model, history_of, input_messages_key="input", history_messages_key="history"
    )


CONFIG: Any = {"configurable": {"session_id": "s-1"}}


@pytest.mark.filterwarnings("ignore:RunnableWithMessageHistory is deprecated")
@pytest.mark.parametrize("mode", ["async", "blocking"])
def test_a_chain_remembers_by_invoke_and_ainvoke_whatever_the_session_s_mode(url: str, mode: str) -> None:
    async def whole() -> None:
        async with keepstate.open(url) as ks:

            def history_of(session_id: str) -> BaseChatMessageHistory:
                if mode == "async":
                    return KeepstateChatMessageHistory(Session(session_id, persistence=ks))
                return KeepstateChatMessageHistory(sync.Session(session_id, persistence=of(ks)))

            remembers = chain(["What dates?", "I book."], history_of)
            assert (await remembers.ainvoke({"input": "Book a flight"}, CONFIG)).content == "What dates?"
            answer = await asyncio.to_thread(remembers.invoke, {"input": "Next Monday"}, CONFIG)
            assert answer.content == "I book."
            told = [message.content for message in history_of("s-1").messages]
            assert told == ["Book a flight", "What dates?", "Next Monday", "I book."]
            assert told == [each.content for each in await history_of("s-1").aget_messages()]
            assert history_of("s-2").messages == []
            await history_of("s-1").aclear()
            assert history_of("s-1").messages == []

    asyncio.run(whole())


def test_a_session_in_a_passed_space_works_both_ways(url: str) -> None:
    async def whole() -> None:
        async with keepstate.open(url) as ks:
            session = Session("s", space=ks.space("run/42"))
            history = KeepstateChatMessageHistory(session)
            await history.aadd_messages([HumanMessage("awaited")])
            history.add_ai_message("blocking")

            assert [each.content for each in await history.aget_messages()] == ["awaited", "blocking"]
            async with session.transaction() as inside:
                joined = KeepstateChatMessageHistory(inside)
                await joined.aadd_messages([HumanMessage("in the same batch")])
                with pytest.raises(InvalidError):
                    assert joined.messages
            assert await session.conversation.count() == 3

    asyncio.run(whole())


def test_messages_that_langchain_has_no_class_for_are_read_by_their_role() -> None:
    with sync.Session("mixed", persistence="memory://mixed") as session:
        session.conversation.append(
            {"role": "supervisor", "content": "go on", "step": 3},
            {"role": "user"},
            {"role": "assistant", "content": None},
            {"role": "judge", "content": {"verdict": "good"}},
        )
        read = KeepstateChatMessageHistory(session).messages

    assert read[0] == ChatMessage("go on", role="supervisor", additional_kwargs={"step": 3})
    assert [(message.type, message.content) for message in read[1:]] == [
        ("human", ""),
        ("ai", ""),
        ("chat", '{"verdict":"good"}'),
    ]


@pytest.mark.parametrize("messages", [None, "hi", 3, ["hi"], [("user", "hi")], [{"role": "user"}]])
def test_what_is_no_message_of_langchain_is_refused(messages: Any) -> None:
    with sync.Session("refused", persistence="memory://refused") as session:
        history = KeepstateChatMessageHistory(session)

        with pytest.raises(InvalidError, match="LangChain's"):
            history.add_messages(messages)
        assert history.messages == []


def test_a_budget_that_is_none_is_refused_when_it_is_given() -> None:
    with (
        sync.Session("budget", persistence="memory://budget") as session,
        pytest.raises(InvalidError, match="max_tokens"),
    ):
        KeepstateChatMessageHistory(session, max_tokens=-1)
