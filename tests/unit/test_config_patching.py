"""Merge patches (RFC 7396)."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.config.patching import merge_patch

KEYS = st.sampled_from("abcd")
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=4)


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [  # the examples of RFC 7396, appendix A
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_the_examples_of_the_standard(target, patch, result):
    assert merge_patch(target, patch) == result


@given(VALUES, VALUES)
def test_a_patch_holds_once_and_changes_nothing_it_was_given(target, patch):
    before = copy.deepcopy((target, patch))
    once = merge_patch(target, patch)
    assert merge_patch(once, patch) == once
    assert (target, patch) == before


@given(OBJECTS, OBJECTS)
def test_what_the_patch_does_not_name_stays_in_its_place(target, patch):
    result = merge_patch(target, patch)
    assert [key for key in result if key in target] == [key for key in target if key in result]
    for key, value in target.items():
        if key not in patch:
            assert result[key] == value
    assert all(key not in result for key, value in patch.items() if value is None)
