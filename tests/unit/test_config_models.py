"""Defaults, values and the keys of earlier daemons."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from qworkspace.config.aliases import translate
from qworkspace.config.models import (
    ActiveHours,
    AgentConfig,
    HeartbeatConfig,
    HomeConfig,
    ModelRef,
    PolicyRule,
    ProviderConfig,
    is_loopback,
)
from qworkspace.config.values import duration, looks_like_cron, zone_name


def agent(**raw) -> AgentConfig:
    return AgentConfig.model_validate(raw)


def test_an_empty_agent_has_the_documented_defaults():
    config = agent()
    assert config.running.max_iters == 50
    assert config.running.if_busy == "queue"
    assert config.running.compact_at == 0.75
    assert config.running.memory.auto_memory_interval == 5
    assert config.running.memory.auto_memory_search.enabled
    assert config.running.memory.min_score == 0
    assert (config.running.memory.daily_dir, config.running.memory.digest_dir) == ("memory", "digest")
    assert (config.heartbeat.enabled, config.heartbeat.interval, config.heartbeat.target) == (True, 1800, "last")
    assert config.heartbeat.active_hours == ActiveHours(start="08:00", end="22:00")
    assert (config.proactive.enabled, config.proactive.idle_minutes, config.proactive.cooldown) == (False, 30, 60)
    assert (config.proactive.max_iters, config.proactive.max_tasks, config.proactive.history_days) == (50, 3, 7)
    assert config.cron.dream_cron == "0 23 * * *"
    assert (config.sandbox.profile, config.sandbox.required) == ("workspace", False)


def test_an_empty_home_has_the_documented_defaults():
    home = HomeConfig.model_validate({})
    assert (home.server.host, home.server.port, home.server.auth) == ("127.0.0.1", 8420, "token")
    assert home.server.max_body_bytes == 10_000_000
    assert home.agents.active_agent == "default"
    assert home.embedding.provider == "builtin"
    assert (home.lifecycle.idle_unload, home.lifecycle.shutdown_grace, home.lifecycle.max_retired) == (1800, 10, 4)
    assert (home.watch.debounce, home.watch.poll_interval) == (0.3, 2)
    assert home.retention.sessions_days is None


def test_a_model_is_named_in_three_ways():
    expected = ModelRef(provider="openrouter", name="anthropic/claude")
    assert ModelRef.parse("openrouter/anthropic/claude") == expected
    assert agent(model={"provider": "openrouter", "name": "anthropic/claude"}).model == expected
    assert agent(active_model={"provider_id": "openrouter", "model": "anthropic/claude"}).model == expected
    assert str(expected) == "openrouter/anthropic/claude"
    for text in ("", "gpt", "/gpt", "openai/"):
        with pytest.raises(ValidationError):
            ModelRef.parse(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30m", 1800), ("0m", 0), ("0", 0), ("1h30m", 5400), ("45s", 45), ("250ms", 0.25), ("2d", 172_800), (90, 90)],
)
def test_durations(text, seconds):
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "m", "30 minutes", "-5m", "5m5", "1.5h", "30m1h", "½h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(ValueError, match="duration"):
        duration(text)


@given(st.integers(0, 300), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_is_the_sum_of_its_parts(days, hours, minutes, seconds):
    text = f"{days}d{hours}h{minutes}m{seconds}s"
    assert duration(text) == days * 86_400 + hours * 3_600 + minutes * 60 + seconds


@pytest.mark.parametrize("every", ["0 9 * * 1-5", "*/20 8-18 * * *", "9 * * *", "1 * MON"])
def test_a_heartbeat_may_follow_a_cron_expression(every):
    heartbeat = HeartbeatConfig.model_validate({"every": every})
    assert (heartbeat.cron, heartbeat.interval) == (every, None)


@pytest.mark.parametrize("every", ["", "often", "0 0 9 * * *", "30", "30 minutes", "* * ; rm *"])
def test_any_other_heartbeat_is_an_error(every):
    if every == "30":
        assert HeartbeatConfig.model_validate({"every": every}).interval == 30
        return
    with pytest.raises(ValidationError, match="duration"):
        HeartbeatConfig.model_validate({"every": every})


def test_cron_has_three_to_five_fields():
    assert [looks_like_cron("* " * count) for count in range(1, 7)] == [False, False, True, True, True, False]
    assert agent(cron={"dream_cron": ""}).cron.dream_cron == ""
    with pytest.raises(ValidationError):
        agent(cron={"dream_cron": "every night"})


@pytest.mark.parametrize(
    "window", [{"start": "25:00"}, {"start": "8:00"}, {"start": "08:60"}, {"start": "22:00"}, {"end": 5}]
)
def test_an_invalid_window_is_an_error_and_not_always(window):
    with pytest.raises(ValidationError):
        agent(heartbeat={"active_hours": window})


def test_a_window_may_cross_midnight():
    night = ActiveHours(start="22:00", end="06:30")
    assert [night.contains(minute) for minute in (21 * 60 + 59, 22 * 60, 0, 389, 390, 720)] == [
        False, True, True, True, False, False,
    ]  # fmt: skip
    day = ActiveHours(start="08:00", end="24:00")
    assert [day.contains(minute) for minute in (479, 480, 1439)] == [False, True, True]


@pytest.mark.parametrize(
    "name", ["../SOUL.md", "/etc/x.md", "a\\b.md", "C:x.md", "x.txt", "a//b.md", "./a.md", "a\x00.md", ""]
)
def test_prompt_files_stay_in_the_workspace(name):
    with pytest.raises(ValidationError):
        agent(system_prompt_files=[name])


def test_policies_are_one_decision_or_rules():
    tools = agent(
        tools={
            "shell": {"policy": "deny"},
            "read": {"policy": [{"pattern": "src/**", "decision": "allow"}]},
            "fetch": {"allow_private": True},
        }
    ).tools
    assert tools["shell"].policy == "deny"
    assert tools["read"].policy == [PolicyRule(pattern="src/**", decision="allow")]
    assert tools["fetch"].policy is None
    assert tools["fetch"].model_extra == {"allow_private": True}


def test_an_open_server_beyond_the_loopback_is_refused():
    assert HomeConfig.model_validate({"server": {"auth": "off", "host": "::1"}}).server.auth == "off"
    for host in ("0.0.0.0", "192.168.1.2", "::", "example.org"):
        with pytest.raises(ValidationError, match="loopback"):
            HomeConfig.model_validate({"server": {"auth": "off", "host": host}})


def test_what_the_loopback_is():
    assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost", "LOCALHOST."]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "localhost.example.org", "10.0.0.1"]))


def test_zones_are_normalised_and_never_guessed():
    assert zone_name("europe/berlin") == "Europe/Berlin"
    with pytest.raises(ValueError, match="Europe/Berlin"):
        zone_name("Europe/Berlinn")
    for text in ("../../etc/passwd", "Europe", "", "+2"):
        with pytest.raises(ValueError, match="time zone"):
            zone_name(text)


def test_a_language_without_prompts_of_its_own_is_answered_as_the_user_writes():
    assert [agent(language=text).language for text in ("zh-CN", "ZH", "en_US", "ru", "auto")] == [
        "zh", "zh", "en", "auto", "auto",
    ]  # fmt: skip


def test_a_provider_without_its_key_says_which_variable_is_missing():
    provider = ProviderConfig.model_validate({"api_key": "${A_KEY}", "headers": {"X": "${B}"}, "base_url": "${C}/v1"})
    assert provider.missing_variables() == ["A_KEY", "C", "B"]
    assert ProviderConfig.model_validate({"api_key": "sk-1"}).missing_variables() == []


def test_an_unlisted_model_is_known_by_its_name_only():
    provider = ProviderConfig.model_validate({"models": ["a", {"name": "b", "context_window": 1000}]})
    assert provider.model_info("b").context_window == 1000
    assert provider.model_info("c").context_window is None


THEIRS = {
    "id": "old",
    "active_model": {"provider_id": "dashscope", "model": "qwen-max"},
    "heartbeat": {"enabled": True, "every": "6h", "target": "main", "activeHours": {"start": "07:00", "end": "23:00"}},
    "mcp": {"clients": {"files": {"name": "files", "command": "npx", "args": ["-y"], "transport": "stdio"}}},
    "tools": {"builtin_tools": {"execute_shell_command": {"enabled": False}}},
    "running": {
        "max_iters": 100,
        "max_input_length": 131072,
        "memory_manager_backend": "remelight",
        "reme_light_memory_config": {
            "auto_memory_interval": None,
            "summarize_when_compact": False,
            "daily_dir": "notes",
            "dream_cron": "30 2 * * *",
            "auto_memory_search_config": {"enabled": True, "max_results": 2},
            "embedding_model_config": {"backend": "openai", "model_name": "text-embedding-v3", "dimensions": 1024},
        },
        "adbpg_memory_config": None,
    },
}


def test_an_agent_of_the_earlier_design_is_understood():
    config = agent(**THEIRS)
    assert str(config.model) == "dashscope/qwen-max"
    assert config.heartbeat.active_hours == ActiveHours(start="07:00", end="23:00")
    assert config.drivers["files"].command == "npx"
    assert not config.tools["execute_shell_command"].enabled
    assert config.running.max_input_tokens == 131072
    assert config.running.memory_manager_backend == "markdown"
    memory = config.running.memory
    assert (memory.auto_memory_interval, memory.summarize_when_compact, memory.daily_dir) == (0, False, "notes")
    assert memory.auto_memory_search.max_results == 2
    assert memory.embedding is not None
    assert (memory.embedding.provider, memory.embedding.name) == ("openai", "text-embedding-v3")
    assert config.cron.dream_cron == "30 2 * * *"


def test_an_embedding_without_a_model_is_the_built_in_one():
    running = {"reme_light_memory_config": {"embedding_model_config": {"backend": "openai", "model_name": ""}}}
    assert agent(running=running).running.memory.embedding is None


def test_the_database_of_the_earlier_design_is_reached_directly_or_not_at_all():
    database = {"api_mode": "sql", "host": "db", "user": "u", "password": "p", "dbname": "d", "memory_isolation": False}
    config = agent(running={"memory_manager_backend": "adbpg", "adbpg_memory_config": database})
    assert config.running.memory_manager_backend == "pgvector"
    postgres = config.running.memory.postgres
    assert postgres is not None
    assert (postgres.host, postgres.memory_isolation) == ("db", False)
    with pytest.raises(ValidationError, match='only "sql" is supported'):
        agent(running={"adbpg_memory_config": database | {"api_mode": "rest"}})


def test_our_own_key_wins_over_an_alias():
    config = agent(model="a/b", active_model={"provider_id": "c", "model": "d"})
    assert str(config.model) == "a/b"
    merged = translate(
        {"running": {"memory": {"daily_dir": "a"}, "reme_light_memory_config": {"daily_dir": "b", "digest_dir": "c"}}}
    )
    assert merged.data == {"running": {"memory": {"daily_dir": "a", "digest_dir": "c"}}}
    assert merged.shadowed == [("running", "reme_light_memory_config", "daily_dir")]


def test_translating_leaves_the_original_alone_and_is_done_once():
    before = repr(THEIRS)
    once = translate(THEIRS)
    assert repr(THEIRS) == before
    again = translate(once.data)
    assert (again.data, again.moved, again.shadowed) == (once.data, [], [])


def test_sections_tell_which_part_changed():
    old = agent(id="a", channels={"telegram": {"enabled": True, "token": "one"}}, heartbeat={"every": "30m"})
    same = agent(
        heartbeat={"every": "30m", "enabled": True}, id="a", channels={"telegram": {"token": "one", "enabled": True}}
    )
    new = agent(id="a", channels={"telegram": {"enabled": True, "token": "two"}}, heartbeat={"every": "30m"}, mine=[1])
    assert old.sections() == same.sections()
    changed = {name for name, value in new.sections().items() if old.sections().get(name) != value}
    assert changed == {"channels", "mine"}
    assert "two" not in repr(new.sections())


def test_secrets_are_not_in_a_repr():
    config = agent(
        channels={"t": {"bot_token": "hush"}}, drivers={"d": {"env": {"A": "hush"}, "headers": {"B": "hush"}}}
    )
    home = HomeConfig.model_validate({"providers": {"o": {"api_key": "hush", "headers": {"Authorization": "hush"}}}})
    assert "hush" not in repr(config) + str(config) + repr(home)


def test_unknown_keys_are_kept():
    raw = {"later": {"a": 1}, "running": {"max_iters": 3, "soon": True}}
    dumped = agent(**raw).model_dump(exclude_unset=True)
    assert dumped == raw
