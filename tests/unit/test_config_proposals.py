"""What a text would make of an agent's configuration, before it is saved."""

from __future__ import annotations

import json

import pytest

from qworkspace.config.hiding import MASK
from qworkspace.config.store import ConfigStore
from qworkspace.errors import InvalidConfig, NotFound
from tests.support.daemon import write_home


@pytest.fixture
def store(tmp_path):
    return ConfigStore(write_home(tmp_path / "home"), environ={"TOKEN": "12:x"})


def test_a_proposal_is_read_like_the_file_with_masks_for_the_secrets_that_are_there(store):
    channels = {"telegram": {"enabled": True, "bot_token": "7:literal", "other_token": "${TOKEN}"}}
    store.save_agent("default", {"channels": channels})
    before = store.agent_file("default").read_bytes()
    usual = store.load_agent("default").sections()
    shown = {"id": "default", "channels": {"telegram": {"enabled": True, "bot_token": MASK, "other_token": "12:x"}}}
    assert store.propose_agent("default", json.dumps(shown)).config.sections() == usual
    reading = store.propose_agent("default", '{"name": "Try", "descripton": "x"}', patch=True)
    assert reading.config.sections() == usual | {"name": "Try", "descripton": "x"}
    assert [(key.path, key.near) for key in reading.unknown_keys()] == [("descripton", "description")]
    assert store.agent_file("default").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "patch", "where", "words"),
    [
        ('{\n "running": {"max_iters": "x"}}', False, "new.json:2:27", "whole number"),
        ('{"name": "a",\n "name": "b"}', False, "new.json:2:2", "twice"),
        ('{"name": "a",\n "name": "b"}', True, "new.json:2:2", "twice"),
        ('{"running": {"max_iters": "x"}}', True, "new.json", "whole number"),
        ('{"id": "other"}', True, "new.json", "'default'"),
        (json.dumps({"channels": {"x": {"token": MASK}}}), False, "configuration", "mask"),
        ("", False, "new.json:1:1", ""),
    ],
)
def test_a_proposal_with_a_mistake_names_its_place(store, text, patch, where, words):
    with pytest.raises(InvalidConfig) as caught:
        store.propose_agent("default", text, patch=patch, name="new.json")
    assert caught.value.message.startswith(f"{where}: ")
    assert words in caught.value.message


def test_a_broken_file_can_be_replaced_in_a_proposal_and_not_patched(store):
    store.agent_file("default").write_text("{")
    assert store.propose_agent("default", '{"name": "Mended"}').config.name == "Mended"
    with pytest.raises(InvalidConfig):
        store.propose_agent("default", '{"name": "Mended"}', patch=True)
    with pytest.raises(NotFound):
        store.propose_agent("nobody", "{")
