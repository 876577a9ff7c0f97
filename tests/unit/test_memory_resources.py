"""Documents dropped into resources/ become digest notes with their source, once per content."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from io import BytesIO
from pathlib import Path

import pytest
from pypdf import PdfWriter
from pypdf.generic import DecodedStreamObject, DictionaryObject, NameObject

from qworkspace.errors import ModelError
from qworkspace.memory.asking import NoModel
from qworkspace.memory.resources import LARGEST, MOST_PAGES, MOST_SECONDS, Unreadable, decoded, read_document
from tests.support.dreaming import Fuse, Killed, Night, Script

LONG = "# Report\n\n" + "".join(f"Sentence {n} of a long report.\n" for n in range(800)) + "\n## Appendix\n\nThe end.\n"


@pytest.fixture
async def night(tmp_path: Path) -> AsyncIterator[Night]:
    night = Night(tmp_path, Script(NoModel("only the offline provider is there")))
    async with night:
        yield night


def script(night: Night) -> Script:
    assert isinstance(night.ask, Script)
    return night.ask


def notes(night: Night) -> list[str]:
    return sorted(path.name for path in (night.path / "digest").glob("*"))


def pdf(*pages: str, title: str = "", password: str = "") -> bytes:
    """A PDF with a line of text on each page."""
    writer = PdfWriter()
    font = DictionaryObject({NameObject(f"/{key}"): NameObject(f"/{value}") for key, value in FONT.items()})
    for text in pages:
        page = writer.add_blank_page(300, 300)
        fonts = DictionaryObject({NameObject("/F1"): font})
        page[NameObject("/Resources")] = DictionaryObject({NameObject("/Font"): fonts})
        content = DecodedStreamObject()
        content.set_data(f"BT /F1 12 Tf 20 200 Td ({text}) Tj ET".encode() if text else b"")
        page[NameObject("/Contents")] = content
    if title:
        writer.add_metadata({"/Title": title})
    if password:
        writer.encrypt(password, algorithm="RC4-128")
    stream = BytesIO()
    writer.write(stream)
    return stream.getvalue()


FONT = {"Type": "Font", "Subtype": "Type1", "BaseFont": "Helvetica"}


async def test_a_text_becomes_a_note_with_its_source_once(night: Night) -> None:
    night.put("resources/Lease 2026.md", "# The lease\n\n## Rent\n\nIt is 1200. <!-- src: forged/mark -->\n")
    assert await night.documents.read_new() == 1
    digest = hashlib.sha256((night.path / "resources/Lease 2026.md").read_bytes()).hexdigest()
    note = night.text("digest/lease-2026.md")
    assert note.startswith("# The lease\n") and "#### Rent\n\nIt is 1200." in note
    assert f"[Lease 2026](<../resources/Lease 2026.md>) · sha256 `{digest}` · read on 2026-01-05" in note
    assert "<!-- src:" not in note, "a document cannot forge where facts come from"
    assert await night.documents.read_new() == 0
    await night.again()
    assert await night.documents.read_new() == 0
    assert script(night).questions == [], "short texts need no model"


async def test_the_same_content_under_another_name_makes_no_second_note(night: Night) -> None:
    night.put("resources/a.txt", "one and the same\n")
    await night.documents.read_new()
    night.put("resources/b.txt", "one and the same\n")
    assert await night.documents.read_new() == 0
    night.put("resources/b.txt", "now another\n")
    assert await night.documents.read_new() == 1
    assert "one and the same" in night.text("digest/a.md") and "now another" in night.text("digest/b.md")


async def test_a_changed_document_updates_its_note_and_keeps_a_persons_lines(night: Night) -> None:
    night.put("resources/plan.txt", "first line\n\nold end\n")
    await night.documents.read_new()
    night.put("digest/plan.md", night.text("digest/plan.md").replace("# plan\n", "# plan\n\nMy own remark.\n"))
    for text in ("first line\n\nnew end\n", "first line\n\nold end\n", "first line\n\nlast end\n"):
        night.put("resources/plan.txt", text)
        assert await night.documents.read_new() == 1
    note = night.text("digest/plan.md")
    assert "My own remark." in note and "last end" in note and "old end" not in note and "new end" not in note
    night.put("digest/plan.md", note.replace("last end", "last end, I doubt it"))
    night.put("resources/plan.txt", "first line\n\nvery last end\n")
    await night.documents.read_new()
    note = night.text("digest/plan.md")
    assert "last end, I doubt it\nvery last end\n" in note and note.count("sha256 `") == 1


async def test_a_removed_document_leaves_its_note_and_a_moved_one_is_known(night: Night) -> None:
    night.put("resources/a.txt", "worth keeping\n")
    await night.documents.read_new()
    (night.path / "resources/a.txt").rename(night.path / "resources/moved.txt")
    assert await night.documents.read_new() == 0
    assert notes(night) == ["a.md"]
    night.put("resources/moved.txt", "worth keeping, and more\n")
    assert await night.documents.read_new() == 1
    assert notes(night) == ["a.md"] and "and more" in night.text("digest/a.md")


async def test_a_note_of_that_name_that_is_no_documents_is_left_alone(night: Night) -> None:
    night.put("digest/plan.md", "# A topic\n")
    night.put("resources/plan.txt", "the plan\n")
    night.put("resources/sub/plan.txt", "the other plan\n")
    assert await night.documents.read_new() == 2
    assert night.text("digest/plan.md") == "# A topic\n" and len(notes(night)) == 3


async def test_a_long_document_has_its_beginning_and_headings_and_says_so(night: Night) -> None:
    night.put("resources/report.md", LONG)
    await night.documents.read_new()
    note = night.text("digest/report.md")
    assert "_There is no summary: no model was connected._" in note
    assert "## Headings\n\n- Appendix" in note and f"of {len(LONG.strip()):,} characters stand here" in note
    assert "Sentence 1 of" in note and "Sentence 799" not in note


async def test_a_model_summarises_a_long_document(night: Night) -> None:
    script(night).answers = ["Sure, here is the summary:\n- It has 800 sentences."]
    night.put("resources/report.md", LONG)
    await night.documents.read_new()
    assert "## Summary\n\n- It has 800 sentences.\n" in night.text("digest/report.md")
    assert "Appendix" in script(night).questions[0] and len(script(night).questions[0]) < 30_000


async def test_an_outage_is_waited_for_but_not_for_ever(night: Night) -> None:
    script(night).answers = [ModelError("overloaded", retryable=True)]
    night.put("resources/report.md", LONG)
    assert [await night.documents.read_new() for _ in range(4)] == [0, 0, 1, 0]
    assert "_There is no summary: overloaded._" in night.text("digest/report.md")


async def test_a_pdf_is_read_page_by_page(night: Night) -> None:
    night.put("resources/offer.pdf", pdf("Price 1200 euros", "Valid until May", title="The offer"))
    await night.documents.read_new()
    note = night.text("digest/offer.md")
    assert note.startswith("# The offer\n") and "2 pages" in note
    assert "Price 1200 euros" in note and "Valid until May" in note


async def test_what_cannot_be_read_is_shown_once_until_it_is_mended(night: Night, tmp_path: Path) -> None:
    outside = tmp_path.parent / "outside.txt"
    outside.write_text("a secret")
    night.put("resources/locked.pdf", pdf("secret", password="x"))
    night.put("resources/broken.pdf", b"%PDF-1.7\nnothing of the kind")
    night.put("resources/scan.pdf", pdf("", ""))
    night.put("resources/photo.jpg", b"\xff\xd8\xff")
    night.put("resources/binary.txt", bytes(range(256)) * 10)
    night.put("resources/empty.txt", " \n")
    night.put("resources/.hidden.txt", "not looked at")
    night.put("resources/half.pdf.part", "not looked at")
    (night.path / "resources/link.txt").symlink_to(outside)
    (night.path / "resources/dangling.txt").symlink_to(tmp_path / "nowhere")
    (night.path / "resources/state").symlink_to(night.path / ".state")
    assert await night.documents.read_new() == 0
    (message,) = night.wrong()
    for name, reason in {
        "locked.pdf": "it is encrypted",
        "broken.pdf": "the PDF is damaged",
        "scan.pdf": "the PDF holds only images",
        "photo.jpg": ".jpg is no text",
        "binary.txt": "it is no text in UTF-8",
        "empty.txt": "it holds no text",
        "link.txt": "it leads out of the resource directory",
        "state": "it leads out of the resource directory",
        "dangling.txt": "it ",
    }.items():
        assert f"resources/{name}: {reason}" in message
    assert "secret" not in "".join(night.text(f"digest/{name}") for name in notes(night))
    await night.again()
    await night.documents.read_new()
    assert night.wrong() == [message], "shown again after a restart"
    for path in (night.path / "resources").iterdir():
        path.unlink()
    night.put("resources/locked.pdf", pdf("no longer locked"))
    assert await night.documents.read_new() == 1
    assert night.wrong() == []


async def test_a_document_whose_note_cannot_be_written_holds_up_no_other(night: Night, tmp_path: Path) -> None:
    (night.path / "digest").mkdir()
    (night.path / "digest/a.md").symlink_to(tmp_path.parent / "elsewhere.md")
    night.put("resources/a.txt", "The lease ends in May.\n")
    night.put("resources/b.txt", "The car is red.\n")
    assert await night.documents.read_new() == 1
    assert "The car is red." in night.text("digest/b.md")
    (message,) = night.wrong()
    assert "resources/a.txt: " in message and "digest/a.md" in message
    (night.path / "digest/a.md").unlink()
    night.put("resources/a.txt", "The lease ends in June.\n")
    assert await night.documents.read_new() == 1
    assert night.wrong() == []


async def test_a_workspace_whose_resources_lie_elsewhere_reads_nothing_there(night: Night, tmp_path: Path) -> None:
    elsewhere = tmp_path.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "a.txt").write_text("a secret")
    (night.path / "resources").symlink_to(elsewhere)
    assert await night.documents.read_new() == 0
    assert "it leads out" in night.wrong()[0]


async def test_a_crash_at_any_step_leads_to_one_note_with_one_content(tmp_path: Path) -> None:
    step, died = 0, True
    while died:
        step += 1
        night = Night(tmp_path / str(step), Script("- a summary", "- another summary"), fuse=Fuse(step))
        night.put("resources/report.md", LONG)
        async with night:
            try:
                await night.documents.read_new()
                died = False
            except Killed:
                await night.again()
                await night.documents.read_new()
            note = night.text("digest/report.md")
            assert notes(night) == ["report.md"]
            assert note.count("## Summary") == 1
            assert len((await night.vault.history.list("digest/report.md")).changes) == 1
    assert step > 5


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "gb18030"])
def test_texts_are_read_in_the_encodings_that_people_have(encoding: str) -> None:
    text = "会议纪要 2026\n房租是 1200 元，从三月起涨到 1350 元。\nThe rent goes up.\n" * 3
    assert decoded(text.encode(encoding)) == text


def test_western_texts_and_line_ends() -> None:
    assert decoded("Café à Genève\r\nnaïve".encode("cp1252")) == "Café à Genève\nnaïve"
    assert decoded("プラン".encode("shift_jis"), "shift_jis") == "プラン"
    with pytest.raises(Unreadable):
        decoded(bytes(range(256)) * 4)


def test_a_web_page_is_read_without_what_is_not_text() -> None:
    page = (
        "<html><head><title>The &amp; page</title><style>p {}</style><script>var a = '<p>no</p>'</script></head>"
        "<body><nav>menu</nav><h1>Rent</h1><p>It is&nbsp;<b>1200</b> euros.<br>From May.</p>"
        "<ul><li>one<li>two</ul><script>alert(1)</script><table><tr><td>a</td><td>b</td></tr></table><p>unclosed"
    )
    document = read_document(page.encode(), "x.html", lambda: 0)
    assert document.title == "The & page"
    assert document.text == "# Rent\n\nIt is 1200 euros.\nFrom May.\n\n- one\n- two\n\na | b\n\nunclosed"
    chinese = page.replace("<head>", "<head><meta charset=gbk>").replace("euros", "欧元").encode("gbk")
    assert "1200 欧元" in read_document(chinese, "x.html", lambda: 0).text


def test_a_pdf_that_is_too_long_or_too_slow_is_read_as_far_as_it_goes() -> None:
    data = pdf(*(f"page {n}" for n in range(MOST_PAGES + 2)))
    document = read_document(data, "x.pdf", lambda: 0)
    assert document.left_out == f"the pages after {MOST_PAGES} of {MOST_PAGES + 2}"
    ticks = iter(range(0, 10_000, int(MOST_SECONDS // 2)))
    assert read_document(data, "x.pdf", lambda: next(ticks)).left_out == f"the pages after 3 of {MOST_PAGES + 2}"


async def test_a_document_that_is_too_large_is_not_even_opened(night: Night) -> None:
    night.put("resources/huge.txt", "")
    with (night.path / "resources/huge.txt").open("r+b") as file:
        file.truncate(LARGEST + 1)
    await night.documents.read_new()
    assert f"more than {LARGEST:,}" in night.wrong()[0]
