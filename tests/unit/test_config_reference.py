"""The pages, schemas and examples say what the models say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import BaseModel, SecretStr

from qworkspace.base.ids import AgentId
from qworkspace.config.effects import BUILT_IN, HOME_EFFECTS, BuiltIn, effect, rebuilt
from qworkspace.config.models import AgentConfig, HomeConfig, Section
from qworkspace.config.plan import RESTART_FIELDS, home_plan, plan
from qworkspace.config.reading import Reading, Source, check, parse
from qworkspace.config.reference import changes, main, reference
from qworkspace.config.schema import schema
from qworkspace.config.suggest import LOCAL_SERVERS, suggest_providers
from qworkspace.equipment import equip
from qworkspace.errors import InvalidConfig
from tests.support.agents import Agency

ROOT = Path(__file__).resolve().parents[2]


def nothing(name: str) -> None:
    """An environment without variables."""


@pytest.mark.parametrize(("kind", "page"), [("agent", "agent-json.md"), ("home", "config-json.md")])
def test_the_page_is_current(kind, page):
    hint = f"run: python -m qworkspace.config.reference {kind} > docs/{page}"
    assert (ROOT / "docs" / page).read_text(encoding="utf-8") == reference(kind), hint


def test_the_table_of_changes_is_current():
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    hint = "put what python -m qworkspace.config.reference changes prints between the marks of docs/configuration.md"
    assert page.partition("<!-- begin: changes -->\n")[2].partition("<!-- end: changes -->")[0] == changes(), hint


def test_the_described_services_are_those_of_every_workspace(tmp_path):
    shared = Agency(tmp_path / "home").shared
    workspace = equip(shared).create(AgentId("anna"), tmp_path, AgentConfig(id="anna"))
    declared = [BuiltIn(one.name, one.sections, one.depends_on) for one in workspace.services.descriptors]
    assert declared == list(BUILT_IN)


def test_an_effect_is_what_the_plan_of_that_edit_would_be():
    services = (BuiltIn("clock", ("cron", "heartbeat.every")), BuiltIn("voice", depends_on=("clock",)), *BUILT_IN)
    assert rebuilt("cron.dream_cron", services) == ["clock", "voice"]
    assert effect("agent", "heartbeat.every", services) == "rebuilds `clock`, `voice`"
    assert effect("agent", "heartbeat.target", services) == "next turn"
    for every, expected in (("1h", ("clock", "voice")), ("30m", ())):
        edited = AgentConfig.model_validate({"heartbeat": {"every": every, "target": "inbox"}})
        assert plan(AgentConfig().sections(), edited.sections(), services, services).rebuilt == expected


def test_only_what_is_bound_at_the_start_waits_for_one():
    assert {field for field, what in HOME_EFFECTS.items() if what == "restart"} >= set(RESTART_FIELDS)
    assert (effect("home", "server.port"), effect("home", "server.auth")) == ("restart", "at once")
    assert effect("home", "providers.<name>.api_key") == "next turn"
    assert home_plan({"server": {"port": 1}}, {"server": {"port": 2}}).restart == ("server.port",)


def _known(name):
    part = HomeConfig.model_validate({}).sections()
    for key in name.split("."):
        part = part[key]
    return True


def test_the_effects_name_sections_that_exist():
    assert all(_known(name) for name in HOME_EFFECTS)


@pytest.mark.parametrize(
    "text",
    [
        '{"running": {"max_iters": "many"}}',
        '{"running": {"if_busy": "quue"}}',
        '{\n "name": "a",\n "name": "b"}',
        '{"heartbeat": {"every": "often"}}',
        '{"channels": {"telegram": {"enabled": true, "bot_token": "${BOT_TOKEN}"}}}',
        '{"name":',
    ],
)
def test_the_page_shows_messages_that_people_will_see(text):
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    with pytest.raises(InvalidConfig) as caught:
        check(AgentConfig, Source(parse(text), None, text), nothing)
    assert caught.value.reason.partition(" (for the literal")[0] in page


def test_the_page_names_every_setting_with_its_default():
    page = reference("agent")
    assert '| `every` | text | `"30m"` |' in page
    assert '| `tool_timeout` | duration | `"2m"` |' in page
    assert "| `max_iters` | whole number ≥ 1, ≤ 1000 | `50` |" in page
    assert "08:00 to 22:00" in page


def test_the_command_prints_the_page_and_knows_no_third_one(capsys):
    assert main(["home"]) == 0
    assert capsys.readouterr().out == reference("home")
    assert main(["changes"]) == 0
    assert capsys.readouterr().out == changes()
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
