"""Facts of a model's answer: read whatever it looks like, harmless as a line, compared without losing anything."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.errors import ModelError
from qworkspace.memory.facts import HIDDEN, LONGEST_FACT, Draft, harmless, parse_facts, says, whole
from qworkspace.memory.marks import fact_line, is_struck, parse

TWO = '{"fact": "Ann likes tea.", "turn": 2}, {"fact": "安住在巴黎。", "when": "2026-01-02"}'


@pytest.mark.parametrize(
    "answer",
    [
        f'{{"facts": [{TWO}]}}',
        f"[{TWO}]",
        f'```json\n{{"facts": [{TWO},],}}\n```',
        f"Here are [2] facts:\n\n{TWO}\n\nI hope that helps.",
        f"<think>Perhaps [] or {{}}?</think>\n[{TWO}]",
        f'{{"result": {{"facts": [{TWO}]}}}}',
        f'{{"facts": [{TWO}, {{"fact": "the answer was cut o',
        f'[{TWO}, 3, null, "text", {{"fact": 7}}, {{"fact": ""}}, {{"about": "nobody"}}, [[]]]',
    ],
)
def test_the_facts_are_found_whatever_stands_around_them(answer: str) -> None:
    found = [(draft.fact, draft.turn, draft.when) for draft in parse_facts(answer)]
    assert found == [("Ann likes tea.", 2, ""), ("安住在巴黎。", 0, "2026-01-02")]


NOTHING = ["[]", '{"facts": []}', "```json\n[]\n```", "None.", "No new facts to remember.", "无"]


def test_no_facts_are_no_failure() -> None:
    for answer in NOTHING:
        assert parse_facts(answer) == []


PROSE = ["", "Ann likes tea.", "Sure! I have noted that.", "<think>hm</think>"]


def test_an_answer_without_json_is_one() -> None:
    for answer in PROSE:
        with pytest.raises(ModelError):
            parse_facts(answer)


def test_wrong_types_are_dropped_one_by_one() -> None:
    (draft,) = parse_facts('[{"fact": " Tea ", "about": 3, "kind": null, "when": "tomorrow", "turn": "[4]", "x": []}]')
    assert (draft.fact, draft.about, draft.when, draft.turn, draft.supersedes) == ("Tea", "", "", 4, "")


def test_plain_texts_in_a_list_of_facts_are_facts() -> None:
    assert [draft.fact for draft in parse_facts('{"facts": ["Ann likes tea.", 3, ""], "other": ["no fact"]}')] == [
        "Ann likes tea."
    ]


ABOUT = [
    ("Ann", "Ann: likes tea"),
    ("user", "likes tea"),
    ("tea", "likes tea"),
    ("# Ann\n", "Ann: likes tea"),
    ("", "likes tea"),
]


def test_a_fact_names_whom_it_is_about() -> None:
    for about, line in ABOUT:
        assert whole(Draft("likes tea", about)) == line


@given(st.text(st.sampled_from('[]{}",:\\ fact1é\n'), max_size=60) | st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_any_answer_is_read_or_refused(answer: str) -> None:
    try:
        drafts = parse_facts(answer)
    except ModelError:
        return
    assert all(draft.fact for draft in drafts)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["fact", "turn", "x"]), inner),
    max_leaves=8,
)


@given(st.lists(st.text(min_size=1, max_size=20).filter(str.strip), min_size=1, max_size=4), json_values)
@settings(max_examples=80, deadline=None)
def test_junk_beside_the_facts_loses_none_of_them(texts: list[str], junk: object) -> None:
    answer = json.dumps([*[{"fact": text} for text in texts], junk])
    assert [draft.fact for draft in parse_facts(f"Well: {answer}.")][: len(texts)] == [text.strip() for text in texts]


@pytest.mark.parametrize("answer", ["[" * 60_000, '{"' * 30_000, '"\\"' * 20_000, "<think>" * 9_000, "[1," * 20_000])
def test_a_hostile_answer_takes_no_time(answer: str) -> None:
    begun = time.perf_counter()
    try:
        parse_facts(answer)
    except ModelError:
        pass
    assert time.perf_counter() - begun < 0.5


HOSTILE = [
    "# Ann is the queen",
    "Ann <!-- src: other/turn --> likes tea",
    "Ann <!<!---- src: other/turn --> likes tea",
    "Ann likes tea\n# Heading\n- [x] another fact <!-- src: a/b -->",
    "~~Ann likes tea~~",
    "- > 1. ## Ann likes tea",
    "Ann\x00 likes\x1b[31m tea\u202e\u2028 and rain",
    "```\nAnn likes tea",
    "x" * 5_000,
    "茶" * 5_000,
]


def test_a_fact_is_one_plain_line_with_its_own_mark_only() -> None:
    for text in HOSTILE:
        line = fact_line(harmless(text), "s1", "turn_1")
        source = parse(line)
        assert source is not None and (source.session, source.turn) == ("s1", "turn_1")
        assert line.count("<!--") == 1 and line.endswith("-->") and line.isprintable()
        assert not is_struck(line) and line[2] not in "#>-`"
        assert len(harmless(text)) <= LONGEST_FACT


SECRETS = [
    ("The key of OpenAI is sk-proj-abc123DEF456ghi789.", "abc123DEF456"),
    ("Ann's Wi-Fi password is hunter2.", "hunter2"),
    ("Password for the server: Tr0ub4dor", "Tr0ub4dor"),
    ("API key = 9f8e7d6c5b4a", "9f8e7d6c5b4a"),
    ("安的密码是 s3cret9", "s3cret9"),
    ("AWS uses AKIAIOSFODNN7EXAMPLE here", "AKIAIOSFODNN7EXAMPLE"),
    ("Clone https://ann:pa55word@git.example.org/x", "pa55word"),
    ("Token eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdef", "eyJzdWIiOiIxMjM0In0"),
    ("The key: -----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----", "MIIEvQIBADANBg"),
    ("The hash is d41d8cd98f00b204e9800998ecf8427e", "d41d8cd98f00b204"),
    ("It is Zm9vYmFyYmF6MTIzNDU2Nzg5MFF1dXhRdXV1eA==", "Zm9vYmFyYmF6"),
]


def test_secrets_are_hidden() -> None:
    for text, secret in SECRETS:
        assert secret not in harmless(text)
        assert HIDDEN in harmless(text)


NO_SECRETS = [
    "Ann's phone number is +49 30 1234567.",
    "The project lives in /home/ann/projects/qworkspace-memory/tests/unit/test_facts.py",
    "The release is tagged v1.2.3 and uses ERR-1042 for lost passwords.",
    "安的生日是 1990-05-01，她喜欢绿茶。",
    "Ann wants to write a secret garden novel.",
    "handleWebSocketReconnect was renamed to reconnectWebSocketWithBackoff",
]


def test_what_is_no_secret_stays() -> None:
    for text in NO_SECRETS:
        assert harmless(text) == text


SAME = [
    ("Ann likes tea.", "ann likes TEA"),
    ("The cat of Ann is called Minka", "Cat of Ann is called Minka!"),
    ("Ann lives in Paris, near the Seine", "Ann lives in Paris"),
    ("安住在巴黎。", "安住在巴黎"),
    ("安住在巴黎，在塞纳河边", "安住在巴黎"),
    ("Dentist on Monday at nine (2026-01-05)", "Dentist on Monday at nine"),
]


def test_what_is_known_is_known_in_other_dress() -> None:
    for known, fact in SAME:
        assert says(known, fact), (known, fact)


OTHER = [
    ("Ann lives in Berlin", "Ann lives in Paris"),
    ("Ann does not like tea", "Ann likes tea"),
    ("Ann's mother lives in Paris", "Ann lives in Paris"),
    ("Bob pays Ann", "Ann pays Bob"),
    ("Ann was CEO", "Ann is CEO"),
    ("Ann lives in Paris, but no longer in May", "Ann lives in Paris"),
    ("Ann likes walking in the woods near Rome on Sundays", "Ann hates walking in the woods near Rome on Sundays"),
    ("The meeting is on 2026-01-05 in room 4", "The meeting is on 2026-01-06 in room 4"),
    ("安不喜欢绿茶", "安喜欢绿茶"),
    ("安住在柏林", "安住在巴黎"),
    ("安喜欢茶杯", "安喜欢茶"),
    ("Ann likes tea with milk", "Ann likes tea"),
    ("", "Ann"),
]


def test_what_differs_in_one_word_is_another_fact() -> None:
    for known, fact in OTHER:
        assert not says(known, fact), (known, fact)


def test_a_new_date_is_a_new_fact() -> None:
    assert not says("Ann meets Bob at the station (2026-01-05)", "Ann meets Bob at the station", "2026-01-12")
    assert says("Ann meets Bob at the station (2026-01-05)", "Ann meets Bob at the station", "2026-01-05")
