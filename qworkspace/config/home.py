"""The models of config.json: server, providers, references to agents, and what all agents share."""

import re
from typing import Any, ClassVar, Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator, model_validator

from qworkspace.config.hiding import sections_of
from qworkspace.config.runner import RunnerConfig
from qworkspace.config.values import AgentName, EmbeddingConfig, ModelRef, Seconds, Section, ZoneName, is_loopback

ProviderType = Literal["openai", "anthropic", "google", "ollama", "offline"]
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


class ServerConfig(Section):
    """Where the daemon listens and whom it answers. `host` and `port` hold from the next start on."""

    host: str = Field(default="127.0.0.1", min_length=1, description="Address to listen on")
    port: int = Field(default=8420, ge=0, le=65_535, description="Port to listen on; 0 takes a free one")
    allowed_hosts: list[str] = Field(
        default_factory=list, description="Further names that a request's Host may have, beside the loopback's"
    )
    auth: Literal["token", "off"] = Field(default="token", description='"off" is possible on the loopback only')
    max_body_bytes: int = Field(default=10_000_000, ge=1_000, description="Largest request body")
    keep_alive: Seconds = Field(
        default=15.0, description="Silence on an event stream after which a comment line is sent"
    )
    event_backlog: int = Field(
        default=1_000, ge=10, description="Events a slow reader may fall behind before it is cut off"
    )

    @field_validator("auth")
    @classmethod
    def _open_on_loopback_only(cls, auth: str, info: ValidationInfo) -> str:
        host = info.data.get("host", "")
        if auth == "off" and not is_loopback(host):
            raise ValueError(f'"off" is possible on the loopback only, and host is {host!r}')
        return auth


class Price(Section):
    """What a million tokens cost."""

    input: float = Field(default=0.0, ge=0, description="Per million tokens sent")
    output: float = Field(default=0.0, ge=0, description="Per million tokens received")
    currency: str = Field(default="USD", description="ISO code of the currency")


class ModelInfo(Section):
    """What is known of one model; a plain text is its name."""

    name: str = Field(min_length=1, description="The provider's own name of the model")
    context_window: int | None = Field(default=None, ge=256, description="Tokens of prompt and answer; unknown: 128k")
    vision: bool = Field(default=False, description="Whether it understands pictures")
    price: Price | None = Field(default=None, description="For the cost of a turn and for budgets in money")

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value


class TimeoutsConfig(Section):
    """How long a provider may take."""

    connect: Seconds = Field(default=10.0, description="Until the connection stands")
    first_token: Seconds = Field(default=120.0, description="From the request to the first piece of the answer")
    idle: Seconds = Field(default=60.0, description="Between two pieces of the answer")


class ProviderConfig(Section):
    """A place that answers with models."""

    type: str = Field(
        default="openai",
        min_length=1,
        description="openai (any compatible endpoint), anthropic, google, ollama, offline",
    )
    base_url: str | None = Field(default=None, description="The endpoint, when it is not the type's own")
    api_key: SecretStr | None = Field(
        default=None, description='Best written as "${NAME}" (environment, then secrets.json)'
    )
    models: list[ModelInfo] = Field(default_factory=list, description="Models to offer, with what is known of them")
    timeouts: TimeoutsConfig = Field(default_factory=TimeoutsConfig, description="Limits in time")
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="Further headers of each request")

    @field_validator("base_url")
    @classmethod
    def _web_address(cls, url: str | None) -> str | None:
        if url and not _REFERENCE.search(url) and not url.startswith(("http://", "https://")):
            raise ValueError('must begin with "http://" or "https://"')
        return url or None

    def missing_variables(self) -> list[str]:
        """Names of `${NAME}` in it that neither the environment nor secrets.json knows; empty means usable."""
        texts = [self.base_url or "", *(value.get_secret_value() for value in self.headers.values())]
        if self.api_key is not None:
            texts.insert(0, self.api_key.get_secret_value())
        return list(dict.fromkeys(name for text in texts for name in _REFERENCE.findall(text)))

    def model_info(self, name: str) -> ModelInfo:
        """What is known of that model; for an unlisted one only its name."""
        return next((model for model in self.models if model.name == name), None) or ModelInfo(name=name)


