"""Logging: one JSON object a line, on stderr, so that stdout stays for the ready line."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal, TextIO, cast

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

LogLevel = Literal["debug", "info", "warning", "error"]


class _StandardError(io.TextIOBase):
    """Each line is one write. One that cannot be written, as on a full disk, is lost: it must not
    end the task that logs, such as the one that restarts engines.
    """

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            os.write(2, text.encode("utf-8", "backslashreplace"))
        return len(text)


def configure_logging(level: LogLevel, **fields: str) -> None:
    """Sets structlog up for the process; `fields` (role, instance_id) are in every line."""

    # Not contextvars: gRPC runs its callbacks in contexts of its own.
    def add_fields(_logger: WrappedLogger, _method: str, event: EventDict) -> Mapping[str, Any]:
        return {**fields, **event}

    before_rendering: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        add_fields,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.format_exc_info,
    ]
    render = structlog.processors.JSONRenderer()
    number = logging.getLevelNamesMapping()[level.upper()]
    stderr = cast(TextIO, _StandardError())
    structlog.configure(
        processors=[*before_rendering, render],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(stderr),
        cache_logger_on_first_use=True,
    )
    # What libraries log is a line like ours.
    handler = logging.StreamHandler(stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before_rendering, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, render],
        )
    )
    logging.basicConfig(level=max(number, logging.WARNING), handlers=[handler], force=True)
