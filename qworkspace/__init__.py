"""qworkspace: a personal-assistant daemon."""

__version__ = "0.1.0"
