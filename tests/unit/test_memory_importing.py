"""Notes of other assistants: added where they belong, never twice, never over something."""

from __future__ import annotations

from pathlib import Path

import pytest

from qworkspace.errors import InvalidInput, NotFound
from qworkspace.memory.importing import import_vault
from tests.support.vaults import PERSON, opened

FILES = {
    "MEMORY.md": "# Memory\n\n## Likes\n- tea\n- chess\n\n```sh\nls\n\n- no item\n```\n",
    "memory.md": "- tea\n- rowing\n",
    "USER.md": "# User\nName: Ann\n",
    "SOUL.md": "You are a pirate.\n",
    "memory/2026-01-31.md": "- met Bob\n",
    "memory/20260201.md": "- met Cid\n",
    "memory/2026/02/03.md": "- met Dee\n",
    "memory/people/anna.md": "Anna is a doctor.\n",
    "memory/deep/er/x.md": "deep\n",
    "projects.md": "# Projects\n- boat\n",
    "blank.md": "\n\n",
    "other/ignored.md": "no\n",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        path = tmp_path / "theirs" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "theirs" / "latin.md").write_bytes(b"caf\xe9")
    (tmp_path / "secret.md").write_text("secret")
    (tmp_path / "theirs" / "memory" / "out.md").symlink_to(tmp_path / "secret.md")
    return tmp_path / "theirs"


def _content(place: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(place)): path.read_bytes()
        for path in sorted(place.rglob("*.md"))
        if ".state" not in path.parts and path.is_file()
    }


async def test_a_vault_is_imported_once(tmp_path: Path, source: Path) -> None:
    before = _content(source)
    async with opened(tmp_path / "mine") as here:
        await here.vault.write("MEMORY.md", "# Mine\n\n## Likes\n- ~~chess~~\n", by=PERSON)
        planned = await import_vault(source, here.vault, threads=here.threads, dry_run=True)
        assert list(_content(here.root)) == ["MEMORY.md"]
        report = await import_vault(source, here.vault, threads=here.threads)
        assert (planned.files, planned.group, bool(report.group)) == (report.files, "", True)
        outcome = {file.source: (file.target, file.outcome) for file in report.files}
        assert outcome == {
            "MEMORY.md": ("MEMORY.md", "merged"),
            "memory.md": ("MEMORY.md", "merged"),
            "USER.md": ("PROFILE.md", "added"),
            "SOUL.md": ("", "skipped"),
            "memory/2026-01-31.md": ("memory/2026-01-31.md", "added"),
            "memory/20260201.md": ("memory/2026-02-01.md", "added"),
            "memory/2026/02/03.md": ("memory/2026-02-03.md", "added"),
            "memory/people/anna.md": ("memory/people/anna.md", "added"),
            "memory/deep/er/x.md": ("memory/deep/er-x.md", "added"),
            "memory/out.md": ("memory/out.md", "skipped"),
            "projects.md": ("projects.md", "added"),
            "blank.md": ("blank.md", "skipped"),
            "latin.md": ("latin.md", "skipped"),
        }
        assert all(file.reason for file in report.files if file.outcome == "skipped")
        assert here.text("MEMORY.md") == (
            "# Mine\n\n## Likes\n- ~~chess~~\n"
            "\n# Memory\n\n## Likes\n\n- tea\n\n```sh\nls\n\n- no item\n```\n"
            "\n- rowing\n"
        )
        assert _content(source) == before


async def test_a_second_import_adds_nothing_until_the_first_is_undone(tmp_path: Path, source: Path) -> None:
    async with opened(tmp_path / "mine") as here:
        report = await import_vault(source, here.vault, threads=here.threads)
        imported = _content(here.root)
        again = await import_vault(source, here.vault, threads=here.threads)
        assert {file.outcome for file in again.files} == {"skipped"}
        assert (_content(here.root), again.group) == (imported, "")
        await here.vault.edit("MEMORY.md", lambda text: text.replace("- tea\n", ""), by=PERSON)
        await import_vault(source, here.vault, threads=here.threads)
        assert "tea" not in here.text("MEMORY.md")
        await here.vault.undo()
        await here.vault.undo(report.group)
        assert _content(here.root) == {}
        await import_vault(source, here.vault, threads=here.threads)
        assert _content(here.root) == imported


async def test_what_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "mine") as here:
        with pytest.raises(NotFound):
            await import_vault(tmp_path / "nowhere", here.vault, threads=here.threads)
        with pytest.raises(InvalidInput, match="within each other"):
            await import_vault(tmp_path, here.vault, threads=here.threads)
