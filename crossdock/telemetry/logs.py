"""Logging: one JSON object a line, on stderr, so that stdout stays for the ready line."""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping
from typing import Any, Final

import structlog
from structlog.typing import EventDict, WrappedLogger

LEVELS: Final = ("debug", "info", "warning", "error")


def configure_logging(level: str, **fields: str) -> None:
    """Sets structlog up for the process; `fields` (role, instance_id) are in every line."""

    # Not contextvars: gRPC runs its callbacks in contexts of its own.
    def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> Mapping[str, Any]:
        return {**fields, **event}

    number = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            add_fields,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(level=max(number, logging.WARNING), stream=sys.stderr, force=True)
