"""The models of `running.memory`: what an agent remembers, how it searches, where it stores."""

from typing import Literal

from pydantic import Field, SecretStr, field_validator

from qworkspace.config.values import EmbeddingConfig, RelativePath, Seconds, Section


class AutoMemorySearch(Section):
    """Memory is searched before each answer."""

    enabled: bool = Field(default=True, description="Whether it is")
    max_results: int = Field(default=5, ge=1, le=50, description="Passages at most")
    max_tokens: int = Field(default=1_500, ge=50, description="Tokens of all passages together")
    timeout: Seconds = Field(default=0.15, description="A search that takes longer is left out")


class PostgresConfig(Section):
    """Long-term memory in PostgreSQL with pgvector."""

    dsn: SecretStr | None = Field(default=None, description="Connection string; or the parts below")
    host: str = Field(default="", description="Server")
    port: int = Field(default=5432, ge=1, le=65_535, description="Port")
    user: str = Field(default="", description="User")
    password: SecretStr | None = Field(default=None, description='Best written as "${NAME}"')
    dbname: str = Field(default="", description="Database")
    api_mode: str = Field(default="sql", description='Only "sql": a direct connection')
    memory_isolation: bool = Field(default=True, description="true: a name space per agent; false: one for all")
    search_timeout: Seconds = Field(default=10.0, description="A search that takes longer uses the local files alone")
    pool_minconn: int = Field(default=1, ge=0, description="Connections that are kept open")
    pool_maxconn: int = Field(default=5, ge=1, le=100, description="Connections at most")

    @field_validator("api_mode")
    @classmethod
    def _direct_only(cls, mode: str) -> str:
        if mode != "sql":
            raise ValueError(
                'only "sql" is supported, a direct connection: the REST service of AnalyticDB is a different store, and'
                " nothing written to it could be read back here; give host, port, user, password and dbname"
            )
        return mode


class MemoryConfig(Section):
    """Markdown memory: notes, extraction, search."""

    auto_memory_interval: int = Field(default=5, ge=0, description="Facts are extracted every N user turns; 0 never")
    auto_memory_search: AutoMemorySearch = Field(
        default_factory=AutoMemorySearch, description="Memory is searched before each answer"
    )
    summarize_when_compact: bool = Field(
        default=True, description="Facts are extracted before the context is compacted"
    )
    daily_dir: RelativePath = Field(default="memory", description="Directory of the daily notes")
    digest_dir: RelativePath = Field(default="digest", description="Directory of the topic notes made by dream")
    resource_dir: RelativePath = Field(default="resources", description="Documents dropped here are read into memory")
    min_score: float = Field(
        default=0.0, ge=0, le=1, description="Passages below are left out; raising it loses answers"
    )
    fusion: Literal["measured", "rrf"] = Field(default="measured", description='"rrf" is plain reciprocal rank fusion')
    vector_weight: float | None = Field(
        default=None,
        ge=0,
        le=1,
        description="Weight of the vectors; null: 0.7 for a strong embedder, 0.35 for the built-in one",
    )
    vector_store: Literal["builtin", "chroma"] = Field(
        default="builtin", description='"chroma" needs the extra [chroma]'
    )
    chroma_url: str | None = Field(
        default=None, description='A Chroma server, "http://HOST:PORT"; null: files in the home'
    )
    embedding: EmbeddingConfig | None = Field(default=None, description="null: the home's `embedding`")
    allowed_roots: list[str] = Field(
        default_factory=list, description="Directories outside the workspace whose notes memory may read and write"
    )
    postgres: PostgresConfig | None = Field(default=None, description='For `memory_manager_backend` "pgvector"')

    @field_validator("chroma_url")
    @classmethod
    def _web_address(cls, url: str | None) -> str | None:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError('must begin with "http://" or "https://"')
        return url or None

    @field_validator("allowed_roots")
    @classmethod
    def _possible_paths(cls, roots: list[str]) -> list[str]:
        if any("\0" in root for root in roots):
            raise ValueError("a path holds no NUL")
        return roots

    @field_validator("auto_memory_interval", mode="before")
    @classmethod
    def _none_is_never(cls, value: object) -> object:
        return 0 if value is None or (isinstance(value, int) and value < 0) else value
