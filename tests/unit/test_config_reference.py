"""The pages, schemas and examples say what the models say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from qworkspace.config.models import AgentConfig, HomeConfig, Section
from qworkspace.config.reading import Reading, Source, check, parse
from qworkspace.config.reference import main, reference
from qworkspace.config.schema import schema
from qworkspace.config.suggest import LOCAL_SERVERS, suggest_providers

ROOT = Path(__file__).resolve().parents[2]


def nothing(name: str) -> None:
    """An environment without variables."""


@pytest.mark.parametrize(("kind", "page"), [("agent", "agent-json.md"), ("home", "config-json.md")])
def test_the_page_is_current(kind, page):
    hint = f"run: python -m qworkspace.config.reference {kind} > docs/{page}"
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == reference(kind), hint


def test_the_page_names_every_setting_with_its_default():
    page = reference("agent")
    assert '| `every` | text | `"30m"` |' in page
    assert '| `tool_timeout` | duration | `"2m"` |' in page
    assert "| `max_iters` | whole number ≥ 1, ≤ 1000 | `50` |" in page
    assert "08:00 to 22:00" in page


def test_the_command_prints_the_page_and_knows_no_third_one(capsys):
    assert main(["home"]) == 0
    assert capsys.readouterr().out == reference("home")
    assert main(["other"]) == 2


def sections(model=None):
    return [model, *(inner for one in model.__subclasses__() for inner in sections(one))]


@pytest.mark.parametrize("section", sections(Section)[1:], ids=lambda section: section.__name__)
def test_every_setting_is_described(section):
    assert section.__doc__
    assert [name for name, field in section.model_fields.items() if not field.description] == []


def test_the_example_validates_and_has_no_unknown_key():
    path = ROOT / "config.example.json"
    text = path.read_text(encoding="utf-8")
    config, translation = check(HomeConfig, Source(parse(text), path, text), nothing, optional=lambda path: True)
    assert Reading(config, translation, path, text).unknown_keys() == []


def test_the_example_shows_every_key():
    shown = set(_keys(json.loads((ROOT / "config.example.json").read_text(encoding="utf-8"))))
    home, runner = HomeConfig.model_json_schema(), {"name", "node", "command", "timeout", "models"}
    wanted = {name for table in (home, *home["$defs"].values()) for name in table.get("properties", {})}
    assert wanted - shown - runner == set()


def _keys(value):
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(item)


def test_schemas_describe_the_files_for_a_form():
    agent = schema("agent")
    assert (agent["title"], agent["type"]) == ("agent.json", "object")
    assert agent["properties"]["name"]["description"]
    running = agent["$defs"]["RunningConfig"]["properties"]
    assert (running["max_iters"]["minimum"], running["max_iters"]["default"]) == (1, 50)
    assert running["if_busy"]["enum"] == ["queue", "interrupt", "reject"]
    provider = schema("home")["$defs"]["ProviderConfig"]["properties"]
    assert "password" in json.dumps(provider["api_key"])
    json.dumps(agent), json.dumps(schema("home"))


def test_defaults_are_valid_values():
    for model in (AgentConfig, HomeConfig):
        config = model.model_validate({})
        assert isinstance(config, BaseModel)
        assert model.model_validate(json.loads(config.model_dump_json())) == config


def test_keys_of_the_environment_are_suggested_and_stay_references():
    found = suggest_providers(
        {"OPENAI_API_KEY": "sk-hush", "GOOGLE_API_KEY": "g", "DEEPSEEK_API_KEY": " ", "HOME": "/"}
    )
    assert [item.name for item in found] == ["openai", "google"]
    providers = {item.name: item.provider() for item in found}
    assert "hush" not in repr(found) + repr(providers)
    home, _ = check(
        HomeConfig, Source({"providers": providers}), {"OPENAI_API_KEY": "sk"}.get, optional=lambda path: True
    )
    assert home.providers["openai"].api_key == SecretStr("sk")
    assert home.providers["google"].missing_variables() == ["GOOGLE_API_KEY"]
    assert suggest_providers({}) == []


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:8000", "http://127.0.0.1:8000/v1"),
        ("http://gpu:9999/", "http://gpu:9999/v1"),
        ("gpu", "http://gpu:11434/v1"),
        ("https://gpu", "https://gpu:11434/v1"),
        (":5000", "http://127.0.0.1:5000/v1"),
    ],
)
def test_a_named_ollama_is_suggested_where_it_can_be_reached(host, url):
    assert [item.base_url for item in suggest_providers({"OLLAMA_HOST": host})] == [url]


def test_local_servers_are_on_this_machine():
    assert all(server.base_url and "127.0.0.1" in server.base_url for server in LOCAL_SERVERS)
