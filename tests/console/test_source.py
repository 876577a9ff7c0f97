"""What holds for the console's source itself: colours, texts, and what its pages may never do."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

CONSOLE = Path(__file__).resolve().parents[2] / "qworkspace" / "console"
SCRIPTS = sorted(CONSOLE.glob("*.js"))
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in SCRIPTS)
STYLE = (CONSOLE / "style.css").read_text(encoding="utf-8")
INDEX = (CONSOLE / "index.html").read_text(encoding="utf-8")

GROUNDS = ("ground", "side", "surface", "raised", "sunken", "hover", "chosen", "code", "bubble", "accent-soft")
PAIRS = [
    *product(("text", "muted"), GROUNDS),
    *product(("accent",), ("ground", "side", "surface", "sunken", "hover", "code", "accent-soft")),
    *product(("bad",), ("ground", "side", "surface", "raised", "hover", "bad-soft")),
    ("text", "bad-soft"),
    ("warn", "ground"),
    ("warn", "surface"),
    ("warn", "warn-soft"),
    ("on-accent", "accent"),
    ("on-accent", "accent-hover"),
    ("surface", "bad"),
    ("surface", "bad-hover"),
]


def colours(theme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
    found: dict[str, str] = {}
    for block in blocks[: 1 if theme == "light" else 2]:
        found |= dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", block))
    return found


def luminance(colour: str) -> float:
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_its_ground(theme: str) -> None:
    known = colours(theme)
    weak = {(front, back): contrast(known[front], known[back]) for front, back in PAIRS}
    assert {pair: round(value, 2) for pair, value in weak.items() if value < 4.5} == {}


def test_letters_on_the_agents_signs_stand_out() -> None:
    grounds = re.findall(r"\.avatar[^{]*\{[^}]*background: (#[0-9a-f]{6})", STYLE)
    assert len(grounds) == 6
    assert all(contrast("#ffffff", ground) >= 4.5 for ground in grounds)


def test_every_text_is_there_in_both_languages() -> None:
    catalogue = (CONSOLE / "texts.js").read_text(encoding="utf-8")
    texts = {key: (en, zh) for key, en, zh in re.findall(r'^  "([\w.]+)": \["(.+)", "(.+)"\],$', catalogue, re.M)}
    used = set(re.findall(r'\bt\("([\w.]+)"', SOURCE)) | set(re.findall(r'"((?:time|sessions|empty)\.\w+)"', SOURCE))
    assert used - texts.keys() == set()
    assert all(set(re.findall(r"\{\w+\}", en)) == set(re.findall(r"\{\w+\}", zh)) for en, zh in texts.values())


def test_nothing_is_drawn_from_markup_or_run_from_text() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|\.cssText"
    assert re.findall(forbidden, SOURCE) == []
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\sstyle=|\son\w+=", INDEX) == []


def test_no_address_of_another_host_is_loaded() -> None:
    loaded = re.findall(r'(?:src|href)="([^"]+)"|url\(([^)]+)\)', INDEX + STYLE)
    assert [one or other for one, other in loaded if "//" in one or "//" in other] == []
    named = set(re.findall(r"https?://[\w.-]+[^\s\"]*", SOURCE))
    assert named == {"http://www.w3.org/2000/svg"}


def test_the_page_asks_for_all_its_parts_at_once() -> None:
    named = set(re.findall(r'(?:modulepreload" href|src)="([\w-]+\.js)"', INDEX))
    assert named == {path.name for path in SCRIPTS}
    imported = set(re.findall(r'from "\./([\w-]+\.js)"', SOURCE))
    assert imported <= named


def test_files_stay_readable() -> None:
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in SCRIPTS}
    assert {name: length for name, length in lengths.items() if length > 400} == {}
