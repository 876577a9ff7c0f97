"""`current_time`: the moment, in the user's zone or any other."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from qworkspace.base.zones import user_zone, zone_name
from qworkspace.chat.tools.output import answers
from qworkspace.errors import InvalidInput
from qworkspace.plugins.extensions import Tool, ToolContext, ToolOutput

Zone = Callable[[], str | None]


class CurrentTime(BaseModel):
    model_config = ConfigDict(extra="forbid", defer_build=True)

    timezone: Annotated[str | None, Field(max_length=64, description='IANA name, e.g. "Europe/Berlin"')] = None


def current_time(zone: Zone) -> Tool:
    """The tool; `zone()` names the user's zone, None stands for the system's."""

    @answers
    async def run(context: ToolContext, args: CurrentTime) -> ToolOutput:
        name = args.timezone or zone()
        # a zone is read from disk when it is first used
        return ToolOutput(await asyncio.to_thread(told, context.clock.now(), name))

    return Tool(
        name="current_time",
        description="The present date, time and weekday, in the user's time zone unless another one is named.",
        args=CurrentTime,
        run=run,
        effect="read",
        target=lambda args: args.timezone or "",
    )


def told(now: datetime, name: str | None) -> str:
    """`now` in that zone (None: the system's): ISO 8601 with offset, weekday, zone, and the same moment in UTC."""
    try:
        zone = user_zone(name)
    except (KeyError, ValueError, OSError):  # not found; not a name; a directory
        raise InvalidInput(f"no time zone {name!r}; use an IANA name such as 'Europe/Berlin' or 'UTC'") from None
    local = now.astimezone(zone)
    utc = f"{now.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    return f"{local.isoformat(timespec='seconds')} ({local:%A}, week {local:%V}, {zone_name(zone)}); UTC {utc}"
