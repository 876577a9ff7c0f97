"""Where a value stands in a JSON file, and what is said about a file that is not JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qworkspace.config.positions import MAX_DEPTH, BadJson, line_column, scan
from qworkspace.config.reading import parse
from qworkspace.errors import InvalidConfig

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


def _paths(value, path=()):
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from _paths(item, (*path, key))


@given(VALUES, st.sampled_from([None, 0, 3]), st.booleans())
def test_every_value_is_found_where_it_begins(value, indent, ascii_only):
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    positions = scan(text)
    paths = dict(_paths(value))
    assert positions.values.keys() == paths.keys()
    for path, offset in positions.values.items():
        found, _ = json.JSONDecoder().raw_decode(text, offset)
        assert found == paths[path]
    for path, offset in positions.keys.items():
        assert json.JSONDecoder().raw_decode(text, offset)[0] == path[-1]


@given(st.text(alphabet="{}[]\",:0123456789.eE+-truefalsn \n\t\\/u\u00e9'#", max_size=30))
def test_it_accepts_exactly_what_the_standard_reader_accepts(text):
    try:
        json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique, parse_float=_finite)
        good = True
    except ValueError:
        good = False
    try:
        scan(text)
        accepted = True
    except BadJson as error:
        accepted = False
        assert 1 <= error.line <= text.count("\n") + 1
        assert error.column >= 1
    assert accepted == good


def _refuse(name):
    raise ValueError(name)


def _finite(text):
    if float(text) in (float("inf"), float("-inf")):
        raise ValueError(text)
    return float(text)


def _unique(pairs):
    if len(dict(pairs)) != len(pairs):
        raise ValueError("twice")
    return dict(pairs)


@given(st.text(alphabet="ab\n\u4e2d", max_size=20), st.integers(0, 20))
def test_lines_and_columns_count_from_one(text, offset):
    offset = min(offset, len(text))
    line, column = line_column(text, offset)
    assert line == len(text[:offset].split("\n"))
    assert column == len(text[:offset].split("\n")[-1]) + 1


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("", 1, 1, "the file is empty"),
        ("  \n ", 2, 2, "the file is empty"),
        ('{\n  "a": 1,\n}', 2, 9, 'a comma before the "}"'),
        ('{\n  "a": [1, 2,],\n}', 2, 13, 'a comma before the "]"'),
        ('{\n  "a": 1\n  "b": 2\n}', 3, 3, 'a "," or "}" is missing'),
        ('{\n  // why\n  "a": 1\n}', 2, 3, "no comments"),
        ("{'a': 1}", 1, 2, "double quotes"),
        ("{\"a\": 'x'}", 1, 7, "double quotes"),
        ('{"a" 1}', 1, 6, 'a ":" is missing'),
        ('{"a": True}', 1, 7, "written true"),
        ('{"a": None}', 1, 7, "written null"),
        ('{"a": yes}', 1, 7, "'yes'"),
        ('{"a": "x\n"}', 1, 7, "not closed"),
        (r'{"a": "C:\temp\x"}', 1, 15, "written"),
        ('{"a": 1', 1, 8, "ends before the closing"),
        ('{"a":', 1, 6, "ends where a value"),
        ('{"a": 1} x', 1, 10, "something follows"),
        ('{"a": 1e999}', 1, 7, "too large"),
        ('{"a": NaN}', 1, 7, "'NaN'"),
    ],
)
def test_a_file_that_is_no_json_is_explained(text, line, column, words):
    with pytest.raises(InvalidConfig) as caught:
        parse(text)
    assert (caught.value.line, caught.value.column) == (line, column)
    assert words in caught.value.reason


def test_a_key_that_is_there_twice_names_both_lines():
    with pytest.raises(InvalidConfig) as caught:
        parse('{\n  "tools": {\n    "a": 1,\n    "b": 2,\n    "a": 3\n  }\n}')
    assert '"a"' in caught.value.reason
    assert "line 3" in caught.value.reason
    assert "line 5" in caught.value.reason
    assert (caught.value.line, caught.value.column) == (5, 5)


def test_the_same_key_in_two_objects_is_no_duplicate():
    assert parse('{"a": {"x": 1}, "b": {"x": 1}}') == {"a": {"x": 1}, "b": {"x": 1}}


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * (MAX_DEPTH + 2) + "]" * (MAX_DEPTH + 2)])
def test_bottomless_nesting_is_an_error_and_no_crash(text):
    with pytest.raises(InvalidConfig):
        parse('{"a": ' + text + "}")


def test_only_an_object_is_a_configuration():
    with pytest.raises(InvalidConfig, match="must be a JSON object"):
        parse("[]")
