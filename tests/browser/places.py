"""The places of the stores that tests look at: each view, and a text that it must show there."""

from __future__ import annotations

from urllib.parse import urlencode

from tests.browser import desk, hostile, threads


def place(**fields: str) -> str:
    """Return the hash of a place."""
    return urlencode(fields)


TRIP = {"space": desk.TRIP}
CHAT = {"space": f"session/{desk.CHAT}"}
EVIL = {"space": hostile.SPACE}
DESK = {
    place(view="inbox"): "How much may I refund?",
    place(view="find"): "How much may I refund?",
    place(view="find", kind="queue"): "mail",
    place(view="store"): "north",
    place(view="conversation", **CHAT): "It is the R 61 to Bergen, on track 4.",
    place(view="thread", space=threads.WAITING): "approve",
    place(view="timeline", **TRIP): "note the budget",
    place(view="timeline", **TRIP, at="9"): "add the bicycles",
    place(view="tasks", space=desk.BOOKINGS): "book/4",
    place(view="tasks", space=desk.BOOKINGS, id="book/4"): "hold seats",
    place(view="documents", space="desk"): "opening hours",
    place(view="documents", space="desk", id="opening hours"): "saturday",
    place(view="branches", **TRIP): "night-train",
    place(view="compare", **TRIP): "night-train",
    place(view="events", space="desk", stream="visits"): "booked",
}
"""Each view of the desk, with what it must show."""
CONVERSATIONS = {
    place(view="inbox"): "",
    place(view="conversation", space="conversations.db/0/0"): "customer number",
    place(view="conversation", space="conversations.db/1/0"): "",
    place(view="conversation", space="conversations.db/2/0"): "",
    place(view="timeline", space="conversations.db/0/0", at="3"): "customer number",
    place(view="documents", space="conversations.db/0/0"): "conversation",
}
HOSTILE = {
    place(view="inbox"): "<script>",
    place(view="find"): "<script>",
    place(view="store"): "",
    place(view="conversation", space="session/0 <script>window.pwned=1</script>"): "<script>",
    place(view="conversation", **EVIL): "<script>",
    place(view="timeline", **EVIL): "<script>",
    place(view="timeline", **EVIL, at="1"): "__proto__",
    place(view="tasks", **EVIL): "<script>",
    place(view="tasks", **EVIL, id=hostile.EVIL[:300]): "<script>",
    place(view="documents", **EVIL): "everything",
    place(view="documents", **EVIL, id="everything"): "__proto__",
    place(view="documents", **EVIL, id="huge"): "<script>",
    place(view="branches", **EVIL): "<script>",
    place(view="compare", **EVIL): "<script>",
    place(view="events", **EVIL): "",
    place(view="thread", **EVIL): "",
}


def demo(space: str) -> dict[str, str]:
    """Return each view of a run of the demo, with what it must show."""
    task, document = "team/indexers/__future__.py", "kb/library/indexed/__future__.py"
    return {
        place(view="inbox"): "Nothing waits for you.",
        place(view="find"): "completed",
        place(view="find", kind="team"): "indexers",
        place(view="store"): "Tenants",
        place(view="timeline", space=space): "step 4, report",
        place(view="timeline", space=space, at="40"): "40, ",
        place(view="tasks", space=space): task,
        place(view="tasks", space=space, id=task): "Result",
        place(view="documents", space=space): "kb/library/indexed/",
        place(view="documents", space=space, id=document): "Latest changes",
        place(view="branches", space=space): "workflow/index/checkpoint",
        place(view="compare", space=space): "Pick what should have been different",
        place(view="events", space=space): '"name":"report"',
        place(view="about", space=space): "Entries",
        place(view="documents", space=f"{space}/tools"): "locate",
    }


PLACES = {"desk": DESK, "conversations": CONVERSATIONS, "hostile": HOSTILE}
