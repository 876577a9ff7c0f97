"""Ranking: the passage that answers comes first, and each result says why."""

from collections.abc import Mapping, Sequence
from datetime import date

import numpy as np
import pytest

from qworkspace.memory.chunks import chunks_of, indexed_text
from qworkspace.memory.keyword import KeywordIndex
from qworkspace.memory.search import FIRST, Ranked, Vectors, Weights, rank
from qworkspace.memory.tokens import terms

TODAY = date(2026, 5, 1)


class Vault:
    """Notes, each text a file of its own lines; chunk numbers count from 0 over all of them."""

    def __init__(self, notes: Mapping[str, str]) -> None:
        self.index = KeywordIndex()
        self.texts: list[str] = []
        self.days: list[date | None] = []
        for file_no, (path, text) in enumerate(notes.items()):
            chunks = []
            for chunk in chunks_of(path, text):
                chunks.append((len(self.texts), terms(indexed_text(path, chunk))))
                self.texts.append(chunk.text)
                self.days.append(chunk.date)
            self.index.replace_file(file_no, chunks)

    def dates(self, nos: Sequence[int]) -> list[date | None]:
        return [self.days[no] for no in nos]

    def find(self, text: str, similar: Mapping[int, float] | None = None, **options: object) -> list[Ranked]:
        vectors = None
        if similar is not None:
            values = [similar.get(no, 0.1) for no in range(len(self.texts))]
            vectors = Vectors(np.arange(len(values)), np.array(values, np.float32))
        options = {"weights": Weights(), **options}
        return rank(self.index, text, dates=self.dates, vectors=vectors, **options)  # type: ignore[arg-type]

    def first(self, text: str, similar: Mapping[int, float] | None = None, **options: object) -> str:
        return self.texts[self.find(text, similar, **options)[0].chunk_no]


DAYS = Vault(
    {
        "memory/2026-01-03.md": "- Ann adopted a grey cat from the shelter",
        "memory/2026-02-11.md": "- the deploy failed with ERR-1042",
        "memory/2026-03-20.md": "- Bob plays the violin in an orchestra",
        "memory/2026-04-02.md": "- 小王喜欢打篮球，每周去两次健身房",
        "memory/2026-04-09.md": "- 昨日は東京タワーに行った",
        "memory/2026-04-12.md": "- 민수는 서울에서 커피를 마셨다",
        "MEMORY.md": "- the wifi password hangs in the kitchen",
    }
)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        ("Who adopted a cat?", "grey cat"),
        ("err-1042", "ERR-1042"),
        ("What happened on 20 March 2026?", "violin"),
        ("谁喜欢篮球？", "篮球"),
        ("東京タワー", "東京"),
        ("서울 커피", "서울"),
    ],
)
def test_words_alone_find_the_answer_in_any_language(asked: str, answer: str) -> None:
    assert answer in DAYS.first(asked)


def test_a_question_in_another_language_is_not_led_astray_by_a_word_that_happens_to_be_there() -> None:
    similar = {3: 0.5, 6: 0.4}
    assert "篮球" in DAYS.first("Which ball game keeps Xiao busy beside the kitchen of his gym?", similar)
    assert "wifi" in DAYS.first("the wifi password of the kitchen", similar)


def test_words_that_merely_ask_do_not_find_notes_with_questions_in_them() -> None:
    vault = Vault(
        {
            "memory/notes/面试题.md": "- 讲一次失败的经历，为什么失败？\n- 怎么看产品，什么是好产品？",
            "memory/2026-03-02.md": "- 阳台的番茄叶子发霉，喷小苏打水",
            "memory/2026-03-03.md": "- パン種は金曜日に足す",
        }
    )
    assert "番茄" in vault.first("番茄为什么会发霉，怎么处理？")
    assert "パン種" in vault.first("パン種はいつ足しますか？")
    assert "产品" in vault.first("什么")  # there is nothing else to go by


def test_parts_add_up_to_the_score_and_ranks_tell_who_found_it() -> None:
    found = DAYS.find("Who adopted a cat?", {0: 0.2, 2: 0.9}, today=TODAY)

    for one in found:
        assert sum(one.parts.values()) == pytest.approx(one.score) and 0 < one.score <= 1
    cat = next(one for one in found if one.chunk_no == 0)
    assert (cat.bm25_rank, cat.vector_rank) == (1, 2)
    assert {"bm25", "vector", "recency"} <= set(cat.parts)
    assert next(one for one in found if one.chunk_no == 2).bm25_rank is None
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_without_vectors_the_words_have_the_whole_score() -> None:
    (first, *_) = DAYS.find("grey cat shelter")

    assert first.score == pytest.approx(1.0) and first.vector_rank is None


