"""`${NAME}`: replaced on reading, kept on writing, and nowhere to be seen."""

from __future__ import annotations

import string

from hypothesis import given
from hypothesis import strategies as st

from qworkspace.config.hiding import MASK, fingerprint_secrets, is_secret_key, mask
from qworkspace.config.references import keep_hidden, masked_path, substitute

KNOWN = {"KEY": "sk-1", "HOST": "example.org", "EMPTY_VALUE": "x"}
NAMES = st.sampled_from([*KNOWN, "NOPE"])
TEXTS = st.lists(
    st.text(string.printable, max_size=5) | NAMES.map(lambda name: f"${{{name}}}") | st.just("$${KEY}"), max_size=4
).map("".join)
VALUES = st.recursive(
    st.none() | st.integers(-2, 2) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=10,
)


def test_names_are_replaced_wherever_they_stand():
    value = {"url": "https://${HOST}/v1?k=${KEY}", "list": ["${KEY}", 1], "plain": "no"}
    found = substitute(value, KNOWN.get)
    assert found.value == {"url": "https://example.org/v1?k=sk-1", "list": ["sk-1", 1], "plain": "no"}
    assert found.missing == []


def test_what_nothing_resolves_stays_and_is_told():
    found = substitute({"a": [{"b": "x ${NOPE} ${KEY}"}]}, KNOWN.get)
    assert found.value == {"a": [{"b": "x ${NOPE} sk-1"}]}
    assert [(item.path, item.name) for item in found.missing] == [(("a", 0, "b"), "NOPE")]


def test_what_is_switched_off_needs_no_keys():
    off = {"channels": {"telegram": {"enabled": False, "token": "${NOPE}"}, "mail": {"enabled": True, "t": "${NOPE}"}}}
    assert [item.path for item in substitute(off, KNOWN.get).missing] == [("channels", "mail", "t")]


def test_two_dollars_are_a_literal_one():
    assert substitute({"pattern": "rm $${HOME}/*"}, KNOWN.get).value == {"pattern": "rm ${HOME}/*"}


def test_a_value_is_not_looked_into_again():
    assert substitute("${A}", {"A": "${KEY}", "KEY": "x"}.get).value == "${KEY}"


@given(VALUES)
def test_a_value_without_references_is_the_same(value):
    if "${" not in repr(value):
        assert substitute(value, KNOWN.get).value == value


@given(VALUES)
def test_reading_and_writing_back_never_stores_a_resolved_value(value):
    resolved = substitute({"root": value}, KNOWN.get).value
    assert keep_hidden(resolved, {"root": value}, KNOWN.get) == {"root": value}


@given(VALUES)
def test_showing_and_writing_back_restores_what_was_masked(value):
    stored = {"api_key": "sk-literal", "inner": {"token": "t", "list": [value]}}
    assert keep_hidden(mask(stored), stored, KNOWN.get) == stored


def test_a_new_value_is_stored_as_it_is():
    assert keep_hidden({"k": "sk-2", "n": "x"}, {"k": "${KEY}"}, KNOWN.get) == {"k": "sk-2", "n": "x"}


def test_a_mask_that_stands_for_nothing_is_found():
    assert masked_path({"a": [{"b": MASK}]}) == ("a", 0, "b")
    assert masked_path({"a": "x"}) is None


def test_masks_hide_literal_secrets_and_keep_references():
    shown = mask(
        {
            "api_key": "sk-1",
            "botToken": "t",
            "password": "${DB}",
            "headers": {"X-Team": "red", "Authorization": "Bearer ${KEY}"},
            "env": {"A": "b"},
            "tokens_per_day": 5,
            "max_tokens": 3,
            "name": "key",
        }
    )
    assert shown == {
        "api_key": MASK,
        "botToken": MASK,
        "password": "${DB}",
        "headers": {"X-Team": MASK, "Authorization": "Bearer ${KEY}"},
        "env": {"A": MASK},
        "tokens_per_day": 5,
        "max_tokens": 3,
        "name": "key",
    }


def test_what_is_taken_for_a_secret():
    assert all(map(is_secret_key, ["api_key", "apiKey", "token", "bot_token", "client_secret", "PASSWORD", "dsn"]))
    assert not any(map(is_secret_key, ["tokens", "max_tokens", "monkey", "keyboard", "keys_dir", "author", "passage"]))


def test_fingerprints_compare_without_showing():
    one, two = fingerprint_secrets({"token": "one"}), fingerprint_secrets({"token": "two"})
    assert one != two
    assert one == fingerprint_secrets({"token": "one"})
    assert "one" not in repr(one)


def test_a_resolved_value_is_not_in_a_repr():
    found = substitute({"token": "${KEY}"}, KNOWN.get).value
    assert "sk-1" not in repr(found)
    assert found["token"] == "sk-1"
