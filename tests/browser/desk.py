"""A travel desk on 2 March 2026: agents that plan, price and book trips, and people who decide.

Its clock stands unless it is told to advance, so the same code gives the same store: the pictures of the
tour are taken of it. `NOW` is the time at which it is shown.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import zlib
from datetime import UTC, datetime
from typing import Any

from keepstate import Retry, Session
from keepstate.engine.space.keepstate import Keepstate
from keepstate.engine.space.space import Space
from keepstate.testing.clocks import StoreClock
from tests.browser.conversations import CITIES, generate

BEGIN = datetime(2026, 3, 2, 8, 0, tzinfo=UTC)
NOW = datetime(2026, 3, 2, 10, 42, tzinfo=UTC)
TRIP, BOOKINGS, CHAT = "run/trip-7", "bookings", "chat-12"
PRICED_AT = 9
"""The number of the moment at which the price changed last."""
FAILED = 6
"""The number of dead mails."""
MODELS = {"planner": "large-2", "pricer": "small-2", "writer": "large-2"}


async def fill(ks: Keepstate, clock: StoreClock) -> None:
    """Fill a store that is empty, and set its clock to `NOW`."""
    await _plan(ks, clock)
    await _talk(ks, clock)
    await _work(ks.space(BOOKINGS, author="desk"), clock)
    await _ask(ks, clock)
    await _keep(ks, clock)
    assert clock.now() < NOW, clock.now()
    clock.set(NOW)
    # What has a lease is claimed last, because the clock stands from now on.
    pool = ks.space(BOOKINGS, author="desk")
    (task,) = await pool.queue.claim("worker-2", lease_s=3_600, kinds=["import"])
    await pool.queue.heartbeat(task, 3_600, progress={"done": 640, "of": 1_000})
    await pool.leases.acquire("rates", ttl_s=1_800)
    await ks.space(TRIP).leases.acquire("planner", ttl_s=600)


async def _plan(ks: Keepstate, clock: StoreClock) -> None:
    """Record a run whose price changes twice, with a cheaper branch and one that contradicts it."""
    history = ks.space(TRIP).history
    trip: dict[str, Any] = {"from": "Vienna", "to": "Bergen", "date": "2026-03-14", "seats": 2}

    async def step(author: str, message: str, branch: str = "main", **change: Any) -> None:
        clock.advance(41)
        draft = await history.begin(branch)
        for key, value in change.items():
            draft[key] = value
        tokens = {"input_tokens": str(900 + 37 * len(message)), "output_tokens": str(40 + 3 * len(message))}
        meta = {"model": MODELS[author], **tokens} if author in MODELS else {}
        await draft.commit(message=message, author=author, meta=meta)

    async def say(role: str, text: str, branch: str = "main") -> None:
        clock.advance(13)
        message = {"role": role, "content": text}
        author = {"user": "ida", "assistant": "writer"}[role]
        meta = {"model": MODELS["writer"], "input_tokens": "1204", "output_tokens": str(len(text) // 4)}
        await history.append(
            "messages",
            message,
            branch=branch,
            author=author,
            message=text[:40],
            meta=meta if role != "user" else {},
        )

    await step("ida", "begin", goal="Two seats from Vienna to Bergen", trip=trip, messages=[], options=[])
    await say("user", "Two seats to Bergen on the 14th, please. We have two bicycles with us.")
    await step("planner", "find routes", options=[
        {"id": "day", "via": ["Munich", "Hamburg", "Oslo"], "hours": 31, "changes": 4},
        {"id": "night", "via": ["Berlin", "Stockholm", "Oslo"], "hours": 29, "changes": 3},
    ])  # fmt: skip
    await step("pricer", "price the day route", price={"amount": 412, "currency": "EUR"}, chosen="day")
    await say("assistant", "The day trains take 31 hours and cost 412 EUR. Shall I look for a night train?")
    await say("user", "What do the bicycles cost?")
    await step("planner", "read the rules for bicycles", rules={"bicycles": {"each": 18, "reserve": True}})
    await history.tag("quoted", "main")
    await step(
        "planner", "reserve places for two bicycles", extras=[{"what": "bicycle", "count": 2, "each": 18}]
    )
    await step("pricer", "add the bicycles", price={"amount": 448, "currency": "EUR"})
    await say("assistant", "With the bicycles it is 448 EUR.")
    await history.branch("night-train", "main")
    await history.branch("by-plane", "main~3")
    await say("user", "That is a lot. Is there anything cheaper?")
    await step("planner", "note the budget", budget=400)
    await step("planner", "choose the night train", branch="night-train", chosen="night")
    await step(
        "pricer", "price the night route", branch="night-train", price={"amount": 371, "currency": "EUR"}
    )
    await step("planner", "reserve a cabin", branch="night-train", cabin={"beds": 2, "number": 14})
    await step("planner", "look at planes", branch="by-plane", chosen="plane", budget=600)
    await step("pricer", "price the plane", branch="by-plane", price={"amount": 538, "currency": "EUR"})


async def _talk(ks: Keepstate, clock: StoreClock) -> None:
    """Hold conversations: with tools, a picture, a fork, an edited message, and replies that ended early."""
    for number, run in enumerate(generate(8, seed=7), start=1):
        session = Session(f"chat-{number}", user_id=run["info"]["task"]["user_id"], persistence=ks)
        for message in run["traj"][:24]:
            clock.advance(19)
            author = {"user": run["info"]["task"]["user_id"], "assistant": "writer"}.get(message["role"])
            meta = {"model": "large-2", "tokens": 40 + len(str(message)) // 4}
            await session.conversation.append(message, author=author, meta=meta if author == "writer" else {})
        await session.close()
    session = Session(CHAT, user_id="ida_lund", persistence=ks)
    talk = session.conversation
    picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_png()}"}}
    await talk.append(
        {"role": "user", "content": [{"type": "text", "text": "Which train is this?"}, picture]}
    )
    clock.advance(30)
    call = {"id": "c1", "type": "function", "function": {"name": "read_sign", "arguments": '{"line": 2}'}}
    await talk.append({"role": "assistant", "content": None, "tool_calls": [call]}, author="writer")
    result = {
        "role": "tool",
        "tool_call_id": "c1",
        "name": "read_sign",
        "content": '{"train": "R 61", "track": 4}',
    }
    await talk.append(result)
    clock.advance(2)
    await talk.append(
        {"role": "assistant", "content": "It is the R 61 to Bergen, on track 4."}, author="writer"
    )
    clock.advance(60)
    fork = await talk.fork("in Norwegian")
    await fork.append({"role": "user", "content": "På norsk, takk."}, author="ida_lund")
    await fork.append({"role": "assistant", "content": "Det er R 61 til Bergen, spor 4."}, author="writer")
    await talk.append({"role": "user", "content": "And when does it leave?"}, author="ida_lund")
    async with talk.reply(author="writer", flush_s=0.001) as reply:
        await reply.write("It leaves at 12:03, and then ")
        await talk.stop(by="ida_lund")
    await session.close()


async def _work(pool: Space, clock: StoreClock) -> None:
    """Run a worker: bookings with steps, one that asks, mails that fail, and what waits."""

    async def book(task: Any) -> Any:
        await task.step("search", _spent, clock, 1_400, {"trains": 5})
        price = await task.step(
            "price", _spent, clock, 800, {"amount": task.payload["amount"], "currency": "EUR"}
        )
        await task.step("hold seats", _spent, clock, 2_300, {"seats": task.payload["seats"]})
        if price["amount"] > 400:
            asked = {"subject": {"trip": task.payload["trip"], "price": price}, "to": ["ann", "bob"]}
            answer = await task.ask("approve", f"Book for {price['amount']} EUR?", expires_s=86_400, **asked)
            if not answer.approved:
                return "refused"
        if task.payload["seats"] > 8:
            raise RuntimeError("HTTP 409: the train has 8 seats left, and 9 are wanted")
        await task.step("pay", _spent, clock, 3_100, {"paid": price["amount"]}, once=True)
        return await task.step("ticket", _spent, clock, 700, {"ticket": f"T-{task.payload['amount']}"})

    async def mail(task: Any) -> None:
        await task.step("render", _spent, clock, 300, f"Dear {task.payload['to']}, your trip is booked.")
        raise ConnectionError("HTTP 503 of the mail server: try again later")

    for number, (trip, amount, seats) in enumerate(
        [("Lyon", 120, 1), ("Porto", 310, 2), ("Bergen", 448, 2), ("Turin", 95, 9), ("Ghent", 64, 1)], start=1
    ):
        clock.advance(20)
        payload = {"trip": trip, "amount": amount, "seats": seats}
        attempts = 2 if seats > 8 else 5
        await pool.queue.put(payload, id=f"book/{number}", kind="book", key=trip, max_attempts=attempts)
    for number in range(1, FAILED + 1):
        await pool.queue.put({"to": f"customer {number}"}, id=f"mail/{number}", kind="mail", max_attempts=1)
    handlers = {"book": book, "mail": mail}
    for _ in range(3):
        retry = Retry(first_s=30, jitter=0)
        await pool.queue.run(handlers, worker="worker-1", concurrency=1, idle_s=0.02, retry=retry)
        clock.advance(60)
    await pool.queue.put({"file": "rates.csv"}, id="import/rates", kind="import")
    await pool.queue.put({"file": "old.csv"}, id="import/old", kind="import", delay_s=36_000)
    await pool.queue.cancel("import/old", by="ann", reason="replaced by rates.csv")
    await pool.queue.put({"of": "sales"}, id="report/march", kind="report", delay_s=36_000)
    await pool.schedules.put("nightly report", cron="0 2 * * *", zone="Europe/Berlin", kind="report")
    await pool.schedules.put("refresh rates", every_s=900, kind="refresh", payload={"of": "rates"})


async def _ask(ks: Keepstate, clock: StoreClock) -> None:
    """Ask people: yes or no, and with a form."""
    desk = ks.space("desk", author="agent")
    schema = {
        "type": "object",
        "title": "Refund",
        "properties": {
            "amount": {
                "type": "integer",
                "title": "Amount in EUR",
                "minimum": 0,
                "maximum": 500,
                "default": 120,
            },
            "way": {"enum": ["card", "bank", "voucher"], "title": "Paid to"},
            "inform": {"type": "boolean", "title": "Send a mail", "default": True},
            "note": {"type": "string", "title": "Note", "maxLength": 200},
        },
        "required": ["amount", "way"],
    }
    clock.advance(700)
    subject = {"customer": "tomas_weil", "booking": "B00004", "reason": "The train was 3 hours late."}
    await desk.approvals.ask(
        "How much may I refund?", id="refund/4", subject=subject, schema=schema, to=["ann"]
    )
    clock.advance(400)
    offer = {"text": "Spring in Bergen: 20 % off until Friday", "sent to": 1_840}
    await desk.approvals.ask(
        "Send this offer to customers?", id="offer/1", subject=offer, need=2, expires_s=7_200
    )
    await desk.approvals.answer("offer/1", True, by="carl", note="Checked the dates.")
    asked = await desk.approvals.ask("Close the desk at noon?", id="close", to=["bob"])
    await desk.approvals.answer("close", False, by="bob", saw=asked.digest)


async def _keep(ks: Keepstate, clock: StoreClock) -> None:
    """Keep documents, events, and the spaces of two tenants."""
    desk = ks.space("desk", author="ann")
    await desk.documents.put("opening hours", {"monday": ["08:00", "18:00"], "saturday": ["10:00", "14:00"]})
    await desk.documents.put("rates/EUR", {"NOK": 11.62, "CHF": 0.94}, ttl_s=3_600 * 9)
    await desk.documents.put("rates/USD", {"NOK": 10.71, "CHF": 0.88}, ttl_s=3_600 * 9)
    await desk.documents.put("signature", "Your travel desk\nWe take trains seriously.")
    for number in range(40):
        clock.advance(31)
        kind = ("searched", "quoted", "booked")[number % 3]
        event = {"customer": f"customer {number % 7}", "to": CITIES[number % len(CITIES)]}
        await desk.events.append(event, stream="visits", type=kind)
    await desk.events.append({"by": "ann"}, type="opened")
    for tenant in ("north", "south"):
        space = ks.tenant(tenant).space("desk", author="ann")
        for number in range(12):
            await space.documents.put(f"booking/{number}", {"to": "Oslo", "seats": number})


async def _spent(clock: StoreClock, ms: int, result: object) -> object:
    """Return the result of a step that takes a time."""
    clock.advance(ms / 1000)
    await asyncio.sleep(0)
    return result


def _png(side: int = 64) -> str:
    """Return a small picture, of a sign, in base64."""
    rows = b"".join(
        b"\0"
        + b"".join(b"\xff\xff\xff" if 20 < y < 30 and 8 < x < 56 else b"\x0b\x4f\x8a" for x in range(side))
        for y in range(side)
    )

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + parts).decode()