class RolesConfig(Section):
    """Models for kinds of work; one that is not set falls back to the agent's model."""

    heavy: ModelRef | None = Field(default=None, description="For hard questions")
    light: ModelRef | None = Field(default=None, description="For background work: extraction, titles, summaries")
    vision: ModelRef | None = Field(default=None, description="For pictures")


class ProfileRef(Section):
    """Where one agent lives and whether it is there."""

    workspace_dir: str = Field(default="", description="Its directory, relative to the home; default workspaces/<id>")
    enabled: bool = Field(default=True, description="A disabled agent refuses new turns and does nothing by itself")
    start: Literal["lazy", "eager"] = Field(default="lazy", description='"eager" starts it with the daemon')


class AgentsConfig(Section):
    """Which agents there are."""

    active_agent: str = Field(default="default", description="The agent of requests that name none")
    profiles: dict[AgentName, ProfileRef] = Field(default_factory=dict, description="Agents by id")


class SpaceConfig(Section):
    """Where one space of layered memory is stored."""

    store: str = Field(default="sqlite", description='"sqlite", or "redis" where several machines share')
    url: SecretStr | None = Field(default=None, description="Address of the Redis server")
    ttl: Seconds = Field(default=0.0, description="Lifetime of an entry; 0 means the space's own default")

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        return {"store": value} if isinstance(value, str) else value


class SpacesConfig(Section):
    """Layered memory."""

    user: SpaceConfig = Field(default_factory=SpaceConfig, description="Never expires")
    team: SpaceConfig = Field(default_factory=SpaceConfig, description="Never expires")
    chat: SpaceConfig = Field(default_factory=SpaceConfig, description="24 hours")
    context: SpaceConfig = Field(default_factory=SpaceConfig, description="30 minutes, one request")


class SandboxProfile(Section):
    """A profile of one's own: what it adds to a built-in one."""

    extends: Literal["workspace", "devbox", "read-only", "strict"] = Field(
        default="workspace", description="A built-in profile"
    )
    read_only: list[str] = Field(default_factory=list, description="Further readable paths")
    read_write: list[str] = Field(default_factory=list, description="Further writable paths")
    deny: list[str] = Field(default_factory=list, description="Paths that stay closed")
    restrict_network: bool = Field(default=False, description="Children get no network")


class SandboxHomeConfig(Section):
    """Sandbox profiles by name."""

    profiles: dict[str, SandboxProfile] = Field(default_factory=dict, description="Profiles by name")


class HubConfig(Section):
    """Memory delivery: the hub that this daemon serves or reads."""

    free_keys: ClassVar[bool] = True
    serve: bool = Field(default=False, description="Serve /api/hub from this daemon")
    url: str | None = Field(default=None, description="The hub to read from")
    token: SecretStr | None = Field(default=None, description="What opens that hub")
    workspace_id: str | None = Field(default=None, description="The hub's workspace of this node")


class Budget(Section):
    """A hard limit; what reaches it pauses and asks."""

    tokens_per_day: int | None = Field(default=None, ge=0, description="Tokens sent and received per local day")
    tokens_per_month: int | None = Field(default=None, ge=0, description="Tokens per calendar month")
    cost_per_day: float | None = Field(default=None, ge=0, description="Money per local day, in the prices' currency")
    cost_per_month: float | None = Field(default=None, ge=0, description="Money per calendar month")


class AgentBudgets(Budget):
    """The limits of one agent, as a whole and by source."""

    sources: dict[str, Budget] = Field(
        default_factory=dict, description="Limits by source: chat, heartbeat, jobs, dream, proactive, subagents"
    )


