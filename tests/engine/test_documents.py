"""Documents: named values that are updated and never lose an update."""

from __future__ import annotations

import asyncio
import random
import sys
from fnmatch import fnmatchcase
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepstate.engine.kernel.glob import compile_pattern, escape_pattern
from keepstate.engine.kernel.large_values import collect_parts
from keepstate.engine.space.space import Space
from keepstate.errors import ConflictError, InvalidError, NotFoundError
from keepstate.values import limits
from tests.engine.conftest import Turned

NAMES = ["🙂", "a\0b", "a/b:c", "x" * 300, "y" * 512, "z" * 440 + "1" * 72, "z" * 440 + "2", "é" * 256]


async def test_names_of_any_text_are_kept_apart(space: Space) -> None:
    for name in NAMES:
        await space.documents.put(name, name)

    assert {key: value async for key, value in space.documents.items()} == {name: name for name in NAMES}
    for name in NAMES:
        assert [key async for key in space.documents.keys(escape_pattern(name))] == [name]


async def test_a_document_that_is_none_is_there(space: Space) -> None:
    await space.documents.put("a", None)

    assert await space.documents.get("a", 7) is None
    assert await space.documents.entry("a") is not None
    assert await space.documents.delete("a") is True
    assert await space.documents.delete("a") is False


async def test_an_expected_version_guards_a_document(space: Space) -> None:
    first = await space.documents.put("a", 1, expected_version=0)
    with pytest.raises(ConflictError) as caught:
        await space.documents.put("a", 2, expected_version=0)
    second = await space.documents.put("a", 2, expected_version=first)

    assert (caught.value.actual, second > first) == (first, True)


async def test_an_update_changes_neither_default_nor_copy(space: Space) -> None:
    default: dict[str, list[int]] = {"n": []}

    def grow(value: dict[str, list[int]]) -> dict[str, list[int]]:
        value["n"].append(1)
        return value

    await space.documents.update("a", grow, default=default)
    read = await space.documents.get("a")
    read["n"].append(2)

    assert default == {"n": []}
    assert await space.documents.get("a") == {"n": [1]}


async def test_a_patch_merges_top_level_keys(space: Space) -> None:
    with pytest.raises(NotFoundError):
        await space.documents.update("a", {"x": 1})
    await space.documents.update("a", {"x": {"y": 1}}, default={"k": 1})

    assert await space.documents.update("a", {"x": 2}) == {"k": 1, "x": 2}


async def test_an_update_keeps_the_time_to_live(turned: Turned) -> None:
    await turned.space.documents.put("a", 1, ttl_s=10)
    turned.clock.advance(6_000)
    await turned.space.documents.update("a", lambda value: value + 1)
    turned.clock.advance(3_999)
    assert await turned.space.documents.get("a") == 2
    turned.clock.advance(1)

    assert await turned.space.documents.get("a") is None


async def test_an_update_keeps_the_time_to_live_that_its_own_transaction_gave(turned: Turned) -> None:
    async with turned.space.transaction() as tx:
        await tx.documents.put("a", 1, ttl_s=10)
        await tx.documents.update("a", lambda value: value + 1)
    turned.clock.advance(10_000)

    assert await turned.space.documents.get("a") is None


async def test_what_cannot_come_back_equal_is_refused_by_its_path(space: Space) -> None:
    with pytest.raises(InvalidError) as caught:
        await space.documents.put("a", {"plan": [1, object()]})

    assert "plan" in f"{caught.value.path} {caught.value}"
    assert await space.revision() == 0


async def test_four_tasks_lose_none_of_800_increments(space: Space) -> None:
    async def count() -> None:
        for _ in range(200):
            await space.documents.update("n", lambda n: n + 1, default=0)

    await asyncio.gather(*(count() for _ in range(4)))

    assert await space.documents.get("n") == 800


@given(name=st.text("ab/[]*?\\", max_size=8))
def test_an_escaped_name_fits_only_itself(name: str) -> None:
    assert compile_pattern(escape_pattern(name)).matches(name)
    assert not compile_pattern(escape_pattern(name)).matches(name + "a")


