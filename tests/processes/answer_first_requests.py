"""Answer first requests of one chat, next to others: `python answer_first_requests.py URL NAME COUNT`.

The turn is that of the tutorial: the question, then the answer and a counted step as one batch.
"""

import asyncio
import sys

import keepstate
from keepstate import Session
from keepstate.engine.space.keepstate import Keepstate


async def process(ks: Keepstate, text: str) -> str:
    """Answer one message of the chat `c`."""
    session = Session("c", persistence=ks)
    await session.conversation.append({"role": "user", "content": text})
    context = await session.conversation.get_context()
    answer = f"{text}: answered after {len(context)} messages"

    async def say(turn: Session) -> None:
        await turn.conversation.append({"role": "assistant", "content": answer})
        await turn.task.update(lambda task: {**vars(task), "steps_completed": task.steps_completed + 1})

    await session.transact(say)
    return answer


async def main(url: str, name: str, count: int) -> None:
    async with keepstate.open(url) as ks:
        for answer in await asyncio.gather(*(process(ks, f"{name} {n}") for n in range(count))):
            print(answer)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3])))
