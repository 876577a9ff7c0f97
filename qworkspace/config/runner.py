"""Which CLI coding agent answers in the daemon's place, and where it runs."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from qworkspace.config.values import ModelRef, Seconds, Section


class RunnerConfig(Section):
    """A runner; a plain text is its name."""

    free_keys: ClassVar[bool] = True
    name: str = Field(min_length=1, description="claude, opencode, codex, command or qcode")
    node: Literal["local", "box"] = Field(default="local", description='"box" runs it in a sandbox')
    command: list[str] = Field(default_factory=list, description="The program of a `command` runner, with arguments")
    timeout: Seconds = Field(default=1_800.0, description="Longest run of one message")
    models: dict[str, ModelRef] = Field(
        default_factory=dict, description="Models by role: default, heavy, light, vision"
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        return {"name": value} if isinstance(value, str) else value
