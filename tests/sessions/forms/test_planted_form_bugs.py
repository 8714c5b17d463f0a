"""Bugs of forms, planted from outside: each of them is noticed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from keepstate.sessions import message_texts, messages
from keepstate.sessions.forms import anthropic, content, conversion, given, pydantic_ai
from keepstate.sessions.forms.turns import Text, Thinking, ToolResult
from tests.sessions.forms import test_budgets, test_forms
from tests.sessions.forms.conftest import Talks

Plant = Callable[[pytest.MonkeyPatch], None]
Test = Callable[[Talks], Awaitable[None]]


def results_where_they_were_said(planting: pytest.MonkeyPatch) -> None:
    """Join the content of neighbours in its order."""
    planting.setattr(anthropic, "sorted", lambda blocks, key: blocks, raising=False)


def system_left_among_the_messages(planting: pytest.MonkeyPatch) -> None:
    """Take no message for one of the system."""
    planting.setattr(conversion, "is_system", lambda _: False)


def reasoning_told_to_another_provider(planting: pytest.MonkeyPatch) -> None:
    """Take reasoning of OpenAI for one of Anthropic."""
    read = content._READERS["reasoning"]

    def mistaken(block: Any) -> Any:
        found: Any = read(block)
        return replace(found, provider="anthropic")

    planting.setattr(content, "_READERS", {**content._READERS, "reasoning": mistaken})


def parts_without_a_place_dropped(planting: pytest.MonkeyPatch) -> None:
    """Read a part that only one form has as nothing."""
    planting.setattr(content, "Foreign", lambda _: Text(""))


def items_and_parts_not_searched_for_calls(planting: pytest.MonkeyPatch) -> None:
    """Find calls and results in content only."""
    planting.setattr(messages, "_CONTAINERS", ("content",))


def files_in_results_counted_by_their_bytes(planting: pytest.MonkeyPatch) -> None:
    """Find files only directly in the content."""
    planting.setattr(messages, "_DEPTH", 1)


def notes_of_libraries_counted(planting: pytest.MonkeyPatch) -> None:
    """Count all that is stored of a message."""
    planting.setattr(messages, "seen", lambda message: message.items())


def ids_passed_on(planting: pytest.MonkeyPatch) -> None:
    """Give Anthropic the ids of others."""
    planting.setattr(anthropic, "_id", lambda id: id)


def failures_forgotten(planting: pytest.MonkeyPatch) -> None:
    """Read failed results as others."""

    def forgetful(id: str, name: str | None, parts: Any, is_error: bool = False) -> ToolResult:
        return ToolResult(id, name, parts)

    planting.setattr(content, "ToolResult", forgetful)


def items_stored_one_by_one(planting: pytest.MonkeyPatch) -> None:
    """Keep only the first of several items."""
    read = given._from_items
    planting.setattr(given, "_from_items", lambda items: read(items[:1]))


def redacted_reasoning_lost(planting: pytest.MonkeyPatch) -> None:
    """Read redacted reasoning of Pydantic AI as other reasoning."""
    read = pydantic_ai._answered

    def plain(part: Any) -> Any:
        found = read(part)
        return replace(found, is_redacted=False) if isinstance(found, Thinking) else found

    planting.setattr(pydantic_ai, "_answered", plain)


def parts_never_cut(planting: pytest.MonkeyPatch) -> None:
    """Find the texts of content only."""
    planting.setattr(message_texts, "_BY_CONTAINER", {"content": ("text", "content")})


def with_form(test: Callable[..., Awaitable[None]], *words: str) -> Test:
    """Return a test with parameters as one of conversations."""
    return lambda talks: test(talks, *words)


def of_counting(test: Callable[..., None], *words: str) -> Test:
    """Return a test that counts tokens as one of conversations."""

    async def whole(_: Talks) -> None:
        test(*words)

    return whole


PLANTED: list[tuple[Plant, Test]] = [
    (
        results_where_they_were_said,
        test_forms.test_anthropic_gets_sides_that_alternate_with_the_results_of_one_message_first,
    ),
    (
        system_left_among_the_messages,
        with_form(test_forms.test_messages_come_back_as_they_were_given, "anthropic"),
    ),
    (reasoning_told_to_another_provider, test_forms.test_reasoning_goes_only_where_its_provider_accepts_it),
    (
        parts_without_a_place_dropped,
        with_form(
            test_forms.test_what_a_form_has_no_place_for_is_refused_with_its_message, "a search of OpenAI"
        ),
    ),
    (
        items_and_parts_not_searched_for_calls,
        with_form(test_budgets.test_a_result_without_its_call_does_not_enter_the_context, "gemini"),
    ),
    (
        files_in_results_counted_by_their_bytes,
        of_counting(test_budgets.test_a_picture_from_a_tool_counts_as_one_and_an_argument_does_not),
    ),
    (notes_of_libraries_counted, of_counting(test_budgets.test_what_no_model_sees_costs_nothing)),
    (ids_passed_on, test_forms.test_calls_without_ids_or_with_others_are_paired_by_names),
    (
        failures_forgotten,
        test_forms.test_arguments_that_are_no_json_and_failures_are_told_where_there_is_a_place,
    ),
    (items_stored_one_by_one, with_form(test_forms.test_messages_come_back_as_they_were_given, "responses")),
    (redacted_reasoning_lost, test_forms.test_reasoning_goes_only_where_its_provider_accepts_it),
    (parts_never_cut, with_form(test_budgets.test_the_newest_message_is_cut_in_the_context_only, "gemini")),
]


@pytest.mark.parametrize(("plant", "test"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
async def test_a_planted_bug_is_noticed(
    talks: Talks, monkeypatch: pytest.MonkeyPatch, plant: Plant, test: Test
) -> None:
    plant(monkeypatch)

    with pytest.raises((Exception, pytest.fail.Exception)):  # an error, or a failed check
        await test(talks)
