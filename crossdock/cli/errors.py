"""What the command line reports as one line and a non-zero exit."""

from __future__ import annotations


class CliError(Exception):
    """Something the user can act on: what happened, and what to do about it."""


class FleetError(CliError):
    """A fleet could not be started, found or stopped."""
