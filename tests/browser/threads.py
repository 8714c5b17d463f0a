"""Threads of a LangGraph agent that books a hotel: one waits for people, one was forked, one ended."""

from __future__ import annotations

import operator
from typing import Annotated, Any, TypedDict

from keepstate.adapters.langgraph import KeepstateSaver, resume
from keepstate.engine.space.keepstate import Keepstate
from keepstate.testing.clocks import StoreClock

WAITING, FORKED, ENDED = "thread/ann", "thread/bob", "thread/cem"


class Stay(TypedDict, total=False):
    """What the graph knows."""

    messages: Annotated[list[Any], operator.add]
    city: str
    nights: int
    offers: list[dict[str, Any]]
    price: int
    booked: str


def compile(saver: KeepstateSaver, clock: StoreClock | None = None) -> Any:
    """Return the compiled graph: understand → search → choose → approve → book."""
    from langgraph.graph import END, START, StateGraph
    from langgraph.types import interrupt

    def passing() -> None:
        if clock is not None:
            clock.advance(3)

    async def understand(stay: Stay) -> Stay:
        passing()
        text = f"You want {stay['nights']} nights in {stay['city']}."
        return {"messages": [{"role": "assistant", "content": text}]}

    async def search(stay: Stay) -> Stay:
        passing()
        return {"offers": [{"hotel": "Harbour", "a night": 95}, {"hotel": "Station", "a night": 70}]}

    async def choose(stay: Stay) -> Stay:
        passing()
        offer = min(stay["offers"], key=lambda each: each["a night"])
        said = {"role": "assistant", "content": f"The {offer['hotel']} is the cheapest."}
        return {"price": offer["a night"] * stay["nights"], "messages": [said]}

    async def approve(stay: Stay) -> Stay:
        passing()
        is_yes = interrupt(
            {"question": f"Book {stay['nights']} nights for {stay['price']} EUR?", "city": stay["city"]}
        )
        return {"messages": [{"role": "user", "content": "Yes." if is_yes else "No."}]}

    async def book(stay: Stay) -> Stay:
        passing()
        return {"booked": f"H-{stay['price']}"}

    def approved(stay: Stay) -> str:
        return "book" if stay["messages"][-1]["content"] == "Yes." else END

    builder = StateGraph(Stay)
    for name, node in {
        "understand": understand,
        "search": search,
        "choose": choose,
        "approve": approve,
    }.items():
        builder.add_node(name, node)
    builder.add_node("book", book)
    builder.add_edge(START, "understand")
    builder.add_edge("understand", "search")
    builder.add_edge("search", "choose")
    builder.add_edge("choose", "approve")
    builder.add_conditional_edges("approve", approved, ["book", END])
    builder.add_edge("book", END)
    return builder.compile(checkpointer=saver)


async def fill(ks: Keepstate, clock: StoreClock | None = None) -> None:
    """Run the threads; the handle must have an author, who asks."""
    compiled = compile(KeepstateSaver(ks, approvals=True), clock)
    for thread, city, nights in ((WAITING, "Bergen", 3), (FORKED, "Porto", 2), (ENDED, "Lyon", 4)):
        config = {"configurable": {"thread_id": thread.removeprefix("thread/")}}
        question = {"role": "user", "content": f"A hotel in {city}, please."}
        await compiled.ainvoke({"messages": [question], "city": city, "nights": nights}, config)
    for thread in (FORKED, ENDED):
        approvals = ks.space(thread).approvals
        (asked,) = await approvals.pending()
        await approvals.answer(asked.id, True, by="bob", saw=asked.digest)
        await ks.queues(thread).run({"langgraph.resume": resume(compiled)}, idle_s=0.05)
    config = {"configurable": {"thread_id": FORKED.removeprefix("thread/")}}
    async for moment in compiled.aget_state_history(config):
        if moment.next == ("choose",):
            dearer = {"offers": [{"hotel": "Opera", "a night": 210}]}
            forked = await compiled.aupdate_state(moment.config, dearer)
            await compiled.ainvoke(None, forked)
            break
