"""The first files of a home, and agents made from templates."""

from __future__ import annotations

import json
import re

import pytest

from qworkspace.base import files
from qworkspace.config import store as store_module
from qworkspace.config.cautions import agent_cautions, home_cautions
from qworkspace.config.store import ConfigStore
from qworkspace.config.templates import template, template_names
from qworkspace.errors import Conflict, Duplicate, InvalidConfig, InvalidInput, NotFound

PERSONA = ("AGENTS.md", "SOUL.md", "PROFILE.md", "MEMORY.md", "HEARTBEAT.md")


@pytest.fixture
def store(tmp_path) -> ConfigStore:
    return ConfigStore(tmp_path / "deep" / "home", environ={})


def everything(directory):
    return {
        path.relative_to(directory).as_posix(): path.read_bytes() for path in directory.rglob("*") if path.is_file()
    }


def test_a_new_home_has_what_the_daemon_needs(store):
    assert store.init_home() is True
    home = store.load_home()
    assert (home.server.port, home.agents.active_agent) == (8420, "default")
    assert (str(home.default_model), home.providers["offline"].type) == ("offline/offline", "offline")
    assert store.agent_ids() == ["default"]
    assert store.load_agent("default").id == "default"
    assert all((store.agent_dir("default") / name).is_file() for name in PERSONA)
    assert home_cautions(home) == agent_cautions(store.load_agent("default"), home) == []
    assert store.unknown_keys() == store.unknown_keys("default") == []


def test_a_second_time_changes_nothing(store):
    store.init_home()
    before = everything(store.home)
    assert store.init_home("researcher") is False
    assert everything(store.home) == before


def test_nothing_that_is_there_is_overwritten(store):
    directory = store.home / "workspaces" / "default"
    directory.mkdir(parents=True)
    (directory / "SOUL.md").write_text("mine")
    (directory / "AGENTS.md").symlink_to(directory / "missing.md")
    store.init_home()
    assert (directory / "SOUL.md").read_text() == "mine"
    assert (directory / "AGENTS.md").is_symlink()
    assert (directory / "PROFILE.md").is_file()


def test_a_damaged_config_json_is_left_alone(store):
    store.home.mkdir(parents=True)
    store.home_file.write_text("{")
    with pytest.raises(InvalidConfig):
        store.init_home()
    assert store.home_file.read_text() == "{"
    assert everything(store.home) == {"config.json": b"{"}


@pytest.mark.parametrize("crash_at", range(7))
def test_a_crash_in_between_is_made_good_by_the_next_start(store, monkeypatch, crash_at):
    writes = iter(range(100))

    def crash(path, data, *, mode=None):
        if next(writes) == crash_at:
            raise KeyboardInterrupt
        files.write_atomic(path, data, mode=mode)

    monkeypatch.setattr(store_module, "write_atomic", crash)
    monkeypatch.setattr("qworkspace.config.templates.write_atomic", crash)
    with pytest.raises(KeyboardInterrupt):
        store.init_home()
        store.secrets().path.touch()
        raise KeyboardInterrupt
    monkeypatch.undo()
    again = ConfigStore(store.home, environ={})
    again.init_home()
    assert again.load_agent("default").id == "default"
    assert set(everything(again.agent_dir("default"))) == {*PERSONA, "agent.json"}


def test_the_files_of_the_active_agent_come_back(store):
    store.init_home()
    store.agent_file("default").unlink()
    assert store.init_home() is True
    assert store.load_agent("default").id == "default"


def test_an_agent_from_a_template(store):
    store.init_home()
    directory = store.create_agent("marie", "researcher", name="Marie")
    assert directory == store.agent_dir("marie")
    config = store.load_agent("marie")
    assert (config.id, config.name) == ("marie", "Marie")
    assert store.agent_ids() == ["default", "marie"]
    assert "researcher" in (directory / "SOUL.md").read_text()


def test_a_copy_has_the_persona_but_not_the_talk_and_no_live_channels(store):
    store.init_home()
    source = store.agent_dir("default")
    (source / "SOUL.md").write_text("Be brief.")
    (source / "memory").mkdir()
    (source / "memory" / "2026-01-01.md").write_text("private")
    (source / ".state").mkdir()
    (source / ".state" / "sessions.db").write_text("talk")
    (source / "leak.md").symlink_to(store.home / "config.json")
    store.patch_agent("default", {"channels": {"telegram": {"enabled": True, "token": "t"}}, "mine": 1})
    store.create_agent("twin", copy_of="default")
    twin = store.agent_dir("twin")
    assert (twin / "SOUL.md").read_text() == "Be brief."
    assert set(everything(twin)) == {*PERSONA, "agent.json"}
    assert store.load_agent("twin").channels["telegram"].enabled is False
    assert store.raw_agent("twin")[0]["mine"] == 1


