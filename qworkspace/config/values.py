"""The small values that configuration is made of: durations, times of day, cron expressions, names of files, models.

The modules with models have real annotations: text ones are compiled one by one when pydantic reads them, which took
a third of the import.
"""

import difflib
import ipaddress
import re
from collections.abc import Iterator
from typing import Annotated, Any, ClassVar, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, model_validator

from qworkspace.base.ids import agent_id
from qworkspace.config.hiding import mask
from qworkspace.errors import InvalidInput

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?\Z")
_UNITS = (86_400.0, 3_600.0, 60.0, 1.0, 0.001)
_TIME = re.compile(r"([01]\d|2[0-3]):([0-5]\d)\Z")
_CRON_FIELD = re.compile(r"[0-9A-Za-z*?,/\-]+\Z")


class Section(BaseModel):
    """A part of a configuration file: frozen, and it keeps keys that it does not know.

    `free_keys` marks a part whose further keys belong to somebody else (a channel, a plugin): they are no mistake.
    """

    model_config = ConfigDict(frozen=True, extra="allow", defer_build=True, hide_input_in_errors=True)
    free_keys: ClassVar[bool] = False

    def __repr_args__(self) -> Iterator[tuple[str | None, Any]]:
        """What looks like a secret is masked, wherever the section is printed."""
        for name, value in super().__repr_args__():
            yield name, mask(value, name or "")


def duration(value: Any) -> Any:
    """Seconds of "30m", "1h30m", "45s", "250ms", "2d", "0", or of a number of seconds."""
    if not isinstance(value, str):
        return value
    text = value.replace(" ", "").lower()
    if text.isdigit():
        return float(text)
    match = _DURATION.match(text)
    if not text or match is None:
        raise ValueError('must be a duration like "30m", "1h30m", "45s" or "0m"')
    return sum(int(number) * unit for number, unit in zip(match.groups(), _UNITS, strict=True) if number)


Seconds = Annotated[
    float,
    Field(ge=0, le=366 * 86_400),
    BeforeValidator(duration),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string", "pattern": r"^(\d+d)?(\d+h)?(\d+m)?(\d+s)?(\d+ms)?$"}, {"type": "number"}],
            "format": "duration",
        }
    ),
]
"""A duration in seconds; written as "30m", "1h30m", "45s" or a number of seconds."""


def minutes_of_day(text: str) -> int:
    """Minutes since midnight of "HH:MM"; "24:00" is the end of the day."""
    if text == "24:00":
        return 1440
    match = _TIME.match(text)
    if match is None:
        raise ValueError('must be a time of day like "08:00"')
    return int(match[1]) * 60 + int(match[2])


def _time_of_day(text: str) -> str:
    minutes_of_day(text)
    return text


TimeOfDay = Annotated[str, AfterValidator(_time_of_day), WithJsonSchema({"type": "string", "pattern": r"^\d\d:\d\d$"})]


def looks_like_cron(text: str) -> bool:
    """Whether `text` has the form of a cron expression: three to five fields of its characters."""
    fields = text.split()
    return 3 <= len(fields) <= 5 and all(_CRON_FIELD.match(field) for field in fields)


def _cron(text: str) -> str:
    if text.strip() and not looks_like_cron(text):
        raise ValueError('must be a cron expression of three to five fields like "0 23 * * *", or "" for never')
    return text.strip()


Cron = Annotated[str, AfterValidator(_cron)]
"""A cron expression; the empty one never fires."""


def _relative_name(text: str) -> str:
    parts = text.split("/")
    if not text or "\\" in text or ":" in text or any(part in ("", ".", "..") for part in parts):
        raise ValueError("must be a relative path inside the workspace, with '/' and without '..'")
    if any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise ValueError("must not contain control characters")
    return text


def _markdown_name(text: str) -> str:
    if not _relative_name(text).lower().endswith(".md"):
        raise ValueError("must name a markdown file (.md)")
    return text


RelativePath = Annotated[str, AfterValidator(_relative_name)]
MarkdownPath = Annotated[str, AfterValidator(_markdown_name)]


def _agent_name(text: str) -> str:
    try:
        return agent_id(text)
    except InvalidInput as error:
        raise ValueError(error.message) from error


AgentName = Annotated[str, AfterValidator(_agent_name)]


def zone_name(text: str) -> str:
    """The IANA name of a time zone, whatever the case it is written in."""
    try:
        return ZoneInfo(text).key
    except (ZoneInfoNotFoundError, ValueError, OSError):
        known = {name.lower(): name for name in available_timezones()}
    if text.lower() in known:
        return known[text.lower()]
    near = difflib.get_close_matches(text.lower(), known, n=1)
    raise ValueError(
        f"must be an IANA time zone like {known[near[0]]!r}"
        if near
        else 'must be an IANA time zone like "Europe/Berlin"'
    )


ZoneName = Annotated[str, AfterValidator(zone_name)]


def is_loopback(host: str) -> bool:
    """Whether a server bound to `host` can be reached from this machine only."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class ModelRef(BaseModel):
    """A model of a configured provider, written {"provider": …, "name": …} or "provider/name"."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True, hide_input_in_errors=True)

    provider: str = Field(min_length=1, description="Name of an entry of `providers`")
    name: str = Field(min_length=1, description="The provider's own name of the model")

    @classmethod
    def parse(cls, text: str) -> Self:
        """The model named `provider/name`; the name may contain further slashes."""
        return cls.model_validate(text)

    @model_validator(mode="before")
    @classmethod
    def _accept_text(cls, value: Any) -> Any:
        if isinstance(value, str):
            provider, slash, name = value.partition("/")
            if not (provider and slash and name):
                raise ValueError('must be "provider/name"')
            return {"provider": provider, "name": name}
        if isinstance(value, dict) and "provider_id" in value:
            return {"provider": value["provider_id"], "name": value.get("model", "")}
        return value

    def __str__(self) -> str:
        return f"{self.provider}/{self.name}"


class ActiveHours(Section):
    """A daily window in the user's zone: the start counts, the end does not; it may cross midnight."""

    start: TimeOfDay = Field(default="08:00", description="Begin, HH:MM")
    end: TimeOfDay = Field(default="22:00", description="End, HH:MM; earlier than the start means the next day")

    @model_validator(mode="after")
    def _not_empty(self) -> Self:
        if minutes_of_day(self.start) % 1440 == minutes_of_day(self.end) % 1440 and self.end != "24:00":
            raise ValueError("start and end are the same; leave active_hours null for the whole day")
        return self

    def contains(self, minute: int) -> bool:
        """Whether the window holds that minute of the local day (0-1439)."""
        start, end = minutes_of_day(self.start), minutes_of_day(self.end)
        return start <= minute < end if start < end else minute >= start or minute < end


class EmbeddingConfig(Section):
    """What turns text into vectors."""

    provider: str = Field(
        default="builtin", description='"builtin" (no download, no key), a name of `providers`, or "none"'
    )
    name: str | None = Field(default=None, description="The provider's embedding model")
    dimensions: int | None = Field(
        default=None, ge=1, le=65_536, description="Length of the vectors, when the model can choose"
    )
    batch_size: int = Field(default=32, ge=1, le=2_048, description="Texts per request")
