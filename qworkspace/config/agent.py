"""The models of agent.json: the whole configuration of one agent."""

from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr, field_validator, model_validator

from qworkspace.config.aliases import translate
from qworkspace.config.hiding import sections_of
from qworkspace.config.memory import MemoryConfig
from qworkspace.config.runner import RunnerConfig
from qworkspace.config.values import (
    ActiveHours,
    Cron,
    MarkdownPath,
    ModelRef,
    Seconds,
    Section,
    duration,
    looks_like_cron,
)

Decision = Literal["allow", "ask", "deny"]
IfBusy = Literal["queue", "interrupt", "reject"]


class RetryConfig(Section):
    """What happens when a provider fails before its first token."""

    attempts: int = Field(default=3, ge=1, le=20, description="Tries per model, the first one included")
    base: Seconds = Field(default=1.0, description="Pause before the second try; it doubles from there")
    cap: Seconds = Field(default=30.0, description="Longest pause; a provider's Retry-After may be longer")


class RunningConfig(Section):
    """How turns run."""

    max_iters: int = Field(default=50, ge=1, le=1_000, description="Model calls per turn at most")
    if_busy: IfBusy = Field(
        default="queue",
        description="What a message does that arrives while a turn runs: wait, end all that runs or waits, be refused",
    )
    max_queued_turns: int = Field(default=20, ge=1, le=1_000, description="Waiting turns per session at most")
    max_input_tokens: int | None = Field(default=None, ge=256, description="Smaller window than the model's own")
    compact_at: float = Field(
        default=0.75, gt=0.1, le=0.95, description="Part of the window above which history is summarised"
    )
    keep_recent_turns: int = Field(default=4, ge=1, description="Newest turns that stay verbatim then")
    max_output_tokens: int | None = Field(
        default=None, ge=1, description="Longest answer; null: the provider's own limit"
    )
    temperature: float | None = Field(default=None, ge=0, le=2, description="null: the provider's own")
    model_settings: dict[str, Any] = Field(default_factory=dict, description="Further settings sent with each request")
    retry: RetryConfig = Field(default_factory=RetryConfig, description="When a provider fails")
    tool_timeout: Seconds = Field(default=120.0, description="Longest run of one tool")
    tool_output_chars: int = Field(
        default=16_000, ge=500, description="Of a longer output the model sees head and tail"
    )
    prompt_file_chars: int = Field(
        default=20_000, ge=500, description="Of a longer prompt file the model sees the beginning"
    )
    approval_timeout: Seconds = Field(default=1_800.0, description="An approval without an answer by then means no")
    auto_title: bool = Field(default=False, description="Titles made by a model; false: the first words")
    memory_manager_backend: str = Field(
        default="markdown", min_length=1, description='"markdown", "pgvector" or a plugin\'s'
    )
    memory: MemoryConfig = Field(default_factory=MemoryConfig, description="What is remembered")


class HeartbeatConfig(Section):
    """HEARTBEAT.md is run as a query from time to time."""

    enabled: bool = Field(default=True, description="Whether it is; an empty HEARTBEAT.md costs nothing")
    every: str = Field(default="30m", description='A duration ("30m"; "0m" is off) or a cron expression')
    target: Literal["last", "inbox", "main"] = Field(
        default="last", description="Where a result goes: last used channel, inbox, or nowhere"
    )
    active_hours: ActiveHours | None = Field(
        default_factory=ActiveHours, description="When it may run, in the user's zone; null: always"
    )
    model: ModelRef | None = Field(default=None, description="A cheaper model for it")
    timeout: Seconds = Field(default=600.0, description="Longest run")

    @field_validator("every")
    @classmethod
    def _duration_or_cron(cls, text: str) -> str:
        if not looks_like_cron(text):
            try:
                duration(text)
            except ValueError:
                raise ValueError('must be a duration like "30m" ("0m" is off) or a cron expression') from None
        return text.strip()

    @property
    def interval(self) -> float | None:
        """Seconds between two runs; 0 is off; None when `every` is a cron expression."""
        return None if looks_like_cron(self.every) else float(duration(self.every))

    @property
    def cron(self) -> str | None:
        """The cron expression, when `every` is one."""
        return self.every if looks_like_cron(self.every) else None


class ProactiveConfig(Section):
    """The agent may speak first."""

    enabled: bool = Field(default=False, description="In all sessions; one session opts in with /proactive on")
    idle_minutes: float = Field(default=30.0, ge=0, description="The user has been silent for that long")
    check_every: Seconds = Field(default=30.0, description="Between two looks")
    cooldown: Seconds = Field(default=60.0, description="After each attempt")
    history_days: int = Field(default=7, ge=1, le=90, description="Sessions and notes it reads")
    max_iters: int = Field(default=50, ge=1, le=50, description="Model calls of one attempt at most")
    max_tasks: int = Field(default=3, ge=1, le=10, description="Ideas that are tried until one succeeds")
    screenshot: bool = Field(default=False, description="Whether it may look at the screen, where there is one")
    active_hours: ActiveHours | None = Field(default=None, description="When it may speak; null: the heartbeat's hours")
    model: ModelRef | None = Field(default=None, description="null: the agent's model")


class CronConfig(Section):
    """Scheduled work; the jobs themselves are in jobs.json."""

    enabled: bool = Field(default=True, description="Whether jobs run")
    dream_cron: Cron = Field(default="0 23 * * *", description='When notes are consolidated; "" never')
    max_parallel: int = Field(
        default=4, ge=1, le=64, description="Jobs that run at the same time when the daemon catches up"
    )


