"""Terms: what a person types finds what was written, in any script and notation."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qworkspace.memory.tokens import has_cjk, is_identifier_query, terms


@pytest.mark.parametrize(
    ("asked", "written"),
    [
        ("RUNNING", "She runs every day"),
        ("cafe", "Das Café am Markt"),
        ("Straße", "STRASSE 12"),
        ("socket", "see handleWebSocketReconnect()"),
        ("handleWebSocketReconnect", "`handleWebSocketReconnect` failed"),
        ("ERR-1042", "it ended with err-1042."),
        ("1042", "it ended with ERR-1042."),
        ("foo.bar/baz", "import foo.bar/baz"),
        ("baz", "import foo.bar/baz"),
        ("snake_case_name", "the snake_case_name"),
        ("8 May", "on 8 May 2023"),
        ("2023-05-08", "see 2023-05-08"),
        ("喜欢", "我喜欢编程"),
        ("编", "我喜欢编程"),
        ("東京タワー", "昨日東京タワーに行った"),
        ("서울", "나는 서울에 산다"),
        ("ハロー", "ﾊﾛｰ ワールド"),
        ("full", "ｆｕｌｌ width"),
        ("Привет", "привет, мир"),
        ("สวัสดี", "เธอพูดว่าสวัสดีครับ"),
    ],
)
def test_what_is_asked_for_is_among_what_was_written(asked: str, written: str) -> None:
    assert set(terms(asked)) & set(terms(written))


def test_an_exact_identifier_is_one_of_its_terms_as_a_whole() -> None:
    found = terms("ERR-1042 handleWebSocketReconnect foo.bar/baz")

    assert {"err-1042", "handlewebsocketreconnect", "foo.bar/baz"} <= set(found)
    assert {"err", "1042", "socket", "bar"} <= set(found)


def test_a_word_that_is_said_twice_counts_twice() -> None:
    assert terms("tea-tea tea") == ["tea", "tea", "tea"]
    assert terms("tea-tea é") == ["tea", "tea", "e"]


def test_words_without_a_topic_are_no_terms_but_the_month_of_may_is() -> None:
    assert terms("What is the name of it, and when was it? In May!") == ["name", "may"]


def test_an_apostrophe_does_not_hide_the_name() -> None:
    assert "carolin" in terms("Caroline's") and terms("Caroline's") == terms("Caroline")


def test_dates_of_a_day_are_the_same_with_and_without_a_leading_zero() -> None:
    assert set(terms("5 8")) <= set(terms("2023-05-08"))


def test_signs_of_a_script_that_change_meaning_are_kept() -> None:
    assert terms("が") != terms("か")
    assert terms("हिन्दी") == ["हिन्दी"]


def test_a_run_of_characters_is_singles_and_pairs() -> None:
    assert terms("我喜欢") == ["我", "喜", "欢", "我喜", "喜欢"]


@pytest.mark.parametrize("text", ["ERR-1042", " `foo.bar/baz` ", "handleWebSocketReconnect", "v1.2.3", "a_b"])
def test_one_identifier_is_an_identifier_query(text: str) -> None:
    assert is_identifier_query(text)


@pytest.mark.parametrize("text", ["", "hello", "well-known", "two words", "ERR-1042 again", "张三", "2023"])
def test_anything_else_is_not(text: str) -> None:
    assert not is_identifier_query(text)


def test_cjk_is_noticed_in_all_three_languages_only() -> None:
    assert all(map(has_cjk, ("a 中", "かな", "한글", "ﾊﾛｰ")))
    assert not any(map(has_cjk, ("", "plain", "Ünï", "мир", "สวัสดี")))


@given(st.text(max_size=200))
@settings(max_examples=60, deadline=None)
def test_any_text_has_terms_that_are_found_again(text: str) -> None:
    found = terms(text)

    assert all(found) and terms(text) == found
    assert all("\n" not in term for term in found)