def test_a_weak_embedder_helps_and_a_strong_one_decides() -> None:
    similar = {2: 0.9}

    assert "cat" in DAYS.first("adopted cat", similar, weights=Weights.of())
    assert "violin" in DAYS.first("adopted cat", similar, weights=Weights.of(strong=True))
    assert "violin" in DAYS.first("adopted cat", similar, weights=Weights.of(1.0))
    assert "cat" in DAYS.first("adopted cat", similar, weights=Weights.of(0.0, strong=True))


def test_vectors_lead_where_the_question_is_chinese() -> None:
    assert "violin" in DAYS.first("谁会拉小提琴", {2: 0.9, 3: 0.3})


def test_filters_leave_only_what_they_allow() -> None:
    allowed = np.array([1, 2])

    found = DAYS.find("Who adopted a cat?", {0: 0.9, 2: 0.5}, allowed=allowed)

    assert {one.chunk_no for one in found} <= {1, 2}
    assert DAYS.find("cat", allowed=np.array([1])) == []


def test_limit_and_min_score_cut_the_list() -> None:
    every = DAYS.find("the cat the orchestra the kitchen", {no: 0.5 + no / 100 for no in range(7)}, limit=7)

    assert len(every) == 7
    assert len(DAYS.find("cat orchestra kitchen", dict.fromkeys(range(7), 0.5), limit=2)) == 2
    assert all(one.score >= 0.3 for one in DAYS.find("cat orchestra", {}, min_score=0.3))


def test_the_newer_of_two_equal_facts_comes_first_but_not_for_exact_identifiers() -> None:
    vault = Vault({f"{day}.md": "- the door code is KEY-77" for day in ("2024-01-01", "2026-04-30", "2025-01-01")})

    assert vault.find("what is the door code", today=TODAY)[0].chunk_no == 1
    assert all("recency" not in one.parts for one in vault.find("KEY-77", today=TODAY))
    assert vault.find("door code", today=date(1999, 1, 1))[0].score <= 1  # notes of the future are as of today


def test_a_better_match_beats_a_newer_one() -> None:
    vault = Vault({"2020-01-01.md": "- Ann adopted a grey cat", "2026-04-30.md": "- Ann went home"})

    assert "cat" in vault.first("What grey cat did Ann adopt?", today=TODAY)


def test_behind_the_first_results_other_notes_are_looked_at_too() -> None:
    story = "about a long walk by the sea " * 14
    vault = Vault({"cats.md": "\n".join(f"- cat {story}" for _ in range(12)), "other.md": f"- dog {story}\n- cat"})

    found = vault.find("cat walk sea", limit=12)

    notes = [vault.index.scores(["cat"]).layout.files[one.chunk_no] for one in found]
    assert set(notes[:FIRST]) == {0} and 1 in notes[FIRST : FIRST + 3]
    assert any(one.parts.get("repeated", 0) < 0 for one in found)


def test_neighbours_of_a_match_are_found_with_it() -> None:
    filler = "nothing of note happened here " * 16
    vault = Vault({"a.md": f"- the Lisbon trip {filler}\n- {filler}", "b.md": f"- {filler}\n- {filler}"})

    found = vault.find("Lisbon trip", limit=4)

    assert [one.chunk_no for one in found] == [0, 1]
    assert found[1].bm25_rank is None and found[1].parts["bm25_near"] > 0


def test_plain_reciprocal_rank_is_a_setting() -> None:
    found = DAYS.find("adopted cat", {0: 0.9}, weights=Weights.of(fusion="rrf"))

    assert found[0].chunk_no == 0 and found[0].score == pytest.approx(1.0)
    assert set(found[0].parts) == {"bm25", "vector"}


def test_vectors_of_some_chunks_and_of_unknown_ones_are_taken_as_they_are() -> None:
    vectors = Vectors(np.array([2, 99]), np.array([0.8, 0.9], np.float32))

    found = rank(DAYS.index, "adopted cat", dates=DAYS.dates, weights=Weights(), vectors=vectors)

    assert {one.chunk_no for one in found} <= set(range(7))


@pytest.mark.parametrize("text", ["", "   ", "the of and", "??", "zzzunknown", "😀", "\ud800", "word " * 50_000])
def test_any_question_is_answered_with_a_list(text: str) -> None:
    assert DAYS.find(text, today=TODAY) == []


def test_the_only_note_of_a_vault_is_found_by_words_and_by_vectors() -> None:
    vault = Vault({"MEMORY.md": "- the wifi password hangs in the kitchen"})

    assert vault.find("wifi password")[0].bm25_rank == 1
    assert vault.find("无线网络密码", {0: 0.4})[0].vector_rank == 1


def test_an_empty_index_finds_nothing() -> None:
    assert rank(KeywordIndex(), "cat", dates=lambda nos: [], weights=Weights(), today=TODAY) == []


def test_of_a_very_long_question_the_rare_words_count() -> None:
    noise = " ".join(f"noise{number}" for number in range(500))

    assert "violin" in DAYS.first(f"{noise} violin {noise}")
