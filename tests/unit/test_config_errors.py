"""A mistake in a file: where it is, what stands there, what it may be, what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from qworkspace.config.aliases import translate
from qworkspace.config.models import AgentConfig, HomeConfig
from qworkspace.config.reading import Reading, Source, check, parse
from qworkspace.errors import InvalidConfig

FILE = Path("agent.json")


def read(text: str, environ: dict[str, str] | None = None) -> Reading[AgentConfig]:
    source = Source(parse(text, file=FILE), FILE, text)
    return Reading(*check(AgentConfig, source, (environ or {}).get, translate=translate), FILE, text)


def failure(text: str, environ: dict[str, str] | None = None) -> InvalidConfig:
    with pytest.raises(InvalidConfig) as caught:
        read(text, environ)
    return caught.value


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('{"running": {\n  "max_iters": "many"}}', 2, 16, ["running.max_iters", "whole number", "'many'"]),
        ('{"running": {\n  "max_iters": 0}}', 2, 16, ["at least 1", "0"]),
        ('{"running": []}', 1, 13, ["running", "an object", "a list"]),
        ('{"tools": {"x": {\n "enabled": "maybe"}}}', 2, 13, ["tools.x.enabled", "true or false", "'maybe'"]),
        ('{"fallback_models": ["a/b",\n "c"]}', 2, 2, ["fallback_models[1]", "provider/name", "'c'"]),
        ('{"heartbeat": {"every":\n "often"}}', 2, 2, ["heartbeat.every", "30m", "'often'"]),
        ('{"name": null}', 1, 10, ["name", "a text", "null"]),
        ('{"heartbeat": {"active_hours":\n {"start": "22:00"}}}', 2, 2, ["active_hours", "are the same"]),
    ],
)
def test_the_place_and_the_value(text, line, column, words):
    error = failure(text)
    assert (error.file, error.line, error.column) == (FILE, line, column)
    for word in words:
        assert word in error.message, error.message
    assert error.message.startswith(f"agent.json:{line}:{column}: ")


def test_a_choice_that_is_misspelt_says_which_was_meant():
    error = failure('{"tools": {"shell": {"policy": "alow"}}}')
    assert (
        error.reason == 'tools.shell.policy must be one of "allow", "ask", "deny", not \'alow\'; did you mean "allow"?'
    )
    assert error.details["near"] == "allow"


def test_a_missing_key_that_is_there_misspelt():
    error = failure('{"tools": {"shell": {"policy": [{"pattern": "a",\n "decison": "ask"}]}}}')
    assert "tools.shell.policy[0].decision is missing" in error.reason
    assert "decison" in error.reason
    assert (error.line, error.details["near"]) == (2, "decision")


def test_the_other_branch_of_a_choice_is_not_mentioned():
    error = failure('{"tools": {"shell": {"policy": [{"decision": "never"}]}}}')
    assert [problem["path"] for problem in error.details["problems"]] == ["tools.shell.policy[0].decision"]


def test_every_mistake_of_a_file_is_listed():
    error = failure('{"running": {"max_iters": 0, "if_busy": "wait"},\n "heartbeat": {"target": "phone"}}')
    assert [(problem["path"], problem["line"]) for problem in error.details["problems"]] == [
        ("running.max_iters", 1),
        ("running.if_busy", 1),
        ("heartbeat.target", 2),
    ]


def test_an_alias_is_named_as_it_is_written():
    error = failure('{"heartbeat": {\n"activeHours": {"end": "8pm"}}}')
    assert error.reason.startswith("heartbeat.activeHours.end must be a time of day")
    assert (error.line, error.column) == (2, 24)
    error = failure('{"mcp": {"clients": {"x": {\n"command": 5}}}}')
    assert error.reason.startswith("mcp.clients.x.command must be a text")
    assert error.line == 2


def test_rest_is_refused_with_a_reason():
    error = failure('{"running": {"adbpg_memory_config": {\n "api_mode": "rest"}}}')
    assert error.reason.startswith("running.adbpg_memory_config.api_mode is refused")
    assert "direct connection" in error.reason
    assert error.line == 2


def test_a_variable_that_nothing_resolves_is_named():
    error = failure('{"channels": {"mail": {"enabled": true,\n "password": "${MAIL_PASSWORD}"}}}')
    assert "${MAIL_PASSWORD} is neither in the environment nor in secrets.json" in error.reason
    assert (error.line, error.details["variable"]) == (2, "MAIL_PASSWORD")


def test_a_number_may_come_from_the_environment():
    config = read('{"running": {"max_iters": "${ITERS}"}}', {"ITERS": "7"}).config
    assert config.running.max_iters == 7


def test_a_wrong_value_from_the_environment_is_not_shown():
    error = failure('{"running": {"max_iters": "${SECRET}"}}', {"SECRET": "hush-hush"})
    assert "hush" not in str(error) + repr(error.details)
    assert "${SECRET}" in error.reason


def test_a_literal_secret_is_not_shown():
    error = failure('{"channels": {"mail": {"enabled": true}}, "drivers": {"d": {"env": {"token": ["hush"]}}}}')
    assert "hush" not in str(error) + repr(error.details)


def test_unknown_keys_are_reported_with_the_nearest_known_one():
    text = '{\n "modell": "a/b",\n "running": {"max_iter": 3},\n "channels": {"x": {"anything": 1}},\n "zzz": 1\n}'
    found = [(key.path, key.near, key.line) for key in read(text).unknown_keys()]
    assert found == [("modell", "model", 2), ("zzz", None, 5), ("running.max_iter", "max_iters", 3)]
    assert read(text).unknown_keys()[0].message == "agent.json:2: unknown key 'modell', did you mean 'model'?"


def test_an_alias_beside_our_own_key_is_reported_as_unused():
    text = '{"model": "a/b",\n "active_model": {"provider_id": "c", "model": "d"}}'
    assert [(key.path, key.line) for key in read(text).unknown_keys()] == [("active_model", 2)]


def test_aliases_are_not_unknown():
    text = '{"heartbeat": {"activeHours": {"start": "07:00"}}, "mcp": {"clients": {"x": {"command": "y"}}}}'
    assert read(text).unknown_keys() == []


def test_an_agent_id_that_cannot_be_one_is_refused():
    with pytest.raises(InvalidConfig) as caught:
        text = '{"agents": {"profiles": {\n"../x": {}}}}'
        check(HomeConfig, Source(parse(text), FILE, text), lambda name: None)
    assert "'../x' is not an agent id" in caught.value.reason
    assert caught.value.line == 2