class BudgetsConfig(AgentBudgets):
    """Limits of all agents together, by source, and by agent."""

    agents: dict[str, AgentBudgets] = Field(default_factory=dict, description="Limits by agent id")


class RetentionConfig(Section):
    """How long things are kept; null keeps them for good."""

    sessions_days: int | None = Field(default=None, ge=1, description="Conversations")
    ledger_days: int | None = Field(default=90, ge=1, description="Records of runs")
    tool_outputs_days: int | None = Field(default=30, ge=1, description="Whole outputs of tools")
    traces_days: int | None = Field(default=14, ge=1, description="What went into a turn")
    log_bytes: int = Field(default=10_000_000, ge=10_000, description="Size at which the log is rotated")
    log_files: int = Field(default=5, ge=1, le=100, description="Rotated logs that are kept")
    backups: int = Field(default=10, ge=1, description="Backups of migrations and dreams")


class LifecycleConfig(Section):
    """When agents come and go."""

    idle_unload: Seconds = Field(default=1_800.0, description="An idle agent is unloaded after that time; 0 never")
    parallel_starts: int = Field(default=4, ge=1, le=64, description="Agents that start at the same time")
    shutdown_grace: Seconds = Field(default=10.0, description="What running turns get when the daemon ends")
    drain_notice: Seconds = Field(default=60.0, description="After that time a replaced instance is shown as draining")
    drain_limit: Seconds = Field(default=86_400.0, description="After that time its turns are ended")
    max_retired: int = Field(default=4, ge=1, le=16, description="Replaced instances that may still have turns")


class WatchConfig(Section):
    """How edits are noticed."""

    mode: Literal["auto", "events", "poll"] = Field(
        default="auto", description='"auto" polls where there are no events'
    )
    debounce: Seconds = Field(default=0.3, description="Quiet time after an edit before it is applied")
    poll_interval: Seconds = Field(default=2.0, description="Between two looks when polling")


class PluginConfig(Section):
    """A plugin's switch and its own settings."""

    free_keys: ClassVar[bool] = True
    enabled: bool = Field(default=True, description="Whether it is loaded")


class HomeConfig(Section):
    """config.json."""

    server: ServerConfig = Field(default_factory=ServerConfig, description="Where the daemon listens")
    user_timezone: ZoneName | None = Field(default=None, description="IANA zone of the user; null: the system's")
    providers: dict[str, ProviderConfig] = Field(default_factory=dict, description="Model providers by name")
    default_model: ModelRef | None = Field(default=None, description="The model of agents that name none")
    roles: RolesConfig = Field(default_factory=RolesConfig, description="Models for kinds of work")
    embedding: EmbeddingConfig = Field(default_factory=EmbeddingConfig, description="What turns text into vectors")
    agents: AgentsConfig = Field(default_factory=AgentsConfig, description="Which agents there are")
    runner: RunnerConfig | None = Field(default=None, description="The CLI coding agent of agents that name none")
    spaces: SpacesConfig = Field(default_factory=SpacesConfig, description="Layered memory")
    sandbox: SandboxHomeConfig = Field(default_factory=SandboxHomeConfig, description="Sandbox profiles")
    hub: HubConfig = Field(default_factory=HubConfig, description="Memory delivery")
    budgets: BudgetsConfig = Field(default_factory=BudgetsConfig, description="Hard limits")
    retention: RetentionConfig = Field(default_factory=RetentionConfig, description="How long things are kept")
    lifecycle: LifecycleConfig = Field(default_factory=LifecycleConfig, description="When agents come and go")
    watch: WatchConfig = Field(default_factory=WatchConfig, description="How edits are noticed")
    plugins: dict[str, PluginConfig] = Field(default_factory=dict, description="Plugins by id")

    def sections(self) -> dict[str, Any]:
        """Each top-level section as a JSON value, for telling which of them changed; secrets are fingerprints."""
        return sections_of(self)