class ChannelConfig(Section):
    """A way to reach the agent; further keys are the channel's own."""

    free_keys: ClassVar[bool] = True
    enabled: bool = Field(default=False, description="Whether it is connected")
    type: str = Field(default="", description="Kind of channel; default: its name")


class PolicyRule(Section):
    """The decision for calls whose target matches."""

    pattern: str = Field(
        default="*", min_length=1, description='What the call touches, with * and ?: "src/**", "git *"'
    )
    decision: Decision = Field(description="allow, ask or deny")


class ToolConfig(Section):
    """One tool's switch and policy; further keys are the tool's own."""

    free_keys: ClassVar[bool] = True
    enabled: bool = Field(default=True, description="Whether the agent has it")
    policy: Decision | list[PolicyRule] | None = Field(
        default=None, description="One decision, or rules of which the first that matches holds; null: the tool's own"
    )


class DriverConfig(Section):
    """A tool server (MCP)."""

    free_keys: ClassVar[bool] = True
    enabled: bool = Field(default=True, description="Whether it is connected")
    transport: Literal["stdio", "streamable_http", "sse"] | None = Field(
        default=None, description="null: from what is given"
    )
    command: str = Field(default="", description="The program to start")
    args: list[str] = Field(default_factory=list, description="Its arguments")
    env: dict[str, SecretStr] = Field(default_factory=dict, description="Its environment")
    cwd: str = Field(default="", description="Its directory")
    url: str = Field(default="", description="The server's address")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Further headers")


class SkillsConfig(Section):
    """Which of the skills in skills/ the agent has."""

    enabled: list[str] | None = Field(default=None, description="Only these; null: all")
    disabled: list[str] = Field(default_factory=list, description="Not these")


class SandboxConfig(Section):
    """How the agent's programs are confined."""

    profile: str = Field(default="workspace", min_length=1, description="a built-in profile, or one's own")
    required: bool = Field(default=False, description="true: nothing runs where the profile cannot be enforced")


class SubagentsConfig(Section):
    """Helpers that the agent may start; further keys are definitions and personas."""

    free_keys: ClassVar[bool] = True
    enabled: bool = Field(default=True, description="Whether it may")
    max_active: int = Field(default=4, ge=1, le=64, description="At the same time")
    max_depth: int = Field(default=2, ge=1, le=8, description="Levels of helpers of helpers")


class ModeConfig(Section):
    """A way of working that a session can be in."""

    summary: str = Field(default="", description="One line for /mode")
    prompt: str = Field(default="", description="Added to the system prompt")
    tools: list[str] | None = Field(default=None, description="Only these tools; null: all")


class AgentConfig(Section):
    """agent.json."""

    id: str = Field(default="", description="The agent's id, the same as in config.json")
    name: str = Field(default="", description="What people call it; default: its id")
    description: str = Field(default="", description="One line for lists")
    language: Literal["auto", "en", "zh"] = Field(
        default="auto", description='Of prompts and notices; "auto": as the user writes'
    )
    model: ModelRef | None = Field(default=None, description="null: `default_model` of config.json")
    fallback_models: list[ModelRef] = Field(default_factory=list, description="Tried in order when the model fails")
    system_prompt_files: list[MarkdownPath] = Field(
        default=["SOUL.md", "AGENTS.md", "PROFILE.md", "MEMORY.md"], description="Parts of the system prompt, in order"
    )
    running: RunningConfig = Field(default_factory=RunningConfig, description="How turns run")
    heartbeat: HeartbeatConfig = Field(default_factory=HeartbeatConfig, description="HEARTBEAT.md from time to time")
    proactive: ProactiveConfig = Field(default_factory=ProactiveConfig, description="The agent may speak first")
    cron: CronConfig = Field(default_factory=CronConfig, description="Scheduled work")
    channels: dict[str, ChannelConfig] = Field(default_factory=dict, description="Ways to reach it, by name")
    tools: dict[str, ToolConfig] = Field(default_factory=dict, description="Tools by name")
    drivers: dict[str, DriverConfig] = Field(
        default_factory=dict, description="Tool servers by name, beside the cards in drivers/"
    )
    skills: SkillsConfig = Field(default_factory=SkillsConfig, description="Which skills it has")
    sandbox: SandboxConfig = Field(default_factory=SandboxConfig, description="How its programs are confined")
    runner: RunnerConfig | None = Field(default=None, description="A CLI coding agent that answers in its place")
    subagents: SubagentsConfig = Field(default_factory=SubagentsConfig, description="Helpers it may start")
    modes: dict[str, ModeConfig] = Field(default_factory=dict, description="Ways of working, by name")

    @model_validator(mode="before")
    @classmethod
    def _accept_aliases(cls, value: Any) -> Any:
        return translate(value).data if isinstance(value, dict) else value

    @field_validator("language", mode="before")
    @classmethod
    def _language(cls, value: Any) -> Any:
        """`zh-CN` is `zh`; a language without prompts of its own is answered as the user writes."""
        if not isinstance(value, str):
            return value
        head = value.replace("_", "-").split("-")[0].lower()
        return head if head in ("en", "zh") else "auto"

    @property
    def title(self) -> str:
        """What to call it."""
        return self.name or self.id

    def sections(self) -> dict[str, Any]:
        """Each top-level section as a JSON value, for telling which of them changed; secrets are fingerprints."""
        return sections_of(self)
