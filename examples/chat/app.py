"""The server of the chat: any FastAPI application would have these routes.

A question and the task to answer it are written in one batch. So a server that is killed at any moment leaves
both, or none. The worker of any server on the same store writes the reply. Each tab follows the conversation
and continues after the last event that it has seen.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Cookie, Depends, FastAPI, Header, HTTPException, Request
from fastapi import Path as InPath
from fastapi.responses import FileResponse, JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

import keepstate
from keepstate import (
    ChatChange,
    Conversation,
    HistoryLostError,
    InvalidError,
    Keepstate,
    NotOwnerError,
    Retry,
    Session,
    Task,
    Transaction,
)

Model = Callable[[list[dict[str, Any]]], AsyncIterator[str]]
"""A model: it gets the context of a conversation, and yields its reply piece by piece."""

PAGE = Path(__file__).parent / "page.html"


class Question(BaseModel):
    """A question with an id that the tab makes. A question that is sent twice is asked once."""

    id: Annotated[str, Field(min_length=1, max_length=100)]
    text: Annotated[str, Field(min_length=1, max_length=20_000)]


async def echo(context: list[dict[str, Any]]) -> AsyncIterator[str]:
    """Say the last question again, word by word. Put the call of your model here."""
    for word in f"You said: {context[-1]['content']}".split():
        await asyncio.sleep(0.2)
        yield word + " "


async def user_of(user: Annotated[str | None, Cookie(max_length=100)] = None) -> str:
    """Return the user of a request. Put your login here: this one believes the cookie."""
    if not user:
        raise HTTPException(401, "Say who you are: set the cookie 'user'.")
    return user


User = Annotated[str, Depends(user_of)]
Chat = Annotated[str, InPath(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class Worker:
    """The worker of this server: it writes the replies of all chats.

    Args:
        ks: The store.
        model: What says the replies.
        lease_s: Seconds after which another worker answers the questions of a killed one.
    """

    def __init__(self, ks: Keepstate, model: Model, lease_s: float) -> None:
        self._ks, self._model, self._lease_s = ks, model, lease_s

    async def run(self, stop: asyncio.Event) -> None:
        """Answer questions until `stop` is set."""
        await self._ks.queues("session").run(
            {"reply": self.reply}, concurrency=100, lease_s=self._lease_s, stop=stop, retry=Retry(first_s=0.2)
        )

    async def reply(self, task: Task) -> None:
        """Answer a question. After a kill in the middle, the next attempt says a reply of its own."""
        talk = Session(task.payload["chat"], user_id=task.payload["user"], persistence=self._ks).conversation
        for told in await talk.page():
            is_reply = told.author == "model" and (told.id or "").startswith(f"{task.id}/")
            if is_reply and told.status != "failed":
                return  # the attempt that said this was killed before the end of its task
        async with talk.reply(id=f"{task.id}/{task.attempt}", author="model", lease_s=self._lease_s) as reply:
            async for piece in self._model(await talk.get_context()):
                if reply.stopped:
                    break
                await reply.write(piece)


def create_app(url: str, model: Model = echo, *, lease_s: float = 10) -> FastAPI:
    """Return the application over a store; `Worker` explains `model` and `lease_s`."""
    stop = asyncio.Event()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        async with keepstate.open(url) as app.state.ks:
            working = asyncio.create_task(Worker(app.state.ks, model, lease_s).run(stop))
            try:
                yield
            finally:
                stop.set()
                await working

    app = FastAPI(title="Chat", lifespan=lifespan)

    @app.exception_handler(NotOwnerError)
    async def refuse(_: Request, __: NotOwnerError) -> JSONResponse:
        return JSONResponse({"detail": "This chat is another user's."}, 403)

    def conversation_of(chat: str, user: str) -> Conversation:
        return Session(chat, user_id=user, persistence=app.state.ks).conversation

    @app.get("/")
    async def page() -> FileResponse:
        return FileResponse(
            PAGE, headers={"Content-Security-Policy": "default-src 'self' 'unsafe-inline'; img-src data:"}
        )

    @app.post("/chats/{chat}/questions", status_code=202)
    async def ask(chat: Chat, user: User, question: Question) -> dict[str, int]:
        async def work(tx: Transaction) -> int:
            session = Session(chat, user_id=user, space=tx)
            message = {"role": "user", "content": question.text}
            number = await session.conversation.append(message, id=question.id)
            await tx.queue.put({"chat": chat, "user": user}, id=question.id, kind="reply", key=chat)
            return number

        return {"number": await app.state.ks.space(f"session/{chat}", record=True).transact(work)}

    @app.post("/chats/{chat}/stop")
    async def stop_reply(chat: Chat, user: User) -> dict[str, bool]:
        return {"stopped": await conversation_of(chat, user).stop(by=user)}

    @app.get("/chats/{chat}/live")
    async def live(
        chat: Chat, user: User, last_event_id: Annotated[str | None, Header()] = None
    ) -> StreamingResponse:
        talk = conversation_of(chat, user)
        await talk.count()  # raises here if the chat is another user's, and not in the middle of a stream
        return StreamingResponse(
            tell(talk, last_event_id), media_type="text/event-stream", headers={"Cache-Control": "no-store"}
        )

    return app


async def tell(talk: Conversation, after: str | None) -> AsyncIterator[str]:
    """Yield the changes of a conversation as server-sent events, for as long as the tab listens."""
    try:
        async for change in talk.follow(after=after):
            yield f"id: {change.position}\ndata: {json.dumps(shown(change))}\n\n"
    except (InvalidError, HistoryLostError):  # the tab continues after nothing that this store knows
        yield "event: reset\ndata: {}\n\n"


def shown(change: ChatChange) -> dict[str, Any]:
    """Return what the page needs of a change."""
    role = change.entry.message["role"] if change.entry else "assistant"
    return {"kind": change.kind, "number": change.number, "id": change.id, "role": role, "text": change.text}
