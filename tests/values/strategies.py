"""Values as Hypothesis makes them: every type that comes back, in one another."""

from __future__ import annotations

from datetime import timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from hypothesis import strategies as st

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
values: st.SearchStrategy[Any] = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=5).map(tuple),
        st.dictionaries(st.text(max_size=8), inner, max_size=5),
        st.dictionaries(keys, inner, max_size=4),
        st.sets(keys, max_size=4),
        st.frozensets(keys, max_size=4),
    ),
    max_leaves=20,
)