@given(
    pattern=st.text("abc/*?", max_size=8)
    | st.lists(
        st.sampled_from(["a", "/", "*", "?", "[a-c]", "[!a]", "[/b]", "[!/-c]", "[]-]", "[a-cb]"])
    ).map("".join),
    name=st.text("abc/]-\n", max_size=8),
)
@example(pattern="[a-cb]", name="c")
@example(pattern="[!a-cb]", name="c")
@example(pattern="[ba-c]", name="c")
def test_a_pattern_fits_what_a_naive_matcher_fits(pattern: str, name: str) -> None:
    glob = compile_pattern(pattern)

    assert glob.matches(name) == fnmatchcase(name, pattern)
    assert not glob.matches(name) or name.startswith(glob.prefix)


async def test_a_star_goes_past_slashes(space: Space) -> None:
    names = ["a", "a/b", "a/b/c", "b/c", "b/c/c"]

    async with space.documents.watch("b*c", timeout_s=0) as changes:
        for name in names:
            await space.documents.put(name, 1)
        watched = [change.key async for change in changes]

    assert watched == ["b/c", "b/c/c"]
    assert [name async for name in space.documents.keys("*")] == names
    assert [name async for name in space.documents.keys("a/*")] == ["a/b", "a/b/c"]
    assert [name async for name in space.documents.keys("*/c")] == ["a/b/c", "b/c", "b/c/c"]
    assert [name async for name in space.documents.keys("a?b*")] == ["a/b", "a/b/c"]
    assert [name async for name in space.documents.keys("a[!a]b")] == ["a/b"]


@pytest.mark.parametrize("pattern", ["*a" * 8 + "*b", "*" * 2_000 + "b", "*?" * 2_000, "*[!b]" * 800 + "b"])
def test_a_pattern_takes_as_many_steps_as_the_name_has_characters(pattern: str) -> None:
    glob, steps = compile_pattern(pattern), 0

    def count(frame: object, event: str, argument: object) -> Any:
        nonlocal steps
        steps += event == "line"
        return count

    sys.settrace(count)
    try:
        fits = glob.matches("a" * 500)
    finally:
        sys.settrace(None)

    assert not fits or pattern == "*?" * 2_000
    assert steps < 5_000


def test_a_pattern_has_a_longest_length() -> None:
    compile_pattern("é" * (limits.PATTERN_BYTES // 2))
    for pattern in (
        "é" * (limits.PATTERN_BYTES // 2) + "*",
        "*" * (limits.PATTERN_BYTES + 1),
        "\udcff" * 2_000,
    ):
        with pytest.raises(InvalidError, match=r"at least 4,097 bytes|6,000 bytes"):
            compile_pattern(pattern)


@pytest.mark.parametrize("pattern", ["[z-a]", "[a", "[]", "[!]", "a\\", "*\\"])
def test_a_malformed_pattern_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidError, match="pattern"):
        compile_pattern(pattern)


async def test_a_function_that_changes_its_copy_and_forgets_to_return_it_is_refused(space: Space) -> None:
    await space.documents.put("plan", {"step": 1})

    with pytest.raises(InvalidError, match=r"modified its argument and returned None"):
        await space.documents.update("plan", lambda plan: plan.update(step=2))
    assert await space.documents.get("plan") == {"step": 1}


async def test_an_update_to_none_is_an_update(space: Space) -> None:
    await space.documents.put("plan", {"step": 1})

    assert await space.documents.update("plan", lambda plan: None) is None
    entry = await space.documents.entry("plan")
    assert entry is not None and entry.value is None


@pytest.mark.parametrize("large", [False, True])
async def test_listing_goes_on_over_a_long_name_whose_large_value_is_replaced(
    space: Space, large: bool
) -> None:
    first, second = "a" * 450, "b" * 450
    for name in (first, second):
        await space.documents.put(name, random.Random(1).randbytes(2 << 20))
    keys, items = space.documents.keys(), space.documents.items()
    begun = await anext(keys), (await anext(items))[0]

    new = random.Random(2).randbytes(2 << 20) if large else "small"
    await space.documents.put(second, new)
    await collect_parts(await space.executor.home.opened(), space.name)

    assert begun == (first, first)
    assert [key async for key in keys] == [second]
    assert [item async for item in items] == [(second, new)]


async def test_a_listing_from_behind_all_that_fits_tells_nothing(space: Space) -> None:
    for key in ("a/1", "a/2", "b/1"):
        await space.documents.put(key, key)

    assert [key async for key in space.documents.keys("a/*", after="b")] == []
    assert [key async for key in space.documents.keys("b/*", after="a/1")] == ["b/1"]
    assert [key async for key in space.documents.keys("a/*", after="a/1")] == ["a/2"]
