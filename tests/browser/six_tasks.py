"""Six tasks of a person who is new to a store, in the page and on the command line: what each takes.

Clicks and keys are counted while the tasks are done. Seconds follow from them by the keystroke-level model of
Card, Moran and Newell: 1.1 s to point, 0.2 s to click, 0.28 s for a key, and 1.35 s to think before each
click, field, command and argument. So they are the same on each machine. The machine's own time is not in
them.
"""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from playwright.async_api import expect

from tests.browser import desk
from tests.browser.conftest import loaded

if TYPE_CHECKING:
    from playwright.async_api import Locator, Page

POINT_S, CLICK_S, KEY_S, THINK_S = 1.1, 0.2, 0.28, 1.35


class Person:
    """A person at the page, who begins at the inbox.

    Attributes:
        clicks: How often the person has clicked.
        keys: How many keys the person has pressed.
        thoughts: How often the person has decided what to do next.
    """

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = self.keys = self.thoughts = 0

    async def click(self, what: Locator) -> None:
        """Point at something and click."""
        self.clicks, self.thoughts = self.clicks + 1, self.thoughts + 1
        await what.click()
        await loaded(self.page)

    async def change(self, field: Locator, old: str, new: str) -> None:
        """Change a word of a text: double-click it, and type."""
        self.clicks, self.thoughts, self.keys = self.clicks + 2, self.thoughts + 1, self.keys + len(new)
        text = await field.input_value()
        assert text.count(old) == 1, text
        await field.fill(text.replace(old, new))

    @property
    def seconds(self) -> float:
        """What the person needs."""
        return seconds(self.clicks, self.keys, self.thoughts)


def seconds(clicks: int, keys: int, thoughts: int) -> float:
    """Return the seconds of a person, without those of the machine."""
    return clicks * (POINT_S + CLICK_S) + keys * KEY_S + thoughts * THINK_S


@dataclass(frozen=True)
class Errand:
    """One of the tasks.

    Attributes:
        name: The task.
        do: Does it in the page.
        commands: What does it in a terminal; empty if no command does.
        tells: A text that the commands print.
    """

    name: str
    do: Callable[[Person], Awaitable[None]]
    commands: tuple[str, ...]
    tells: str = ""

    @property
    def keys(self) -> int:
        """The keys of the commands, with Enter."""
        return sum(len(command) + 1 for command in self.commands)

    @property
    def seconds(self) -> float:
        """What the commands need."""
        return seconds(0, self.keys, sum(len(shlex.split(command)) for command in self.commands))


async def see_what_waits(person: Person) -> None:
    main = person.page.get_by_role("main")
    for text in ("How much may I refund?", "Book for 448 EUR?", "6 tasks", "refresh rates"):
        await expect(main.get_by_text(text).first).to_be_visible()


async def find_who_changed_the_price(person: Person) -> None:
    page = person.page
    await person.click(space(page, desk.TRIP))
    await person.click(tab(page, "Timeline"))
    await person.click(page.get_by_role("button", name="price dict of 2"))
    origin = page.get_by_role("main").get_by_text("pricer").last
    await expect(origin).to_be_visible()
    await expect(page.get_by_text("Who gave")).to_be_visible()


async def requeue_the_failed_ones(person: Person) -> None:
    await person.click(person.page.get_by_role("button", name="Requeue 6 tasks"))
    await expect(person.page.get_by_role("status").filter(has_text="6 tasks requeued.")).to_be_visible()


async def see_what_it_knew(person: Person) -> None:
    page = person.page
    await person.click(page.get_by_role("main").get_by_role("link", name="book/4"))
    await person.click(page.get_by_role("button", name="hold seats"))
    await expect(page.get_by_text("HTTP 409").first).to_be_visible()
    await expect(page.get_by_role("main").get_by_text("seats", exact=True).first).to_be_visible()


async def rerun_with_another_result(person: Person) -> None:
    page = person.page
    await see_what_it_knew(person)
    await person.click(page.get_by_role("button", name="Edit and run from here…"))
    dialog = page.get_by_role("dialog")
    await person.change(dialog.get_by_label("Result of hold seats, as JSON"), "9", "8")
    await person.click(dialog.get_by_role("button", name="Run again"))
    await expect(page.get_by_role("status").filter(has_text="is ready to run")).to_be_visible()


async def merge_the_better_branch(person: Person) -> None:
    page = person.page
    await person.click(space(page, desk.TRIP))
    await person.click(tab(page, "Branches"))
    commits = page.get_by_role("listbox", name="Commits of all branches, the newest first")
    await person.click(commits.get_by_role("option").filter(has_text="reserve a cabin"))
    await person.click(page.get_by_role("button", name="Merge", exact=True))
    await expect(page.get_by_role("status").filter(has_text="erged")).to_be_visible()


def space(page: Page, name: str) -> Locator:
    """Return a space in the list at the left."""
    return page.get_by_role("listbox", name="Spaces").get_by_role("option", name=name, exact=True)


def tab(page: Page, name: str) -> Locator:
    """Return a tab of the space."""
    return page.get_by_role("navigation", name="Views of the space").get_by_role("link", name=name)


ERRANDS = (
    Errand(
        "What waits for me?",
        see_what_waits,
        ("keepstate find --kind approval --state pending", "keepstate find --kind queue --state dead"),
        "How much may I",
    ),
    Errand(
        "Which step changed the price, and who?",
        find_who_changed_the_price,
        ("keepstate blame run/trip-7 price",),
        "pricer",
    ),
    Errand(
        "Requeue the failed ones", requeue_the_failed_ones, ("keepstate queue requeue bookings --kind mail",)
    ),
    Errand(
        "What did it know before the error?",
        see_what_it_knew,
        ("keepstate queue list bookings dead", "keepstate queue show bookings book/4"),
        "hold seats",
    ),
    Errand("Rerun from a step with its result edited", rerun_with_another_result, ()),
    Errand("Merge the better branch", merge_the_better_branch, ("keepstate merge run/trip-7 night-train",)),
)


def row(errand: Errand, person: Person) -> str:
    """Return the line of the table of the tour."""
    page = f"{person.clicks} | {person.keys} | {person.seconds:.0f} s"
    command = f"{errand.keys} | {errand.seconds:.0f} s" if errand.commands else "– | no command"
    return f"| {errand.name} | {page} | {command} |"
