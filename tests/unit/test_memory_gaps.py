"""What breaks memory from outside: odd names, odd files, odd moments."""

from __future__ import annotations

from pathlib import Path

import pytest

from qworkspace.errors import InvalidInput, InvalidPath, StorageError
from qworkspace.memory.asking import NoModel
from qworkspace.memory.importing import import_vault
from tests.support.dreaming import Night, Script
from tests.support.indexes import Notes, paths
from tests.support.vaults import PERSON, opened


@pytest.mark.parametrize("there", ["memory/2026-03-04.md", "memory"])
async def test_a_note_below_a_file_is_refused_and_stops_no_other(tmp_path: Path, there: str) -> None:
    (tmp_path / there).parent.mkdir(exist_ok=True)
    (tmp_path / there).write_text("- a file\n", encoding="utf-8")
    async with opened(tmp_path) as at:
        for name in ("memory/2026-03-04.md/x", "memory/deep/x"):
            with pytest.raises((InvalidPath, StorageError)):
                await at.vault.write(name, "lost\n", by=PERSON)
            if there != "memory":
                break
        await at.vault.append("MEMORY.md", "- kept", by=PERSON)
        assert at.text("MEMORY.md") == "- kept\n"
        assert at.text(there) == "- a file\n"


async def test_a_file_whose_name_is_no_text_keeps_no_note_out_of_the_index(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "vault")
    try:
        index = await notes.ready()
        index.refresh(["memory/\udcff\udcfe.md", notes.put("memory/a.md", "a walrus\n")])
        await index.settled()
        assert await paths(index, "walrus") == ["memory/a.md"] and notes.troubles == []
    finally:
        await notes.close()


async def test_an_index_whose_log_is_taken_away_while_it_runs_is_rebuilt(tmp_path: Path) -> None:
    notes = Notes(tmp_path / "vault")
    try:
        notes.put("memory/a.md", "a walrus\n")
        index = await notes.ready()
        for end in ("-wal", "-shm"):
            Path(f"{notes.file}{end}").unlink()
        index.refresh([notes.put("memory/b.md", "another walrus\n")])
        await index.settled()
        assert sorted(await paths(index, "walrus")) == ["memory/a.md", "memory/b.md"] and notes.troubles == []
    finally:
        await notes.close()


async def test_a_name_that_is_no_text_is_imported_under_one_that_is(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    Path(str(theirs / "odd-") + "\udcff.md").write_text("- a kite\n", encoding="utf-8")
    async with opened(tmp_path / "ours") as at:
        [file] = (await import_vault(theirs, at.vault, threads=at.threads)).files
        assert (file.source, file.target, file.outcome) == ("odd-\ufffd.md", "odd-\ufffd.md", "added")
        with pytest.raises(InvalidInput, match="neither"):
            await import_vault(Path("/dev/null"), at.vault, threads=at.threads)


async def test_a_document_whose_name_is_no_text_is_shown_and_holds_up_no_other(tmp_path: Path) -> None:
    async with Night(tmp_path, Script(NoModel("none"))) as night:
        night.put("resources/heron.txt", "the heron\n")
        Path(str(tmp_path / "resources") + "/\udcff.txt").write_text("odd\n", encoding="utf-8")
        assert await night.documents.read_new() == 1
        assert "the heron" in night.text("digest/heron.md")
        [problem] = night.problems.of()
        assert "resources/\ufffd.txt" in problem.message and "rename it" in problem.message


async def test_notes_made_of_documents_do_not_become_documents_themselves(tmp_path: Path) -> None:
    async with Night(tmp_path, Script(NoModel("none"))) as night:
        night.put("resources/heron.txt", "the heron\n")
        assert await night.documents.read_new() == 1
        night.put("resources/again.md", night.text("digest/heron.md"))
        assert await night.documents.read_new() == 0
        [problem] = night.problems.of()
        assert "resources/again.md: it is a note that memory has made" in problem.message
