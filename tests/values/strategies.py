"""Values as Hypothesis makes them: every type that comes back, in one another."""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from hypothesis import strategies as st


def _filled(kind: Any, group: dict[Any, Any]) -> Any:
    made = kind(()) if kind is not defaultdict else defaultdict(None)
    made.update(group) if not isinstance(made, Counter) else dict.update(made, group)
    return made


texts = st.text(st.characters(codec=None, exclude_categories=()), max_size=12)
"""Lone surrogates too."""

zones = st.one_of(
    st.builds(
        timezone,
        st.timedeltas(timedelta(hours=-23), timedelta(hours=23)),
    ),
    st.builds(timezone, st.timedeltas(timedelta(hours=-23), timedelta(hours=23)), texts),
    st.timezones(no_cache=False),
)
moments = st.one_of(
    st.datetimes(timezones=st.none() | zones).flatmap(lambda at: st.sampled_from([at, at.replace(fold=1)])),
    st.dates(),
    st.times(timezones=st.none() | zones),
    st.timedeltas(),
    zones,
)
paths = st.one_of(
    st.builds(PurePosixPath, texts.map(lambda text: text.replace("\0", ""))),
    st.builds(PureWindowsPath, texts.map(lambda text: text.replace("\0", ""))),
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**200), 2**200),
    st.floats(),
    texts,
    st.binary(max_size=40),
    st.just(...),
    st.complex_numbers(),
    st.decimals(),
    st.uuids(),
    moments,
    paths,
)
keys = st.recursive(
    scalars.filter(lambda value: not (isinstance(value, Decimal) and value.is_snan())),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)
mappings = st.sampled_from([OrderedDict, Counter, lambda pairs: defaultdict(list, pairs), defaultdict])
exceptions = st.sampled_from([ValueError, KeyError, OSError, StopIteration, NameError])
plain_patterns = st.builds(
    lambda text, flags: re.compile(re.escape(text), flags),
    st.text(max_size=12),
    st.sampled_from([re.NOFLAG, re.IGNORECASE, re.MULTILINE | re.DOTALL, re.VERBOSE]),
)
numbers = st.one_of(
    st.builds(range, st.integers(), st.integers(), st.integers().filter(bool)),
    st.fractions(),
    plain_patterns,
)
values: st.SearchStrategy[Any] = st.recursive(
    scalars | numbers,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.builds(deque, st.lists(inner, max_size=4), st.sampled_from([None, 4, 9])),
        st.builds(_filled, mappings, st.dictionaries(keys, inner, max_size=4)),
        st.builds(lambda kind, args: kind(*args), exceptions, st.lists(inner, max_size=1)),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=8), inner, max_size=5),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    ),
    max_leaves=20,
)
