"""What is refused is told in a sentence."""

from __future__ import annotations

import pytest

from keepstate.engine.kernel.arguments import require_instance
from keepstate.errors import InvalidError


@pytest.mark.parametrize(
    ("kinds", "told"), [((int,), "an int"), ((str,), "a str"), ((bool, int), "a bool or int")]
)
def test_what_to_give_is_named_with_its_article(kinds: tuple[type, ...], told: str) -> None:
    with pytest.raises(InvalidError, match=f"; give {told}$"):
        require_instance("n", None, *kinds)
