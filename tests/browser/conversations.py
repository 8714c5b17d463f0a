"""Conversations of a tool-calling agent at a travel desk, made from a seed in the form of a benchmark.

The form is that of a file with many runs: `{task_id, trial, reward, info, traj: [message, ...]}`. Its
messages are those of the chat-completions format.
"""

from __future__ import annotations

import json
import random
from typing import Any

CITIES = ("Bergen", "Lyon", "Porto", "Vienna", "Gdansk", "Turin", "Ghent", "Split")
PEOPLE = ("Ida Lund", "Tomas Weil", "Nora Pires", "Emil Kos", "Anna Sato", "Leo Brandt")
POLICY = """# Travel desk

The current time is 2026-03-02 08:00 UTC.

- Before you book, change or cancel anything, list the details and get a clear yes.
- Call one tool at a time, and do not make up facts that no tool returned.
- A refund over 200 EUR needs a person: transfer the customer.
"""
Message = dict[str, Any]


def generate(count: int, *, seed: int = 21) -> list[dict[str, Any]]:
    """Return runs; the same seed gives the same runs."""
    chance = random.Random(seed)
    return [_run(number, random.Random(chance.random())) for number in range(count)]


def _run(number: int, chance: random.Random) -> dict[str, Any]:
    person, begin, end = chance.choice(PEOPLE), *chance.sample(CITIES, 2)
    day = f"2026-03-{chance.randint(10, 28)}"
    request = {"from": begin, "to": end, "date": day, "seats": chance.randint(1, 3)}
    turns: list[Message] = [
        {"role": "system", "content": POLICY},
        {"role": "user", "content": f"Hello! I need to get from {begin} to {end} on {day}."},
        {"role": "assistant", "content": "With pleasure. May I have your customer number, please?"},
        {"role": "user", "content": f"It is {_slug(person)}_{chance.randint(1000, 9999)}."},
    ]
    turns += _call(
        chance, "get_customer", {"name": person}, {"name": person, "points": chance.randint(0, 900)}
    )
    offers = [
        {"train": f"R{chance.randint(100, 999)}", "leaves": f"{hour:02}:{chance.randint(0, 59):02}",
         "price": {"amount": chance.randint(29, 240), "currency": "EUR"}, "changes": chance.randint(0, 2)}
        for hour in sorted(chance.sample(range(5, 22), chance.randint(2, 5)))
    ]  # fmt: skip
    turns += _call(chance, "search_trains", request, offers)
    lines = "\n".join(f"{at}. {each['train']} at {each['leaves']}" for at, each in enumerate(offers, start=1))
    turns.append(
        {"role": "assistant", "content": f"There are {len(offers)} trains:\n\n{lines}\n\nWhich one?"}
    )
    for _ in range(chance.randint(0, 9)):
        turns += _detour(chance, offers)
    if chance.random() < 0.3:
        turns.append({"role": "user", "content": "No, that is too expensive. Good bye."})
        turns += _call(
            chance, "transfer_to_person", {"summary": "The customer found no offer."}, "transferred"
        )
    else:
        booked = chance.choice(offers)
        turns.append({"role": "user", "content": f"Please book {booked['train']}. Yes."})
        turns += _call(chance, "book", {"train": booked["train"], **request}, {"booking": f"B{number:05}"})
        turns.append(
            {"role": "assistant", "content": f"It is booked: **B{number:05}**. Have a good trip! 🚆"}
        )
    return {
        "task_id": number // 4,
        "reward": float(chance.random() < 0.6),
        "info": {"task": {"user_id": _slug(person), "instruction": f"You want to go to {end}."}},
        "traj": turns,
        "trial": number % 4,
    }


def _detour(chance: random.Random, offers: list[dict[str, Any]]) -> list[Message]:
    """Return a question of the customer, and the agent's answer, which may take a tool."""
    offer = chance.choice(offers)
    if chance.random() < 0.5:
        asked = {"role": "user", "content": f"May I take my bicycle on {offer['train']}?"}
        answer = {"role": "assistant", "content": "Yes, if you reserve a place for it. That is 6 EUR."}
        return [asked, *_call(chance, "rules_of", {"train": offer["train"]}, {"bicycles": True}), answer]
    return [
        {"role": "user", "content": f"How much is {offer['train']}, with a seat at the window?"},
        {"role": "assistant", "content": f"{offer['price']['amount']} EUR, and the seat is free of charge."},
    ]


def _call(chance: random.Random, name: str, arguments: dict[str, Any], result: Any) -> list[Message]:
    """Return the message that calls a tool, and the tool's."""
    id = f"call_{chance.getrandbits(96):024x}"
    called = {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
    return [
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": id, "name": name, "content": json.dumps(result)},
    ]


def _slug(person: str) -> str:
    return person.lower().replace(" ", "_")
