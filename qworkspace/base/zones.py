"""The user's time zone: the configured one, else the machine's. Never silently UTC."""

from __future__ import annotations

from datetime import tzinfo
from zoneinfo import ZoneInfo

import tzlocal


def user_zone(name: str | None) -> tzinfo:
    """The zone of that IANA name (validated in the configuration); None: the machine's own."""
    return ZoneInfo(name) if name else tzlocal.get_localzone()


def zone_name(zone: tzinfo) -> str:
    """What to call it: `Europe/Berlin`, or the abbreviation when it has no name."""
    return getattr(zone, "key", None) or str(zone)