def test_names_that_cannot_be_and_names_that_are_taken(store):
    store.init_home()
    with pytest.raises(Duplicate):
        store.create_agent("default")
    with pytest.raises(InvalidInput):
        store.create_agent("../x")
    with pytest.raises(NotFound, match="researcher"):
        store.create_agent("x", "nothing-like-it")
    with pytest.raises(NotFound):
        store.create_agent("x", copy_of="missing")
    assert store.agent_ids() == ["default"]
    assert not (store.home / "workspaces" / "x").exists()


def test_a_directory_that_another_agent_has_is_not_written_into(store):
    store.init_home()
    store.home_file.write_text(json.dumps({"agents": {"profiles": {"a": {"workspace_dir": "workspaces/b"}}}}))
    with pytest.raises(InvalidConfig, match="same directory"):
        store.create_agent("b")
    assert not (store.home / "workspaces" / "b").exists()


def test_a_removed_agent_keeps_its_directory_and_can_come_back(store):
    store.init_home()
    store.create_agent("ann")
    (store.agent_dir("ann") / "PROFILE.md").write_text("Ann's person")
    directory = store.agent_dir("ann")
    store.delete_agent("ann")
    with pytest.raises(NotFound):
        store.load_agent("ann")
    assert (directory / "PROFILE.md").is_file()
    store.create_agent("ann")
    assert (store.agent_dir("ann") / "PROFILE.md").read_text() == "Ann's person"


def test_the_active_agent_cannot_be_removed(store):
    store.init_home()
    with pytest.raises(Conflict, match="active"):
        store.delete_agent("default")


def test_an_agent_is_switched_off_and_on(store):
    store.init_home()
    store.set_enabled("default", False)
    assert store.agent_ids() == []
    assert home_cautions(store.load_home())[0].path == "agents.active_agent"
    store.set_enabled("default", True)
    assert store.agent_ids() == ["default"]


def test_the_shipped_templates_are_there():
    assert {"default", "default-zh", "researcher"} <= set(template_names())


@pytest.mark.parametrize("name", ["default", "default-zh", "researcher"])
def test_a_shipped_template_is_complete_and_says_nothing_unknown(store, name):
    store.init_home(name)
    assert set(template(name)) == {*PERSONA, "agent.json"}
    config = store.load_agent("default")
    assert store.unknown_keys("default") == []
    assert config.name
    assert config.description
    assert all(file in template(name) for file in config.system_prompt_files)
    assert all(len(template(name)[file]) < config.running.prompt_file_chars for file in config.system_prompt_files)


@pytest.mark.parametrize("name", ["default", "default-zh", "researcher"])
def test_the_heartbeat_of_a_template_asks_for_nothing(name):
    """Headings and comments only: nothing runs and nothing is spent until a person writes something."""
    text = re.sub(r"<!--.*?-->", "", template(name)["HEARTBEAT.md"], flags=re.DOTALL)
    assert [line for line in text.splitlines() if line.strip() and not line.startswith("#")] == []


def test_the_chinese_template_is_chinese():
    texts = template("default-zh")
    for name in PERSONA:
        letters = re.findall(r"[a-zA-Z\u4e00-\u9fff]", re.sub(r"`[^`]*`|[\w/.-]+\.md", "", texts[name]))
        chinese = [letter for letter in letters if letter > "\u4dff"]
        assert len(chinese) > 0.75 * len(letters), name
    assert json.loads(texts["agent.json"])["language"] == "zh"


def test_models_that_lead_nowhere_are_pointed_out(store):
    store.init_home()
    store.patch_home(
        {"default_model": "opnai/x", "providers": {"o": {"api_key": "${NOPE}"}}, "roles": {"light": "o/x"}}
    )
    store.patch_agent("default", {"model": "gone/y", "fallback_models": ["o/x", "p/z"], "sandbox": {"profile": "box"}})
    home = store.load_home()
    assert [caution.path for caution in home_cautions(home)] == ["default_model", "providers.o"]
    found = agent_cautions(store.load_agent("default"), home)
    assert [caution.path for caution in found] == ["model", "fallback_models[1]", "sandbox.profile"]
    assert "offline" in found[0].message
