"""secrets.json: for its owner only, never overwritten when damaged, never in a log."""

from __future__ import annotations

import json
import logging
import os
import stat

import pytest

from qworkspace.config.secrets import Secrets
from qworkspace.errors import InvalidConfig, InvalidInput


@pytest.fixture
def path(tmp_path):
    return tmp_path / "secrets.json"


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_the_token_is_made_once_and_stored_for_its_owner_only(path):
    token = Secrets(path, environ={}).token()
    assert len(token) >= 40
    assert mode(path) == 0o600
    assert Secrets(path, environ={}).token() == token


def test_the_environment_overrides_the_token_and_stores_nothing(path):
    assert Secrets(path, environ={"QWORKSPACE_TOKEN": "from-outside"}).token() == "from-outside"
    assert not path.exists()


def test_a_rotated_token_replaces_the_old_one(path):
    secrets = Secrets(path, environ={})
    old = secrets.token()
    new = secrets.rotate_token()
    assert new != old
    assert Secrets(path, environ={}).token() == new


def test_keys_come_from_the_environment_first(path):
    secrets = Secrets(path, environ={"A": "env", "EMPTY": ""})
    secrets.set("A", "stored")
    secrets.set("EMPTY", "stored")
    assert (secrets.get("A"), secrets.get("EMPTY"), secrets.get("B")) == ("env", "stored", None)


def test_setting_a_key_keeps_the_others(path):
    path.write_text('{"Z": "1", "note": {"by": "hand"}}')
    path.chmod(0o600)
    secrets = Secrets(path, environ={})
    secrets.set("A", "2")
    secrets.set("Z", None)
    assert json.loads(path.read_text()) == {"note": {"by": "hand"}, "A": "2"}
    assert mode(path) == 0o600
    assert secrets.names() == ["note", "A"]


def test_a_key_written_by_hand_is_seen_without_a_restart(path):
    secrets = Secrets(path, environ={})
    before = secrets.refresh()
    assert secrets.get("A") is None
    path.write_text('{"A": "new"}')
    path.chmod(0o600)
    assert secrets.get("A") == "new"
    assert secrets.refresh() != before


def test_the_access_token_cannot_be_read_through_a_configuration(path):
    secrets = Secrets(path, environ={"QWORKSPACE_TOKEN": "x"})
    Secrets(path, environ={}).token()
    assert secrets.get("access_token") is None
    assert secrets.get("QWORKSPACE_TOKEN") is None
    assert secrets.names() == []
    with pytest.raises(InvalidInput):
        secrets.set("access_token", "chosen")


@pytest.mark.parametrize("name", ["", "a b", "1a", "${A}", "a-b"])
def test_only_a_variable_name_can_name_a_secret(path, name):
    with pytest.raises(InvalidInput):
        Secrets(path, environ={}).set(name, "x")


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such modes")
def test_a_file_that_others_can_read_is_closed_and_told_once(path, caplog):
    path.write_text('{"A": "hush"}')
    path.chmod(0o644)
    secrets = Secrets(path, environ={})
    with caplog.at_level(logging.WARNING):
        assert secrets.get("A") == "hush"
    assert mode(path) == 0o600
    assert ["644" in notice for notice in secrets.notices()] == [True]
    assert secrets.notices() == []
    assert "644" in caplog.text
    assert "hush" not in caplog.text


@pytest.mark.parametrize("damage", ['{"A": "hush",', "", '{"A": "hush", "A": "hush"}', "[]"])
def test_a_damaged_file_is_never_overwritten_and_the_last_good_values_stay(path, damage, caplog):
    secrets = Secrets(path, environ={})
    secrets.set("A", "good")
    token = secrets.token()
    path.write_text(damage)
    with pytest.raises(InvalidConfig):
        secrets.set("B", "x")
    assert path.read_text() == damage
    assert (secrets.get("A"), secrets.token()) == ("good", token)
    assert secrets.problem is not None
    assert "hush" not in caplog.text + str(secrets.problem)
    path.write_text('{"A": "mended"}')
    assert secrets.get("A") == "mended"
    assert secrets.problem is None


def test_a_damaged_file_at_the_first_start_gives_no_new_token(path):
    path.write_text("{")
    with pytest.raises(InvalidConfig):
        Secrets(path, environ={}).token()
    assert path.read_text() == "{"


def test_a_missing_file_forgets_its_keys(path):
    secrets = Secrets(path, environ={})
    secrets.set("A", "1")
    path.unlink()
    assert secrets.get("A") is None


def test_neither_a_repr_nor_the_log_shows_a_secret(path, caplog):
    with caplog.at_level(logging.DEBUG):
        secrets = Secrets(path, environ={"X": "hush"})
        secrets.set("A", "hush")
        secrets.get("X")
        assert "hush" not in repr(secrets)
    assert "hush" not in caplog.text
